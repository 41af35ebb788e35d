"""Messages that are older than the TTL leave the backlogs of their subscriptions."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.features.retention.expiry import newest_older
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import entry
from tests.unit.broker.keeping.world import NOW_MS, Copies, World, backlog
from tests.unit.broker.memory_log import MemoryLog
from tests.waiting import settle


async def test_what_is_older_than_the_ttl_leaves_the_backlog_and_is_counted() -> None:
    world = await World.make(message_ttl_s=60)
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
    world = await World.make(message_ttl_s=60)
    world.store(60)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1


async def test_without_a_ttl_or_a_backlog_nothing_is_read() -> None:
    world = await World.make()
    world.store(1000)
    subscription = await world.subscription()
    assert world.keeping.expiry.look_at(world.topic) is None
    world.set(message_ttl_s=1)
    subscription.cursor.ack_cumulative(Position(7, 0))
    assert world.keeping.expiry.look_at(world.topic) is None
    assert world.log.reads == []


async def test_young_messages_cost_one_read() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[50] * 100)
    subscription = await world.subscription()
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert len(world.log.reads) == 1
    assert backlog(subscription) == 100


async def test_each_subscription_loses_what_it_has_not_passed_by_one_search() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[100] * 10, *[1] * 10)
    behind = await world.subscription("behind")
    ahead = await world.subscription("ahead", Position(7, 15))
    await world.keeping.expiry.expire(world.topic, [behind, ahead], age_s=60)
    assert (backlog(behind), backlog(ahead)) == (10, 5)
    assert (behind.expired_entries, ahead.expired_entries) == (10, 0)
    assert len(world.log.reads) <= 7


async def test_messages_that_are_pending_at_a_shared_consumer_are_not_sent_again() -> None:
    world = await World.make(message_ttl_s=60)
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
    world = await World.make(message_ttl_s=60)
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
    world = await World.make(message_ttl_s=60)
    world.store(100)
    subscription = await world.subscription()
    world.harness.topics.tenure.is_held = False
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1


YEAR_S = 365 * 24 * 3600


async def test_a_publish_time_in_the_future_holds_back_no_ledger_that_was_closed_long_ago() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(-YEAR_S, *[100] * 50)
    world.close_ledger(61)
    world.store(62, 1)
    subscription = await world.subscription()
    dropped = await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert (dropped, subscription.expired_entries, backlog(subscription)) == (52, 52, 1)
    assert subscription.cursor.mark_delete == Position(8, 0)
    assert len(world.log.reads) == 3, "the end of the first ledger, and the second one"


async def test_a_subscription_beyond_a_publish_time_in_the_future_expires() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(-YEAR_S, *[100] * 10, 1)
    behind = await world.subscription("behind")
    ahead = await world.subscription("ahead", Position(7, 1))
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert backlog(behind) == 12, "of an open ledger nothing else tells the age"
    assert backlog(ahead) == 1


async def test_subscriptions_at_one_place_cost_one_search() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[50] * 100)
    there = [await world.subscription(f"s{each}") for each in range(5)]
    there += [await world.subscription(f"t{each}", Position(7, 50)) for each in range(5)]
    await world.keeping.expiry.expire(world.topic, there, age_s=60)
    assert len(world.log.reads) == 1


async def test_what_was_found_to_be_older_is_not_searched_again() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[100] * 20, *[1] * 12)
    there = [await world.subscription(f"s{at}", Position(7, at)) for at in range(19)]
    await world.keeping.expiry.expire(world.topic, there, age_s=60)
    assert {backlog(each) for each in there} == {12}
    assert len(world.log.reads) <= 6


@pytest.mark.parametrize("age_s", [60, 1, -1, -YEAR_S])
async def test_a_ledger_that_was_not_closed_longer_ago_than_the_ttl_tells_nothing(
    age_s: float,
) -> None:
    world = await World.make(message_ttl_s=60)
    world.store(1, 1)
    world.close_ledger(age_s)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 3


@pytest.mark.parametrize("earlier_s", [10, 100])
async def test_a_closing_time_before_that_of_an_earlier_ledger_is_not_believed(
    earlier_s: float,
) -> None:
    world = await World.make(message_ttl_s=60)
    world.store(earlier_s)
    world.close_ledger(earlier_s)
    world.store(1)
    world.close_ledger(1000)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == (3 if earlier_s < 60 else 2)


@pytest.mark.parametrize(("published_s", "left"), [(20 * 60, 2), (-YEAR_S, 1)])
async def test_a_closing_time_that_messages_contradict_is_not_believed(
    published_s: float, left: int
) -> None:
    """A broker whose clock was hours behind took the topic over, and closed its ledger."""
    world = await World.make(message_ttl_s=3600)
    world.store(36_000)
    world.close_ledger(36_000)
    world.store(published_s)
    world.close_ledger(29_400)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=3600)
    assert backlog(subscription) == left


async def test_many_subscriptions_at_many_places_cost_one_read_where_nothing_is_old() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[1] * 50)
    there = [await world.subscription(f"s{at}", Position(7, at)) for at in range(40)]
    await world.keeping.expiry.expire(world.topic, there, age_s=60)
    assert len(world.log.reads) == 1


async def test_a_closing_time_of_a_clock_that_was_never_set_is_not_believed() -> None:
    """As of a machine that has just booted without a battery, and took the topic over."""
    world = await World.make(message_ttl_s=60)
    for closed_ms in (1, 946_684_800_000):  # 1970, 2000
        world.store(1)
        world.close_ledger((NOW_MS - closed_ms) / 1000)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 3


async def test_a_closing_time_in_the_future_does_not_hold_back_what_follows() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(-YEAR_S)
    world.close_ledger(-YEAR_S)
    world.store(-YEAR_S)
    world.close_ledger(100)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1, "all of the first was stored before the second was closed"


async def test_of_a_closed_ledger_no_more_expires_than_is_confirmed() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(100, 100)
    world.close_ledger(100)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert subscription.cursor.mark_delete == world.log.last_confirmed == Position(7, 1)


async def test_a_subscription_that_goes_back_during_the_search_loses_nothing_unexamined() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(1, 1, 100, 1)
    subscription = await world.subscription("s", Position(7, 2))
    world.log.read_gate = asyncio.Event()
    work = asyncio.ensure_future(world.keeping.expiry.expire(world.topic, [subscription], age_s=60))
    await settle()
    await subscription.cursor.reset(Position(7, 0))
    world.log.read_gate.set()
    assert await work == 0
    assert backlog(subscription) == 4


@pytest.mark.parametrize("unreadable", range(8))
async def test_an_unreadable_entry_takes_no_young_ones_with_it(unreadable: int) -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[100] * 2, *[1] * 6)
    world.log.entries[7][unreadable] = b"nonsense"
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 8 - min(unreadable, 2)


async def test_an_unreadable_entry_expires_with_its_ledger() -> None:
    world = await World.make(message_ttl_s=60)
    world.log.store(b"nonsense")
    world.store(100)
    world.close_ledger(61)
    world.store(1)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 1


DAY_S = 24 * 3600


async def _dropped(world: World) -> int:
    subscription = await world.subscription()
    return await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)


async def test_nothing_is_older_than_the_ledger_it_lies_in() -> None:
    """Of a producer whose clock is a day behind."""
    world = await World.make(message_ttl_s=60)
    world.log.created_ms[7] = world.clock.now_ms - 8_000
    world.store(*[DAY_S] * 5)
    assert await _dropped(world) == 0
    world.clock.now_ms += 60_000
    assert await _dropped(world) == 5


async def test_nothing_is_older_than_the_close_of_the_ledger_before_it() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(100)
    world.close_ledger(8)
    world.store(*[DAY_S] * 5)
    assert await _dropped(world) == 1


async def test_a_producer_whose_clock_is_behind_ages_no_messages_of_the_others() -> None:
    world = await World.make(message_ttl_s=60)
    world.store(*[100, DAY_S] * 8, *[1, DAY_S, DAY_S] * 10)
    subscription = await world.subscription()
    await world.keeping.expiry.expire(world.topic, [subscription], age_s=60)
    assert backlog(subscription) == 30


@pytest.mark.parametrize("cut", [1, 3, 7])
# From 1 on, when the ledgers were closed: what follows one cannot have been stored before that.
@given(times=st.lists(st.integers(1, 50), max_size=25).map(sorted), limit=st.integers(0, 60))
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
    assert await newest_older(log, EARLIEST, limit, now_ms=100) == (older[-1] if older else None)


@pytest.mark.parametrize("expires", [False, True])
async def test_what_is_not_copied_yet_expires_only_where_that_is_wanted(expires: bool) -> None:
    world = await World.make(message_ttl_s=10)
    world.store(60, 50, 1)
    subscription, copies = await world.subscription(), Copies(world, expires=expires)
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert backlog(subscription) == 1
    assert copies.cursor.backlog_entries == (1 if expires else 3)


async def test_copies_expire_without_any_subscription() -> None:
    world = await World.make(message_ttl_s=10)
    world.store(60)
    copies = Copies(world, expires=True)
    work = world.keeping.expiry.look_at(world.topic)
    assert work is not None
    await work
    assert copies.cursor.is_caught_up
