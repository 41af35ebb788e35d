"""Acknowledgement state: mark-delete position, ranges and batches."""

import tracemalloc

import pytest

from magnetar.cursors.ack_state import (
    BATCH_SIZE_MAX,
    WORDS_MAX,
    AckRange,
    AckSnapshot,
    AckState,
    BatchAck,
    bits_from_words,
    words_from_bits,
)
from magnetar.ledger.position import EARLIEST, LATEST, Position
from tests.unit.cursors.growing_log import GrowingLog


def start(*ledgers: tuple[int, int]) -> tuple[GrowingLog, AckState]:
    log = GrowingLog(*ledgers)
    return log, AckState(log, EARLIEST)


def test_a_new_state_has_everything_before_it() -> None:
    _, state = start((3, 5), (4, 0), (6, 2))
    assert state.mark_delete == Position(3, -1)
    assert state.backlog_entries == 7
    assert not state.is_caught_up
    assert state.next_unacked(state.mark_delete) == Position(3, 0)


def test_acks_in_order_move_the_mark_delete_position() -> None:
    _, state = start((3, 5))
    assert state.ack(Position(3, 0))
    assert state.ack(Position(3, 1))
    assert not state.ack(Position(3, 1))
    assert state.mark_delete == Position(3, 1)
    assert state.backlog_entries == 3
    assert not state.has_holes


def test_a_gap_holds_the_mark_delete_position_until_it_is_filled() -> None:
    _, state = start((3, 5))
    assert state.ack_many([Position(3, 3), Position(3, 1), Position(3, 2)]) == 3
    assert state.mark_delete == Position(3, -1)
    assert (state.individual_count, state.range_count, state.backlog_entries) == (3, 1, 2)
    assert state.next_unacked(Position(3, 0)) == Position(3, 4)
    state.ack(Position(3, 0))
    assert state.mark_delete == Position(3, 3)
    assert (state.individual_count, state.backlog_entries) == (0, 1)


def test_the_mark_delete_position_crosses_ledger_borders_and_empty_ledgers() -> None:
    _, state = start((3, 2), (4, 0), (5, 2), (7, 0), (9, 3))
    for position in [(9, 0), (5, 1), (5, 0), (3, 1)]:
        state.ack(Position(*position))
    assert state.mark_delete == Position(3, -1)
    state.ack(Position(3, 0))
    assert state.mark_delete == Position(9, 0)
    assert not state.has_holes
    assert state.backlog_entries == 2


def test_m08_the_last_entry_of_a_ledger_before_an_empty_one_is_caught_up() -> None:
    log, state = start((3, 2))
    state.ack_cumulative(Position(3, 1))
    log.roll(8)
    assert state.is_caught_up
    assert state.backlog_entries == 0
    log.append()
    assert not state.is_caught_up
    assert state.ack(Position(8, 0))
    assert state.mark_delete == Position(8, 0)


def test_an_ack_held_back_across_a_border_that_came_later_is_joined() -> None:
    log, state = start((3, 2))
    state.ack(Position(3, 1))
    log.roll(8)
    log.append(2)
    state.ack(Position(8, 0))
    state.ack(Position(3, 0))
    assert state.mark_delete == Position(8, 0)


@pytest.mark.parametrize(
    "position", [(3, 5), (3, 1 << 40), (3, -1), (2, 0), (4, 0), (7, 0), (6, 2), (-1, -1)]
)
def test_acks_of_entries_that_do_not_exist_are_ignored(position: tuple[int, int]) -> None:
    _, state = start((3, 5), (4, 0), (6, 2))
    assert not state.ack(Position(*position))
    state.ack_batch(Position(*position), [1], 2)
    state.ack_batch(Position(*position), [0])
    assert state.backlog_entries == 7
    assert not state.has_holes


def test_a_cumulative_ack_drops_what_it_covers() -> None:
    _, state = start((3, 5), (6, 5))
    state.ack_many([Position(3, 1), Position(6, 1), Position(6, 2), Position(6, 4)])
    state.ack_batch(Position(3, 2), [1], 2)
    state.ack_batch(Position(6, 3), [1], 2)
    assert state.ack_cumulative(Position(6, 0))
    assert state.mark_delete == Position(6, 2)
    assert (state.individual_count, state.batch_count, state.backlog_entries) == (1, 1, 1)


def test_the_mark_delete_position_never_moves_back() -> None:
    _, state = start((3, 5))
    state.ack_cumulative(Position(3, 3))
    assert not state.ack_cumulative(Position(3, 1))
    assert not state.ack_cumulative(Position(3, 3))
    assert state.mark_delete == Position(3, 3)


