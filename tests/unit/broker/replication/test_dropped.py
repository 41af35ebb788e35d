"""The range of entries that were dropped before another cluster had them."""

from magnetar.broker.features.replication.dropped import (
    Dropped,
    dropped_in,
    dropped_properties,
    with_dropped,
)
from magnetar.ledger.position import EARLIEST, Position


def test_a_range_begins_behind_the_last_entry_before_it_and_has_its_last_one() -> None:
    dropped = Dropped(Position(1, 4), Position(3, 0))
    inside = [Position(1, 5), Position(2, 0), Position(3, 0)]
    outside = [Position(1, 4), Position(3, 1), EARLIEST]
    assert all(each in dropped for each in inside)
    assert not any(each in dropped for each in outside)


def test_several_drops_become_one_range() -> None:
    first = with_dropped(None, Position(1, 4), Position(1, 6))
    assert with_dropped(first, Position(2, 0), Position(2, 1)) == (Position(1, 4), Position(2, 1))
    assert with_dropped(first, Position(1, 2), Position(1, 3)) == (Position(1, 2), Position(1, 6))


def test_a_range_is_read_as_it_was_kept() -> None:
    dropped = Dropped(Position(5, -1), Position(7, 3))
    assert dropped_in({"sent": 1, **dropped_properties(dropped)}) == dropped
    assert dropped_in(dropped_properties(None)) is None
