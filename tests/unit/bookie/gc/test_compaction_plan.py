"""Choice of the logs to compact, their order, and those that become one."""

from magnetar.bookie.gc.compaction_plan import (
    SOURCES_MAX,
    CompactionRule,
    LogUse,
    choose_logs,
    group_logs,
)

FULL = 1000
MINOR = CompactionRule(0.2, merges_small=False)
MAJOR = CompactionRule(0.8, merges_small=True)


def log(log_id: int, live: int, size: int = FULL) -> LogUse:
    return LogUse(log_id, size, live)


def ids(logs: list[LogUse]) -> list[int]:
    return [each.log_id for each in logs]


def test_emptiest_first() -> None:
    logs = [log(1, 790), log(2, 10), log(3, 400), log(4, 5, 100)]
    assert ids(choose_logs(logs, MAJOR, log_bytes_max=FULL)) == [2, 4, 3, 1]


def test_a_log_at_the_share_stays_and_one_below_goes() -> None:
    assert ids(choose_logs([log(1, 200), log(2, 199)], MINOR, log_bytes_max=FULL)) == [2]


def test_a_share_of_zero_switches_off() -> None:
    rule = CompactionRule(0, merges_small=True)
    assert choose_logs([log(1, 0)], rule, log_bytes_max=FULL) == []


def test_small_logs_are_merged_when_there_are_many_however_full() -> None:
    many = [log(each, 60, 60) for each in range(16)]
    assert len(choose_logs(many, MAJOR, log_bytes_max=FULL)) == 16
    assert choose_logs(many[1:], MAJOR, log_bytes_max=FULL) == []
    assert choose_logs(many, MINOR, log_bytes_max=FULL) == []


def test_logs_become_one_as_long_as_they_fit() -> None:
    logs = [log(1, 300), log(2, 600), log(3, 200), log(4, 100), log(5, 900)]
    groups = group_logs(logs, log_bytes_max=FULL)
    assert [ids(group) for group in groups] == [[1, 2], [3, 4], [5]]


def test_no_more_than_so_many_become_one() -> None:
    logs = [log(each, 0) for each in range(SOURCES_MAX + 1)]
    assert [len(group) for group in group_logs(logs, log_bytes_max=FULL)] == [SOURCES_MAX, 1]


def test_a_log_of_more_than_full_size_is_a_group_of_its_own() -> None:
    groups = group_logs([log(1, 1100, 1200), log(2, 10)], log_bytes_max=FULL)
    assert [ids(group) for group in groups] == [[1], [2]]
