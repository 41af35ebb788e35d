"""Rule 5.5: a bookie that does not answer says nothing about what it has (R4)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, publish


@story(bookies=3, brokers=0, without=("I14",))
async def test_r04_an_item_about_a_bookie_that_is_not_heard_stays(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    del sim.bookie("b3").storage.packets[w.ledger_id][1]
    sim.net.partition("ar1", "b3")
    await sim.recovery(has_auditor=False).start()
    await publish(sim, w.ledger_id, missing={"b3": [(0, 1)]})
    await sim.sleep(5.0)
    assert w.ledger_id in sim.missing_copies()
    sim.net.heal("ar1", "b3")
    await sim.wait_repaired()
    assert sim.bookie("b3").has(w.ledger_id, 1)
