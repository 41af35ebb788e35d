"""The location index: where runs lie in the entry logs, and the ledger states, in RocksDB.

Layout: docs/formats/index.md. The records of a ledger never overlap, so an entry is found with one
floor seek. `overlay` is the pure part: what a new run does to the records that it overlaps. Reads
may come from any thread; there is one writer at a time.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from threading import Lock

from rocksdict import (
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError, StorageError, StorageIOError
from magnetar.bookie.indexes.ledger_state import decode_state, encode_state
from magnetar.bookie.indexes.location_index import IndexChanges, IndexRecord, NewRun
from magnetar.bookie.storage import LedgerState

# Stored on disk: never renumber.
_FORMAT_VERSION = 1
_FORMAT_KEY = b"m"
_RUN_KIND = b"r"
_STATE_KIND = b"s"
_HAS_IDS = 1

_RUN_KEY = Struct(">cqq")
_STATE_KEY = Struct(">cq")
_RUN = Struct(">BIQqII")
_FORMAT = Struct(">HI")

_WRITE_BUFFER_BYTES = 4 << 20
_OPEN_FILES_MAX = 256
_BATCH_OPERATIONS = 1000
"""Writing a batch holds the GIL, about 0.2 ms for this many operations."""


def encode_run_key(ledger_id: int, first: int) -> bytes:
    assert ledger_id >= 0  # byte order is numeric order only for these
    assert first >= 0
    return _RUN_KEY.pack(_RUN_KIND, ledger_id, first)


def decode_run(key: bytes, value: bytes) -> tuple[int, IndexRecord]:
    """Ledger id and run record.

    Raises:
        StorageCorruptError: not what `encode_run_key` and `encode_run` give.
    """
    if len(key) != _RUN_KEY.size or key[:1] != _RUN_KIND or len(value) != _RUN.size:
        raise StorageCorruptError(f"index: impossible run record {key.hex()}: {value.hex()}")
    _, ledger_id, first = _RUN_KEY.unpack(key)
    flags, log_id, offset, last, count, size_bytes = _RUN.unpack(value)
    if ledger_id < 0 or not 0 <= first <= last or count == 0 or flags > _HAS_IDS:
        raise StorageCorruptError(f"index: impossible run record {key.hex()}: {value.hex()}")
    location = RunLocation(log_id, offset, size_bytes, count, bool(flags & _HAS_IDS))
    return ledger_id, IndexRecord(first, last, location)


def encode_run(record: IndexRecord) -> bytes:
    location = record.location
    return _RUN.pack(
        _HAS_IDS if location.has_ids else 0,
        location.log_id,
        location.offset,
        record.last,
        location.entries,
        location.size_bytes,
    )


def decode_format(value: bytes) -> int:
    """The highest log id ever pointed to.

    Raises:
        StorageCorruptError: no format record of this version.
    """
    if len(value) != _FORMAT.size:
        raise StorageCorruptError(f"index: format record of {len(value)} bytes")
    version, last_log_id = _FORMAT.unpack(value)
    if version != _FORMAT_VERSION:
        raise StorageCorruptError(f"index: format version {version}, expected {_FORMAT_VERSION}")
    return int(last_log_id)


def overlay(new: Sequence[NewRun], old: Sequence[IndexRecord]) -> list[IndexRecord]:
    """The records that replace `old` when the runs of `new` are laid over them.

    Both are ascending and disjoint. The new runs win for the ids they hold, the old records keep
    everything else that they stood for. The result is ascending and disjoint.
    """
    parts = [IndexRecord(first, last, run.location) for run in new for first, last in run.stretches]
    new_count = len(parts)
    at = 0
    for record in old:
        first = record.first
        while at < new_count and parts[at].last < first:
            at += 1
        covering = at
        while covering < new_count and parts[covering].first <= record.last:
            if parts[covering].first > first:
                parts.append(IndexRecord(first, parts[covering].first - 1, record.location))
            first = parts[covering].last + 1
            covering += 1
        if first <= record.last:
            parts.append(IndexRecord(first, record.last, record.location))
    parts.sort()
    # Stretches of one run are joined to one record where no other stands between them.
    merged: list[IndexRecord] = []
    for part in parts:
        if merged and merged[-1].location == part.location:
            merged[-1] = merged[-1]._replace(last=part.last)
        else:
            merged.append(part)
    return merged


class RocksIndex:
    """An open index database.

    RocksDB takes no more writes after one has failed, even when the disk has room again. So after
    an error the next `commit` opens the database anew.
    """

    def __init__(self, path: str, database: Rdict, last_log_id: int) -> None:
        self._path = path
        self._database = database
        self._is_broken = False
        self._reopening = Lock()
        """Held while the database is opened anew, and by every seek."""
        self._promised_sequence = 0
        self.last_log_id = last_log_id
        """The highest log id that the index has ever pointed to."""

    @classmethod
    def open(cls, path: str, *, may_create: bool) -> "RocksIndex":
        """Open the database, or make an empty one if `may_create` and there is none.

        Raises:
            StorageCorruptError: damaged, lost, or of another version.
            StorageIOError: it could not be opened.
        """
        database = _open(path, may_create=may_create)
        try:
            with _translated(f"index {path}: cannot be read"):
                value = database.get(_FORMAT_KEY)
            if value is not None:
                return cls(path, database, decode_format(value))
            with _translated(f"index {path}: cannot be read"):
                is_empty = database.latest_sequence_number() == 0
            if not (may_create and is_empty):
                raise StorageCorruptError(f"index {path} is lost: there is no format record")
            index = cls(path, database, 0)
            index.commit(IndexChanges(last_log_id=0))
            return index
        except StorageError:
            database.close()
            raise

    def states(self) -> dict[int, LedgerState]:
        """All ledger states."""
        states: dict[int, LedgerState] = {}
        with _translated("index: cannot read the ledger states"):
            iterator = self._database.iter()
            iterator.seek(_STATE_KIND)
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                if key[:1] != _STATE_KIND:
                    break
                if len(key) != _STATE_KEY.size:
                    raise StorageCorruptError(f"index: impossible key {key.hex()}")
                states[_STATE_KEY.unpack(key)[1]] = decode_state(value)
                iterator.next()
            iterator.status()
        return states

    def find(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """The record that stands for the entry; None if the entry is certainly not stored.

        Raises:
            StorageIOError: the database could not be read.
        """
        record = self.floor(ledger_id, entry_id)
        return record if record is not None and entry_id <= record.last else None

    def floor(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """The last record of the ledger that begins at or before the entry.

        Raises:
            StorageIOError: the database could not be read.
        """
        if entry_id < 0:
            return None
        with self._reopening, _translated("index: cannot be read"):
            # A seek costs some microseconds, the iterator included. Keeping one alive would keep
            # the database locked after it was closed.
            iterator = self._database.iter()
            iterator.seek_for_prev(encode_run_key(ledger_id, entry_id))
            if not iterator.valid():
                # An iterator is invalid at the end, and also after an error: then this raises.
                # Without it, damage would look like a certain "not stored".
                iterator.status()
                return None
            key, value = iterator.key(), iterator.value()
        if key[:1] != _RUN_KIND:
            return None
        found_id, record = decode_run(key, value)
        return record if found_id == ledger_id else None

    def records_from(self, ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
        """Records that stand for the entry or later ones, ascending, as they are at one moment.

        Raises:
            StorageIOError: the database could not be read.
        """
        records: list[IndexRecord] = []
        with self._reopening, _translated("index: cannot be read"):
            # One iterator sees one moment. With a seek per record, a flush in between that joins
            # two of them would hide the second.
            iterator = self._database.iter()
            iterator.seek_for_prev(encode_run_key(ledger_id, entry_id))
            if not iterator.valid():
                iterator.status()
                iterator.seek_to_first()
            is_before = True
            while len(records) < records_max and iterator.valid():
                key = iterator.key()
                if key[:1] == _RUN_KIND:
                    found_id, record = decode_run(key, iterator.value())
                    if found_id == ledger_id and record.last >= entry_id:
                        records.append(record)
                    if found_id > ledger_id:
                        break
                elif not is_before:
                    break
                is_before = False
                iterator.next()
            iterator.status()
        return records

    def commit(self, changes: IndexChanges) -> set[int]:
        """Write the changes durably; returns the ledgers whose older records were overlaid.

        The batches are whole for each ledger. A crash between them leaves a part of the flush in
        the index, which is harmless: the journal repeats the flush.

        Raises:
            StorageIOError: none, some or all of it may have been written.
        """
        if self._is_broken:
            self._reopen()
        self._is_broken = True  # until the end is reached
        overlaid = self._write(changes)
        with _translated("index: cannot sync its log"):
            # Apart from the write, because this one lets other threads run.
            self._database.flush_wal(True)
        self._promised_sequence = self.sequence()
        self._is_broken = False
        return overlaid

    def _write(self, changes: IndexChanges) -> set[int]:
        writer = _BatchWriter(self._database)
        deleted = set(changes.deleted)
        overlaid: set[int] = set()
        for ledger_id in sorted(deleted):
            writer.delete_ledger(ledger_id)
        for ledger_id, runs in changes.runs.items():
            old = [] if ledger_id in deleted else self._overlapped(ledger_id, runs)
            if old:
                overlaid.add(ledger_id)
            writer.put_runs(ledger_id, runs, old)
        for ledger_id, state in changes.states.items():
            writer.put_state(ledger_id, state)
        last_log_id = max(self.last_log_id, changes.last_log_id)
        writer.put_format(last_log_id)
        writer.finish()
        self.last_log_id = last_log_id
        return overlaid

    def _reopen(self) -> None:
        with self._reopening:
            try:
                self.close()
            except StorageIOError:
                pass  # it says again what has failed before
            self._database = _open(self._path, may_create=False)
            sequence = self.sequence()
        if sequence < self._promised_sequence:
            raise StorageCorruptError(
                f"index {self._path} has lost records: it ends at {sequence} "
                f"of {self._promised_sequence}"
            )

    def sequence(self) -> int:
        """Grows with every record that is written."""
        with _translated("index: cannot be read"):
            return int(self._database.latest_sequence_number())

    def close(self) -> None:
        with _translated("index: cannot be closed"):
            self._database.close()

    def _overlapped(self, ledger_id: int, runs: Sequence[NewRun]) -> list[IndexRecord]:
        """The records that share part of their range with the new runs, ascending."""
        first = runs[0].first
        old: list[IndexRecord] = []
        record = self.floor(ledger_id, runs[-1].last)
        while record is not None and record.last >= first:
            old.append(record)
            record = self.floor(ledger_id, record.first - 1)
        old.reverse()
        return old


class _BatchWriter:
    """Writes operations in batches of bounded size; those of one call stay in one batch."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self._batch = WriteBatch(raw_mode=True)

    def delete_ledger(self, ledger_id: int) -> None:
        self._batch.delete_range(
            encode_run_key(ledger_id, 0), _RUN_KEY.pack(_RUN_KIND, ledger_id, ENTRY_ID_MAX)
        )
        self._batch.delete(_STATE_KEY.pack(_STATE_KIND, ledger_id))
        self._bound()

    def put_runs(self, ledger_id: int, runs: Sequence[NewRun], old: Sequence[IndexRecord]) -> None:
        if old:
            records = overlay(runs, old)
            kept = {record.first for record in records}
            for record in old:
                if record.first not in kept:
                    self._batch.delete(encode_run_key(ledger_id, record.first))
        else:
            records = [IndexRecord(run.first, run.last, run.location) for run in runs]
        for record in records:
            self._batch.put(encode_run_key(ledger_id, record.first), encode_run(record))
        self._bound()

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        self._batch.put(_STATE_KEY.pack(_STATE_KIND, ledger_id), encode_state(state))
        self._bound()

    def put_format(self, last_log_id: int) -> None:
        self._batch.put(_FORMAT_KEY, _FORMAT.pack(_FORMAT_VERSION, last_log_id))

    def finish(self) -> None:
        with _translated("index: cannot be written"):
            self._database.write(self._batch)
        self._batch = WriteBatch(raw_mode=True)

    def _bound(self) -> None:
        if self._batch.len() >= _BATCH_OPERATIONS:
            self.finish()


def _open(path: str, *, may_create: bool) -> Rdict:
    with _translated(f"index {path}: cannot be opened"):
        return Rdict(path, options=_options(may_create=may_create))


_CORRUPTION = re.compile(r"corruption", re.IGNORECASE)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn what rocksdict raises into our errors."""
    try:
        yield
    except StorageError:
        raise
    except Exception as exc:  # rocksdict raises bare Exceptions; only their text differs
        kind = StorageCorruptError if _CORRUPTION.search(str(exc)) else StorageIOError
        raise kind(f"{what}: {exc}") from exc


def _options(*, may_create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(may_create)
    # The index is small: a record stands for up to a MiB of entries. Keep it small in memory too.
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_compression_type(DBCompressionType.none())
    options.set_paranoid_checks(True)
    # A torn tail is what a crash leaves and was never promised. Everything else was: RocksDB's own
    # default would silently drop what follows a damaged record.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options
