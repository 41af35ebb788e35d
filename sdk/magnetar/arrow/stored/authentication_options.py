"""Credentials of a query: option `authentication`, and the plugins of Pulsar's clients.

    none   tls   token:TOKEN   token:file:PATH   basic:USER:PASSWORD   oauth2

With `oauth2` each process, driver or executor, gets tokens of its own from the issuer, by the
client credentials in a file. No token or client secret is ever part of a plan, and a query may run
longer than a token lives.

No error shows a value: it may be a secret.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from magnetar.arrow.stored.errors import OptionError
from magnetar.sdk.authentication import REFUSED_AGE_MIN_S, OAuth2ClientCredentials
from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError
from magnetar.sdk.ports import Clock, SystemClock

OAUTH2 = "oauth2"
_FORMS = "it is none, tls, token:TOKEN, token:file:PATH, basic:USER:PASSWORD or oauth2"
_RENEW_EARLY = 0.1
"""Remaining part of a token's life at which it is renewed."""
_ASSUMED_LIFE_S = 60.0
"""Assumed life of a token, in seconds, if the issuer does not give it."""
_ISSUERS_MAX = 16
"""Most issuers whose tokens one process keeps."""

_PLUGIN, _PARAMS = "authpluginclassname", "authparams"
_CLIENT, _ADMIN = "pulsar.client.", "pulsar.admin."
PLUGIN_NAMES = frozenset(side + name for side in (_CLIENT, _ADMIN) for name in (_PLUGIN, _PARAMS))
"""Options of Pulsar's connector, in lower case, that `of_plugins` takes."""


@dataclass(frozen=True, slots=True)
class OAuth2Options:
    """Options of the issuer of OAuth2 tokens."""

    issuer_url: str
    credentials_file: str
    """Path of JSON with `client_id` and `client_secret`, on driver and executors."""
    audience: str = ""
    scope: str = ""


def auth_of(authentication: str) -> tuple[str, bytes]:
    """Return method and data of an option `authentication`; the data of `oauth2` come from
    `IssuerTokens`.

    Raises:
        OptionError: the form is unknown, or the token file cannot be read.
    """
    method, _, rest = authentication.partition(":")
    if method in ("none", "tls") and not rest:
        return method, b""
    if method == OAUTH2 and not rest:
        return "token", b""
    if method == "token" and rest.startswith("file:"):
        try:
            return method, Path(rest.removeprefix("file:")).read_bytes().strip()
        except OSError as error:
            raise OptionError("authentication", f"no token: {error}") from None
    if method == "token" and rest:
        return method, rest.encode()
    if method == "basic" and ":" in rest:
        return method, rest.encode()
    raise OptionError("authentication", _FORMS)


def check_oauth2(options: OAuth2Options) -> None:
    """Check the options of `oauth2`.

    Raises:
        OptionError: one is missing, or has a form that is not allowed.
    """
    if urlsplit(options.issuer_url).scheme not in ("http", "https"):
        raise OptionError(
            "oauth2IssuerUrl",
            "authentication oauth2 requires it: the http or https URL of the issuer, below which "
            "/.well-known/openid-configuration is",
        )
    if not options.credentials_file:
        raise OptionError(
            "oauth2CredentialsFile",
            "authentication oauth2 requires it: path of a JSON file with client_id and "
            "client_secret, on the driver and the executors",
        )


