"""Defect A4: the last entry of the fragment before the open one is judged by a stale LAC."""

from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import lose, publish


@story(bookies=5, brokers=0)
async def test_a04_the_last_entry_of_the_penultimate_fragment_is_copied_as_well(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    w.client.placement.replacements = ["b4"]
    await w.add(3)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD, count=1)
    await w.add(1)  # a new fragment on b1, b2, b4
    assert len(sim.metadata(w.ledger_id).ensembles) == 2
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b3")
    await publish(sim, w.ledger_id, "b3")
    await sim.until(
        lambda: "b3" not in sim.metadata(w.ledger_id).ensembles[0].bookies, what="b3 is replaced"
    )
    new = sim.metadata(w.ledger_id).ensembles[0].bookies[2]
    assert all(sim.bookie(new).has(w.ledger_id, entry) for entry in range(3))
    await sim.wait_repaired()
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
    await w.add(1)
    await w.close()


@story(bookies=5, brokers=0)
async def test_a04_an_unconfirmed_tail_does_not_hold_up_the_item_for_ever(sim: Cluster) -> None:
    w = await sim.writer()
    w.client.placement.replacements = ["b4"]
    await w.add(3)
    sim.net.refuse(Status.IO_ERROR, client="w", bookie="b3", op=Op.ADD, count=1)
    # The entry of the new fragment reaches one bookie only, and the writer is gone.
    for bookie_id in ("b2", "b4"):
        sim.net.hold(client="w", bookie=bookie_id, op=Op.ADD, entry=3)
    w.append()
    await sim.until(lambda: len(sim.metadata(w.ledger_id).ensembles) == 2)
    await sim.settle()
    w.client.crash()
    sim.net.heal_all()
    await sim.recovery(has_auditor=False).start()
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.wait_repaired()
    metadata = sim.metadata(w.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert all("b1" not in bookies for _, bookies in metadata.ensembles)
