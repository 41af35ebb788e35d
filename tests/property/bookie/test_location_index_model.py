"""Both kinds of index against dictionaries: runs over runs, moves, deletions, states, restarts."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.entry_logs.entry_log import RunLocation, StoredRun
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark
from magnetar.bookie.indexes.ledger_state import encode_state
from magnetar.bookie.indexes.location_index import (
    IndexChanges,
    IndexRecord,
    LocationIndex,
    NewRun,
    RunMove,
)
from magnetar.bookie.indexes.page_index import PageIndex
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.system import SystemDisk
from tests.ledger_storage import ENGINES

LEDGERS = 3
FAR = (0, 1000, ENTRY_ID_MAX - 60)
"""Ids begin here: the trees of pages get low, high and as high as can be."""


@dataclass
class Logs:
    """The runs that were written, as the entry logs would have them."""

    runs: dict[tuple[int, int], StoredRun] = field(default_factory=dict)
    ids: dict[RunLocation, frozenset[int]] = field(default_factory=dict)

    def write(self, ledger_id: int, ids: Sequence[int], log_id: int) -> RunLocation:
        offset = 64 * (1 + len(self.runs))
        has_ids = ids[-1] - ids[0] + 1 != len(ids)
        location = RunLocation(log_id, offset, 50, len(ids), has_ids)
        self.runs[log_id, offset] = StoredRun(ledger_id, ids[0], ids[-1], location)
        self.ids[location] = frozenset(ids)
        return location

    def locate(self, log_id: int, offset: int) -> StoredRun:
        return self.runs[log_id, offset]


@dataclass(frozen=True)
class Commit:
    deleted: tuple[int, ...]
    runs: tuple[tuple[int, tuple[int, ...]], ...]
    """Ledger and ids of each, in the order in which they count."""
    states: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """Compaction of every nth run; stale: a run that was laid over meanwhile is moved as well."""

    every: int


@dataclass(frozen=True)
class Reopen:
    pass


ledger_ids = st.integers(0, LEDGERS - 1)
ids = st.builds(
    lambda begin, offsets: tuple(begin + offset for offset in sorted(offsets)),
    st.sampled_from(FAR),
    st.one_of(
        st.sets(st.integers(0, 50), min_size=1, max_size=12),
        st.builds(lambda a, n: set(range(a, a + n)), st.integers(0, 30), st.integers(1, 20)),
    ),
)
operations = st.one_of(
    st.builds(
        Commit,
        st.one_of(st.just(()), st.tuples(ledger_ids)),
        st.lists(st.tuples(ledger_ids, ids), max_size=4).map(tuple),
        st.one_of(st.just(()), st.tuples(ledger_ids)),
    ),
    st.builds(Move, st.integers(1, 3)),
    st.just(Reopen()),
)


def stretches(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if found and found[-1][1] == entry_id - 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


class Example:
    """An index and what it should say, side by side."""

    def __init__(self, engine: EngineKind, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._logs = Logs()
        self._log_id = 1
        self._cells: dict[int, dict[int, RunLocation]] = {}
        self._states: dict[int, bytes] = {}
        self._written: list[tuple[int, RunLocation]] = []

    def run(self, todo: Sequence[Commit | Move | Reopen]) -> None:
        self._index = self._open()
        try:
            for operation in todo:
                before = self._index.sequence()
                if isinstance(operation, Commit):
                    self._commit(operation)
                elif isinstance(operation, Move):
                    self._move(operation.every)
                else:
                    self._index.close()
                    self._index = self._open()
                    assert self._index.sequence() == before
                    assert self._index.last_log_id >= max(
                        (log for log, _ in self._logs.runs), default=0
                    )
                self._check()
        finally:
            self._index.close()

    def _open(self) -> LocationIndex:
        disk = SystemDisk()
        mark = IndexMark(str(self._directory / "index-mark"), disk)
        path = str(self._directory / "index")
        if self._engine == "db":
            return RocksIndex.open(path, mark)
        options = StorageOptions(
            index_page_bytes=64, index_cache_bytes=6000, index_open_files_max=2
        )
        return PageIndex.open(path, mark, disk=disk, locate=self._logs.locate, options=options)

    def _commit(self, operation: Commit) -> None:
        before = self._index.sequence()
        runs: dict[int, list[NewRun]] = {}
        for ledger_id in operation.deleted:
            self._cells.pop(ledger_id, None)
            self._states.pop(ledger_id, None)
        overlaid: set[int] = set()
        for ledger_id, entry_ids in operation.runs:
            location = self._logs.write(ledger_id, entry_ids, self._log_id)
            new = NewRun(location, stretches(entry_ids), entry_ids[0], entry_ids[-1])
            runs.setdefault(ledger_id, []).append(new)
            cells = self._cells.setdefault(ledger_id, {})
            if cells.keys() & set(entry_ids):
                overlaid.add(ledger_id)
            cells.update(dict.fromkeys(entry_ids, location))
            self._written.append((ledger_id, location))
        states: dict[int, LedgerState] = {}
        for ledger_id in operation.states:
            states[ledger_id] = LedgerState(b"k", False, before)
            self._states[ledger_id] = encode_state(states[ledger_id])
        changes = IndexChanges(self._log_id, operation.deleted, runs, states)
        in_this_commit = {ledger_id for ledger_id in runs if len(runs[ledger_id]) > 1}
        assert self._index.commit(changes) >= overlaid - in_this_commit
        assert self._index.sequence() > before

    def _move(self, every: int) -> None:
        """Copy runs to a new log, also such that nothing points to any more (rule 10.4)."""
        self._log_id += 1
        moves: list[RunMove] = []
        for ledger_id, source in self._written[::every]:
            entry_ids = sorted(self._logs.ids[source])
            target = self._logs.write(ledger_id, entry_ids, self._log_id)
            moves.append(RunMove(ledger_id, entry_ids[0], entry_ids[-1], source, target))
            self._written.append((ledger_id, target))
            for entry_id, location in self._cells.get(ledger_id, {}).items():
                if location == source:
                    self._cells[ledger_id][entry_id] = target
        self._written = self._written[-20:]
        self._index.commit(IndexChanges(self._log_id, moves=moves))

    def _check(self) -> None:
        index = self._index
        assert dict(index.states()) == self._states
        for ledger_id in range(LEDGERS):
            cells = self._cells.get(ledger_id, {})
            for begin in FAR:
                for entry_id in range(max(0, begin - 2), min(begin + 60, ENTRY_ID_MAX)):
                    self._check_entry(ledger_id, entry_id)
            last = index.floor(ledger_id, ENTRY_ID_MAX)
            assert (None if last is None else last.last) == max(cells, default=None)
            records = index.records_from(ledger_id, 0, 1000)
            assert all(a.last < b.first for a, b in pairwise(records))
            assert self._held(records) == cells
            some = index.records_from(ledger_id, FAR[1], 2)
            assert some == [each for each in records if each.last >= FAR[1]][:2]
        found = list(index.all_records())
        assert [each[0] for each in found] == sorted(each[0] for each in found)
        assert {each for each, _ in found} >= {each for each, cells in self._cells.items() if cells}

    def _check_entry(self, ledger_id: int, entry_id: int) -> None:
        record = self._index.find(ledger_id, entry_id)
        held = record is not None and entry_id in self._logs.ids[record.location]
        expected = self._cells.get(ledger_id, {}).get(entry_id)
        assert (record.location if record is not None and held else None) == expected

    def _held(self, records: Iterable[IndexRecord]) -> dict[int, RunLocation]:
        return {
            entry_id: record.location
            for record in records
            for entry_id in self._logs.ids[record.location]
            if record.first <= entry_id <= record.last
        }


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=20, deadline=None)
@given(todo=st.lists(operations, min_size=1, max_size=12))
def test_10_4_an_index_says_of_each_entry_which_run_is_the_newest(
    engine: EngineKind, todo: list[Commit | Move | Reopen]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Example(engine, Path(directory)).run(todo)
