"""The index of the `interleaved` engine: a file per ledger, with a cell for every entry.

Layout: docs/formats/page-index.md. A flush that writes blocks in order of arrival makes many small
runs. A cell per entry costs the same however small they are, and neighbours are found without a
search. A cell has only the place of a run; `locate` reads the rest from the run's head.

Changes are made on copies of pages, published to readers ledger by ledger, and written in rounds
(`double_write.py`): at the end of each commit, and earlier when a quarter of the cache is unwritten
(the eviction of dirty pages: whole ledgers, ascending). Any moment is safe for that, since the runs
were synced before the commit: the order is log, index, mark (rule 5.1, defect B16).

Reads may come from any thread; there is one writer at a time.
"""

import posixpath
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from threading import RLock

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes.index_mark import IndexMark, Promise
from magnetar.bookie.indexes.ledger_state import check_state, encode_state
from magnetar.bookie.indexes.location_index import (
    IndexChanges,
    IndexRecord,
    NewRun,
    RunMove,
    no_pause,
)
from magnetar.bookie.indexes.pages.cell_tree import CellTree, TreeEdit
from magnetar.bookie.indexes.pages.double_write import FIRST_SEQUENCE, DoubleWrite
from magnetar.bookie.indexes.pages.ledger_set import LedgerSet
from magnetar.bookie.indexes.pages.page_cache import PageCache
from magnetar.bookie.indexes.pages.page_files import PageFiles
from magnetar.bookie.indexes.pages.page_format import (
    IN_DOUBT,
    LedgerHeader,
    Page,
    decode_header,
    decode_page,
    encode_header,
    encode_page,
    pack_cell,
    page_number,
    page_offset,
    unpack_cell,
)
from magnetar.bookie.indexes.pages.round_format import Round, Write
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Disk, Lock

LocateRun = Callable[[int, int], StoredRun]
"""Reads the head of the run at an offset of an entry log. Called by any thread that holds the
index's lock.

Raises:
    StorageIOError: there is none, or it cannot be read.
"""

_LOCATED_MAX = 1 << 16
"""Cached heads of runs; a run never changes, and log ids are not reused."""

_SCAN_RECORDS = 256
"""Records per step of a long scan; other tasks get a turn between two steps."""


