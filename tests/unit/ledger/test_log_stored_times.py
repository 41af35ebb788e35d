"""Since when the entries of a log can be there, by brokers' clocks."""

from magnetar.ledger.managed_log.log_extent import (
    MARK_INTERVAL_S,
    MARKS_MAX,
    StoredTimes,
    stored_since_ms,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position


def test_an_entry_is_no_older_than_the_mark_before_it() -> None:
    times = StoredTimes()
    times.mark(Position(1, 4), 10.0, 10_000)
    times.mark(Position(2, 0), 20.0, 20_000)
    assert times.since_ms(Position(1, 3)) == 0
    assert times.since_ms(Position(1, 4)) == times.since_ms(Position(1, 9)) == 10_000
    assert times.since_ms(Position(2, 0)) == times.since_ms(Position(3, 7)) == 20_000


def test_marks_are_due_once_per_interval() -> None:
    times = StoredTimes()
    assert times.is_due(0.0)
    times.mark(Position(1, 0), 0.0, 0)
    assert not times.is_due(MARK_INTERVAL_S / 2)
    assert times.is_due(MARK_INTERVAL_S)


def test_marks_are_bounded_and_their_error_is_a_small_part_of_the_age() -> None:
    times = StoredTimes()
    end_s = 50_000
    for second in range(end_s):
        times.mark(Position(1, second), float(second), 1_000_000 + second * 1000)
        assert len(times) < MARKS_MAX
    now_ms = 1_000_000 + end_s * 1000
    for second in (end_s - 1, end_s - 60, end_s - 600, end_s - 7_200, end_s // 2):
        stored_ms = 1_000_000 + second * 1000
        error_ms = stored_ms - times.since_ms(Position(1, second))
        assert 0 <= error_ms <= (now_ms - stored_ms) / 4


def test_marks_are_bounded_while_a_clock_goes_back() -> None:
    times = StoredTimes()
    for second in range(3 * MARKS_MAX):
        times.mark(Position(1, second), float(second), 10_000_000 - second * 1000)
        assert len(times) < MARKS_MAX


def test_the_latest_time_before_the_entry_counts_unless_it_lies_in_the_future() -> None:
    ledgers = [LogLedger(1, 5, 50, closed_ms=100), LogLedger(2, 5, 50, closed_ms=900), LogLedger(3)]
    assert stored_since_ms(ledgers, Position(1, 0), (), now_ms=500) == 0
    assert stored_since_ms(ledgers, Position(2, 0), (), now_ms=500) == 100
    assert stored_since_ms(ledgers, Position(2, 0), (150, 700), now_ms=500) == 150
    assert stored_since_ms(ledgers, Position(3, 0), (), now_ms=500) == 0
    assert stored_since_ms(ledgers, Position(3, 0), (950,), now_ms=1000) == 950
