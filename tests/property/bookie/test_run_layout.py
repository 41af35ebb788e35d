"""Merging blocks to runs, and runs over older index records, against sets and dictionaries."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.bookie.engine.write_cache import LedgerRuns, WriteBuffer
from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX, block_run
from magnetar.bookie.entry_logs.run_plan import plan_in_order, plan_runs
from magnetar.bookie.indexes.location_index import IndexRecord, NewRun
from magnetar.bookie.indexes.run_records import overlay
from tests.ledger_storage import make_block, make_packet

id_sets = st.sets(st.integers(0, 40), min_size=1, max_size=15).map(sorted)


@given(id_sets, st.integers(0, 45), st.integers(0, 45), st.integers(0, 400))
def test_a_packet_run_finds_its_packets(
    ids: list[int], entry_id: int, last: int, bytes_max: int
) -> None:
    run = block_run(make_block(7, ids, b"x" * 10), ids)
    assert run.holds(entry_id) == (entry_id in ids)
    assert run.next_held(entry_id) == min((i for i in ids if i > entry_id), default=ENTRY_ID_MAX)
    if entry_id not in ids or last < entry_id:
        return
    expected: list[bytes] = []
    for wanted in range(entry_id, last + 1):
        packet = make_packet(7, wanted, b"x" * 10)
        if wanted not in ids or (expected and (len(expected) + 1) * len(packet) > bytes_max):
            break
        expected.append(packet)
    assert run.take(entry_id, last, bytes_max) == expected


@given(
    st.lists(id_sets, min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(1, 600),
)
def test_planned_runs_hold_the_newest_copy_of_each_entry_once(
    blocks: list[list[int]], entries_max: int, bytes_max: int
) -> None:
    runs = LedgerRuns()
    expected: dict[int, bytes] = {}
    for version, ids in enumerate(blocks):
        payload = bytes([version]) * (1 + 9 * version)
        runs.append(block_run(make_block(7, ids, payload), ids), 0)
        expected.update((i, make_packet(7, i, payload)) for i in ids)
    planned = plan_runs(runs, entries_max=entries_max, bytes_max=bytes_max)
    assert [i for run in planned for i in run.ids()] == sorted(expected)
    packets = b"".join(
        bytes(piece.run.packets_view(piece.start, piece.stop))
        for run in planned
        for piece in run.pieces
    )
    assert packets == b"".join(packet for _, packet in sorted(expected.items()))
    for run in planned:
        ids = list(run.ids())
        assert (run.first, run.last, run.entries) == (ids[0], ids[-1], len(ids))
        assert run.packets_bytes == sum(len(expected[i]) for i in ids)
        assert run.entries <= entries_max
        assert run.packets_bytes <= bytes_max or run.entries == 1
        assert [i for first, last in run.stretches() for i in range(first, last + 1)] == ids
        assert all(a[1] + 1 < b[0] for a, b in pairwise(run.stretches()))


@given(
    st.lists(st.tuples(st.integers(0, 2), id_sets, st.booleans()), min_size=1, max_size=10),
    st.integers(1, 8),
    st.integers(1, 600),
)
def test_blocks_are_planned_in_the_order_in_which_they_came(
    blocks: list[tuple[int, list[int], bool]], entries_max: int, bytes_max: int
) -> None:
    """The order holds through a flush that failed, too: its buffer takes over the next one."""
    buffer, newer = WriteBuffer(), WriteBuffer()
    expected: list[tuple[int, int, bytes]] = []
    for version, (ledger_id, ids, absorbs) in enumerate(blocks):
        newer.add(ledger_id, make_block(ledger_id, ids, bytes([version])), ids)
        packets = [make_packet(ledger_id, entry_id, bytes([version])) for entry_id in ids]
        expected += zip([ledger_id] * len(ids), ids, packets, strict=True)
        if absorbs:
            buffer.absorb(newer)
            newer = WriteBuffer()
    buffer.absorb(newer)
    planned = list(plan_in_order(buffer.ledgers, entries_max=entries_max, bytes_max=bytes_max))
    found = [(ledger_id, entry_id) for ledger_id, run in planned for entry_id in run.ids()]
    assert found == [each[:2] for each in expected]
    views = [
        piece.run.packets_view(piece.start, piece.stop)
        for _, run in planned
        for piece in run.pieces
    ]
    assert b"".join(views) == b"".join(packet for _, _, packet in expected)
    for _, run in planned:
        assert run.entries <= entries_max
        assert run.packets_bytes <= bytes_max or run.entries == 1


@example([[0], [1]], 2, 0)
@example([[3], [1], [2]], 3, 2)
@example([[9], [5], [1], [3, 5], [1, 2, 3]], 5, 5)
@example([[9], [2, 4], [2, 4], [3], [2, 4]], 5, 3)
@given(st.lists(id_sets, min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 45))
def test_the_newest_run_is_found_and_nothing_newer_lies_below_the_ceiling(
    blocks: list[list[int]], older: int, entry_id: int
) -> None:
    """The first `older` blocks are in a buffer that takes over the next one, as after a flush that
    failed."""
    runs, next_runs = LedgerRuns(), LedgerRuns()
    for version, ids in enumerate(blocks):
        run = block_run(make_block(7, ids, bytes([version])), ids)
        (runs if version < older else next_runs).append(run, 0)
    if next_runs.runs:
        runs.extend(next_runs)
    holding = [version for version, ids in enumerate(blocks) if entry_id in ids]
    found, ceiling = runs.find(entry_id)
    newest = max(holding, default=-1)
    assert (found is None) == (newest < 0)
    if found is not None:
        assert found is runs.runs[newest]
    newer = (i for ids in blocks[newest + 1 :] for i in ids if i > entry_id)
    assert entry_id < ceiling <= min(newer, default=ENTRY_ID_MAX)
    assert runs.last == max(map(max, blocks))


@settings(max_examples=300)
@given(st.lists(st.tuples(id_sets, st.integers(1, 6)), min_size=1, max_size=6))
def test_overlaid_records_find_the_newest_run_of_each_entry(
    flushes: list[tuple[list[int], int]],
) -> None:
    records: list[IndexRecord] = []
    held: dict[RunLocation, set[int]] = {}
    newest: dict[int, RunLocation] = {}
    for flush, (ids, entries_max) in enumerate(flushes):
        runs = LedgerRuns()
        runs.append(block_run(make_block(7, ids), ids), 0)
        new: list[NewRun] = []
        for run in plan_runs(runs, entries_max=entries_max, bytes_max=1 << 20):
            location = RunLocation(flush, run.first, 1, run.entries, not run.is_contiguous)
            held[location] = set(run.ids())
            newest.update((i, location) for i in run.ids())
            new.append(NewRun(location, run.stretches(), run.first, run.last))
        touched = [r for r in records if r.first <= ids[-1] and r.last >= ids[0]]
        others = [r for r in records if r not in touched]
        records = sorted(others + overlay(new, touched))
        assert all(a.last < b.first for a, b in pairwise(records))
    for entry_id in range(45):
        below = [record for record in records if record.first <= entry_id]
        found = None
        if below and entry_id <= below[-1].last and entry_id in held[below[-1].location]:
            found = below[-1].location
        assert found == newest.get(entry_id)
