"""What is stored about compaction: the record in the cursor's node, and entries of the ledger.

The record is a property of the cursor `__compaction`: one compare-and-set replaces it, so there is
always one valid compacted ledger, or none. Formats: docs/formats/compacted-ledger.md. Pure.
"""

import struct
from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.ledger.position import Position

CURSOR: Final = "__compaction"
"""Name of the cursor; reserved among subscriptions."""

COMPONENT: Final = "compaction"
"""In the custom metadata of compacted ledgers."""

_PROPERTY = "compaction"
FORMAT = 1
NO_LEDGER = -1
_HEAD = struct.Struct(">Bqq")


class CompactionRecord(BaseModel):
    """Where the compacted form of a topic is, and how far it goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    ledger_id: int = Field(ge=NO_LEDGER)
    """NO_LEDGER: nothing is left of the topic up to the horizon."""
    horizon: tuple[int, int]
    """The last entry of the topic that was compacted."""


def record_in(properties: Mapping[str, str], *, of: str) -> CompactionRecord | None:
    """The record among the properties of a cursor; None: there was no compaction yet.

    Raises:
        UnreadableRecordError: it is of another release, or damaged.
    """
    value = properties.get(_PROPERTY)
    if value is None:
        return None
    try:
        return CompactionRecord.model_validate_json(value)
    except ValidationError as error:
        raise UnreadableRecordError(
            f"{of}: its cursor {CURSOR} names no compacted ledger that this release can read: "
            f"{error.errors(include_url=False, include_context=False, include_input=False)[0]}"
        ) from error


def properties_of(record: CompactionRecord) -> dict[str, str]:
    """The record as properties of a cursor."""
    return {_PROPERTY: record.model_dump_json()}


def pack(position: Position, entry: bytes) -> bytes:
    """An entry of a compacted ledger: where the message stood, and what is left of it."""
    return _HEAD.pack(FORMAT, *position) + entry


def unpack(stored: bytes) -> tuple[Position, bytes]:
    """
    Raises:
        UnreadableRecordError: another format.
    """
    if len(stored) < _HEAD.size or stored[0] != FORMAT:
        raise UnreadableRecordError(
            f"an entry of a compacted ledger begins with {stored[:1].hex() or 'nothing'}, "
            f"expected format {FORMAT}"
        )
    _, ledger_id, entry_id = _HEAD.unpack_from(stored)
    return Position(ledger_id, entry_id), stored[_HEAD.size :]
