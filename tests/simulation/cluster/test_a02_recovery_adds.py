"""Defect A2: copies are written by ordinary adds, which a fenced ledger refuses (5.4c)."""

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.history import Sent


@story(bookies=3, brokers=0)
async def test_a02_copies_reach_a_bookie_on_which_the_ledger_is_fenced(sim: Cluster) -> None:
    w = await sim.writer()
    refusal = sim.net.refuse(Status.IO_ERROR, bookie="b3", op=Op.ADD)
    await w.add(3)
    w.client.crash()
    await sim.recover("r", w.ledger_id)
    assert sim.bookie("b3").is_fenced(w.ledger_id)
    assert not sim.bookie("b3").has(w.ledger_id, 0)
    sim.net.forgeries.remove(refusal)

    await sim.recovery().start()
    await sim.until(lambda: all(sim.bookie("b3").has(w.ledger_id, each) for each in range(3)))
    await sim.wait_repaired()
    adds = [event for _, actor, event in sim.history.of(Sent) if actor == "ar1"]
    assert all(event.flags & Flag.RECOVERY for event in adds if event.op == Op.ADD)
