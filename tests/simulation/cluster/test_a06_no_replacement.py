"""Defect A6: with as many bookies as an ensemble has, there is no replacement."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger
from tests.simulation.history import Sent

SOME_ATTEMPTS = 12
"""Generous bound on the attempts within half a minute, with delays of 0.5 s that double up to 8
s."""


@story(bookies=3, brokers=0)
async def test_a06_an_item_without_a_replacement_waits_and_does_not_loop(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    recovery = sim.recovery()
    await recovery.start()
    sim.bookie("b1").lose()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    await sim.sleep(30.0)
    assert recovery.running is not None
    assert recovery.running.worker.metrics.items_taken <= SOME_ATTEMPTS
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")

    await sim.make_bookie().start()
    await sim.wait_repaired()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b4", "b2", "b3")


@story(bookies=3, brokers=0, without=("I14",))
async def test_a06_a_bookie_that_merely_lacks_entries_is_given_them_in_its_place(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim)
    for entry_id in (0, 2):
        del sim.bookie("b2").storage.packets[w.ledger_id][entry_id]
    await sim.recovery().start()
    await sim.until(
        lambda: all(sim.bookie("b2").has(w.ledger_id, entry) for entry in range(4)),
        what="b2 has everything again",
    )
    await sim.settle()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
    assert any(actor == "ar1" for _, actor, _ in sim.history.of(Sent))
