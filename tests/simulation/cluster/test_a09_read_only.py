"""Defect A9: bookies that are read-only count as lost."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import NodeWrote
from tests.simulation.cluster.items import closed_ledger, publisher

AVAILABLE = "/ledgers/available"


@story(bookies=4, brokers=0)
async def test_a09_a_bookie_that_becomes_read_only_is_not_lost(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await sim.recovery().start()
    await sim.sleep(3.0)
    # As a bookie does that runs out of room: the new kind first, then the old one goes.
    x = await publisher(sim)
    value = sim.store.tree.get(f"{AVAILABLE}/b1").value
    await x.run(x.store.create(f"{AVAILABLE}/readonly/b1", value, ephemeral=True))
    await x.run(x.store.delete(f"{AVAILABLE}/b1"))
    await sim.sleep(20.0)
    assert not any("/urL" in event.path for _, _, event in sim.history.of(NodeWrote))
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
