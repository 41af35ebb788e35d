"""When rounds and compactions are due."""

from magnetar.bookie.gc.schedule import CompactionKind, Intervals, Schedule

INTERVALS = Intervals(round_s=10, minor_s=60, major_s=600)


def schedule(intervals: Intervals = INTERVALS) -> Schedule:
    return Schedule(intervals, now_s=1000, first_delay_s=4)


def test_the_first_round_waits_for_its_turn() -> None:
    timers = schedule()
    assert timers.wait_s(1000) == 4
    assert timers.wait_s(1005) == 0
    timers.on_round(1005)
    assert timers.wait_s(1006) == 9


def test_compactions_are_due_at_their_intervals() -> None:
    timers = schedule()
    assert timers.due_compaction(1059) is None
    assert timers.due_compaction(1060) is CompactionKind.MINOR
    timers.on_compaction(CompactionKind.MINOR, 1061)
    assert timers.due_compaction(1120) is None
    assert timers.due_compaction(1600) is CompactionKind.MAJOR


def test_a_major_compaction_resets_the_minor_timer() -> None:
    timers = schedule()
    timers.on_compaction(CompactionKind.MAJOR, 1600)
    assert timers.due_compaction(1659) is None
    assert timers.due_compaction(1660) is CompactionKind.MINOR


def test_a_minor_compaction_does_not_put_off_the_major_one() -> None:
    timers = schedule()
    timers.on_compaction(CompactionKind.MINOR, 1590)
    assert timers.due_compaction(1600) is CompactionKind.MAJOR


def test_an_interval_of_zero_switches_off() -> None:
    timers = schedule(Intervals(round_s=10, minor_s=0, major_s=0))
    assert timers.due_compaction(1e9) is None
    assert schedule(Intervals(10, 60, 0)).due_compaction(1e9) is CompactionKind.MINOR
