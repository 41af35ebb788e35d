"""Quorum arithmetic against brute force over sets, for every small configuration."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.quorum import Coverage, write_set, write_sets


@st.composite
def quorums(draw: st.DrawFn) -> tuple[int, int, int]:
    """(E, Qw, Qa) with E >= Qw >= Qa >= 1."""
    ensemble_size = draw(st.integers(1, 8))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@given(quorums(), st.integers(0, (1 << 63) - 1))
def test_a_write_set_is_qw_distinct_members_in_ring_order(
    sizes: tuple[int, int, int], entry_id: int
) -> None:
    ensemble_size, write_quorum, _ = sizes
    members = write_set(entry_id, ensemble_size=ensemble_size, write_quorum=write_quorum)
    assert members[0] == entry_id % ensemble_size
    assert len(set(members)) == len(members) == write_quorum
    assert all(after == (before + 1) % ensemble_size for before, after in pairwise(members))
    sets = write_sets(ensemble_size=ensemble_size, write_quorum=write_quorum)
    assert sets[entry_id % ensemble_size] == members


@given(quorums(), st.data())
def test_coverage_equals_its_definition_by_brute_force(
    sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    """Covered means: whatever Qa members of a write set an add could have reached, one confirmed.

    That is the reason for Qw - Qa + 1, and is checked here without that formula.
    """
    ensemble_size, write_quorum, ack_quorum = sizes
    coverage = Coverage(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    order = data.draw(st.lists(st.integers(0, ensemble_size - 1), max_size=12))
    confirmed: set[int] = set()
    for index in order:
        coverage.confirm(index)
        confirmed.add(index)
        expected = all(
            confirmed.intersection(acked)
            for members in write_sets(ensemble_size=ensemble_size, write_quorum=write_quorum)
            for acked in combinations(members, ack_quorum)
        )
        assert coverage.is_covered is expected
        assert coverage.confirmed == confirmed


@given(quorums())
def test_a_confirmation_never_uncovers(sizes: tuple[int, int, int]) -> None:
    ensemble_size, write_quorum, ack_quorum = sizes
    coverage = Coverage(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    assert not coverage.is_covered
    was_covered = False
    for index in range(ensemble_size):
        coverage.confirm(index)
        assert coverage.is_covered or not was_covered
        was_covered = coverage.is_covered
    assert was_covered