@pytest.mark.parametrize("position", [(3, 5), (4, 0), LATEST])
def test_a_cumulative_ack_beyond_the_end_is_ignored(position: tuple[int, int]) -> None:
    _, state = start((3, 5))
    assert not state.ack_cumulative(Position(*position))
    assert state.mark_delete == Position(3, -1)


def test_a_cumulative_ack_inside_a_hole_of_the_log_counts_up_to_it() -> None:
    _, state = start((3, 5), (4, 0), (6, 2))
    assert state.ack_cumulative(Position(3, 100))
    assert state.mark_delete == Position(6, -1)
    assert state.backlog_entries == 2


def test_batch_indexes_are_anded_as_the_clients_send_them() -> None:
    _, state = start((3, 2))
    entry = Position(3, 0)
    assert not state.ack_batch(entry, [6], 3)
    assert state.remaining_words(entry) == (6,)
    assert not state.ack_batch(entry, [5], 3)
    assert state.remaining_words(entry) == (4,)
    assert state.mark_delete == Position(3, -1)
    assert state.backlog_entries == 2
    assert state.ack_batch(entry, [3], 3)
    assert state.remaining_words(entry) == ()
    assert state.mark_delete == entry


def test_bits_beyond_the_batch_size_are_ignored() -> None:
    _, state = start((3, 2))
    assert not state.ack_batch(Position(3, 0), [-1], 3)
    assert state.remaining_words(Position(3, 0)) == (7,)
    assert state.ack_batch(Position(3, 1), [-8], 3)


@pytest.mark.parametrize("is_cumulative", [False, True])
def test_a_batch_size_that_no_entry_can_have_costs_nothing(is_cumulative: bool) -> None:
    """The batch size comes from the client as it is: every acknowledgement of a frame may bear
    one."""
    _, state = start((3, 5))
    tracemalloc.start()
    try:
        if is_cumulative:
            state.ack_cumulative(Position(3, 0), [0b1010], batch_size=(1 << 31) - 1)
        else:
            state.ack_batch(Position(3, 0), [0b1010], batch_size=(1 << 31) - 1)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 100_000
    assert state.remaining_words(Position(3, 0)) == (0b1010,)


@pytest.mark.parametrize("batch_size", [0, (1 << 31) - 1])
def test_more_words_than_an_entry_can_have_messages_are_not_kept(batch_size: int) -> None:
    _, state = start((3, 5))
    words = [0] * (1 << 20)
    words[0], words[WORDS_MAX - 1], words[-1] = 2, -1, 1
    assert not state.ack_batch(Position(3, 0), words, batch_size)
    assert state.remaining_words(Position(3, 0)) == tuple(words[:WORDS_MAX])
    assert state.batch_bytes == BATCH_SIZE_MAX // 8
    assert not state.ack_batch(Position(3, 1), [0] * (WORDS_MAX - 1) + [1], batch_size)
    words[0] = words[WORDS_MAX - 1] = 0
    assert state.ack_batch(Position(3, 2), words, batch_size)  # nothing that it can have is open


def test_batches_acknowledged_in_part_are_kept_up_to_a_number_of_bytes() -> None:
    _, state = start((3, 9))
    for entry_id in (1, 2, 3):
        assert not state.ack_batch(Position(3, entry_id), [0, 1], batch_bytes_max=18)
    assert (state.batch_count, state.batch_bytes) == (2, 18)
    assert state.remaining_words(Position(3, 3)) == ()
    # What is kept still changes, a whole entry is still acknowledged, and both make room.
    assert not state.ack_batch(Position(3, 1), [1, 1], batch_bytes_max=18)
    assert state.ack_batch(Position(3, 3), [0], batch_bytes_max=18)
    assert state.ack_batch(Position(3, 2), [0], batch_bytes_max=18)
    assert not state.ack_batch(Position(3, 4), [0, 1], batch_bytes_max=18)
    assert (state.batch_count, state.batch_bytes) == (2, 18)


def test_a_batch_ack_without_words_acknowledges_the_entry() -> None:
    _, state = start((3, 2))
    assert state.ack_batch(Position(3, 1), [], 3)
    assert state.is_acked(Position(3, 1))
    assert state.ack_batch(Position(3, 1), [7], 3)  # it stays so


def test_a_whole_entry_ack_ends_its_bit_set() -> None:
    _, state = start((3, 2))
    state.ack_batch(Position(3, 1), [1], 2)
    assert state.has_holes
    assert state.ack(Position(3, 1))
    assert state.batch_count == 0
    assert state.remaining_words(Position(3, 1)) == ()


