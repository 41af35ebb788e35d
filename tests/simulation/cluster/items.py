"""Work items by hand, for stories of auto-recovery."""

from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.under_replication import EVERYTHING, Missing
from tests.simulation.clients import SimClient, SimWriter
from tests.simulation.cluster.cluster import Cluster


async def publisher(sim: Cluster) -> SimClient:
    return sim.clients.get("x") or await sim.client("x")


async def publish(
    sim: Cluster, ledger_id: int, *bookies: str, missing: Missing | None = None
) -> None:
    """Publish that these bookies are lost, or what is missing."""
    x = await publisher(sim)
    items = WorkItems(x.store, clock=x.clock, random=x.random)
    wanted = missing if missing is not None else {each: [EVERYTHING] for each in bookies}
    await x.run(items.publish(ledger_id, wanted))


async def lost_entries(sim: Cluster) -> dict[int, list[tuple[int, int]]]:
    """What is recorded as being on no bookie."""
    x = await publisher(sim)
    items = WorkItems(x.store, clock=x.clock, random=x.random)
    found, problems = await x.run(items.lost())
    assert not problems
    return found


async def closed_ledger(
    sim: Cluster, entries: int = 4, *, ensemble: tuple[str, ...] | None = None
) -> SimWriter:
    """A closed ledger with so many entries."""
    w = await sim.writer(ensemble=ensemble)
    if entries:
        await w.add(entries)
    await w.close()
    return w


async def lose(sim: Cluster, bookie_id: str) -> None:
    """The bookie is gone for good, and its registration with it."""
    sim.bookie(bookie_id).lose()
    path = f"/ledgers/available/{bookie_id}"
    await sim.until(lambda: sim.store.tree.version(path) is None)
    await sim.sleep(0.1)
