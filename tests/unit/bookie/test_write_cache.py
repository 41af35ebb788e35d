"""The write cache: reads of many small adds stay cheap, whatever order the adds came in."""

from collections.abc import Iterable

import pytest

from magnetar.bookie.engine import write_cache
from magnetar.bookie.engine.memory_view import MemoryView
from magnetar.bookie.engine.read_cache import ReadCache
from magnetar.bookie.engine.write_cache import Found, LedgerRuns
from magnetar.bookie.entry_logs.packet_run import PacketRun
from tests.ledger_storage import make_block, make_packet

RUNS = 500


class CountedRun(PacketRun):
    """A run of one entry that counts the looks at all runs."""

    looks = 0

    def holds(self, entry_id: int) -> bool:
        CountedRun.looks += 1
        return super().holds(entry_id)

    def next_held(self, entry_id: int) -> int:
        CountedRun.looks += 1
        return super().next_held(entry_id)


def single(entry_id: int, payload: bytes) -> CountedRun:
    block = make_block(7, [entry_id], payload)
    return CountedRun(
        block.data, ids=[entry_id], packets_at=block.packets_offset, offsets=[8, len(block.data)]
    )


def view_of(adds: Iterable[tuple[int, bytes]]) -> MemoryView:
    memory = MemoryView(ReadCache(1 << 20))
    runs = memory.active.ledgers[7] = LedgerRuns()
    for entry_id, payload in adds:
        runs.append(single(entry_id, payload), 0)
    return memory


FIRST = [(entry_id, b"first") for entry_id in range(RUNS)]
LATE = {
    "none": [],
    "the last entry again": [RUNS - 1],
    "the first entry again": [0],
    "all entries again": range(RUNS),
    "all entries again, the last one first": range(RUNS - 1, -1, -1),
    "all entries again, the even ones first": [*range(0, RUNS, 2), *range(1, RUNS, 2)],
    "all entries again and again": [*range(RUNS)] * 5,
    "one entry again and again": [7] * RUNS,
}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The entries that were searched for, once for each layer."""
    searched: list[int] = []
    find = write_cache._Layer.find

    def counted(layer: write_cache._Layer, entry_id: int) -> Found:
        searched.append(entry_id)
        return find(layer, entry_id)

    monkeypatch.setattr(write_cache._Layer, "find", counted)
    return searched


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_a_read_looks_at_a_few_runs_per_entry_also_after_repeated_adds(
    late: Iterable[int], searches: list[int]
) -> None:
    memory = view_of([*FIRST, *((entry_id, b"again") for entry_id in late), (RUNS, b"behind")])
    CountedRun.looks = 0
    packets = memory.read(7, 0, RUNS, 1 << 20)
    expected = dict(FIRST) | dict.fromkeys(late, b"again") | {RUNS: b"behind"}
    assert packets == [make_packet(7, *each) for each in expected.items()]
    assert CountedRun.looks <= 4 * RUNS
    assert len(searches) <= 4 * RUNS


def test_a_read_searches_few_layers_after_adds_in_descending_order(searches: list[int]) -> None:
    memory = view_of(reversed(FIRST))
    assert memory.read(7, 0, RUNS, 1 << 20) == [make_packet(7, *each) for each in FIRST]
    assert len(searches) <= 4 * RUNS
