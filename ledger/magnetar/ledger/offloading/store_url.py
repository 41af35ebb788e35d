"""URLs of object stores. Pure.

- `file:///srv/objects`: a directory.
- `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`: keys begin below the prefix,
  which may be left out.
- `memory://`: the memory of this process, for tests.

A URL holds no credentials: stores take those from the environment (tiered storage, rule 12.1).
Errors do not repeat a URL, because it may contain a secret all the same.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from magnetar.ledger.errors import ObjectStoreConfigError

PREFIX_BYTES_MAX = 100

_FORMS = (
    "the url of an object store is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
    "file:///directory or memory://"
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PART_OF_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_OF_BUCKETS = ("s3", "gs", "az")


class StoreUrl(NamedTuple):
    """The parts of a URL."""

    scheme: str
    bucket: str
    """Bucket or container; empty for file and memory."""
    path: str
    """Prefix of the keys, without a slash at either end; for file: the absolute directory."""

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        return f"{self.scheme}://{self.bucket}{'/' if self.path else ''}{self.path}"


def parse_store_url(text: str) -> StoreUrl:
    """Split the URL of an object store.

    Raises:
        ObjectStoreConfigError
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ObjectStoreConfigError(f"{_FORMS}; this one cannot be read") from None
    if "@" in text or parts.query or parts.fragment:
        raise ObjectStoreConfigError(
            f"{_FORMS}, without credentials and options: credentials come from the environment"
        )
    if parts.scheme in _OF_BUCKETS:
        return _url_of_bucket(parts.scheme, parts.netloc, parts.path)
    if parts.scheme == "memory" and not parts.netloc and not parts.path:
        return StoreUrl("memory", "", "")
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return StoreUrl("file", "", unquote(parts.path))
    raise ObjectStoreConfigError(_FORMS)


def _url_of_bucket(scheme: str, bucket: str, path: str) -> StoreUrl:
    if not _BUCKET.fullmatch(bucket):
        raise ObjectStoreConfigError(
            f"{_FORMS}; the name of a bucket has 3 to 222 characters of a-z, 0-9, dot, hyphen and "
            "underscore"
        )
    prefix = path.removeprefix("/").removesuffix("/")
    if len(prefix) > PREFIX_BYTES_MAX or not all(
        _PART_OF_PREFIX.fullmatch(part) for part in prefix.split("/") if prefix
    ):
        raise ObjectStoreConfigError(
            f"{_FORMS}; a prefix has at most {PREFIX_BYTES_MAX} characters of a-z, A-Z, 0-9, dot, "
            "hyphen and underscore, in parts between single slashes"
        )
    return StoreUrl(scheme, bucket, prefix)
