"""Invariant R8: a copy that a bookie refused is no copy, and nobody's place is taken with it."""

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, publish


@story(bookies=4, brokers=0)
async def test_r08_a_bookie_that_refuses_the_copies_takes_nobodys_place(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    refusal = sim.net.refuse(Status.IO_ERROR, bookie="b4", op=Op.ADD, flags=Flag.RECOVERY)
    await sim.recovery().start()
    sim.bookie("b1").lose()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    await sim.sleep(10.0)
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
    assert w.ledger_id in sim.missing_copies()

    sim.net.forgeries.remove(refusal)
    await sim.wait_repaired()
    assert all(sim.bookie("b4").has(w.ledger_id, entry_id) for entry_id in range(4))


@story(bookies=4, brokers=0)
async def test_r08_nor_if_it_refuses_a_single_one_of_them(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    sim.net.refuse(
        Status.TOO_MANY_REQUESTS, bookie="b4", op=Op.ADD, flags=Flag.RECOVERY, entry=2, count=30
    )
    await sim.recovery().start()
    sim.bookie("b1").lose()
    await sim.wait_repaired()
    assert all(sim.bookie("b4").has(w.ledger_id, entry_id) for entry_id in range(4))


@story(bookies=3, brokers=0, without=("I14",))
async def test_r08_a_hole_whose_copy_was_refused_stays_on_record(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    del sim.bookie("b3").storage.packets[w.ledger_id][1]
    refusal = sim.net.refuse(Status.READ_ONLY, bookie="b3", op=Op.ADD, flags=Flag.RECOVERY)
    await sim.recovery(has_auditor=False).start()
    await publish(sim, w.ledger_id, missing={"b3": [(1, 1)]})
    await sim.sleep(10.0)
    assert w.ledger_id in sim.missing_copies()
    sim.net.forgeries.remove(refusal)
    await sim.wait_repaired()
    assert sim.bookie("b3").has(w.ledger_id, 1)
