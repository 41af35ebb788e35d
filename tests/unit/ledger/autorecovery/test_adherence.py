"""Whether ensembles lie where the placement wants them."""

import pytest

from magnetar.ledger.autorecovery.audits import Adherence, adherence_of
from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.registration import BookieInfo


def bookies(*racks: str, zones: str = "") -> dict[str, BookieInfo]:
    """b1, b2, ... in these racks; `zones` has one letter for each."""
    return {
        f"b{number}": BookieInfo(
            f"b{number}", "host", 1, False, rack=rack, zone=zones[number - 1 : number]
        )
        for number, rack in enumerate(racks, start=1)
    }


def fragment(*numbers: int) -> Fragment:
    return Fragment(0, tuple(f"b{number}" for number in numbers))


@pytest.mark.parametrize(
    ("racks", "write_quorum", "expected"),
    [
        (("r1", "r2", "r3"), 3, Adherence.STRICT),
        (("r1", "r1", "r2"), 3, Adherence.STRICT),
        (("r1", "r1", "r2"), 2, Adherence.FAILED),  # entry 0 lies on b1 and b2 alone
        (("r1", "r2", "r1", "r2"), 2, Adherence.STRICT),
        (("r1", "r2", "r2", "r1"), 2, Adherence.FAILED),  # the last write set wraps around
        (("r1", "r1", "r1"), 3, Adherence.STRICT),  # the cluster has but one rack
        (("", "", ""), 3, Adherence.STRICT),  # nobody said where it is
        (("", "", "r1"), 2, Adherence.FAILED),
        (("r1", "r2"), 1, Adherence.STRICT),  # one copy cannot be in two racks
    ],
)
def test_each_write_set_is_looked_at_by_itself(
    racks: tuple[str, ...], write_quorum: int, expected: Adherence
) -> None:
    known = bookies(*racks)
    found = adherence_of(
        fragment(*range(1, len(racks) + 1)), known, write_quorum=write_quorum, racks_min=2
    )
    assert found is expected


def test_with_more_racks_than_members_a_single_one_is_a_failure() -> None:
    known = bookies("r1", "r1", "r1", "r2")
    assert adherence_of(fragment(1, 2, 3), known, write_quorum=3, racks_min=2) is Adherence.FAILED


def test_fewer_racks_than_wanted_but_more_than_one_is_soft() -> None:
    known = bookies("r1", "r1", "r2", "r3")
    assert adherence_of(fragment(1, 2, 3), known, write_quorum=3, racks_min=3) is Adherence.SOFT


def test_of_a_write_set_with_a_member_that_is_away_nobody_knows() -> None:
    known = bookies("r1", "r1", "r2")
    assert adherence_of(fragment(1, 2, 9), known, write_quorum=3, racks_min=2) is Adherence.UNKNOWN
    assert adherence_of(fragment(1, 2, 9), known, write_quorum=2, racks_min=2) is Adherence.FAILED


def test_zones_count_apart_from_racks() -> None:
    known = bookies("r1", "r2", "r3", zones="aab")
    inside = fragment(1, 2)
    assert adherence_of(inside, known, write_quorum=2, racks_min=2) is Adherence.STRICT
    found = adherence_of(inside, known, write_quorum=2, racks_min=2, zones_min=2)
    assert found is Adherence.FAILED
