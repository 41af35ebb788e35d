"""A preview of the ledgers that a round would delete says what the round would do."""

from magnetar.bookie.gc.dead_ledgers import Brake
from magnetar.bookie.gc.gc_preview import preview_ledgers
from magnetar.bookie.gc.ledger_collector import UNRECORDED_MAX
from tests.garbage import Ledgers, metadata_calls, store_of_cluster

BRAKE = Brake(vanish_share_max=0.5, ledgers_min=10, patience_s=100)


async def test_it_names_the_ledgers_that_are_gone_unlisted_and_unconfirmed() -> None:
    cluster = Ledgers(range(15))
    cluster.failing, cluster.lost = {16}, {17}
    found = await preview_ledgers(range(20), cluster, metadata_calls(store_of_cluster()), BRAKE)
    assert (found.ledger_ids, found.unconfirmed, found.unrecorded) == ((15, 18, 19), (16,), (17,))
    assert (found.waiting, found.refused) == ((), "")


async def test_most_of_few_ledgers_wait_as_in_a_round() -> None:
    cluster, calls = Ledgers([0]), metadata_calls(store_of_cluster())
    cluster.records_deletions = False
    found = await preview_ledgers(range(4), cluster, calls, BRAKE)
    assert (found.ledger_ids, found.waiting) == ((), (1, 2, 3))
    impatient = Brake(vanish_share_max=0.5, ledgers_min=10, patience_s=0)
    found = await preview_ledgers(range(4), cluster, calls, impatient)
    assert (found.ledger_ids, found.waiting) == ((1, 2, 3), ())


async def test_a_share_of_one_is_no_brake_as_in_a_round() -> None:
    cluster = Ledgers([0])
    cluster.records_deletions, cluster.lost = False, {3}
    brake = Brake(vanish_share_max=1, ledgers_min=10, patience_s=100)
    found = await preview_ledgers(range(4), cluster, metadata_calls(store_of_cluster()), brake)
    assert (found.ledger_ids, found.unrecorded) == ((1, 2, 3), ())


async def test_it_ends_at_as_many_ledgers_without_a_record_as_a_round() -> None:
    cluster = Ledgers()
    cluster.lost = set(range(1, UNRECORDED_MAX + 1))
    local = range(UNRECORDED_MAX + 50)
    found = await preview_ledgers(local, cluster, metadata_calls(store_of_cluster()), BRAKE)
    assert found.ledger_ids == (0,)
    assert len(found.unrecorded) == UNRECORDED_MAX
    assert "without a record that they were deleted" in found.refused
