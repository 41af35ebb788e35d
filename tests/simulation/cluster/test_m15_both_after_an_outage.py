"""Defect M15: after an outage of the store two brokers load one topic, and delete each other's
empty ledgers (rules 10.2 and 10.3)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import NodeWrote


def leases_written(sim: Cluster) -> list[tuple[str, NodeWrote]]:
    return [
        (actor, event)
        for _, actor, event in sim.history.of(NodeWrote)
        if event.path.startswith("/namespace/")
    ]


@story()
async def test_m15_one_broker_has_the_topic_after_an_outage_in_which_all_sessions_ended(
    sim: Cluster,
) -> None:
    await sim.user("c").consumer("t")
    p, q = [await sim.user(name).producer("t") for name in ("p", "q")]
    sim.store.stall()
    await sim.sleep(5.0)
    p.send(2)
    q.send(2)
    sim.store.resume()
    await sim.until(lambda: p.pending + q.pending == 0)
    await sim.settle()
    # Never does one create a lease that another still has.
    holder: dict[str, str] = {}
    for actor, event in leases_written(sim):
        if event.value is None:
            holder.pop(event.path, None)
        elif event.version == 0:
            assert event.path not in holder, (actor, event, holder)
            holder[event.path] = actor
    await sim.inspect()


@story()
async def test_m15_a_lease_is_created_if_absent_and_never_overwritten(sim: Cluster) -> None:
    producer = await sim.user("p").producer("t")
    first = sim.owner_of("t")
    second = sim.another(first)
    sim.store.stall(first.name)
    creating = sim.store.hold(client=second.name, kind="create", path="/namespace/")
    producer.send(1)
    await sim.until(lambda: bool(creating.operations), timeout_s=30)
    # The first one is back before the second one's creation gets through.
    sim.store.resume(first.name)
    await sim.sleep(1.5)
    creating.release()
    await sim.until(lambda: producer.pending == 0)
    assert all(event.version <= 0 for _, event in leases_written(sim))
    await sim.inspect()
