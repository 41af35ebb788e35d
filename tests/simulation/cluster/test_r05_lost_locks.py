"""Rule 5.4: with its session a worker loses its locks, and changes no metadata by them (R5)."""

from magnetar.ledger.wire import Op
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish

LOCK = "/ledgers/underreplication/locks/urL0"


@story(bookies=5, brokers=0)
async def test_r05_a_worker_whose_lock_another_has_by_now_swaps_nothing(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    assert w.ledger_id == 0
    await lose(sim, "b1")
    await sim.recovery("ar1", has_auditor=False).start()
    copying = [sim.net.hold(client=name, op=Op.ADD) for name in ("ar1", "ar2")]
    await publish(sim, w.ledger_id, "b1")
    await sim.until(lambda: bool(copying[0].messages))
    # Its copies are on the way, and its session ends; it is told before they are acknowledged.
    sim.store.expire_session("ar1")
    await sim.recovery("ar2", has_auditor=False).start()
    await sim.until(lambda: bool(copying[1].messages))
    holder = sim.store.tree.get(LOCK).value
    assert holder.startswith(b"ar2")
    copying[0].release()
    await sim.settle()
    assert sim.metadata(w.ledger_id).last_fragment.bookies == ("b1", "b2", "b3")
    copying[1].release()
    await sim.wait_repaired()
    assert "b1" not in sim.metadata(w.ledger_id).last_fragment.bookies
