"""Compactions of runs with gaps against a dictionary, with flushes in between: at every moment the
index leads to the newest copy of each entry, and at the end to no log that is removed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    RunLocation,
    decode_run_head,
    encode_footer,
    encode_log_header,
)
from magnetar.bookie.entry_logs.log_names import LogIds, log_name
from magnetar.bookie.entry_logs.log_scan import scan_log
from magnetar.bookie.entry_logs.log_writer import encode_run
from magnetar.bookie.gc.compaction_phases import copy_name
from magnetar.bookie.gc.compaction_record import CompactionRecord
from magnetar.bookie.gc.log_copier import LogCopier
from magnetar.bookie.indexes import rocks_index
from magnetar.bookie.indexes.index_mark import IndexMark
from magnetar.bookie.indexes.key_value import Operation
from magnetar.bookie.indexes.location_index import (
    IndexChanges,
    IndexRecord,
    NewRun,
    no_pause,
)
from magnetar.bookie.indexes.rocks_index import RocksIndex
from magnetar.ledger.system import SystemClock
from tests.entry_logs import planned
from tests.ledger_storage import STATE, make_packet
from tests.simulation.disk import SimDisk
from tests.simulation.storing.key_value import SimKeyValue

LEDGER = 7
IDS = 10
LOGS = "/entry-logs"


@dataclass(frozen=True)
class Flush:
    """One run, in a log of its own."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Compact:
    """Compaction of some logs into one."""

    sources: tuple[int, ...]
    """Logs to compact, by their place among all."""
    between: tuple[Flush | None, ...] = ()
    """Flushes before each look of the copier into the index, then before each commit of moves."""
    moves_per_commit: int = 1000
    cut: int = 0
    """Commits of a first try, which ended there: all moves are repeated."""


def flushes_of(ids_min: int, ids_max: int) -> st.SearchStrategy[Flush]:
    ids = st.sets(st.integers(0, IDS - 1), min_size=ids_min, max_size=ids_max)
    return ids.map(lambda found: Flush(tuple(sorted(found))))


few, many = flushes_of(1, 3), flushes_of(IDS // 2, IDS)
compactions = st.builds(
    Compact,
    st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple),
    st.lists(st.one_of(st.none(), few), max_size=6).map(tuple),
    st.integers(1, 3),
    st.integers(0, 3),
)


