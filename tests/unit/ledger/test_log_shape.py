"""Positions across ledgers: next, previous, between."""

import pytest

from magnetar.ledger.managed_log.log_extent import LogShape
from magnetar.ledger.position import EARLIEST, LATEST, Position

P = Position


@pytest.fixture
def shape() -> LogShape:
    """Ledgers 3 (entries 0-4), 7 (0-1) and 9, which is being written and holds nothing yet."""
    return LogShape([(3, 5), (7, 2), (9, 0)])


def test_next_crosses_ledgers(shape: LogShape) -> None:
    assert shape.next_position(P(3, 3)) == P(3, 4)
    assert shape.next_position(P(3, 4)) == P(7, 0)
    assert shape.next_position(P(7, 1)) == P(9, 0)
    assert shape.next_position(P(9, -1)) == P(9, 0)


def test_next_of_the_end_is_the_entry_to_be_written(shape: LogShape) -> None:
    shape.grow(2)
    assert shape.next_position(P(9, 1)) == P(9, 2)
    assert shape.next_position(LATEST) == P(9, 2)
    assert shape.first_at_or_after(P(9, 50)) == P(9, 2)


def test_before_the_first_entry(shape: LogShape) -> None:
    assert shape.first_at_or_after(EARLIEST) == P(3, 0)
    assert shape.next_position(EARLIEST) == P(3, 0)
    assert shape.previous_position(P(3, 0)) == P(3, -1)


def test_previous_crosses_ledgers(shape: LogShape) -> None:
    assert shape.previous_position(P(9, 0)) == P(7, 1)
    assert shape.previous_position(P(7, 0)) == P(3, 4)
    assert shape.previous_position(P(7, 1)) == P(7, 0)


def test_ledgers_that_are_gone_count_as_the_border_they_stood_at(shape: LogShape) -> None:
    assert shape.next_position(P(5, 17)) == P(7, 0)
    assert shape.previous_position(P(5, 17)) == P(3, 4)
    assert shape.next_position(P(1, 0)) == P(3, 0)
    assert shape.entries_between(P(1, 9), P(5, 3)) == 5


def test_rule_4_1_the_end_of_a_ledger_equals_the_start_of_the_next(shape: LogShape) -> None:
    assert shape.entries_between(P(3, 4), P(7, -1)) == 0
    assert shape.next_position(P(3, 4)) == shape.next_position(P(7, -1))


def test_entries_between_counts_without_reading(shape: LogShape) -> None:
    assert shape.entries_between(EARLIEST, P(7, 1)) == 7
    assert shape.entries_between(P(3, 1), P(7, 0)) == 4
    assert shape.entries_between(P(7, 1), P(3, 1)) == 0


def test_last_confirmed_skips_empty_ledgers(shape: LogShape) -> None:
    assert shape.last_confirmed == P(7, 1)
    assert LogShape([(4, 0)]).last_confirmed == P(4, -1)
    shape.grow(1)
    assert shape.last_confirmed == P(9, 0)