def test_a_cumulative_ack_with_words_stops_inside_the_batch() -> None:
    _, state = start((3, 5))
    assert state.ack_cumulative(Position(3, 3), [0b1000], 4)
    assert state.mark_delete == Position(3, 2)
    assert state.remaining_words(Position(3, 3)) == (8,)
    assert not state.ack_cumulative(Position(3, 3), [0b1000], 4)
    assert state.ack_cumulative(Position(3, 3), [0], 4)
    assert state.mark_delete == Position(3, 3)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (6, (6,)),
        (1 << 69, (0, 32)),
        (1 << 63, (-(1 << 63),)),
        ((1 << 64) - 1, (-1,)),
        (1 << 64, (0, 1)),
    ],
)
def test_words_are_signed_as_on_the_wire(bits: int, words: tuple[int, ...]) -> None:
    assert words_from_bits(bits) == words
    assert bits_from_words(words) == bits
    assert bits_from_words([*words, 0, 0]) == bits


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (EARLIEST, (3, 0)),
        ((1, 7), (3, 0)),
        ((3, -1), (3, 0)),
        ((3, 0), (3, 0)),
        ((3, 2), (3, 2)),
        ((3, 9), (6, 0)),
        ((4, 0), (6, 0)),
        ((5, 5), (6, 0)),
        ((6, 1), (6, 1)),
        ((6, 2), (6, 2)),
        ((6, 50), (6, 2)),
        ((9, 0), (6, 2)),
        (LATEST, (6, 2)),
    ],
)
def test_reset_makes_the_position_the_next_one(
    position: tuple[int, int], first: tuple[int, int]
) -> None:
    _, state = start((3, 5), (4, 0), (6, 2))
    state.ack_cumulative(Position(3, 2))
    state.ack(Position(6, 1))
    state.ack_batch(Position(6, 0), [1], 2)
    state.reset(Position(*position))
    assert state.next_unacked(state.mark_delete) == Position(*first)
    assert not state.has_holes
    assert state.individual_count == 0
    assert state.backlog_entries == len(
        [p for p in GrowingLog((3, 5), (6, 2)).positions() if p >= first]
    )


def test_reset_into_a_batch_keeps_the_passed_indexes() -> None:
    _, state = start((3, 5))
    state.reset(Position(3, 2), [0b1100])
    assert state.mark_delete == Position(3, 1)
    assert state.remaining_words(Position(3, 2)) == (12,)


def test_next_unacked_walks_over_ledgers() -> None:
    log, state = start((3, 3), (4, 0), (6, 3), (9, 2))
    state.ack_range(3, 1, 2)
    state.ack_range(6, 0, 2)
    state.ack(Position(9, 0))
    assert state.next_unacked(EARLIEST) == Position(3, 0)
    assert state.next_unacked(Position(3, 0)) == Position(9, 1)
    assert state.next_unacked(Position(9, 1)) == Position(9, 2)
    state.ack(Position(9, 1))
    assert state.next_unacked(Position(3, 0)) == Position(9, 2)
    log.append()
    assert state.next_unacked(Position(3, 0)) == Position(9, 2)


def test_a_range_is_cut_at_the_end_of_its_ledger() -> None:
    _, state = start((3, 3), (6, 3))
    assert state.ack_range(3, -5, 1 << 40) == 3
    assert state.mark_delete == Position(3, 2)
    assert state.ack_range(6, 1, 1 << 40) == 2
    assert state.ack_range(6, 3, 5) == 0
    assert state.ack_range(2, 0, 5) == 0
    assert state.backlog_entries == 1


def test_m06_a_cursor_whose_ledgers_were_trimmed_moves_to_what_is_left() -> None:
    log, state = start((3, 3), (6, 3), (9, 0))
    state.ack(Position(3, 1))
    state.ack(Position(6, 0))
    log.trim()
    assert state.backlog_entries == 2
    assert state.mark_delete == Position(6, 0)
    assert state.individual_count == 0


def test_a_snapshot_restores_the_state() -> None:
    log, state = start((3, 5), (6, 5))
    state.ack_many([Position(3, 0), Position(3, 2), Position(6, 0), Position(6, 1)])
    state.ack_batch(Position(6, 3), [2, 1], 70)
    snapshot = state.snapshot()
    assert snapshot == AckSnapshot(
        Position(3, 0),
        (AckRange(3, 2, 2), AckRange(6, 0, 1)),
        (BatchAck(6, 3, (1 << 64) + 2),),
    )
    restored = AckState.restore(log, snapshot)
    assert restored.snapshot() == snapshot
    assert restored.backlog_entries == state.backlog_entries


