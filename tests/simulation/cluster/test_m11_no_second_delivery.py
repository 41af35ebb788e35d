"""Defect M11: what was acknowledged above the mark-delete position comes again (rule 12.1)."""

from magnetar.sdk.settings import SubscriptionType
from tests.simulation.cluster.cluster import Cluster, story


@story()
async def test_m11_messages_acknowledged_one_by_one_do_not_come_again_from_the_next_owner(
    sim: Cluster,
) -> None:
    consumer = await sim.user("c").consumer("t", kind=SubscriptionType.SHARED)
    producer = await sim.user("p").producer("t")
    await producer.publish(5)
    await consumer.take(5)
    consumer.ack(consumer.got[1], consumer.got[3])
    await sim.settle()  # more than the persist interval

    first = sim.owner_of("t")
    first.crash()
    await sim.moved("t", away_from=first)
    assert await consumer.take(3) == [b"p:0", b"p:2", b"p:4"]
    assert await consumer.has_nothing(for_s=1.0)
    await sim.inspect()


@story()
async def test_m11_nor_when_the_owner_stops_in_order(sim: Cluster) -> None:
    consumer = await sim.user("c").consumer("t", kind=SubscriptionType.SHARED)
    producer = await sim.user("p").producer("t")
    await producer.publish(4)
    await consumer.take(4)
    consumer.ack(consumer.got[0], consumer.got[2])
    await sim.sleep(0.01)  # on their way, and not saved
    await sim.owner_of("t").stop()
    assert await consumer.take(2) == [b"p:1", b"p:3"]
    assert await consumer.has_nothing(for_s=1.0)
    await sim.inspect()
