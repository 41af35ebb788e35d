"""Where a ledger of a log is in an object store, as the log's node says it. Pure.

A ledger goes one way. It has no object; one is being *copied*; it is *copied*, and is on bookies
and in the object; it is in the object *only*. The name of an attempt to copy (its *attempt*) is in
the node before the first byte is in the store. It is never used again once the node has forgotten
it. So an object that no node names is garbage, and a late attempt overwrites nothing.

Layout: docs/formats/managed-log.md. Source: tiered storage, section 16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

ATTEMPT_BYTES = 16
_INT64_MAX = (1 << 63) - 1
_U32_MAX = (1 << 32) - 1
_HEX = frozenset("0123456789abcdef")

_FIELDS = {"state", "attempt", "base", "bytes", "check", "at_ms"}


class ObjectState(StrEnum):
    """Progress of a ledger to an object store. Stored, never rename."""

    COPYING = "copying"
    """The object is being written, or was left unfinished. The bookies have the ledger."""
    COPIED = "copied"
    """The object was found complete. The bookies have the ledger, too."""
    ONLY = "only"
    """The object was read back in full. The bookies may have deleted the ledger."""


class ObjectBase(NamedTuple):
    """Store and key prefix of objects. A log's node keeps each base that it ever used."""

    store: str
    """Name of the object store in the brokers' settings."""
    prefix: str
    """Prefix of the keys in that store."""

    def key(self, ledger_id: int, attempt: str) -> str:
        """Return the key of one attempt to copy a ledger."""
        return f"{self.prefix}{ledger_id:020d}-{attempt}.mgo"


@dataclass(frozen=True, slots=True)
class LedgerObject:
    """The object of a ledger."""

    state: ObjectState
    attempt: str
    """Hex of 16 random bytes: identifies the attempt to copy."""
    base: int
    """Index of its `ObjectBase` in the node's list."""
    bytes: int = 0
    """Size of the whole object; 0 while it is being copied."""
    check: int = 0
    """CRC32C over the checksums of its runs; 0 while it is being copied."""
    at_ms: int = 0
    """Time of the copy, ms since 1970; 0 while it is being copied."""
    next: str = ""
    """The attempt that is to replace a damaged object; empty if there is none."""

    @property
    def is_copied(self) -> bool:
        """Whether its entries can be read from the object."""
        return self.state is not ObjectState.COPYING

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as they are stored in the node."""
        fields: dict[str, Any] = {
            "state": self.state.value,
            "attempt": self.attempt,
            "base": self.base,
            "bytes": self.bytes,
            "check": self.check,
            "at_ms": self.at_ms,
        }
        if self.next:
            fields["next"] = self.next
        return fields

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> "LedgerObject":
        """Make the object from fields that `problem_with_object` has accepted."""
        return LedgerObject(**{**fields, "state": ObjectState(fields["state"])})


def problem_with_object(fields: object, bases: int) -> str | None:
    """Return why these are not the fields of an object; None if they are.

    Args:
        bases: number of bases that the node lists.
    """
    if not isinstance(fields, dict) or fields.keys() - {"next"} != _FIELDS:
        return f"object does not have the fields {sorted(_FIELDS)}"
    states = [state.value for state in ObjectState]
    if fields["state"] not in states:
        return f"object: state is none of {states}"
    for name, most in (
        ("base", bases - 1),
        ("bytes", _INT64_MAX),
        ("check", _U32_MAX),
        ("at_ms", _INT64_MAX),
    ):
        number = fields[name]
        if type(number) is not int or not 0 <= number <= most:
            return f"object: {name} is no number from 0 to {most}"
    for name in ("attempt", "next"):
        text = fields.get(name, "0" * 2 * ATTEMPT_BYTES)
        if not isinstance(text, str) or len(text) != 2 * ATTEMPT_BYTES or not _HEX.issuperset(text):
            return f"object: {name} is not the hex of {ATTEMPT_BYTES} bytes"
    return None


def problem_with_bases(bases: object) -> str | None:
    """Return why this is not a list of object bases; None if it is one."""
    if not isinstance(bases, list) or not bases:
        return "object_bases is no list, or is empty"
    for base in bases:
        is_base = isinstance(base, dict) and base.keys() == {"store", "prefix"}
        if not is_base or not all(isinstance(text, str) for text in base.values()):
            return "a base of objects does not have the fields prefix and store, both text"
    return None