class IssuerTokens:
    """Tokens of an OAuth2 issuer for one process. Blocks while the issuer is asked. Thread-safe.

    It is pickled as its options. Another process gets tokens of its own, which all instances
    unpickled there share.
    """

    method_name = "token"

    def __init__(self, options: OAuth2Options, *, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._token = b""
        self._fetched_s = self._good_until_s = 0.0

    def __repr__(self) -> str:
        return f"<IssuerTokens of {self._options.issuer_url}>"

    def __reduce__(self) -> tuple[Callable[[OAuth2Options], "IssuerTokens"], tuple[OAuth2Options]]:
        return _tokens_of_process, (self._options,)

    def __call__(self) -> bytes:
        """Return the current token.

        Raises:
            IssuerUnavailableError: the issuer does not answer.
            CredentialsError: the issuer gives no token for these credentials.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if not self._token or now_s >= self._good_until_s:
                token, lives_s = self._credentials().fetch()
                self._token, self._fetched_s = token.encode(), now_s
                self._good_until_s = now_s + (1 - _RENEW_EARLY) * (lives_s or _ASSUMED_LIFE_S)
            return self._token

    async def data(self) -> bytes:
        """Return the current token: see `magnetar.sdk.authentication.Authentication`."""
        return await asyncio.to_thread(self)

    def on_refused(self) -> None:
        """Discard the token, unless it is so young that a new one would be refused as well."""
        self.renew()

    def renew(self) -> bool:
        """Discard a token that was refused. Return whether a new one may be accepted."""
        with self._lock:
            age_s = self._clock.monotonic_s() - self._fetched_s
            if not self._token or age_s < REFUSED_AGE_MIN_S:
                return False
            self._token = b""
            return True

    def _credentials(self) -> OAuth2ClientCredentials:
        """Read the credentials file again: secrets are rotated."""
        options, path = self._options, self._options.credentials_file
        try:
            found = json.loads(Path(path).read_text())
            return OAuth2ClientCredentials(
                options.issuer_url,
                client_id=_text(found, "client_id"),
                client_secret=_text(found, "client_secret"),
                audience=options.audience,
                scope=options.scope,
            )
        except OSError as error:
            # A file that existed before is being replaced; one that never existed is a mistake.
            kind = IssuerUnavailableError if self._fetched_s else CredentialsError
            raise kind(f"oauth2CredentialsFile: {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError):
            # Not `from error`: an error of JSON shows a part of the file.
            raise CredentialsError(
                f"oauth2CredentialsFile: {path} is not JSON with the texts client_id and "
                f"client_secret"
            ) from None


@lru_cache(maxsize=_ISSUERS_MAX)
def _tokens_of_process(options: OAuth2Options) -> IssuerTokens:
    return IssuerTokens(options)


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found[name]
    if not isinstance(value, str) or not value:
        raise ValueError(name)
    return value


def of_plugins(given: Mapping[str, str]) -> dict[str, str]:
    """Translate the plugin and its parameters from Pulsar's connector into options of this source.

    Args:
        given: those among `PLUGIN_NAMES`.

    Raises:
        OptionError: the plugin has no equivalent, or is for the admin interface alone.
    """
    if not given:
        return {}
    for name in (_PLUGIN, _PARAMS):
        of_admin, of_client = given.get(_ADMIN + name), given.get(_CLIENT + name)
        if of_admin is not None and of_admin != of_client:
            raise OptionError(
                _ADMIN + name,
                f"it differs from {_CLIENT + name}: both interfaces get the same credentials here",
            )
    plugin = given.get(_CLIENT + _PLUGIN, "").strip().rpartition(".")[2]
    params = given.get(_CLIENT + _PARAMS, "").strip()
    read = _PLUGINS.get(plugin)
    if read is None:
        known = ", ".join(_PLUGINS)
        raise OptionError(_CLIENT + _PLUGIN, f"the plugin is one of {known}")
    try:
        return read(params)
    except (ValueError, TypeError, KeyError):
        raise OptionError(
            _CLIENT + _PARAMS,
            f"these are no parameters of {plugin}; the options here are authentication and, with "
            "oauth2, oauth2IssuerUrl, oauth2CredentialsFile, oauth2Audience and oauth2Scope",
        ) from None


def _of_token(params: str) -> dict[str, str]:
    if params.startswith("{"):
        params = str(json.loads(params)["token"])
    if params.startswith("file:"):
        return {"authentication": f"token:file:{_path(params)}"}
    token = params.removeprefix("token:")
    if not token:
        raise ValueError("no token")
    return {"authentication": f"token:{token}"}


def _of_basic(params: str) -> dict[str, str]:
    found = json.loads(params)
    return {"authentication": f"basic:{_text(found, 'userId')}:{_text(found, 'password')}"}


def _of_tls(params: str) -> dict[str, str]:
    """Read parameters in JSON, or as pairs of name and value."""
    if params.startswith("{"):
        found = json.loads(params)
    else:
        found = dict(pair.split(":", 1) for pair in params.split(",")) if params else {}
    names = {"tlsCertFile": "tlsCertificateFile", "tlsKeyFile": "tlsKeyFile"}
    files = {ours: _path(str(found[theirs])) for theirs, ours in names.items() if theirs in found}
    return {"authentication": "tls", **files}


def _of_oauth2(params: str) -> dict[str, str]:
    found = json.loads(params)
    key = _text(found, "privateKey")
    if key.startswith("data:"):
        raise OptionError(
            "oauth2CredentialsFile",
            "privateKey holds the credentials themselves; name a file of theirs, so that they are "
            "in no plan",
        )
    more = {"audience": "oauth2Audience", "scope": "oauth2Scope"}
    return {
        "authentication": OAUTH2,
        "oauth2IssuerUrl": _text(found, "issuerUrl"),
        "oauth2CredentialsFile": _path(key),
        **{ours: str(found[theirs]) for theirs, ours in more.items() if found.get(theirs)},
    }


def _path(place: str) -> str:
    """Return the path in `file:///path`, `file:/path` or a plain path."""
    path = urlsplit(place).path if place.startswith("file:") else place
    if not path:
        raise ValueError("no path")
    return path


_PLUGINS = {
    "AuthenticationToken": _of_token,
    "AuthenticationBasic": _of_basic,
    "AuthenticationTls": _of_tls,
    "AuthenticationOAuth2": _of_oauth2,
}
"""Parsers of parameters, by the last part of the plugin's name in Java."""
