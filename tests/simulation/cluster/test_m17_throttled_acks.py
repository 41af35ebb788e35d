"""Behaviour M17: acknowledgements younger than the persist interval may be repeated; no others."""

from tests.simulation.cluster.cluster import Cluster, story


@story()
async def test_m17_acks_younger_than_the_persist_interval_are_repeated_after_a_crash(
    sim: Cluster,
) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(4)
    await consumer.take(4)
    consumer.ack(*consumer.got[:2])
    await sim.settle()  # saved
    consumer.ack(*consumer.got[2:])
    await sim.sleep(0.01)  # at the broker, and not saved

    first = sim.owner_of("t")
    first.crash()
    await sim.moved("t", away_from=first)
    assert await consumer.take(2) == [b"p:2", b"p:3"]
    await sim.inspect()
