"""Backlogs above their quota: who is refused, with which code, and what is dropped."""

import pytest

from magnetar.broker.features.replication.names import replicator_name
from magnetar.broker.features.retention.backlog import (
    backlog_bytes,
    oldest_publish_ms,
    slowest,
    storage_bytes,
    topic_backlog_bytes,
)
from magnetar.broker.policies.model import BacklogPolicy, BacklogQuota, QuotaType
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import ServerError
from tests.unit.broker.harness import id_of
from tests.unit.broker.keeping.world import NOW_MS, Copies, World, backlog

HOLD, EXCEPTION, EVICT = BacklogPolicy.HOLD, BacklogPolicy.EXCEPTION, BacklogPolicy.EVICT
CODES = {
    HOLD: ServerError.ProducerBlockedQuotaExceededError,
    EXCEPTION: ServerError.ProducerBlockedQuotaExceededException,
}


async def _enforce(world: World) -> None:
    work = world.keeping.quotas.look_at(world.topic)
    assert work is not None
    await work


def _policies(kind: str, limit: int, policy: BacklogPolicy) -> dict[str, object]:
    if kind == "size":
        quotas = {QuotaType.SIZE: BacklogQuota(bytes=limit, policy=policy)}
    else:
        quotas = {QuotaType.AGE: BacklogQuota(seconds=limit, policy=policy)}
    return {"backlog_quotas": quotas}


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
@pytest.mark.parametrize(("kind", "limit"), [("size", 100), ("age", 60)])
async def test_a_new_producer_is_refused_at_once_above_a_quota(
    kind: str, limit: int, policy: BacklogPolicy
) -> None:
    world = await World.make(**_policies(kind, limit, policy))
    world.keeping.quotas._clock = world.harness.services.clock
    world.harness.services.keeping.quotas._clock = world.clock
    world.store(100, body=b"x" * 100)
    subscription = await world.subscription()
    refused = await world.client().produce()
    assert refused.type == BaseCommand.ERROR
    assert refused.error.error == CODES[policy]
    assert "quota" in refused.error.message
    subscription.cursor.ack_cumulative(Position(7, 0))
    assert (await world.client().produce()).type == BaseCommand.PRODUCER_SUCCESS


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
@pytest.mark.parametrize(("kind", "limit"), [("size", 100), ("age", 60)])
async def test_connected_producers_are_closed_when_the_backlog_grows_above_a_quota(
    kind: str, limit: int, policy: BacklogPolicy
) -> None:
    world = await World.make(**_policies(kind, limit, policy))
    client = world.client()
    await world.subscription()
    await client.produce()
    assert world.keeping.quotas.look_at(world.topic) is None, "no backlog: nothing to look at"
    world.store(100, body=b"x" * 100)
    await _enforce(world)
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
    assert not world.topic.producers


