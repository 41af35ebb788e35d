"""Defect A7: a ledger whose only copy is on a lost bookie is tried again and again (rule 5.6)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lost_entries
from tests.simulation.cluster.test_a06_no_replacement import SOME_ATTEMPTS


@story(bookies=3, brokers=0, quorum=(1, 1, 1), without=("I1",))
async def test_a07_a_ledger_without_any_copy_keeps_its_item_and_is_seldom_tried(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim, ensemble=("b1",))
    recovery = sim.recovery()
    await recovery.start()
    sim.bookie("b1").lose()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    await sim.sleep(40.0)
    assert recovery.running is not None
    metrics = recovery.running.worker.metrics
    assert metrics.items_taken <= SOME_ATTEMPTS
    assert w.ledger_id in sim.missing_copies()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1",)


@story(bookies=4, brokers=0, without=("I1", "I10", "I14"))
async def test_a07_entries_that_every_bookie_denies_are_an_alarm_and_no_loop(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    for bookie_id in ("b1", "b2", "b3"):
        del sim.bookie(bookie_id).storage.packets[w.ledger_id][1]
    recovery = sim.recovery()
    await recovery.start()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    await sim.sleep(30.0)
    assert await lost_entries(sim) == {w.ledger_id: [(1, 1)]}
    assert recovery.running is not None
    assert recovery.running.worker.metrics.items_taken <= SOME_ATTEMPTS
    assert w.ledger_id in sim.missing_copies()
