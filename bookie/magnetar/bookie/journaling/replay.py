"""Replay at start: puts the records of the journals back into the storage.

Idempotent: after a crash during replay, the next start replays a superset. Entries are added
whether or not their ledger is fenced by now, since they were accepted when they were written.
Rules: section 3.5 of the storage sheet, docs/formats/journal.md.

Several journals are replayed one after the other. All records of a ledger from one process are in
one journal, in order. The number of journals may grow between two processes, and a ledger's journal
may change with it. Usually everything older was flushed and marked by then, but not if there was no
room for it. Then a ledger's records may be in two journals, of which the later written may be
replayed first. Entries, fences and LACs may come in any order; the key must come first, since
records without a key count as leftovers of a deleted ledger. So if records of a ledger were
skipped, and all journals together do have its key, its records are replayed once more.
"""

import asyncio
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import structlog

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.entry_logs.packet_run import check_add
from magnetar.bookie.errors import (
    BadAddError,
    JournalCorruptError,
    StorageError,
    StorageFullError,
)
from magnetar.bookie.journaling.journal_format import (
    RECORD_HEAD_BYTES,
    Marks,
    RecordType,
    StoredRecord,
    covers,
)
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.ports import Disk
from magnetar.ledger.wire import PACKET_HEADER, decode_block
from magnetar.ledger.wire_bodies import LAC_PACKET_HEADER

_log = structlog.get_logger(__name__)

_TURN_BYTES = 1 << 20
"""Bytes after which other tasks get a turn: the session of the metadata store must be kept
alive."""


class Replayed(NamedTuple):
    """Result of a replay."""

    ends: Marks
    """The end of each journal."""
    is_flushed: bool
    """Whether everything before the ends is durable in the storage.

    If there was no room for it, it is in the storage's memory, and the marks have not moved.
    """
    records: int
    skipped: int
    unflushed_bytes: int
    """Bytes of the records that the next start replays again; 0 if everything is durable."""


async def replay_journals(
    storage: LedgerStorage,
    last_marks: LastMarks,
    disk: Disk,
    directories: Sequence[str],
    *,
    owners: Sequence[bytes],
) -> Replayed:
    """Replay the journals from their last marks, flush, and move the marks.

    The order makes a crash in between replay at least as much again. If the ledger disks have no
    room, the replayed data stays in memory, and checkpoints retry: a full bookie serves reads.

    Raises:
        JournalError: a journal cannot be trusted; the bookie must not start.
        StorageFullError: there is no room on disk, and memory cannot take everything.
        StorageError: a flush failed.
        OSError: a mark, or the name of a newest journal file, could not be persisted.
    """
    marks = last_marks.load()
    replay = StorageReplay(storage)
    ends: Marks = ()
    for directory, mark, owner in zip(directories, marks, owners, strict=True):
        journal = JournalReplay(disk, directory, mark=mark, owner=owner)
        await replay.run(journal)
        _name_newest(journal)
        ends += (journal.end,)
    late = frozenset(each for each in replay.without_key if storage.state(each) is not None)
    if late:
        again = StorageReplay(storage, only=late)
        for directory, mark, owner in zip(directories, marks, owners, strict=True):
            await again.run(JournalReplay(disk, directory, mark=mark, owner=owner))
    is_flushed = True
    try:
        if not covers(marks, ends):
            await storage.flush()
        last_marks.advance(ends)
    except (StorageError, OSError) as error:
        if not is_out_of_room(error):
            raise
        is_flushed = False
        _log.warning("replayed_into_memory_only", records=replay.records, error=str(error))
    unflushed_bytes = 0 if is_flushed else replay.bytes
    return Replayed(ends, is_flushed, replay.records, replay.skipped, unflushed_bytes)


def _name_newest(journal: JournalReplay) -> None:
    try:
        journal.name_newest()
    except OSError as error:
        if not is_out_of_room(error):
            raise
        _log.warning("newest_journal_not_named", error=str(error))


