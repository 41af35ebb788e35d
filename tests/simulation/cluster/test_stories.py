"""The cluster itself: clients publish and consume, brokers go and others take over."""

from magnetar.sdk.settings import SubscriptionType
from tests.simulation.cluster.cluster import Cluster, story


@story(brokers=1)
async def test_a_message_goes_through_and_is_acknowledged(sim: Cluster) -> None:
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(5)
    assert await consumer.take(5) == [f"p:{number}".encode() for number in range(5)]
    consumer.ack(*consumer.got)
    await sim.settle()
    sim.count_backlogs()
    await sim.broker("br1").stop()
    await sim.inspect()


@story()
async def test_a_killed_broker_is_followed_by_another(sim: Cluster) -> None:
    consumer = await sim.user("c").consumer("t", kind=SubscriptionType.SHARED)
    producer = await sim.user("p").producer("t")
    await producer.publish(3)
    await consumer.take(3)
    owner = sim.owner("t")
    assert owner is not None
    owner.crash()
    producer.send(3)
    await sim.until(lambda: producer.pending == 0)
    assert sim.owner("t") is not owner
    wanted = {f"p:{number}".encode() for number in range(6)}
    got = {message.data for message in consumer.got}
    while got != wanted:
        await consumer.take()
        got = {message.data for message in consumer.got}
    await sim.inspect()


@story()
async def test_a_client_asks_another_broker_when_one_has_no_answer(sim: Cluster) -> None:
    sim.store.stall("br1")
    await sim.until(lambda: not sim.broker("br1").is_valid)
    # "p" knows both, and asks br1 first.
    producer = await sim.user("p").producer("t")
    await producer.publish(1)
    assert sim.owner("t") is sim.broker("br2")
    await sim.inspect()
