"""Defect A11: an outage of the metadata store looks like the death of all bookies (rule 3.2)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import NodeWrote
from tests.simulation.cluster.items import closed_ledger


@story(bookies=4, brokers=0)
async def test_a11_an_outage_in_which_all_sessions_end_publishes_nothing(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await sim.recovery("ar1").start()
    await sim.recovery("ar2").start()
    await sim.sleep(5.0)
    sim.store.stall()
    await sim.sleep(6.0)  # three times what a session lasts
    sim.store.resume()
    await sim.sleep(30.0)
    assert not [
        event
        for _, _, event in sim.history.of(NodeWrote)
        if "/underreplication/ledgers/" in event.path
    ]
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")


@story(bookies=6, brokers=0)
async def test_a11_a_mass_loss_is_published_slowly_after_a_wait(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    await sim.recovery().start()
    await sim.sleep(3.0)
    began_s = sim.loop.time()
    for bookie_id in ("b1", "b2", "b5"):
        sim.bookie(bookie_id).pause()
    await sim.until(lambda: sim.store.tree.version("/ledgers/available/b1") is None)
    await sim.sleep(2.0)  # below the wait of 4 s
    assert not sim.missing_copies()
    assert sim.loop.time() - began_s < 7.0
    for bookie_id in ("b1", "b2", "b5"):
        sim.bookie(bookie_id).resume()
    await sim.sleep(10.0)
    assert not sim.missing_copies()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
