"""Ledgers that look dead, and listings that are not believed (rules 10.1, 10.2; B10, B11)."""

import pytest
from pyroaring import BitMap64

from magnetar.bookie.errors import ImplausibleListingError
from magnetar.bookie.gc.dead_ledgers import Brake, DeadLedgerSearch
from magnetar.ledger.layouts.ledger_layout import LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX

BRAKE = Brake(vanish_share_max=0.5, ledgers_min=10)


def ranges(*listed: tuple[int, ...]) -> list[LedgerRange]:
    """Ranges of 100 ids each, and one that covers the rest."""
    found = [LedgerRange(100 * at, 100 * at + 99, ids) for at, ids in enumerate(listed)]
    return [*found, LedgerRange(100 * len(listed), LEDGER_ID_MAX, ())]


def search(local: set[int], listing: list[LedgerRange], brake: Brake | None = BRAKE) -> list[int]:
    dead = DeadLedgerSearch(BitMap64(local))
    for found in listing:
        dead.on_range(found)
    return dead.candidates(brake)


def test_local_ledgers_that_are_not_listed_are_candidates() -> None:
    assert search({1, 2, 150, 151, 9999}, ranges((1, 3), (150,))) == [2, 151, 9999]


def test_nothing_is_a_candidate_when_all_are_listed() -> None:
    assert search({1, 2, 150}, ranges((1, 2, 3), (150,))) == []


def test_b10_lexicographic_order_is_refused() -> None:
    with pytest.raises(ImplausibleListingError, match="not in order"):
        search({1, 2, 10}, [LedgerRange(0, LEDGER_ID_MAX, (1, 10, 2))])


def test_b10_ranges_in_another_order_are_refused() -> None:
    first, second, rest = ranges((1,), (101,))
    with pytest.raises(ImplausibleListingError, match="from 0 was expected"):
        search({1}, [second, first, rest])


def test_b10_a_missing_range_is_no_empty_range() -> None:
    first, _, rest = ranges((1,), (101,))
    with pytest.raises(ImplausibleListingError, match="from 100 was expected"):
        search({1, 101}, [first, rest])


def test_b10_a_listing_that_ends_early_is_refused() -> None:
    with pytest.raises(ImplausibleListingError, match="ended before 100"):
        search({1, 101}, ranges((1,))[:1])


def test_b10_no_ranges_at_all_are_refused() -> None:
    with pytest.raises(ImplausibleListingError):
        search({1}, [])


@pytest.mark.parametrize("ids", [(100,), (5, 5), (-1,), (99, 100)])
def test_b10_a_range_with_ids_that_are_not_its_own_is_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ImplausibleListingError):
        search({1}, [LedgerRange(0, 99, ids), LedgerRange(100, LEDGER_ID_MAX, ())])


def test_rule_10_2_an_empty_listing_is_refused_however_few_ledgers_there_are() -> None:
    with pytest.raises(ImplausibleListingError, match="no ledgers at all"):
        search({7}, ranges(()))


def test_an_empty_listing_is_fine_for_an_empty_bookie() -> None:
    assert search(set(), ranges(())) == []


@pytest.mark.parametrize(("dead", "is_believed"), [(10, True), (11, False), (19, False)])
def test_rule_10_2_at_the_greatest_share_and_above(dead: int, is_believed: bool) -> None:
    local = set(range(20))
    listing = ranges(tuple(range(dead, 20)))
    if is_believed:
        assert search(local, listing) == list(range(dead))
    else:
        with pytest.raises(ImplausibleListingError, match=f"lacks {dead} of the 20"):
            search(local, listing)


def test_few_ledgers_may_vanish_all_but_one() -> None:
    assert search(set(range(10)), ranges((9,))) == list(range(9))


def test_a_person_can_release_the_brake() -> None:
    assert search(set(range(20)), ranges(()), None) == list(range(20))


def test_nobody_can_release_the_check_of_the_order() -> None:
    with pytest.raises(ImplausibleListingError):
        search({1}, [LedgerRange(0, 99, ())], None)
