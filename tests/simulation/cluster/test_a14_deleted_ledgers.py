"""Defect A14: the item of a ledger that is deleted is tried for ever (step 2)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish


@story(bookies=4, brokers=0)
async def test_a14_the_item_of_a_deleted_ledger_goes(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await publish(sim, w.ledger_id, "b1")
    await w.client.run(w.client.ledgers.delete(w.ledger_id))
    await sim.recovery(has_auditor=False).start()
    await sim.until(lambda: not sim.missing_copies())
    await sim.settle()


@story(bookies=4, brokers=0)
async def test_a14_also_when_it_is_deleted_while_it_is_repaired(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await lose(sim, "b1")
    await sim.recovery(has_auditor=False).start()
    swap = sim.store.hold_cas(client="ar1", ledger_id=w.ledger_id)
    await publish(sim, w.ledger_id, "b1")
    await sim.until(lambda: bool(swap.operations))
    await w.client.run(w.client.ledgers.delete(w.ledger_id))
    swap.release()
    await sim.until(lambda: not sim.missing_copies())
    await sim.settle()
