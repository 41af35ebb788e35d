"""Messages that are older than the TTL leave the backlogs of their subscriptions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.keeping.expiry import newest_older
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import MemoryLog, entry
from tests.unit.broker.keeping.world import NOW_MS, World, backlog


async def test_what_is_older_than_the_ttl_leaves_the_backlog_and_is_counted() -> None:
    world = await World.make(ttl_s=60)
    world.store(100, 90, 61, 59, 1)
    subscription = await world.subscription()
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert backlog(subscription) == 2
    assert subscription.cursor.mark_delete == Position(7, 2)
    assert subscription.expired_entries == 3
    assert subscription.last_expired_ms == NOW_MS


async def test_a_message_of_exactly_that_age_stays() -> None:
    world = await World.make(ttl_s=60)
    world.store(60)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1


async def test_without_a_ttl_or_a_backlog_nothing_is_read() -> None:
    world = await World.make()
    world.store(1000)
    subscription = await world.subscription()
    assert world.keeping.expiry.look_at(world.topic) is None
    world.set(ttl_s=1)
    subscription.cursor.ack_cumulative(Position(7, 0))
    assert world.keeping.expiry.look_at(world.topic) is None
    assert world.log.reads == []


async def test_young_messages_cost_one_read() -> None:
    world = await World.make(ttl_s=60)
    world.store(*[50] * 100)
    subscription = await world.subscription()
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert len(world.log.reads) == 1
    assert backlog(subscription) == 100


async def test_each_subscription_loses_what_it_has_not_passed_by_one_search() -> None:
    world = await World.make(ttl_s=60)
    world.store(*[100] * 10, *[1] * 10)
    behind = await world.subscription("behind")
    ahead = await world.subscription("ahead", Position(7, 15))
    await world.keeping.expiry.expire(world.topic, [behind, ahead], age_s=60)
    assert (backlog(behind), backlog(ahead)) == (10, 5)
    assert (behind.expired_entries, ahead.expired_entries) == (10, 0)
    assert len(world.log.reads) <= 7


async def test_messages_that_are_pending_at_a_shared_consumer_are_not_sent_again() -> None:
    world = await World.make(ttl_s=60)
    world.store(100, 90, 1)
    client = world.client()
    await client.subscribe(subType=pb.CommandSubscribe.Shared)
    client.flow(10)
    assert len(await client.messages(3)) == 3
    subscription = world.topic.subscriptions["s"]
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert subscription.expired_entries == 2
    client.redeliver(Position(7, 0), Position(7, 1), Position(7, 2))
    ((message, _),) = await client.messages(1)
    assert message.message_id.entryId == 2
    assert client.commands() == []
    assert subscription.unacked_messages == 1


async def test_an_exclusive_consumer_goes_on_behind_what_expired() -> None:
    world = await World.make(ttl_s=60)
    world.store(100, 90, 1)
    client = world.client()
    await client.subscribe()
    subscription = world.topic.subscriptions["s"]
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    client.flow(10)
    ((message, _),) = await client.messages(1)
    assert message.message_id.entryId == 2
    assert BaseCommand.MESSAGE not in client.commands()


async def test_nothing_expires_for_a_topic_that_may_be_somebody_elses() -> None:
    world = await World.make(ttl_s=60)
    world.store(100)
    subscription = await world.subscription()
    world.harness.topics.tenure.is_held = False
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1


@pytest.mark.parametrize("cut", [1, 3, 7])
@given(times=st.lists(st.integers(0, 50), max_size=25).map(sorted), limit=st.integers(0, 60))
async def test_the_search_finds_the_newest_older_one(
    cut: int, times: list[int], limit: int
) -> None:
    log = MemoryLog(1)
    for number, time in enumerate(times):
        if number and number % cut == 0:
            log.roll(1 + number)
        log.store(entry(publish_time=time))
    positions = [
        Position(ledger_id, at)
        for ledger_id, held in log.entries.items()
        for at in range(len(held))
    ]
    older = [each for each, time in zip(positions, times, strict=True) if time < limit]
    assert await newest_older(log, EARLIEST, limit) == (older[-1] if older else None)
