"""Options of queries that read topics from object stores alone, with no server running. Pure.

`objects` is the URL of a store, or a list of stores as in the brokers' setting `object_stores`.
Credentials are not among the options: driver and executors take them from their environment.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.options import CONNECTION_NAMES, OptionReader, shown

NAMES = (
    "objects",
    "objectsPrefix",
    "objectsInstance",
    "objectsEndpoint",
    "objectsRegion",
    "objectsPathStyle",
    "objectsAllowHttp",
)

_ANY = "objects"
"""Name of a store that is given by its URL: it matches every name that brokers use."""

_OF_SERVERS = (
    *CONNECTION_NAMES,
    "metadata.url",
    "readMode",
    "bookieTimeoutMs",
    "bookieTlsTrustCertsFile",
    "bookieTlsCertificateFile",
    "bookieTlsKeyFile",
    "bookieTlsHostnameVerification",
    "bookieSharedSecretFile",
)
_OF_URL = ("objectsEndpoint", "objectsRegion", "objectsPathStyle", "objectsAllowHttp")
_OPTION_OF = {"url": "objects", "endpoint": "objectsEndpoint", "region": "objectsRegion"}

_FORMS = "it is the URL of a store, or a JSON list as the brokers' setting object_stores"


@dataclass(frozen=True)
class ObjectOptions:
    """The object stores of a query, and the part of them that it reads."""

    stores: Mapping[str, str]
    """`ObjectStoreSettings` as JSON, by the names of the stores."""
    has_names: bool
    """Whether these are the brokers' names; otherwise there is one store, for any name."""
    prefix: str = ""
    """`object_prefix` of the brokers."""
    instance: str = ""
    """Instance id of the cluster; empty if there is only one."""
    urls: Mapping[str, str] = field(default_factory=dict)
    """URLs of the stores, by name, for errors. They contain no secrets."""

    def find(self, name: str) -> str | None:
        """Return the settings of the store with this name at the brokers; None if the options do
        not give it."""
        return self.stores.get(name if self.has_names else _ANY)

    @property
    def shown(self) -> str:
        """URLs of the stores, for messages to the user."""
        return ", ".join(self.urls.values())


def read_object_options(read: OptionReader) -> ObjectOptions | None:
    """Read the options about objects; return None if the query asks servers.

    Raises:
        OptionError: with one line that names the option and what is allowed.
    """
    if not read.is_given("objects"):
        for name in NAMES:
            if read.is_given(name):
                raise OptionError(name, "it is for queries with option objects only")
        return None
    for name in _OF_SERVERS:
        if read.is_given(name):
            raise OptionError(
                name, "it cannot be given together with objects: such a query asks no server"
            )
    text = read.text("objects")
    has_names = text.startswith("[")
    stores = _named_stores(read, text) if has_names else {_ANY: _store(read, text)}
    prefix = read.text("objectsPrefix", "")
    if prefix and not _is_prefix(prefix):
        raise OptionError(
            "objectsPrefix",
            f"{shown(prefix)} is not allowed; it is the brokers' object_prefix, which ends with a "
            "slash",
        )
    instance = read.text("objectsInstance", "")
    if instance and not _is_prefix(f"{instance}/"):
        raise OptionError("objectsInstance", f"{shown(instance)} is no instance id of a cluster")
    settings = {name: each.model_dump_json(exclude_defaults=True) for name, each in stores.items()}
    urls = {name: each.url for name, each in stores.items()}
    return ObjectOptions(settings, has_names, prefix, instance, urls)


def _store(read: OptionReader, url: str) -> Any:
    return _settings(
        {
            "name": _ANY,
            "url": url,
            "endpoint": read.text("objectsEndpoint", ""),
            "region": read.text("objectsRegion", ""),
            "path_style": read.flag("objectsPathStyle", True),
            "allow_http": read.flag("objectsAllowHttp", False),
        }
    )


def _named_stores(read: OptionReader, text: str) -> dict[str, Any]:
    for name in _OF_URL:
        if read.is_given(name):
            raise OptionError(name, "it belongs into the list that objects is")
    # The value is never shown: it may be a secret in the wrong place.
    try:
        given = json.loads(text)
    except ValueError:
        raise OptionError("objects", f"it is no JSON; {_FORMS}") from None
    if not isinstance(given, list) or not given:
        raise OptionError("objects", f"it names no store; {_FORMS}")
    stores = [_settings(each, is_in_list=True) for each in given]
    found = {each.name: each for each in stores}
    if len(found) < len(stores):
        raise OptionError("objects", "two stores have one name")
    return found


def _settings(given: Any, *, is_in_list: bool = False) -> Any:
    """Return validated `ObjectStoreSettings`.

    Raises:
        OptionError
    """
    # Imported here: executors get the options of a query, and need none of this.
    from pydantic import ValidationError

    from magnetar.ledger.offloading.settings import ObjectStoreSettings

    try:
        return ObjectStoreSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = [str(each) for each in first["loc"]]
        problem = str(first["msg"]).removeprefix("Value error, ")
        if is_in_list:
            raise OptionError("objects", ": ".join([*place, problem])) from None
        raise OptionError(_OPTION_OF.get("".join(place), "objects"), problem) from None


def _is_prefix(prefix: str) -> bool:
    from magnetar.ledger.offloading.object_store import is_key

    return prefix.endswith("/") and is_key(f"{prefix}x")
