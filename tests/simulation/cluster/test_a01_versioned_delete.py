"""Defect A1: an item is deleted although another bookie was added to it meanwhile (rule 2.1)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish


@story(bookies=5, brokers=0)
async def test_a01_an_item_to_which_a_bookie_was_added_stays(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b1")
    deleting = sim.store.hold(client="ar1", kind="delete", path="/ledgers/underreplication/ledgers")
    await publish(sim, w.ledger_id, "b1")
    await sim.until(lambda: bool(deleting.operations))

    await lose(sim, "b2")
    await publish(sim, w.ledger_id, "b2")
    deleting.release()
    await sim.settle()
    await sim.wait_repaired()
    assert set(sim.metadata(w.ledger_id).last_fragment.bookies) == {"b3", "b4", "b5"}
