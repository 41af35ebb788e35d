"""Defect A12: workers that look for items overload the metadata store."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish
from tests.simulation.cluster.recovery import WORKER
from tests.simulation.cluster.sessions import SessionStore


def operations(sim: Cluster, name: str) -> int:
    return sum(
        handle.operations
        for handle in sim.store.handles
        if isinstance(handle, SessionStore) and handle.process.name == name
    )


@story(bookies=4, brokers=0)
async def test_a12_an_idle_worker_asks_little(sim: Cluster) -> None:
    settings = WORKER.model_copy(update={"rescan_s": 60.0})
    await sim.recovery(worker=settings, has_auditor=False).start()
    await sim.sleep(5.0)
    before = operations(sim, "ar1")
    await sim.sleep(120.0)
    assert operations(sim, "ar1") - before <= 20


@story(bookies=5, brokers=0)
async def test_a12_items_are_taken_at_a_bounded_rate(sim: Cluster) -> None:
    ledgers = [await closed_ledger(sim, entries=1) for _ in range(12)]
    settings = WORKER.model_copy(update={"items_per_s_max": 2.0})
    await lose(sim, "b1")
    for w in ledgers:
        await publish(sim, w.ledger_id, "b1")
    recovery = sim.recovery(worker=settings, has_auditor=False)
    await recovery.start()
    began_s = sim.loop.time()
    await sim.wait_repaired()
    assert sim.loop.time() - began_s >= 4.0
