"""What held up publishing is told from what did not."""

from dataclasses import replace

import pytest

from magnetar.broker.features.scalable.record import ChangeKind
from tests.chaos.scalable.stalls import (
    BOUND_MS,
    SPLIT,
    Change,
    Gap,
    Gaps,
    distribution,
    problems_of,
    stall_ms,
    stalls_of,
)

_SPLIT = Change(SPLIT, 0, 0x7FFF, 1_000, 1_050, 20)


def _gap(slot: int, since_ms: float, until_ms: float) -> Gap:
    return Gap(until_ms, since_ms, slot)


@pytest.mark.parametrize(
    ("gap", "stall"),
    [
        (_gap(0, 990, 1_070), 80),
        (_gap(7, 1_040, 1_060), 20),
        (_gap(8, 990, 1_070), 0),  # Other keys.
        (_gap(0, 900, 999), 0),  # Before it.
        (_gap(0, 1_051, 1_100), 0),  # After it.
    ],
)
def test_a_gap_counts_for_a_change_of_its_keys_at_its_time(gap: Gap, stall: float) -> None:
    assert stall_ms(_SPLIT, Gaps([gap])) == stall


def test_the_longest_gap_of_a_change_counts_whatever_short_ones_lie_around_it() -> None:
    short = [_gap(0, at, at + 15) for at in range(0, 3_000, 20)]
    assert stall_ms(_SPLIT, Gaps([*short, _gap(0, 700, 1_100)])) == 400
    assert stall_ms(_SPLIT, Gaps(short)) == 15


def test_gaps_without_a_change_are_told_apart_from_those_of_kills() -> None:
    of_split, of_kill, noise = _gap(3, 990, 1_070), _gap(3, 5_000, 9_000), _gap(9, 1_000, 1_030)
    gaps = Gaps([of_split, of_kill, noise])
    assert gaps.besides([_SPLIT], [(5_500, 6_000)]) == [noise]


def test_kinds_of_changes_are_told_apart() -> None:
    merge = Change("MERGE", 0, 0xFFFF, 3_000, 3_010, 5)
    found = stalls_of([_SPLIT, merge], Gaps([_gap(0, 1_000, 1_101)]))
    assert found["SPLIT"]["producers_ms"]["max"] == 101
    assert found["SPLIT"]["producers_ms"]["over_100"] == 1
    assert found["MERGE"]["producers_ms"]["max"] == 0
    assert found["MERGE"]["broker_ms"]["max"] == 5


def test_a_distribution_names_the_middle_and_the_end() -> None:
    assert distribution([]) == {"count": 0}
    found = distribution(range(1, 101))
    assert (found["p50"], found["p90"], found["p99"], found["max"]) == (50, 90, 99, 100)


@pytest.mark.parametrize(
    ("kind", "stalled_ms", "kills", "problems"),
    [
        (SPLIT, BOUND_MS, 0, 0),
        (SPLIT, BOUND_MS + 1, 0, 1),
        (SPLIT, BOUND_MS + 1, 1, 0),
        ("MERGE", BOUND_MS + 1, 0, 0),
    ],
)
def test_a_split_that_the_broker_measured_above_the_bound_is_a_problem_without_kills(
    kind: str, stalled_ms: int, kills: int, problems: int
) -> None:
    change = replace(_SPLIT, kind=kind, stalled_ms=stalled_ms)
    assert len(list(problems_of([change], kills=kills))) == problems


@pytest.mark.parametrize("kills", [0, 1])
def test_gaps_that_were_not_written_down_are_a_problem(kills: int) -> None:
    (problem,) = problems_of([], kills=kills, gaps_left_off=3)
    assert "3 gaps" in problem
    assert not list(problems_of([], kills=kills))


def test_splits_are_named_as_in_the_record_of_the_topic() -> None:
    assert ChangeKind.SPLIT.value == SPLIT
