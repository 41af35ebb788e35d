"""Auto-recovery as a whole: what is lost is found, and made up for."""

from tests.simulation.cluster.cluster import Cluster, story


@story(bookies=4, brokers=0)
async def test_the_replicas_of_a_lost_bookie_are_made_anew(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(4)
    await w.close()
    await sim.recovery().start()
    sim.bookie("b1").lose()
    await sim.until(lambda: "b1" not in sim.metadata(w.ledger_id).last_fragment.bookies)
    await sim.wait_repaired()
    assert all(sim.bookie("b4").has(w.ledger_id, entry) for entry in range(4))
