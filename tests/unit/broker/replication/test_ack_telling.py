"""What is told of a subscription: once, not what others know, and again when they may not."""

from magnetar.broker.features.replication.acks import OriginAcks
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.replication.subscriptions.ack_telling import (
    AckTelling,
    first_part,
    merged,
)
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position

LEDGERS = [LogLedger(6, entries=3, closed_ms=1), LogLedger(7)]
START = Position(6, 0)


def untold(
    telling: AckTelling,
    mark: Position,
    *ranges: AckRange,
    batches: tuple[BatchAck, ...] = (),
    low: Position = START,
) -> tuple[list[AckRange], list[BatchAck]]:
    return telling.untold(mark, ranges, batches, low=low, ledgers=LEDGERS)


def test_what_no_update_has_told_is_told_up_to_the_mark_as_well() -> None:
    telling = AckTelling()
    behind = AckRange(7, 5, 6)
    assert untold(telling, Position(7, 1), behind) == (
        [AckRange(6, 0, 2), AckRange(7, 0, 1), behind],
        [],
    )
    telling.known_through(Position(6, 1))
    assert untold(telling, Position(7, 1), behind) == (
        [AckRange(6, 2, 2), AckRange(7, 0, 1), behind],
        [],
    )
    telling.known_through(Position(7, 5))
    assert untold(telling, Position(7, 1), behind) == ([AckRange(7, 6, 6)], [])


def test_what_is_told_is_told_once() -> None:
    telling, mark = AckTelling(), Position(6, 0)
    telling.known([AckRange(6, 0, 0), AckRange(7, 1, 4)], [BatchAck(7, 9, 0b110)])
    batches = (BatchAck(7, 9, 0b110),)
    assert untold(telling, mark, AckRange(7, 1, 4), batches=batches) == ([], [])
    batches = (BatchAck(7, 9, 0b100),)
    more = untold(telling, mark, AckRange(7, 0, 6), batches=batches)
    assert more == ([AckRange(7, 0, 0), AckRange(7, 5, 6)], list(batches))


def test_of_what_lies_before_the_window_nothing_is_told() -> None:
    found = untold(AckTelling(), Position(6, 1), AckRange(7, 1, 4), low=Position(7, 3))
    assert found == ([AckRange(7, 3, 4)], [])


def test_everything_is_told_again_when_somebody_went_back_or_may_not_have_kept_it() -> None:
    telling = AckTelling()
    telling.known_through(Position(6, 2))
    telling.known([AckRange(7, 1, 1)], [])
    assert untold(telling, Position(6, 2), AckRange(7, 1, 1)) == ([], [])
    assert untold(telling, Position(6, 0), AckRange(7, 1, 1))[0] == [
        AckRange(6, 0, 0),
        AckRange(7, 1, 1),
    ]
    telling.known([AckRange(6, 0, 0), AckRange(7, 1, 1)], [])
    telling.forget()
    assert untold(telling, Position(6, 0), AckRange(7, 1, 1))[0][-1] == AckRange(7, 1, 1)


def test_a_batch_that_is_too_large_is_not_told() -> None:
    fits, too_large = BatchAck(7, 1, 1 << 8191), BatchAck(7, 2, 1 << 8192)
    assert untold(AckTelling(), Position(6, -1), batches=(fits, too_large)) == ([], [fits])


def test_the_first_part_has_ranges_before_batches() -> None:
    ranges, batches = [AckRange(7, 0, 0), AckRange(7, 2, 2)], [BatchAck(7, 4, 1)]
    assert first_part(ranges, batches, 1) == (ranges[:1], [])
    assert first_part(ranges, batches, 3) == (ranges, batches)


def test_what_was_told_in_two_markers_waits_as_one() -> None:
    source = Source("west", 2)
    one = {source: OriginAcks((AckRange(1, 0, 1),), (BatchAck(1, 5, 0b011),))}
    other = {source: OriginAcks((AckRange(1, 2, 2),), (BatchAck(1, 5, 0b100),))}
    assert merged(one, other) == {source: OriginAcks((AckRange(1, 0, 2), AckRange(1, 5, 5)))}
