import pytest

from magnetar.ledger.reading.replica_order import (
    Distance,
    FailureMemory,
    ReplicaFacts,
    distance_to,
    replica_order,
    sticky_first,
)
from magnetar.ledger.registration import BookieInfo

GOOD = ReplicaFacts()
NEAR = ReplicaFacts(distance=Distance.SAME_RACK)
ZONE = ReplicaFacts(distance=Distance.SAME_ZONE)
READONLY = ReplicaFacts(is_readonly=True, distance=Distance.SAME_RACK)
FAILED = ReplicaFacts(has_failed=True, distance=Distance.SAME_RACK)
GONE = ReplicaFacts(is_registered=False, has_failed=False, distance=Distance.SAME_RACK)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([GOOD, GOOD, GOOD], "abc"),
        ([GOOD, ZONE, NEAR], "cba"),
        ([NEAR, ZONE, NEAR], "acb"),
        ([FAILED, GOOD, READONLY], "bca"),
        ([GONE, FAILED, READONLY], "cba"),
        ([GONE, GONE, FAILED], "cab"),
        ([READONLY, GOOD, GOOD], "bca"),
    ],
)
def test_near_ones_first_and_troubled_ones_last(facts: list[ReplicaFacts], expected: str) -> None:
    known = dict(zip("abc", facts, strict=True))
    assert "".join(replica_order("abc", known.__getitem__)) == expected


@pytest.mark.parametrize(
    ("bookie", "client", "expected"),
    [
        (("r1", "z1"), ("r1", "z1"), Distance.SAME_RACK),
        (("r2", "z1"), ("r1", "z1"), Distance.SAME_ZONE),
        (("r1", "z2"), ("r1", "z1"), Distance.ELSEWHERE),
        (("", "z1"), ("", "z1"), Distance.SAME_ZONE),
        (("r1", ""), ("r1", ""), Distance.SAME_RACK),
        (("r2", ""), ("r1", ""), Distance.ELSEWHERE),
        (("", ""), ("", ""), Distance.ELSEWHERE),
    ],
)
def test_a_rack_is_known_by_its_zone_and_its_name(
    bookie: tuple[str, str], client: tuple[str, str], expected: Distance
) -> None:
    info = BookieInfo("b1", "host", 1, False, rack=bookie[0], zone=bookie[1])
    assert distance_to(info, rack=client[0], zone=client[1]) is expected


def test_a_sticky_member_leads_and_the_others_follow_in_their_order() -> None:
    assert sticky_first((2, 0, 1), 0) == [0, 1, 2]
    assert sticky_first((2, 0, 1), 2) == [2, 0, 1]
    assert sticky_first((2, 0), 1) == [2, 0]
    assert sticky_first((2, 0), None) == [2, 0]


def test_a_failure_is_forgotten_in_time_or_by_a_success() -> None:
    memory = FailureMemory(60.0)
    assert not memory.has_failed("b1", 0.0)
    memory.note_failure("b1", 10.0)
    assert memory.has_failed("b1", 69.9)
    assert not memory.has_failed("b1", 70.0)
    memory.note_failure("b1", 80.0)
    memory.note_success("b1")
    assert not memory.has_failed("b1", 81.0)
