"""How many messages a backlog has, where that can be known."""

from collections.abc import Mapping

import pytest

from magnetar.broker.features.message_index.index_end import IndexEnd
from magnetar.broker.features.message_index.lag import (
    PIECES_MAX,
    EntryFact,
    count_messages,
    fact_of,
    view_of,
)
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.message_index.indexed_log import indexed, log_of

#: Messages 0, 1-3, 4, 5-6, 7: five entries.
ENTRIES = [
    indexed(0),
    indexed(3, messages=3),
    indexed(4),
    indexed(6, messages=2),
    indexed(7),
]
END = IndexEnd(8, 0)


def facts_of(log: MemoryLog) -> Mapping[Position, EntryFact | None]:
    return {
        Position(ledger_id, at): fact_of(stored)
        for ledger_id, entries in log.entries.items()
        for at, stored in enumerate(entries)
    }


def count(log: MemoryLog, cursor: NonDurableCursor, end: IndexEnd = END) -> int | None:
    view = view_of(cursor, end)
    return None if view is None else count_messages(view, facts_of(log))


def cursor_on(log: MemoryLog) -> NonDurableCursor:
    return NonDurableCursor(log, "s", initial=EARLIEST)


@pytest.mark.parametrize(("through", "left"), [(None, 8), (0, 7), (1, 4), (2, 3), (3, 1)])
def test_what_lies_behind_the_cursor_is_counted_in_messages(through: int | None, left: int) -> None:
    log = log_of(ENTRIES)
    cursor = cursor_on(log)
    if through is not None:
        cursor.ack_cumulative(Position(7, through))
    assert count(log, cursor) == left


@pytest.mark.parametrize(
    ("acked", "left"), [([1], 5), ([2], 7), ([1, 2, 3], 2), ([1, 3], 3), ([4], 7), ([1, 2, 4], 3)]
)
def test_single_acknowledgements_are_taken_off(acked: list[int], left: int) -> None:
    log = log_of(ENTRIES)
    cursor = cursor_on(log)
    cursor.ack_many([Position(7, each) for each in acked])
    assert count(log, cursor) == left


def test_messages_acknowledged_within_a_batch_are_taken_off() -> None:
    log = log_of(ENTRIES)
    cursor = cursor_on(log)
    cursor.ack_batch(Position(7, 1), [0b101], 3)
    cursor.ack_batch(Position(7, 3), [0b10], 2)
    assert count(log, cursor) == 6


def test_bits_beyond_the_end_of_a_batch_count_for_nothing() -> None:
    log = log_of(ENTRIES)
    cursor = cursor_on(log)
    cursor.ack_batch(Position(7, 1), [0b11111011])
    assert count(log, cursor) == 7


def test_a_backlog_over_several_ledgers_is_one() -> None:
    log = log_of(ENTRIES[:2], ENTRIES[2:4], ENTRIES[4:])
    cursor = cursor_on(log)
    cursor.ack_many([Position(7, 1), Position(8, 0)])
    assert count(log, cursor) == 4


def test_entries_of_the_brokers_own_are_no_messages() -> None:
    marker = indexed(0)  # of what stands behind message 0
    log = log_of([indexed(0), marker, indexed(1)])
    facts = {**facts_of(log), Position(7, 1): EntryFact(0, 0)}
    cursor = cursor_on(log)
    cursor.ack(Position(7, 0))
    view = view_of(cursor, IndexEnd(2, 0))
    assert view is not None
    assert count_messages(view, facts) == 1


def test_what_reaches_back_to_entries_without_an_index_is_not_known() -> None:
    log = log_of([entry(), indexed(0)])
    cursor = cursor_on(log)
    assert count(log, cursor, IndexEnd(1, 0)) is None
    cursor.ack(Position(7, 0))
    assert count(log, cursor, IndexEnd(1, 0)) == 1


def test_what_reaches_back_to_an_earlier_stretch_is_not_known() -> None:
    log = log_of([indexed(0), indexed(1), indexed(5, since=5)])
    cursor = cursor_on(log)
    assert count(log, cursor, IndexEnd(6, 5)) is None
    cursor.ack_cumulative(Position(7, 1))
    assert count(log, cursor, IndexEnd(6, 5)) == 1


def test_what_is_in_too_many_pieces_is_not_known() -> None:
    log = log_of([indexed(index) for index in range(2 * PIECES_MAX + 4)])
    cursor = cursor_on(log)
    cursor.ack_many([Position(7, 2 * at + 1) for at in range(PIECES_MAX)])
    assert count(log, cursor, IndexEnd(2 * PIECES_MAX + 4, 0)) == PIECES_MAX + 4
    cursor.ack(Position(7, 2 * PIECES_MAX + 1))
    assert count(log, cursor, IndexEnd(2 * PIECES_MAX + 4, 0)) is None
