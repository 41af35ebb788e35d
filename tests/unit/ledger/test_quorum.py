"""Write sets and fence coverage, against the table of the ledger protocol."""

from itertools import combinations

import pytest

from magnetar.ledger.quorum import Coverage, write_set, write_sets


def test_write_sets_rotate_through_the_ensemble() -> None:
    sets = [write_set(e, ensemble_size=4, write_quorum=3) for e in range(5)]
    assert sets == [(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1), (0, 1, 2)]


def test_only_e_distinct_write_sets_exist() -> None:
    assert write_sets(ensemble_size=3, write_quorum=2) == [(0, 1), (1, 2), (2, 0)]


def tolerated(ensemble_size: int, write_quorum: int, ack_quorum: int) -> int:
    """Largest k such that any k unknown bookies leave fencing covered."""
    for unknown in range(ensemble_size + 1):
        for missing in combinations(range(ensemble_size), unknown):
            coverage = Coverage(
                ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
            )
            for index in range(ensemble_size):
                if index not in missing:
                    coverage.confirm(index)
            if not coverage.is_covered:
                return unknown - 1
    raise AssertionError("no bookie at all cannot be coverage")


@pytest.mark.parametrize(
    ("quorums", "unknown"),
    [
        ((3, 3, 2), 1),
        ((3, 3, 3), 2),
        ((2, 2, 2), 1),
        ((2, 2, 1), 0),
        ((3, 2, 2), 1),
        ((5, 3, 2), 1),
        ((6, 3, 2), 1),
    ],
)
def test_fencing_tolerates_as_many_unknown_bookies_as_the_table_says(
    quorums: tuple[int, int, int], unknown: int
) -> None:
    assert tolerated(*quorums) == unknown


def test_opposite_bookies_of_six_may_both_be_unknown() -> None:
    coverage = Coverage(ensemble_size=6, write_quorum=3, ack_quorum=2)
    for index in (1, 2, 4, 5):
        coverage.confirm(index)
    assert coverage.is_covered


def test_d05_only_a_confirmation_counts_as_fenced() -> None:
    coverage = Coverage(ensemble_size=3, write_quorum=3, ack_quorum=2)
    coverage.confirm(2)
    assert not coverage.is_covered
    coverage.confirm(2)
    assert not coverage.is_covered
    coverage.confirm(0)
    assert coverage.is_covered
    assert coverage.confirmed == {0, 2}
