"""Reads of stored entries, by index and entry logs together. Runs on a read worker."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.bookie.engine.hot_reads import KnownRun
from magnetar.bookie.engine.read_cache import CachedRun
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError, StorageLogMissingError
from magnetar.bookie.indexes.location_index import IndexRecord, LocationIndex
from magnetar.bookie.requests.entry_list import IdSource, first_held, page_of
from magnetar.ledger.ports import File
from magnetar.ledger.wire_bodies import EntryList


def _no_file_needed(log_id: int) -> bool:
    return False


_LIST_RECORDS_MAX = 1024
"""Maximum number of index records for a page of a list: each may cost a read of its run's id
table."""

_SMALL_RUN_BYTES = 16 << 10
"""Bytes up to which a run is read with one read, whichever part of it is requested."""
_WHOLE_RUN_SHARE = 4
"""A whole run is read when at least this part (1/n) of it is requested."""


class Wanted(NamedTuple):
    """A read of the entries `first`, `first + 1`, ... up to `last` or `bytes_max`."""

    ledger_id: int
    first: int
    last: int
    bytes_max: int
    is_sequential: bool
    """Whether the previous entry was the last one read: a read of the next ones is then likely."""


class Loaded(NamedTuple):
    """The requested packets, and what the caches may keep for later reads."""

    packets: list[bytes]
    run: CachedRun | None
    damage: Damage | None = None
    """Damage that was found beside the packets."""
    known: KnownRun | None = None
    """Places of the packets, if the run was not read as a whole."""
    file: File | None = None
    """A file of the run's log, if the caller lacks one; the receiver closes it."""


class RunReader:
    """Finds entries in the index and reads them from the entry logs."""

    def __init__(self, index: LocationIndex, logs: EntryLogReader) -> None:
        self._index = index
        self._logs = logs

    def read(
        self, wanted: Wanted, lacks_file: Callable[[int], bool] = _no_file_needed
    ) -> Loaded | None:
        """Return the packets of one run; None if the first entry is certainly not stored.

        `lacks_file` says whether the caller lacks a file of a log; it may be wrong.

        Raises:
            StorageIOError: the answer is in doubt.
        """
        try:
            return self._read(wanted, lacks_file)
        except StorageLogMissingError:
            # Compaction may have moved the entry after the index was read. Try once more; a second
            # failure is an error.
            return self._read(wanted, lacks_file)

    def last_packet(self, ledger_id: int, above: int) -> bytes | None:
        """Return the packet of the highest entry stored; None if that is not above `above`.

        Raises:
            StorageIOError: the answer is in doubt.
        """
        try:
            return self._last_packet(ledger_id, above)
        except StorageLogMissingError:
            return self._last_packet(ledger_id, above)  # moved, as in `read`

    def list_entries(
        self,
        ledger_id: int,
        first: int,
        bitmap_bytes_max: int,
        *,
        in_memory: Sequence[IdSource],
        is_deleted: bool,
    ) -> EntryList:
        """Return one page of the entries in memory or index; `is_deleted`: memory alone counts.

        Raises:
            StorageIOError: the answer is in doubt.
        """
        try:
            return self._list_entries(ledger_id, first, bitmap_bytes_max, in_memory, is_deleted)
        except StorageLogMissingError:
            # The run may have moved, as in `read`.
            return self._list_entries(ledger_id, first, bitmap_bytes_max, in_memory, is_deleted)

    def _list_entries(
        self,
        ledger_id: int,
        first: int,
        bitmap_bytes_max: int,
        in_memory: Sequence[IdSource],
        is_deleted: bool,
    ) -> EntryList:
        records = (
            [] if is_deleted else self._index.records_from(ledger_id, first, _LIST_RECORDS_MAX + 1)
        )
        unread = records.pop().first if len(records) > _LIST_RECORDS_MAX else None
        sources = list(in_memory)
        start = first_held(sources, first)
        for record in records:
            if start is not None and record.first >= start + 8 * bitmap_bytes_max:
                unread = record.first
                break
            source = self._id_source(ledger_id, record)
            held = source.at_or_after(first)
            if held is not None:
                sources.append(source)
                start = held if start is None else min(start, held)
        return page_of(sources, start, bitmap_bytes_max=bitmap_bytes_max, unread=unread)

    def _id_source(self, ledger_id: int, record: IndexRecord) -> IdSource:
        ids: Sequence[int] | None = None
        if record.location.has_ids:
            ids = self._logs.load_head(StoredRun(ledger_id, *record)).ids
        return IdSource(record.first, record.last, ids)

    def _read(self, wanted: Wanted, lacks_file: Callable[[int], bool]) -> Loaded | None:
        ledger_id, first, bytes_max = wanted.ledger_id, wanted.first, wanted.bytes_max
        record = self._index.find(ledger_id, first)
        if record is None:
            return None
        last = min(wanted.last, record.last)
        stored = StoredRun(ledger_id, *record)
        packets_read = None
        if record.location.size_bytes <= _SMALL_RUN_BYTES:
            head, packets_read = self._logs.load_whole(stored)
        else:
            head = self._logs.load_head(stored)
        if not head.holds(first):
            return None
        damage = None
        if packets_read is not None or _wants_whole(wanted, record):
            try:
                run = self._logs.load_run(stored, head, packets_read)
            except StorageCorruptError as error:
                # One damaged packet must not hide the others: read only the requested ones.
                damage = _within(error.damage, record)
            else:
                cached = CachedRun(record.first, record.last, run)
                return Loaded(run.take(first, last, bytes_max), cached)
        packets = self._logs.load_packets(stored, head, first, last, bytes_max)
        log_id = stored.location.log_id
        file = self._open(log_id) if lacks_file(log_id) else None
        return Loaded(packets, None, damage, KnownRun(stored, head), file)

    def _open(self, log_id: int) -> File | None:
        try:
            return self._logs.open_file(log_id)
        except OSError:
            return None  # the file only makes later reads faster

    def _last_packet(self, ledger_id: int, above: int) -> bytes | None:
        record = self._index.floor(ledger_id, ENTRY_ID_MAX)
        if record is None or record.last <= above:
            return None
        location, entry_id = record.location, record.last
        stored = StoredRun(ledger_id, *record)
        head = self._logs.load_head(stored)
        # Records are cut where newer ones hold an entry. No record follows the last one, so its end
        # was never cut: it is an entry of its run.
        if not head.holds(entry_id):
            raise StorageCorruptError(
                f"index: ledger {ledger_id} should end with entry {entry_id}, "
                f"which its run in entry log {location.log_id} at {location.offset} does not hold"
            )
        return self._logs.load_packets(stored, head, entry_id, entry_id, ENTRY_ID_MAX)[0]


def _within(damage: Damage | None, record: IndexRecord) -> Damage | None:
    """Return the damage if it hides an entry of the record; overlaid entries do not matter."""
    if damage is None or damage.last < record.first or record.last < damage.first:
        return None
    return damage


def _wants_whole(wanted: Wanted, record: IndexRecord) -> bool:
    location = record.location
    if wanted.is_sequential or location.entries == 1:
        return True
    entries = min(wanted.last, record.last) - wanted.first + 1
    return (
        entries * _WHOLE_RUN_SHARE >= location.entries
        and wanted.bytes_max * _WHOLE_RUN_SHARE >= location.size_bytes
    )