class Example:
    """Index and logs, and what they should hold, side by side."""

    def __init__(self) -> None:
        self._disk = SimDisk(seed="compaction")
        self._disk.make_directory(LOGS)
        self._index = RocksIndex.open(
            "/index", IndexMark("/index-mark", self._disk), make_store=self._make_store
        )
        self._ids = LogIds(0)
        self._logs: set[int] = set()
        self._held: dict[RunLocation, dict[int, bytes]] = {}
        """Packets of each run by entry id, as they are in its log."""
        self._newest: dict[int, bytes] = {}
        self._in_flush: dict[int, bytes] = {}
        self._versions = 0
        self._pause: Callable[[], None] = no_pause
        self._look_at_all_batches()
        self._pause_before_looks()

    def _make_store(self, path: str, may_create: bool) -> SimKeyValue:
        store = SimKeyValue.open(self._disk, path, may_create)
        assert isinstance(store, SimKeyValue)
        return store

    def _look_at_all_batches(self) -> None:
        store = self._index._store
        write = store.write

        def write_then_look(batch: Sequence[Operation]) -> None:
            write(batch)
            self.look()

        store.write = write_then_look  # type: ignore[method-assign]

    def _pause_before_looks(self) -> None:
        records_from = self._index.records_from

        def pause_then_look(ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
            self._pause()
            return records_from(ledger_id, entry_id, records_max)

        self._index.records_from = pause_then_look  # type: ignore[method-assign]

    def run(self, todo: Sequence[Flush | Compact]) -> None:
        for operation in todo:
            if isinstance(operation, Flush):
                self._flush(operation)
            elif self._logs:
                self._compact(operation)
            self.look()

    def look(self) -> None:
        """Each entry is found as it was stored last; while a flush runs, or as it was before."""
        for entry_id in range(IDS):
            record = self._index.find(LEDGER, entry_id)
            found = None if record is None else self._held[record.location].get(entry_id)
            expected = [self._newest.get(entry_id)]
            if entry_id in self._in_flush:
                expected.append(self._in_flush[entry_id])
            assert found in expected, f"entry {entry_id} is read from {record}"

    def _flush(self, operation: Flush) -> None:
        self._versions += 1
        payload = b"%d" % self._versions
        log_id, at = self._ids.new(), LOG_HEADER_BYTES
        run = planned(LEDGER, operation.ids, payload)
        head, packets = encode_run(log_id, at, LEDGER, run)
        size_bytes = len(head) + len(packets)
        footer = encode_footer(log_id, at + size_bytes, {LEDGER: size_bytes})
        file = self._disk.create(f"{LOGS}/{log_name(log_id)}")
        file.append([encode_log_header(log_id, 0), head, packets, footer])
        self._on_log(log_id)
        location = RunLocation(log_id, at, size_bytes, run.entries, not run.is_contiguous)
        new = NewRun(location, run.stretches(), run.first, run.last)
        self._in_flush = {each: make_packet(LEDGER, each, payload) for each in operation.ids}
        self._index.commit(IndexChanges(log_id, runs={LEDGER: [new]}, states={LEDGER: STATE}))
        self._newest |= self._in_flush
        self._in_flush = {}

    def _compact(self, operation: Compact) -> None:
        logs = sorted(self._logs)
        sources = sorted({logs[each % len(logs)] for each in operation.sources})
        flushes = iter(operation.between)
        self._pause = lambda: self._flush_if_any(flushes)
        target = self._ids.new()
        copier = LogCopier(
            LOGS,
            target,
            sources,
            index=self._index,
            disk=self._disk,
            clock=SystemClock(),
            moves_max=1000,
        )
        copier.begin()
        while copier.copy_some(1):
            pass
        record = copier.finish()
        assert copier.copied.complete == sources
        if record is not None:
            self._disk.rename(f"{LOGS}/{copy_name(target)}", f"{LOGS}/{log_name(target)}")
            self._on_log(target)
            self._move(record, operation)
        self._pause = no_pause
        self._remove(sources)

    def _flush_if_any(self, flushes: Iterator[Flush | None]) -> None:
        flush = next(flushes, None)
        if flush is not None:
            self._flush(flush)

    def _move(self, record: CompactionRecord, operation: Compact) -> None:
        batches = list(record.batches(operation.moves_per_commit))
        for moves in [*batches[: operation.cut], *batches]:
            self._pause()
            self._index.commit(IndexChanges(record.target_log_id, moves=moves))

    def _on_log(self, log_id: int) -> None:
        file = self._disk.open(f"{LOGS}/{log_name(log_id)}")
        for run in scan_log(file, log_id).runs:
            at = run.location
            data = file.pread(at.size_bytes, at.offset)
            head = decode_run_head(data, log_id=log_id, offset=at.offset)
            starts = [head.tables_bytes + each for each in head.offsets]
            packets = [data[a:b] for a, b in pairwise(starts)]
            self._held[at] = dict(zip(head.ids, packets, strict=True))
        self._logs.add(log_id)

    def _remove(self, log_ids: Sequence[int]) -> None:
        for _, record in self._index.all_records():
            assert record.location.log_id not in log_ids, f"{record} points to a removed log"
        for log_id in log_ids:
            self._disk.remove(f"{LOGS}/{log_name(log_id)}")
            self._logs.remove(log_id)


JOINED_BETWEEN_TWO_LOOKS = [
    Flush((5, 7)),
    Flush((2, 3, 4, 5, 7, 8, 9)),
    Compact((0,)),  # no record covers entry 6 any more, which is in the gap of the run
    Compact((0,), between=(None, Flush((3, 9)))),
]
"""A flush joins the records of a run over a gap while the copier reads them."""

CUT_TO_ITS_COPY = [Flush((0, 5, 9)), Flush((0,)), Compact((0,))]
"""The record of a moved run begins behind the one that it replaces."""


@settings(max_examples=200, deadline=None)
@given(todo=st.lists(st.one_of(few, many, compactions), min_size=3, max_size=15))
@example(todo=JOINED_BETWEEN_TWO_LOOKS)
@example(todo=CUT_TO_ITS_COPY)
def test_10_4_at_every_moment_of_a_compaction_the_newest_copies_are_found(
    todo: list[Flush | Compact],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks_index, "_BATCH_OPERATIONS", 1)
        Example().run(todo)
