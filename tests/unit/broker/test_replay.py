"""The set of positions that wait for redelivery."""

from magnetar.broker.topic.dispatch.replay import RedeliverySet, contiguous
from magnetar.ledger.position import Position


def _at(*entry_ids: int) -> list[Position]:
    return [Position(7, each) for each in entry_ids]


def test_positions_leave_in_log_order() -> None:
    waiting = RedeliverySet()
    for position in [*_at(5, 1, 3), Position(6, 9)]:
        waiting.add(position)
    assert waiting.take(3) == [Position(6, 9), *_at(1, 3)]
    assert waiting.take(3) == _at(5)
    assert len(waiting) == 4  # taken is not gone
    waiting.give_back(_at(3))
    assert waiting.take(9) == _at(3)


def test_what_was_discarded_is_not_handed_out() -> None:
    waiting = RedeliverySet()
    for position in _at(1, 2, 3):
        waiting.add(position)
    waiting.discard(Position(7, 2))
    assert Position(7, 2) not in waiting
    assert waiting.take(9) == _at(1, 3)


def test_a_position_counts_once() -> None:
    waiting = RedeliverySet()
    for _ in range(3):
        waiting.add(Position(7, 1))
        waiting.discard(Position(7, 1))
        waiting.add(Position(7, 1))
    assert len(waiting) == 1
    assert waiting.take(9) == _at(1)


def test_runs_stay_within_their_ledger() -> None:
    positions = [*_at(1, 2, 3, 5), Position(8, 0), Position(8, 1), Position(9, 2)]
    assert contiguous(positions) == [
        (Position(7, 1), 3),
        (Position(7, 5), 1),
        (Position(8, 0), 2),
        (Position(9, 2), 1),
    ]
    assert contiguous([]) == []
