"""A compacted ledger: the rest of a topic, and the record that names it.

The record is a property of the cursor `__compaction`. One compare-and-set replaces it, so there is
always one valid compacted ledger, or none. Formats: docs/formats/compacted-ledger.md.

The ledger is opened at the first read, and its entries are found by their positions in the topic. A
binary search finds a place in it. A reader that continues needs no search, because the end of each
read is remembered.

CompactionError, part of the broker's tree (`base/errors.py`): a compaction without a result
├── TooManyKeysError
└── CompactionStoppedError
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.broker.base.errors import BrokerError, UnreadableRecordError
from magnetar.cursors import CursorError
from magnetar.cursors.node import cursor_path, decode_node
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoNodeError, NoSuchLedgerError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred, owner_value
from magnetar.ledger.position import Position


class CompactionError(BrokerError):
    """A compaction has failed; the result of the last successful one still counts."""


class TooManyKeysError(CompactionError):
    """The keys of the topic exceed the memory limit."""


class CompactionStoppedError(CompactionError):
    """The topic is closed here, or moves. Its next owner compacts it when that is due."""


CURSOR: Final = "__compaction"
"""Name of the cursor; reserved among subscriptions."""

COMPONENT: Final = "compaction"
"""Component in the custom metadata of compacted ledgers."""

_PROPERTY = "compaction"
FORMAT = 1
NO_LEDGER = -1
_HEAD = struct.Struct(">Bqq")


class CompactionRecord(BaseModel):
    """The compacted ledger of a topic, and its horizon."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    ledger_id: int = Field(ge=NO_LEDGER)
    """The compacted ledger; NO_LEDGER if nothing remains of the topic up to the horizon."""
    horizon: tuple[int, int]
    """The last entry of the topic that was compacted."""


def record_in(properties: Mapping[str, str], *, of: str) -> CompactionRecord | None:
    """Return the record among the properties of a cursor; None before the first compaction.

    Raises:
        UnreadableRecordError: the record is of another release, or damaged.
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
    """Return the record as properties of a cursor."""
    return {_PROPERTY: record.model_dump_json()}


def pack(position: Position, entry: bytes) -> bytes:
    """Encode an entry of a compacted ledger: a position in the topic, and what remains."""
    return _HEAD.pack(FORMAT, *position) + entry


def unpack(stored: bytes) -> tuple[Position, bytes]:
    """Decode an entry of a compacted ledger: its position in the topic, and its remaining messages.

    Raises:
        UnreadableRecordError: the entry has another format.
    """
    if len(stored) < _HEAD.size or stored[0] != FORMAT:
        raise UnreadableRecordError(
            f"an entry of a compacted ledger begins with {stored[:1].hex() or 'nothing'}, "
            f"expected format {FORMAT}"
        )
    _, ledger_id, entry_id = _HEAD.unpack_from(stored)
    return Position(ledger_id, entry_id), stored[_HEAD.size :]


_PLACES_MAX = 4096


class StoredEntries(Protocol):
    """The parts of a closed ledger that reads need; `LedgerReader` has them."""

    @property
    def last_add_confirmed(self) -> int: ...

    async def read(self, first: int, last: int, *, bytes_max: int = ...) -> list[bytes]: ...


class CompactedLedger:
    """The remaining entries of a topic up to its horizon."""

    def __init__(
        self, record: CompactionRecord, open_ledger: Callable[[int], Awaitable[StoredEntries]]
    ) -> None:
        self.ledger_id = record.ledger_id
        self.horizon = Position(*record.horizon)
        self._open_ledger = open_ledger
        self._opening = asyncio.Lock()
        self._ledger: StoredEntries | None = None
        self._places: dict[Position, int] = {}
        """Index in the ledger of the first entry after a position of the topic."""

    async def read_behind(
        self, after: Position, *, entries_max: int, bytes_max: int
    ) -> list[tuple[Position, bytes]]:
        """Return entries after a position of the topic, in order: at least one, if there is any.

        Raises:
            LedgerError, UnreadableRecordError: they cannot be read now.
        """
        if self.ledger_id == NO_LEDGER:
            return []
        ledger = await self._opened()
        first = self._places.get(after)
        if first is None:
            first = await self._find(ledger, after)
        last = min(ledger.last_add_confirmed, first + entries_max - 1)
        if first > last:
            return []
        found = [unpack(each) for each in await ledger.read(first, last, bytes_max=bytes_max)]
        self._remember(found[-1][0], first + len(found))
        return found

    async def last(self) -> tuple[Position, bytes] | None:
        """Return the last entry; None if the ledger is empty.

        Raises:
            LedgerError, UnreadableRecordError: it cannot be read now.
        """
        if self.ledger_id == NO_LEDGER:
            return None
        ledger = await self._opened()
        end = ledger.last_add_confirmed
        return unpack((await ledger.read(end, end))[0]) if end >= 0 else None

    async def _opened(self) -> StoredEntries:
        async with self._opening:
            if self._ledger is None:
                self._ledger = await self._open_ledger(self.ledger_id)
            return self._ledger

    async def _find(self, ledger: StoredEntries, after: Position) -> int:
        low, high = 0, ledger.last_add_confirmed + 1
        if after < Position(0, 0):
            return 0
        while low < high:
            middle = (low + high) // 2
            position, _ = unpack((await ledger.read(middle, middle, bytes_max=1))[0])
            if position <= after:
                low = middle + 1
            else:
                high = middle
        self._remember(after, low)
        return low

    def _remember(self, after: Position, index: int) -> None:
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        self._places[after] = index


def compaction_refers(store: MetadataStore) -> IsReferred:
    """Return the check of the orphan sweep for the component "compaction".

    It asks the compaction cursor of the topic that the ledger was made for.
    """

    async def is_referred(metadata: LedgerMetadata) -> bool:
        log = metadata.custom_metadata.get("log")
        if log is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        value = await owner_value(store, cursor_path(log, CURSOR))
        return value is not None and _ledger_in(value, log) == metadata.ledger_id

    return is_referred


async def named_ledger(store: MetadataStore, log: str) -> int:
    """Return the compacted ledger that the topic with the log path `log` names, or NO_LEDGER.

    Raises:
        OwnerUnclearError: the stored record cannot be read.
        MetadataError: the metadata store cannot be reached.
    """
    try:
        value = (await store.get(cursor_path(log, CURSOR))).value
    except NoNodeError:
        return NO_LEDGER  # never compacted, or the topic was deleted
    return _ledger_in(value, log)


def _ledger_in(value: bytes, log: str) -> int:
    """Return the compacted ledger that the value of a compaction cursor names, or NO_LEDGER.

    Raises:
        OwnerUnclearError: the value cannot be read.
    """
    try:
        node = decode_node(value, path=cursor_path(log, CURSOR))
        record = record_in(node.properties, of=log)
    except (CursorError, UnreadableRecordError) as error:
        raise OwnerUnclearError(f"the compaction of {log}: {error}") from error
    return NO_LEDGER if record is None else record.ledger_id


async def delete_compacted(
    client: LedgerClient,
    store: MetadataStore,
    log: str,
    delete_cursor: Callable[[], Awaitable[None]],
) -> None:
    """Delete the cursor of a topic's compaction, then the ledger that it names.

    Raises:
        LedgerError, CursorError: call again, or leave the ledger to the orphan sweep.
    """
    ledger_id = await named_ledger(store, log)
    await delete_cursor()
    if ledger_id != NO_LEDGER:
        try:
            await client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
