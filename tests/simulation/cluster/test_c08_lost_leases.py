"""C8 and rule 10.2: who has a lease no more serves no more, although its session lives."""

from magnetar.broker.cluster.balance.bundles import LEASES_ROOT
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import Dropped
from tests.simulation.loop import SimProcess


async def _delete_leases(sim: Cluster, holder: str) -> None:
    """As an operator would: the nodes of a broker's leases, while it is alive."""
    process = SimProcess(sim.loop, "op")
    store = sim.store.open(process)

    async def delete() -> None:
        root = f"{LEASES_ROOT}/public/default"
        for name in await store.children(root):
            path = f"{root}/{name}"
            if f'"{holder}"'.encode() in (await store.get(path)).value:
                await store.delete(path)
        await store.close()

    await process.spawn(delete())


@story()
async def test_c08_a_broker_whose_lease_is_deleted_drops_its_topics(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    consumer = await sim.user("c").consumer("t", "s")
    await producer.publish(2)
    await consumer.take(2)
    owner = sim.owner_of("t")
    await _delete_leases(sim, owner.name)
    await sim.until(lambda: any(name == owner.name for _, name, _ in sim.history.of(Dropped)))
    await producer.publish(2)
    await consumer.take(2)
    await sim.inspect()