def test_what_exceeds_the_limits_of_a_snapshot_is_dropped_from_the_high_end_and_counted() -> None:
    _, state = start((3, 50), (6, 50))
    state.ack_many([Position(ledger, entry) for ledger in (3, 6) for entry in range(1, 50, 2)])
    for entry in range(0, 50, 2):
        state.ack_batch(Position(6, entry), [1], 2)
    at_limit = state.snapshot(ranges_max=50, batches_max=25)
    assert (at_limit.ranges_dropped, at_limit.batches_dropped) == (0, 0)
    over = state.snapshot(ranges_max=49, batches_max=24)
    assert (over.ranges_dropped, over.batches_dropped) == (1, 1)
    assert over.ranges == at_limit.ranges[:49]
    assert over.batches == at_limit.batches[:24]
    none = state.snapshot(ranges_max=0, batches_max=0)
    assert (none.ranges_dropped, none.batches_dropped) == (50, 25)


@pytest.mark.parametrize(
    ("saved", "first"),
    [((3, 2), (6, 0)), ((6, 1), (6, 2)), ((6, 99), (9, 0)), ((9, 2), (9, 1)), ((20, 0), (9, 1))],
)
def test_a_restored_mark_delete_position_is_clamped_to_the_log(
    saved: tuple[int, int], first: tuple[int, int]
) -> None:
    log = GrowingLog((6, 3), (9, 1))
    state = AckState.restore(log, AckSnapshot(Position(*saved)))
    assert state.next_unacked(EARLIEST) == Position(*first)


def test_restored_acks_of_entries_that_are_gone_are_dropped() -> None:
    log = GrowingLog((6, 3), (9, 5))
    state = AckState.restore(
        log,
        AckSnapshot(
            Position(3, 1),
            (AckRange(3, 3, 9), AckRange(6, 1, 1), AckRange(9, 3, 70), AckRange(11, 0, 5)),
            (BatchAck(3, 2, 1), BatchAck(6, 2, 5), BatchAck(9, 7, 1), BatchAck(9, 4, 1)),
        ),
    )
    assert state.snapshot() == AckSnapshot(
        Position(6, -1), (AckRange(6, 1, 1), AckRange(9, 3, 4)), (BatchAck(6, 2, 5),)
    )
    assert state.backlog_entries == 5


def test_a_million_acks_in_the_worst_order_stay_cheap() -> None:
    per_ledger, ledgers = 50_000, 20
    _, state = start(*((ledger, per_ledger) for ledger in range(ledgers)))
    for ledger in range(ledgers):
        assert state.ack_many(Position(ledger, e) for e in range(1, per_ledger, 2)) == 25_000
    assert state.range_count == 500_000
    assert state.backlog_entries == 500_000
    # A bitmap of a million bits; the bound leaves room for Python's tables around it.
    chunks = [len(s._chunks) for s in state._acked.values()]
    assert sum(chunks) <= 1_000_000 // 1024 + ledgers
    for ledger in range(ledgers):
        state.ack_many(Position(ledger, e) for e in range(0, per_ledger, 2))
    assert state.mark_delete == Position(ledgers - 1, per_ledger - 1)
    assert not state.has_holes


def test_a_state_at_the_end_of_a_ledger_can_stand_in_front_of_the_next() -> None:
    log = GrowingLog((1, 3), (2, 3))
    state = AckState(log, Position(1, 2))
    assert state.move_behind(Position(2, 0))
    assert state.mark_delete == (2, -1)
    assert state.backlog_entries == 3
    assert not state.move_behind(Position(2, 0)), "it stands there already"
    state.ack(Position(2, 0))
    assert state.mark_delete == (2, 0)


def test_what_is_untouched_needs_no_filter() -> None:
    log, _ = start((1, 5000))
    state = AckState(log, Position(1, 9))
    assert state.is_untouched(1, 10, 4999)
    assert not state.is_untouched(1, 9, 20)
    state.ack(Position(1, 2000))
    assert not state.is_untouched(1, 10, 2000)
    assert not state.is_untouched(1, 2000, 2000)
    assert state.is_untouched(1, 10, 1999)
    assert state.is_untouched(1, 2001, 4999)
    state.ack_batch(Position(1, 3000), (2,), 2)
    assert not state.is_untouched(1, 3000, 3000)
    assert state.is_untouched(2, 0, 10)