async def test_below_the_quota_nobody_is_disturbed() -> None:
    world = await World.make(
        backlog_quotas={
            QuotaType.SIZE: BacklogQuota(bytes=10_000),
            QuotaType.AGE: BacklogQuota(seconds=200),
        }
    )
    client = world.client()
    await world.subscription()
    await client.produce()
    world.store(100)
    await _enforce(world)
    assert client.commands() == []
    assert (await client.produce(1)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_size_quota_is_exceeded_at_its_limit_and_an_age_quota_above_it() -> None:
    world = await World.make()
    world.store(60)
    subscription = await world.subscription()
    size = backlog_bytes(world.topic, subscription)
    for limit, count in ((size, 1), (size + 1, 0)):
        world.set(**_policies("size", limit, HOLD))
        assert len(await world.keeping.quotas.excesses(world.topic)) == count
    world.set(**_policies("age", 60, HOLD))
    for later_ms, count in ((0, 0), (1, 1)):
        world.clock.now_ms = NOW_MS + later_ms
        assert len(await world.keeping.quotas.excesses(world.topic)) == count


async def test_eviction_by_size_drops_the_oldest_down_to_nine_tenths() -> None:
    world = await World.make(**_policies("size", 1000, EVICT))
    world.store(*[1] * 20, body=b"x" * 60)
    size = len(world.log.entries[7][0])
    behind = await world.subscription("behind")
    ahead = await world.subscription("ahead", Position(7, 18))
    assert (await world.client().produce()).type == BaseCommand.PRODUCER_SUCCESS
    await _enforce(world)
    assert backlog_bytes(world.topic, behind) <= 900
    assert backlog(behind) == 900 // size
    assert backlog(ahead) == 2, "it was not above"
    assert world.topic.use.evicted_entries == 20 - 900 // size
    await _enforce(world)
    assert backlog(behind) == 900 // size


async def test_eviction_by_age_drops_what_is_too_old() -> None:
    world = await World.make(**_policies("age", 60, EVICT))
    world.store(100, 90, 59, 1)
    subscription = await world.subscription()
    await _enforce(world)
    assert backlog(subscription) == 2
    assert world.topic.use.evicted_entries == 2


async def test_a_reader_is_no_backlog() -> None:
    world = await World.make(**_policies("size", 10, HOLD))
    world.store(*[1] * 20)
    client = world.client()
    await client.subscribe(durable=False, start_message_id=id_of(EARLIEST))
    assert topic_backlog_bytes(world.topic) == 0
    assert (await world.client().produce()).type == BaseCommand.PRODUCER_SUCCESS


async def test_backlogs_are_estimated_and_never_negative() -> None:
    world = await World.make()
    world.store(*[1] * 4)
    size = storage_bytes(world.topic)
    subscription = await world.subscription()
    assert backlog_bytes(world.topic, subscription) == size
    subscription.cursor.ack_cumulative(Position(7, 1))
    assert backlog_bytes(world.topic, subscription) == size // 2
    assert slowest(world.topic) is subscription
    world.log.roll(9)
    world.store(1)
    world.log.trim()
    assert backlog_bytes(world.topic, subscription) == storage_bytes(world.topic) > 0
    subscription.cursor.ack_cumulative(Position(9, 0))
    assert backlog_bytes(world.topic, subscription) == 0
    assert slowest(world.topic) is None


async def test_the_age_of_a_backlog_is_that_of_its_first_open_entry() -> None:
    world = await World.make()
    world.store(100, 90, 80)
    subscription = await world.subscription()
    subscription.cursor.ack(Position(7, 1))
    assert await oldest_publish_ms(world.topic, subscription) == NOW_MS - 100_000
    subscription.cursor.ack(Position(7, 0))
    assert await oldest_publish_ms(world.topic, subscription) == NOW_MS - 80_000
    subscription.cursor.ack(Position(7, 2))
    assert await oldest_publish_ms(world.topic, subscription) is None


async def _ages_found(world: World) -> list[str]:
    return [each.text for each in await world.keeping.quotas.excesses(world.topic)]


async def test_a_publish_time_in_the_future_is_as_old_as_the_closing_of_its_ledger() -> None:
    world = await World.make(**_policies("age", 60, EVICT))
    world.store(-1000)
    await world.subscription()
    assert await _ages_found(world) == []
    world.close_ledger(100)
    world.store(1)
    (text,) = await _ages_found(world)
    assert "100 s old" in text
    await _enforce(world)
    assert world.topic.use.evicted_entries == 1
    assert await _ages_found(world) == []


async def test_the_age_is_that_of_the_message_where_its_ledger_was_closed_later() -> None:
    world = await World.make(**_policies("age", 60, EVICT))
    world.store(100)
    world.close_ledger(70)
    world.store(1)
    await world.subscription()
    (text,) = await _ages_found(world)
    assert "100 s old" in text


async def test_a_closing_time_in_the_future_makes_nothing_old_or_young() -> None:
    world = await World.make(**_policies("age", 60, HOLD))
    world.store(100)
    world.close_ledger(-1000)
    await world.subscription()
    (text,) = await _ages_found(world)
    assert "100 s old" in text


async def test_an_unreadable_message_is_as_old_as_the_closing_of_its_ledger() -> None:
    world = await World.make(**_policies("age", 60, HOLD))
    world.log.store(b"nonsense")
    subscription = await world.subscription()
    assert await oldest_publish_ms(world.topic, subscription) is None
    assert await _ages_found(world) == []
    world.close_ledger(100)
    assert len(await _ages_found(world)) == 1


async def test_a_publish_time_of_0_is_1970_to_the_quota_as_to_the_ttl() -> None:
    world = await World.make(**_policies("age", 60, EVICT))
    world.store(NOW_MS / 1000)
    subscription = await world.subscription()
    assert await oldest_publish_ms(world.topic, subscription) == 0
    await _enforce(world)
    assert (world.topic.use.evicted_entries, backlog(subscription)) == (1, 0)


async def test_no_message_is_older_to_the_quota_than_its_ledger() -> None:
    world = await World.make(**_policies("age", 60, HOLD))
    world.log.created_ms[7] = NOW_MS - 8_000
    world.store(24 * 3600)
    await world.subscription()
    assert await _ages_found(world) == []
    world.clock.now_ms += 60_000
    (text,) = await _ages_found(world)
    assert "68 s old" in text


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
@pytest.mark.parametrize(("kind", "limit"), [("size", 100), ("age", 60)])
async def test_what_is_not_copied_to_another_cluster_counts_where_producers_are_held_back(
    kind: str, limit: int, policy: BacklogPolicy
) -> None:
    world = await World.make(**_policies(kind, limit, policy))
    world.keeping.quotas._clock = world.harness.services.clock
    world.harness.services.keeping.quotas._clock = world.clock
    world.store(100, body=b"x" * 100)
    copies = Copies(world)
    refused = await world.client().produce()
    assert refused.error.error == CODES[policy]
    assert "until copies to cluster west catch up" in refused.error.message
    copies.drop_through(Position(7, 0))
    assert (await world.client().produce()).type == BaseCommand.PRODUCER_SUCCESS


async def test_copies_that_come_are_not_held_back_by_those_that_go() -> None:
    """Two clusters that copy to each other would otherwise hold each other back for ever."""
    world = await World.make(**_policies("size", 100, HOLD))
    copier = world.client()
    name = replicator_name("west", "standalone")
    assert (await copier.produce(producer_name=name)).type == BaseCommand.PRODUCER_SUCCESS
    other = world.client()
    await other.produce()
    world.store(100, body=b"x" * 100)
    Copies(world)
    again = await world.client().produce(producer_name=replicator_name("north", "standalone"))
    assert again.type == BaseCommand.PRODUCER_SUCCESS
    await _enforce(world)
    assert {each.name for each in world.topic.producers.values()} == {
        name,
        replicator_name("north", "standalone"),
    }
    await world.subscription()
    refused = await world.client().produce(producer_name=replicator_name("south", "standalone"))
    assert refused.error.error == CODES[HOLD], "consumers hold all producers back"
    await _enforce(world)
    assert not world.topic.producers


async def test_an_eviction_leaves_what_is_not_copied_alone() -> None:
    world = await World.make(**_policies("size", 100, EVICT))
    world.store(*[100] * 10, body=b"x" * 100)
    subscription, copies = await world.subscription(), Copies(world)
    await _enforce(world)
    assert (backlog(subscription), copies.cursor.backlog_entries) == (0, 10)
