"""Keys of ledgers' objects, which contain log, ledger and attempt. Pure.

    <prefix>/<instance id>/ledgers/<2 hex digits>/<log>/<ledger id, 20 digits>-<attempt>.mgo

The instance id keeps clusters apart that share a bucket; the two digits, of a hash of the log's
path, spread the keys over the partitions of the store. `<log>` is the path with its slashes quoted;
a long path is cut to its beginning and a hash.

Source: tiered storage, section 15.
"""

import hashlib
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from magnetar.ledger.managed_log.log_objects import ObjectBase

LOG_NAME_CHARS_MAX = 200
"""Most characters of the log's part of a key: file names have at most 255 bytes."""

_HASH_DIGITS = 32
_CUT = "="
"""Mark before the hash of a name that was cut. A quoted name never contains it."""

_KEY = re.compile(
    r"(?P<directory>.*/ledgers/[0-9a-f]{2}/(?P<log>[^/]+)/)"
    r"(?P<ledger>[0-9]{20})-(?P<attempt>[0-9a-f]{32})\.mgo"
)


class ObjectKey(NamedTuple):
    """The parts of an object's key."""

    directory: str
    """Common beginning of all keys of one log."""
    log: str | None
    """Path of the log; None if it was cut: read the object for it."""
    ledger_id: int
    attempt: str


def ledgers_prefix(prefix: str, instance_id: str) -> str:
    """Return the common beginning of the keys of all ledgers of a cluster.

    Args:
        prefix: of all keys of Magnetar in the store; empty, or with a slash at its end.
    """
    return f"{prefix}{instance_id}/ledgers/"


def object_base(store: str, prefix: str, instance_id: str, log: str) -> ObjectBase:
    """Return the place for new objects of a log."""
    spread = hashlib.sha256(log.encode()).hexdigest()[:2]
    return ObjectBase(store, f"{ledgers_prefix(prefix, instance_id)}{spread}/{name_in_key(log)}/")


def name_in_key(name: str) -> str:
    """Return a name as one part of a key: quoted, and if that is too long, its beginning and a
    hash."""
    quoted = quote(name, safe="").replace("~", "%7E")  # no key of an object may have a tilde
    if len(quoted) <= LOG_NAME_CHARS_MAX:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()
    kept = LOG_NAME_CHARS_MAX - _HASH_DIGITS - len(_CUT)
    return f"{quoted[:kept]}{_CUT}{digest[:_HASH_DIGITS]}"


def name_of_key(part: str) -> str | None:
    """Return the name from which `name_in_key` made a part of a key; None if it was cut."""
    return None if _CUT in part else unquote(part)


def parse_key(key: str) -> ObjectKey | None:
    """Return the parts of a key; None if it is no key of a ledger's object."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    return ObjectKey(
        found["directory"], name_of_key(found["log"]), int(found["ledger"]), found["attempt"]
    )
