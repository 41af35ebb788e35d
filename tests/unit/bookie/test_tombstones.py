"""Deleted ledgers are remembered for a time, and not too many of them."""

from magnetar.bookie.requests.past_ledgers import Tombstones


def test_each_lasts_from_its_own_deletion() -> None:
    tombstones = Tombstones(keep_s=10, count_max=9)
    tombstones.put(1, 0)
    tombstones.put(2, 5)
    tombstones.put(1, 8)
    tombstones.expire(15)
    assert (1 in tombstones, 2 in tombstones) == (True, False)


def test_at_the_bound_the_oldest_goes() -> None:
    tombstones = Tombstones(keep_s=10, count_max=3)
    for ledger_id in range(3):
        tombstones.put(ledger_id, 0)
    assert len(tombstones) == 3
    tombstones.put(3, 0)
    assert (len(tombstones), 0 in tombstones) == (3, False)


def test_none_are_kept_when_none_are_wanted() -> None:
    tombstones = Tombstones(keep_s=10, count_max=0)
    tombstones.put(1, 0)
    assert 1 not in tombstones
