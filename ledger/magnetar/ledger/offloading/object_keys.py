"""Keys of ledgers' objects: which log, ledger and attempt each belongs to. Pure.

    <prefix>/<instance id>/ledgers/<2 hex digits>/<log>/<ledger id, 20 digits>-<attempt>.mgo

The instance id keeps clusters apart that share a bucket; the two digits, of a hash of the log's
path, spread the keys over the partitions of the store. `<log>` is the path with its slashes quoted;
of a long one, its beginning and a hash.

Source: tiered storage, section 15.
"""

import hashlib
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from magnetar.ledger.managed_log.log_objects import ObjectBase

LOG_NAME_CHARS_MAX = 200
"""Of the part of a key that stands for the log: directories end names at 255 bytes."""

_HASH_DIGITS = 32
_CUT = "="
"""Stands before the hash of a name that was cut. In a quoted name it stands nowhere."""

_KEY = re.compile(
    r"(?P<directory>.*/ledgers/[0-9a-f]{2}/(?P<log>[^/]+)/)"
    r"(?P<ledger>[0-9]{20})-(?P<attempt>[0-9a-f]{32})\.mgo"
)


class ObjectKey(NamedTuple):
    """What a key says."""

    directory: str
    """All keys of one log begin so."""
    log: str | None
    """Path of the log; None: it was cut, ask the object."""
    ledger_id: int
    attempt: str


def ledgers_prefix(prefix: str, instance_id: str) -> str:
    """What the keys of all ledgers of a cluster begin with.

    Args:
        prefix: of all that is ours in the store; empty, or with a slash at its end.
    """
    return f"{prefix}{instance_id}/ledgers/"


def object_base(store: str, prefix: str, instance_id: str, log: str) -> ObjectBase:
    """Where new objects of a log go."""
    spread = hashlib.sha256(log.encode()).hexdigest()[:2]
    return ObjectBase(store, f"{ledgers_prefix(prefix, instance_id)}{spread}/{name_in_key(log)}/")


def name_in_key(name: str) -> str:
    """A name as one part of a key: quoted, and if it is long then, its beginning and a hash."""
    quoted = quote(name, safe="").replace("~", "%7E")  # no key of an object may have a tilde
    if len(quoted) <= LOG_NAME_CHARS_MAX:
        return quoted
    digest = hashlib.sha256(name.encode()).hexdigest()
    kept = LOG_NAME_CHARS_MAX - _HASH_DIGITS - len(_CUT)
    return f"{quoted[:kept]}{_CUT}{digest[:_HASH_DIGITS]}"


def name_of_key(part: str) -> str | None:
    """The name that `name_in_key` made a part of a key of; None: it was cut."""
    return None if _CUT in part else unquote(part)


def parse_key(key: str) -> ObjectKey | None:
    """What a key says; None: it is no key of a ledger's object."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    return ObjectKey(
        found["directory"], name_of_key(found["log"]), int(found["ledger"]), found["attempt"]
    )