class StorageReplay:
    """Puts records into a storage, and counts them."""

    def __init__(self, storage: LedgerStorage, *, only: Set[int] | None = None) -> None:
        """`only`: the ledgers to replay; None for all."""
        self._storage = storage
        self._only = only
        self.without_key: set[int] = set()
        """Ledgers that had no key when one of their records was replayed."""
        self._lacs: dict[int, int] = {}
        self.records = 0
        self.bytes = 0
        """Bytes of all records in the journals, replayed or not."""
        self.skipped = 0
        """Records of deleted ledgers, and of unknown types."""

    async def run(self, journal: JournalReplay) -> None:
        """Replay everything without a final flush. Afterwards, `journal.end` is the end of the
        journal.

        Raises:
            JournalError: the journal cannot be trusted; the bookie must not start.
            StorageFullError: the storage had to be flushed during the replay, and had no room.
            StorageError: the storage had to be flushed during the replay, and that failed.
        """
        handled = 0
        for record in journal.records():
            size = RECORD_HEAD_BYTES + len(record.body)
            self.bytes += size
            handled += size
            if handled >= _TURN_BYTES:
                handled = 0
                await asyncio.sleep(0)
            if self._only is not None and record.ledger_id not in self._only:
                continue
            self.records += 1
            try:
                self._apply(record)
            except StorageFullError:
                await self._flush_and_apply(record)
        self._put_lacs()

    async def _flush_and_apply(self, record: StoredRecord) -> None:
        refusal: StorageError | None = None
        try:
            await self._storage.flush()
        except StorageError as error:
            if not is_out_of_room(error):
                raise
            refusal = error  # of one shard, not necessarily the record's
        try:
            self._apply(record)
        except StorageFullError as error:
            raise StorageFullError(
                f"the journal holds more than the write cache does, and it cannot be flushed "
                f"({refusal or error}): make room on the disks of the ledgers, or start with a "
                f"larger write_cache_bytes_max"
            ) from (refusal or error)

    def _apply(self, record: StoredRecord) -> None:
        if record.type == RecordType.ENTRY_BLOCK:
            self._add(record)
        elif record.type == RecordType.MASTER_KEY:
            self._set_key(record.ledger_id, record.body)
        elif record.type == RecordType.FENCE:
            self._fence(record.ledger_id)
        elif record.type == RecordType.EXPLICIT_LAC:
            self._keep_lac(record.ledger_id, record.body)
        else:
            self.skipped += 1
            _log.warning("journal_record_unknown", type=record.type, ledger_id=record.ledger_id)

    def _add(self, record: StoredRecord) -> None:
        ledger_id = record.ledger_id
        if self._storage.state(ledger_id) is None:
            self._skip(ledger_id)
            return
        try:
            block = decode_block(record.body)
            first = PACKET_HEADER.unpack_from(block.data, block.packets_offset)[1]
            entry_ids, last_add_confirmed = check_add(ledger_id, first, block)
        except (BookieProtocolError, BadAddError) as error:
            raise JournalCorruptError(
                f"a journal record of ledger {ledger_id} has a valid CRC and bad content: {error}"
            ) from error
        self._storage.add(ledger_id, block, entry_ids)
        self._raise_lac(ledger_id, last_add_confirmed)

    def _set_key(self, ledger_id: int, key: bytes) -> None:
        state = self._storage.state(ledger_id)
        if state is None:
            self._storage.put_state(ledger_id, LedgerState(key, False, -1))
        elif not state.master_key:
            self._storage.put_state(ledger_id, replace(state, master_key=key))

    def _fence(self, ledger_id: int) -> None:
        state = self._storage.state(ledger_id)
        if state is None:
            self._skip(ledger_id)
        elif not state.fenced:
            self._storage.put_state(ledger_id, replace(state, fenced=True))

    def _keep_lac(self, ledger_id: int, packet: bytes) -> None:
        state = self._storage.state(ledger_id)
        if state is None:
            self._skip(ledger_id)
            return
        last_add_confirmed = _lac_of(packet)
        if not state.explicit_lac or last_add_confirmed > _lac_of(state.explicit_lac):
            self._storage.put_state(ledger_id, replace(state, explicit_lac=packet))
        self._raise_lac(ledger_id, last_add_confirmed)

    def _skip(self, ledger_id: int) -> None:
        """Skip a record without a key: the ledger was deleted, or its key comes later."""
        self.skipped += 1
        self.without_key.add(ledger_id)

    def _raise_lac(self, ledger_id: int, value: int) -> None:
        if value > self._lacs.get(ledger_id, -1):
            self._lacs[ledger_id] = value

    def _put_lacs(self) -> None:
        for ledger_id, value in self._lacs.items():
            state = self._storage.state(ledger_id)
            if state is not None and value > state.last_add_confirmed:
                self._storage.put_state(ledger_id, replace(state, last_add_confirmed=value))


def _lac_of(packet: bytes) -> int:
    """Return the LAC of a packet.

    Raises:
        JournalCorruptError: no LAC packet, though the record's CRC is good.
    """
    if len(packet) < LAC_PACKET_HEADER.size:
        raise JournalCorruptError(f"a journal record has a LAC packet of {len(packet)} bytes")
    return int(LAC_PACKET_HEADER.unpack_from(packet)[1])