class PageIndex:
    """A `LocationIndex` made of page files; that interface documents the methods."""

    def __init__(
        self,
        directory: str,
        mark: IndexMark,
        *,
        disk: Disk,
        locate: LocateRun,
        options: StorageOptions,
    ) -> None:
        self._directory = directory
        self._mark = mark
        self._disk = disk
        self._locate = locate
        self._options = options
        self._lock = RLock()
        self._files = PageFiles(directory, open_files_max=options.index_open_files_max, disk=disk)
        self._cache = PageCache(options.index_cache_bytes)
        self._located: OrderedDict[int, StoredRun] = OrderedDict()
        self._double_write = DoubleWrite(directory, mark, disk)
        self._ledgers = LedgerSet()
        self._held: Lock | None = None
        self._last_log_id = 0

    @classmethod
    def open(
        cls,
        directory: str,
        mark: IndexMark,
        *,
        disk: Disk,
        locate: LocateRun,
        has_logs: bool = False,
        options: StorageOptions | None = None,
        may_write: bool = True,
    ) -> "PageIndex":
        """Open the index; create it if there is no trace of one: no mark and no entry logs.

        Without `may_write`, the disk stays unchanged: what a crash left unfinished is completed in
        memory alone, and `commit` must not be called.

        Raises:
            StorageCorruptError: damaged, or page files are missing.
            StorageIOError: it could not be opened.
        """
        index = cls(directory, mark, disk=disk, locate=locate, options=options or StorageOptions())
        try:
            try:
                promise = mark.read()
                if promise is None:
                    index._check_new(has_logs=has_logs, may_write=may_write)
                if may_write:
                    disk.make_directory(directory)
                    index._held = disk.lock(f"{directory}/lock")
                if promise is None:
                    promise = index._make()
                index._open(promise, may_write=may_write)
            except OSError as exc:
                raise StorageIOError(f"index {directory}: cannot be opened: {exc}") from exc
        except BaseException:
            index.close()
            raise
        return index

    def _check_new(self, *, has_logs: bool, may_write: bool) -> None:
        if has_logs or not may_write or self._files.list_ledgers():
            raise StorageCorruptError(f"index {self._directory}: its mark is lost")

    def _make(self) -> Promise:
        # From now on, a missing index counts as lost, not as new.
        promise = Promise("interleaved", FIRST_SEQUENCE)
        self._mark.write(promise)
        return promise

    def _open(self, promise: Promise, *, may_write: bool) -> None:
        if may_write:
            # A rename by a killed process may not be durable; the next steps rely on it.
            self._disk.sync_directory(posixpath.dirname(self._mark.path))
        self._double_write.promise = promise
        pending = self._double_write.pending(promise)
        is_carried_out = pending is not None and may_write and self._resume(pending)
        found = self._files.list_ledgers()
        if pending is not None:
            promise = pending.promise
            if not is_carried_out:
                found -= set(pending.removed)
                found |= {write.ledger_id for write in pending.writes}
                self._lay_over(pending)
        self._ledgers.fill(found)
        if (len(found), self._ledgers.digest) != (promise.ledgers, promise.digest):
            raise StorageCorruptError(
                f"index {self._directory} has lost or got page files: there are {len(found)}, "
                f"promised are {promise.ledgers}; it can be made again from the entry logs with "
                "'magnetar bookie-tool rebuild-index'"
            )
        self._last_log_id = promise.last_log_id

    def _resume(self, pending: Round) -> bool:
        """Carry out the round that a crash left; return False if there is no room.

        Then the round is in memory alone, and the next commit has to write it first.
        """
        try:
            self._double_write.resume(pending)
        except StorageIOError as error:
            if not is_out_of_room(error):
                raise
            return False
        return True

    def _lay_over(self, pending: Round) -> None:
        """Put an unfinished round over the files, in memory."""
        for ledger_id, writes in groupby(pending.writes, key=lambda write: write.ledger_id):
            first, *others = writes
            header = decode_header(first.data, ledger_id)
            pages: dict[int, Page] = {}
            for write in others:
                number = page_number(write.offset, header.page_bytes)
                pages[number] = decode_page(
                    write.data, ledger_id, number, page_bytes=header.page_bytes
                )
            self._cache.change(header, pages)

    # Reading

    @property
    def last_log_id(self) -> int:
        """The highest log id that the index has ever pointed to."""
        return self._last_log_id

    @property
    def cached_bytes(self) -> int:
        """Bytes of pages and headers in memory."""
        return self._cache.size_bytes

    @property
    def open_files(self) -> int:
        return self._files.open_files

    def states(self) -> dict[int, bytes]:
        """Return all ledger states, encoded, as `LocationIndex` says; reads the header of every
        file."""
        states: dict[int, bytes] = {}
        for ledger_id in self._ledgers.ascending():
            with self._lock:
                header = self._header(ledger_id)
            if header is not None and header.state:
                check_state(header.state)
                states[ledger_id] = header.state
        return states

    def find(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the record that covers the entry; None if the entry is certainly not stored.

        Raises:
            StorageIOError: the index cannot be read.
        """
        with self._lock, self._damage_of(ledger_id, entry_id):
            tree = self._tree(ledger_id)
            if tree is None or entry_id < 0:
                return None
            cell = tree.get(entry_id)
            return None if cell == 0 else self._record(tree, entry_id, cell)

    def floor(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the last record of the ledger that begins at or before the entry; None without
        one.

        Raises:
            StorageIOError: the index cannot be read.
        """
        with self._lock, self._damage_of(ledger_id, entry_id):
            tree = self._tree(ledger_id)
            return None if tree is None else self._floor(tree, entry_id)

    def records_from(self, ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
        """Return records that cover the entry or later ones, ascending, as they are at one moment.

        Raises:
            StorageIOError: the index cannot be read.
        """
        records: list[IndexRecord] = []
        with self._lock, self._damage_of(ledger_id, entry_id):
            tree = self._tree(ledger_id)
            if tree is None:
                return records
            below = self._floor(tree, entry_id)
            if below is not None and below.last >= entry_id:
                records.append(below)
                entry_id = below.last + 1
            while len(records) < records_max:
                found = tree.first_from(max(0, entry_id))
                if found is None:
                    break
                records.append(self._record(tree, found, tree.get(found)))
                entry_id = records[-1].last + 1
        return records

    def all_records(self) -> Iterator[tuple[int, IndexRecord]]:
        """Yield every record with its ledger id, ascending, as `LocationIndex` says."""
        for ledger_id in self._ledgers.ascending():
            entry_id = 0
            while True:
                records = self.records_from(ledger_id, entry_id, _SCAN_RECORDS)
                for record in records:
                    yield ledger_id, record
                if len(records) < _SCAN_RECORDS:
                    break
                entry_id = records[-1].last + 1

    def _floor(self, tree: CellTree, entry_id: int) -> IndexRecord | None:
        found = tree.last_until(entry_id)
        return None if found is None else self._record(tree, found, tree.get(found))

    def _record(self, tree: CellTree, entry_id: int, cell: int) -> IndexRecord:
        """Return the record of an entry that has this cell."""
        ledger_id = tree.header.ledger_id
        if cell == IN_DOUBT:
            raise StorageCorruptError(
                f"page index of ledger {ledger_id}: a page was damaged, and what it said of entry "
                f"{entry_id} is not known"
            )
        run = self._run(cell)
        if run.ledger_id != ledger_id or not run.first <= entry_id <= run.last:
            raise StorageCorruptError(
                f"page index of ledger {ledger_id}: entry {entry_id} should be in a run of ledger "
                f"{run.ledger_id}, entries {run.first} to {run.last}"
            )
        first, last = tree.stretch(entry_id, run.first, run.last)
        return IndexRecord(first, last, run.location)

    def _run(self, cell: int) -> StoredRun:
        run = self._located.get(cell)
        if run is not None:
            self._located.move_to_end(cell)
            return run
        run = self._locate(*unpack_cell(cell))
        self._located[cell] = run
        if len(self._located) > _LOCATED_MAX:
            self._located.popitem(last=False)
        return run

    def _tree(self, ledger_id: int) -> CellTree | None:
        header = self._header(ledger_id)
        return None if header is None else CellTree(header, self._loader(header))

    def _header(self, ledger_id: int) -> LedgerHeader | None:
        if ledger_id not in self._ledgers:
            return None
        header = self._cache.header(ledger_id)
        if header is None:
            header = self._files.read_header(ledger_id)
            self._cache.keep_header(header)
        return header

    def _loader(self, header: LedgerHeader) -> Callable[[int, int, int], Page]:
        def load(number: int, level: int, base: int) -> Page:
            page = self._cache.page(header.ledger_id, number)
            if page is None:
                last = min(base + header.cells ** (level + 1) - 1, ENTRY_ID_MAX)
                page = self._files.read_page(header, number, base, last)
                self._cache.keep_page(header.ledger_id, number, page)
            return page

        return load

    def _damage_of(self, ledger_id: int, entry_id: int) -> "_DamageNamed":
        return _DamageNamed(self._files, ledger_id, entry_id)

    # Writing

    def commit(self, changes: IndexChanges, *, pause: Callable[[], None] = no_pause) -> set[int]:
        """Write the changes durably, as `LocationIndex` says."""
        self._double_write.finish()
        before = self.sequence()
        self._last_log_id = max(self._last_log_id, changes.last_log_id)
        for ledger_id in sorted(changes.deleted):
            self._delete(ledger_id)
        changed: set[int] = set()
        for ledger_id in sorted({*changes.runs, *changes.states}):
            pause()
            state = changes.states.get(ledger_id)
            encoded = None if state is None else encode_state(state)
            if self._change(ledger_id, changes.runs.get(ledger_id, ()), encoded):
                changed.add(ledger_id)
            self._write_if_much()
        ordered = sorted(changes.moves, key=lambda move: move.ledger_id)
        for ledger_id, group in groupby(ordered, key=lambda move: move.ledger_id):
            if self._move(ledger_id, list(group)):
                changed.add(ledger_id)
            self._write_if_much()
        if self._cache.has_unwritten or self.sequence() == before:
            self._write_round()
        return changed

    def sequence(self) -> int:
        """Return a number that grows with every round of writes."""
        return self._double_write.promise.sequence

    def close(self) -> None:
        with self._lock:
            self._files.close()
            if self._held is not None:
                self._held.release()
            self._held = None

    def _delete(self, ledger_id: int) -> None:
        with self._lock:
            if ledger_id not in self._ledgers:
                return
            # The whole file is removed, with state and entries: nothing of it can come back (B25).
            self._ledgers.discard(ledger_id)
            self._files.forget(ledger_id)
            self._cache.remove(ledger_id)

    def _change(self, ledger_id: int, runs: Sequence[NewRun], state: bytes | None) -> bool:
        """Put runs over the ledger's cells; return whether any cell was set before."""
        assert ledger_id >= 0
        edit = self._edit(ledger_id)
        had_any = False
        for run in runs:
            cell = pack_cell(run.location.log_id, run.location.offset)
            for first, last in run.stretches:
                had_any = edit.fill(first, last, cell) or had_any
        if state is not None:
            edit.header = edit.header._replace(state=state)
        self._publish(edit)
        return had_any

    def _move(self, ledger_id: int, moves: Sequence[RunMove]) -> bool:
        if ledger_id not in self._ledgers:
            return False  # deleted meanwhile
        try:
            edit = self._edit(ledger_id)
        except StorageCorruptError:
            return False  # its header is damaged: no entry can be read anyway
        moved = False
        for move in moves:
            source = pack_cell(move.source.log_id, move.source.offset)
            target = 0
            if move.target is not None:
                target = pack_cell(move.target.log_id, move.target.offset)
            moved = edit.replace(move.first, move.last, source, target) or moved
        if moved:
            self._publish(edit)
        return moved

    def _edit(self, ledger_id: int) -> TreeEdit:
        with self._lock:
            header = self._header(ledger_id)
            if header is None:
                header = LedgerHeader(ledger_id, self._options.index_page_bytes)
        load = self._loader(header)

        def load_locked(number: int, level: int, base: int) -> Page:
            with self._lock:
                return load(number, level, base)

        return TreeEdit(header, load_locked)

    def _publish(self, edit: TreeEdit) -> None:
        with self._lock:
            self._ledgers.add(edit.header.ledger_id)
            self._cache.change(edit.header, edit.changed)

    def _write_if_much(self) -> None:
        if self._cache.wants_write:
            self._write_round()

    def _write_round(self) -> None:
        """Write everything that is unwritten. No other thread changes the data that is read
        here."""
        writes: list[Write] = []
        for ledger_id, unwritten in sorted(self._cache.unwritten.items()):
            header = unwritten.header
            writes.append(Write(ledger_id, 0, encode_header(header)))
            for number, page in sorted(unwritten.pages.items()):
                at = page_offset(number, header.page_bytes)
                writes.append(Write(ledger_id, at, encode_page(ledger_id, number, page)))
        promise = Promise(
            "interleaved",
            self.sequence() + 1,
            self._last_log_id,
            len(self._ledgers),
            self._ledgers.digest,
        )
        self._double_write.write(Round(promise, sorted(self._cache.removed), writes))
        with self._lock:
            for ledger_id in self._cache.removed:
                self._files.forget(ledger_id)
            self._cache.on_written()


class _DamageNamed:
    """Adds the unreadable entry to damage errors that pass through and do not name one yet."""

    def __init__(self, files: PageFiles, ledger_id: int, entry_id: int) -> None:
        self._files = files
        self._ledger_id = ledger_id
        self._entry_id = entry_id

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StorageCorruptError) and error.damage is None:
            path = self._files.path(self._ledger_id)
            error.damage = Damage(
                path, 0, self._ledger_id, self._entry_id, self._entry_id, str(error)
            )
