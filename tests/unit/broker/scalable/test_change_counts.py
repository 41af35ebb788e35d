"""Splits and merges that a broker knows to be under way, and the age of the oldest."""

from magnetar.broker.features.scalable.change_counts import ChangeCounts
from magnetar.broker.features.scalable.record import ChangeKind
from magnetar.sdk.wire import TopicName

_ONE, _OTHER = (TopicName.parse(f"persistent://public/default/{name}") for name in ("a", "b"))


def test_a_change_is_under_way_until_no_part_of_the_broker_knows_of_it() -> None:
    counts = ChangeCounts()
    assert counts.oldest_s(wall_ms=9_000) == 0
    counts.note("layout", _ONE, 1_000)
    counts.note("load", _ONE, 1_000)
    counts.note("layout", _OTHER, 4_000)
    assert counts.oldest_s(wall_ms=9_000) == 8
    counts.note("layout", _ONE, None)
    assert counts.oldest_s(wall_ms=9_000) == 8
    counts.note("load", _ONE, None)
    assert counts.oldest_s(wall_ms=9_000) == 5
    counts.note("layout", _OTHER, None)
    counts.note("layout", _OTHER, None)
    assert counts.oldest_s(wall_ms=9_000) == 0


def test_a_change_by_a_clock_that_is_ahead_has_no_age() -> None:
    counts = ChangeCounts()
    counts.note("layout", _ONE, 2_000)
    assert counts.oldest_s(wall_ms=1_000) == 0


def test_the_longest_stall_is_kept_and_times_are_added_up() -> None:
    counts = ChangeCounts()
    counts.ended(ChangeKind.SPLIT, seconds=1.0, stall_s=0.25)
    counts.ended(ChangeKind.MERGE, seconds=2.0, stall_s=0.125)
    assert (counts.splits, counts.merges, counts.finished) == (1, 1, 2)
    assert (counts.seconds, counts.stall_s_max) == (3.0, 0.25)
