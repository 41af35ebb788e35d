"""The index of the `db` engine: run records and ledger states in an ordered key-value store.

Layout: docs/formats/index.md; codecs: `run_records.py`. The records of a ledger never overlap, so
an entry is found with one floor seek. Reads may come from any thread; there is one writer at a
time.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from magnetar.bookie.errors import StorageCorruptError, StorageError, StorageIOError
from magnetar.bookie.indexes.index_mark import IndexMark, Promise
from magnetar.bookie.indexes.key_value import (
    Delete,
    DeleteRange,
    KeyValueStore,
    MakeKeyValue,
    Operation,
    Put,
)
from magnetar.bookie.indexes.ledger_state import check_state, encode_state
from magnetar.bookie.indexes.location_index import (
    IndexChanges,
    IndexRecord,
    NewRun,
    RunMove,
    no_pause,
)
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.indexes.run_records import (
    FORMAT_KEY,
    RUNS_END,
    RUNS_FIRST,
    STATES_END,
    STATES_FIRST,
    decode_format,
    decode_run,
    decode_state_key,
    disjoint_groups,
    encode_format,
    encode_run,
    encode_run_key,
    encode_state_key,
    is_run_key,
    ledger_end,
    overlay,
)
from magnetar.bookie.indexes.shared_lock import SharedLock
from magnetar.bookie.storage import LedgerState

_BATCH_OPERATIONS = 250
"""Operations per batch: RocksDB holds the GIL for about 0.25 ms while it writes this many."""

_SCAN_RECORDS = 1000
"""Records per step of a long scan; other tasks get a turn between two steps."""


class RocksIndex:
    """A `LocationIndex` in a key-value store; that interface documents the methods.

    After a failed write, the store takes no more writes, even when the disk has room again. So the
    next `commit` opens it again. As long as that fails, the index is read-only, and commits fail.
    """

    def __init__(
        self,
        path: str,
        store: KeyValueStore,
        last_log_id: int,
        *,
        mark: IndexMark,
        make_store: MakeKeyValue,
    ) -> None:
        self._path = path
        self._store = store
        self._mark = mark
        self._make_store = make_store
        self._is_broken = not store.is_writable
        self._reopening = SharedLock()
        """Held alone while the store is reopened, and shared by all reads."""
        self._promised_sequence = 0
        self.last_log_id = last_log_id
        """The highest log id that the index has ever pointed to."""

    @classmethod
    def open(
        cls,
        path: str,
        mark: IndexMark,
        *,
        has_logs: bool = False,
        make_store: MakeKeyValue = RocksStore.open,
        may_make: bool = True,
    ) -> "RocksIndex":
        """Open the index; create it if `may_make` and there is no trace of one: no mark, no entry
        logs.

        Raises:
            StorageCorruptError: damaged, lost, of another version, or it has lost records.
            StorageIOError: it could not be opened.
            OSError: the mark could not be read or written.
        """
        promise = mark.read()
        if promise is None and (has_logs or not may_make):
            raise StorageCorruptError(f"index {path}: its mark is lost")
        store = make_store(path, promise is None)
        try:
            last_log_id = _read_format(path, store, may_create=promise is None)
            index = cls(path, store, last_log_id, mark=mark, make_store=make_store)
            index._keep_promise(promise)
            return index
        except BaseException:
            store.close()
            raise

    def _keep_promise(self, promise: Promise | None) -> None:
        sequence = self.sequence()
        if promise is None:
            # From now on, a missing index counts as lost, not as new.
            self._mark.write(Promise("db", sequence))
        elif sequence < promise.sequence:
            raise _lost_records(self._path, found=sequence, promised=promise.sequence)
        self._promised_sequence = sequence

    # Reading

    def states(self) -> dict[int, bytes]:
        """Return all ledger states, encoded, as `LocationIndex` says."""
        states: dict[int, bytes] = {}
        for key, value in self._scan(STATES_FIRST, STATES_END):
            check_state(value)
            states[decode_state_key(key)] = value
        return states

    def find(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the record that covers the entry; None if the entry is certainly not stored.

        Raises:
            StorageIOError: the store could not be read.
        """
        record = self.floor(ledger_id, entry_id)
        return record if record is not None and entry_id <= record.last else None

    def floor(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the last record of the ledger that begins at or before the entry; None without
        one.

        Raises:
            StorageIOError: the store could not be read.
        """
        if entry_id < 0 or ledger_id < 0:
            return None
        with self._reopening:
            found = self._store.floor(encode_run_key(ledger_id, entry_id))
        if found is None or not is_run_key(found[0]):
            return None
        found_id, record = decode_run(*found)
        return record if found_id == ledger_id else None

    def records_from(self, ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
        """Return records that cover the entry or later ones, ascending, as they are at one moment.

        Raises:
            StorageIOError: the store could not be read.
        """
        if ledger_id < 0:
            return []
        start, end = encode_run_key(ledger_id, max(0, entry_id)), ledger_end(ledger_id)
        with self._reopening:
            # One more: the first may end before the entry, or be another ledger's.
            found = self._store.scan(start, end, records_max + 1, from_floor=True)
        records: list[IndexRecord] = []
        for key, value in found:
            if not is_run_key(key):
                continue
            found_id, record = decode_run(key, value)
            if found_id == ledger_id and record.last >= entry_id:
                records.append(record)
        return records[:records_max]

    def all_records(self) -> Iterator[tuple[int, IndexRecord]]:
        """Yield every record with its ledger id, ascending, as `LocationIndex` says."""
        for key, value in self._scan(RUNS_FIRST, RUNS_END):
            yield decode_run(key, value)

    def _scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._reopening:
                found = self._store.scan(first, end, _SCAN_RECORDS)
            yield from found
            if len(found) < _SCAN_RECORDS:
                return
            first = found[-1][0] + b"\0"

    def _overlapped(self, ledger_id: int, first: int, last: int) -> list[IndexRecord]:
        """Return the records that overlap the ids `first` to `last`, ascending."""
        records: list[IndexRecord] = []
        record = self.floor(ledger_id, last)
        while record is not None and record.last >= first:
            records.append(record)
            record = self.floor(ledger_id, record.first - 1)
        records.reverse()
        return records

    # Writing

    def commit(self, changes: IndexChanges, *, pause: Callable[[], None] = no_pause) -> set[int]:
        """Write the changes durably, as `LocationIndex` says.

        Runs and state of a ledger stay in one batch.
        """
        if self._is_broken:
            self._reopen()
        self._is_broken = True  # until the commit has succeeded
        changed = self._write(changes, pause)
        self._store.sync()
        self._promised_sequence = sequence = self.sequence()
        self._is_broken = False
        try:
            self._mark.write(Promise("db", sequence))
        except OSError as exc:
            raise StorageIOError(f"index {self._path}: its mark cannot be written: {exc}") from exc
        return changed

    def _write(self, changes: IndexChanges, pause: Callable[[], None]) -> set[int]:
        writer = _BatchWriter(self._store)
        deleted = set(changes.deleted)
        changed: set[int] = set()
        for ledger_id in sorted(deleted):
            writer.delete_ledger(ledger_id)
        for ledger_id, runs in changes.runs.items():
            pause()
            old: list[IndexRecord] = []
            if ledger_id not in deleted:
                first, last = min(run.first for run in runs), max(run.last for run in runs)
                old = self._overlapped(ledger_id, first, last)
            if old:
                changed.add(ledger_id)
            writer.put_runs(ledger_id, runs, old, changes.states.get(ledger_id))
        for ledger_id, state in changes.states.items():
            pause()
            if ledger_id not in changes.runs:
                writer.put_state(ledger_id, state)
        changed |= self._write_moves(changes.moves, writer)
        last_log_id = max(self.last_log_id, changes.last_log_id)
        writer.put_format(last_log_id)
        writer.finish()
        self.last_log_id = last_log_id
        return changed

    def _write_moves(self, moves: Sequence[RunMove], writer: "_BatchWriter") -> set[int]:
        if not moves:
            return set()
        writer.finish()  # moves compare with the records written so far
        moved: set[int] = set()
        ordered = sorted(moves, key=lambda move: move.ledger_id)
        for ledger_id, group in groupby(ordered, key=lambda move: move.ledger_id):
            for move in group:
                for record in self._overlapped(ledger_id, move.first, move.last):
                    if record.location != move.source:
                        continue
                    first, last = max(record.first, move.first), min(record.last, move.last)
                    is_within = (first, last) == (record.first, record.last)
                    if move.target is None and not is_within:
                        continue  # another move covers the rest of the record
                    moved.add(ledger_id)
                    new: IndexRecord | None = None
                    if move.target is not None:
                        # Cut to the ids of the copy: a wider record would not be fully covered when
                        # newer runs overlay all of these ids, and its rest would outlive the copy.
                        new = IndexRecord(first, last, move.target)
                    writer.replace_record(ledger_id, record, new)
        return moved

    def _reopen(self) -> None:
        with self._reopening.alone():
            if self._store.is_writable:
                # It must be closed before it can be opened for writing. If the opening then fails,
                # say because too many files are open, the stored data is readable all the same.
                self._replace_store(self._store.open_beside())
            self._replace_store(self._make_store(self._path, False))
        if not self._store.is_writable:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise StorageIOError(f"index {self._path}: cannot be written: {full}") from full

    def _replace_store(self, store: KeyValueStore) -> None:
        sequence = store.sequence()
        if sequence < self._promised_sequence:
            # It must not be read: lost records would look as if they had never been stored.
            store.close()
            raise _lost_records(self._path, found=sequence, promised=self._promised_sequence)
        old, self._store = self._store, store
        try:
            old.close()
        except StorageIOError:
            pass  # repeats an error that was raised before

    def sequence(self) -> int:
        """Return a number that grows with every record that is written."""
        return self._store.sequence()

    def close(self) -> None:
        self._store.close()


class _BatchWriter:
    """Writes operations in batches of bounded size; those of one call stay in one batch."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._batch: list[Operation] = []

    def delete_ledger(self, ledger_id: int) -> None:
        # Entries and state go together: half a deletion would be a ledger that comes back (B25).
        self._batch.append(DeleteRange(encode_run_key(ledger_id, 0), ledger_end(ledger_id)))
        self._batch.append(Delete(encode_state_key(ledger_id)))
        self._bound()

    def put_runs(
        self,
        ledger_id: int,
        runs: Sequence[NewRun],
        old: Sequence[IndexRecord],
        state: LedgerState | None,
    ) -> None:
        # With the state, if it changes, too: no collection removes the entries of a ledger that is
        # not known, and a crash may come between two batches.
        groups = disjoint_groups(runs)
        if not old and len(groups) == 1:
            records = [IndexRecord(run.first, run.last, run.location) for run in groups[0]]
        else:
            records = list(old)
            for group in groups:
                records = overlay(group, records)
        kept = {record.first for record in records}
        for record in old:
            if record.first not in kept:
                self._batch.append(Delete(encode_run_key(ledger_id, record.first)))
        for record in records:
            self._put(ledger_id, record)
        if state is not None:
            self._batch.append(Put(encode_state_key(ledger_id), encode_state(state)))
        self._bound()

    def replace_record(self, ledger_id: int, old: IndexRecord, new: IndexRecord | None) -> None:
        # In one batch: between two of them, no record would name the entries.
        if new is None or new.first != old.first:
            self._batch.append(Delete(encode_run_key(ledger_id, old.first)))
        if new is not None:
            self._put(ledger_id, new)
        self._bound()

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        self._batch.append(Put(encode_state_key(ledger_id), encode_state(state)))
        self._bound()

    def put_format(self, last_log_id: int) -> None:
        self._batch.append(Put(FORMAT_KEY, encode_format(last_log_id)))

    def finish(self) -> None:
        if self._batch:
            self._store.write(self._batch)
        self._batch = []

    def _put(self, ledger_id: int, record: IndexRecord) -> None:
        self._batch.append(Put(encode_run_key(ledger_id, record.first), encode_run(record)))

    def _bound(self) -> None:
        if len(self._batch) >= _BATCH_OPERATIONS:
            self.finish()


def _read_format(path: str, store: KeyValueStore, *, may_create: bool) -> int:
    """Return the highest log id ever pointed to; give a new store its format record."""
    value = store.get(FORMAT_KEY)
    if value is not None:
        return decode_format(value)
    if not (may_create and store.sequence() == 0):
        raise StorageCorruptError(f"index {path} is lost: there is no format record")
    store.write([Put(FORMAT_KEY, encode_format(0))])
    store.sync()
    return 0


def _lost_records(path: str, *, found: int, promised: int) -> StorageError:
    return StorageCorruptError(f"index {path} has lost records: it ends at {found} of {promised}")
