"""Shared dispatch, of a topic that stands alone: no connection, no rights, no coordinators."""

from magnetar.ledger.position import Position
from tests.unit.broker.topic.alone import Alone, MemoryPeer, at, publish
from tests.waiting import settle


async def test_consumers_take_turns() -> None:
    world, one, other = Alone(), MemoryPeer(), MemoryPeer()
    await world.subscribe(one, permits=10)
    await world.subscribe(other, permits=10)
    producer = await world.produce(MemoryPeer())
    for sequence_id in range(40):
        publish(producer, sequence_id)
    await settle()
    got = one.delivered(), other.delivered()
    assert sorted(got[0] + got[1]) == list(range(20))
    assert [len(each) for each in got] == [10, 10]


async def test_what_a_consumer_leaves_behind_goes_to_another() -> None:
    world, one, other = Alone(), MemoryPeer(), MemoryPeer()
    subscription, leaving = await world.subscribe(one, permits=10)
    publish(await world.produce(MemoryPeer()), 0, 1, 2)
    await settle()
    assert one.delivered() == [0, 1, 2]
    subscription.acknowledge_each(leaving, at(1))
    await world.subscribe(other, permits=10)
    subscription.leave(leaving)
    await settle()
    assert other.delivered() == [0, 2]
    subscription.check()


async def test_nothing_is_sent_when_the_tenure_has_ended() -> None:
    world, peer = Alone(), MemoryPeer()
    subscription, consumer = await world.subscribe(peer)
    publish(await world.produce(MemoryPeer()), 0)
    await settle()
    world.tenure.is_held = False
    subscription.flow(consumer, 10)
    await settle()
    assert peer.delivered() == []


async def test_a_topic_forgets_what_every_consumer_has_passed() -> None:
    world, peer = Alone(), MemoryPeer()
    await world.subscribe(peer, permits=10)
    publish(await world.produce(MemoryPeer()), 0, 1)
    await settle()
    assert peer.delivered() == [0, 1]
    assert world.topic.tail.cache.find(Position(7, 1)) is None
