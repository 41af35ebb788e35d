"""Every field of Pulsar's statistics is computed, or is a named constant with a reason.

`pulsar_stats.py` has the fields that Pulsar answers, by level. The
scenarios below use topics in all the ways that statistics tell of; whatever has the same value
before, during and after all of them is a constant, and must be named as one in `stats.py`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.features.retention.backlog import backlog_age
from magnetar.broker.features.retention.expiry import Expiry
from magnetar.broker.http.hoarding import HOARDING_AFTER_MS, HOARDING_MESSAGES_MIN
from magnetar.broker.http.topic_stats import (
    ABSENT,
    NOT_OFFLOADED,
    SUBSCRIPTION_CONSTANTS,
    TOPIC_CONSTANTS,
    topic_stats,
)
from magnetar.broker.policies.model import BacklogQuota, DispatchRate, PublishRate, QuotaType
from magnetar.broker.topic import Feature, Topic
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher
from magnetar.broker.topics.non_persistent import BATCH_ENTRIES_MAX
from magnetar.cursors import Cursor
from magnetar.cursors.ack_state import AckState
from magnetar.cursors.saver import CursorSaver
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, batch, entry, send_frame
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.pulsar_stats import BEYOND, BEYOND_OF_CONSUMER, PULSAR
from tests.waiting import settle

VOLATILE = "non-persistent://public/default/volatile"
_TYPES = pb.CommandSubscribe
_MODES = pb.ProducerAccessMode

CONSTANTS = {"topic": TOPIC_CONSTANTS, "subscription": SUBSCRIPTION_CONSTANTS}

ELSEWHERE = {
    ("topic", "earliestMsgPublishTimeInBacklogs"),  # filled in where somebody asks for it
    ("topic", "replication"),  # in tests/integration/pulsar_client/test_replication.py
    ("subscription", "earliestMsgPublishTimeInBacklog"),
}
"""Tested in tests/integration."""


class Seen:
    """The values that each field has had."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], set[str]] = defaultdict(set)

    async def look(self, topic: Topic, *, owner: str = "a") -> dict[str, Any]:
        now_ms = topic.clock.wall_ms()
        oldest = await backlog_age(topic, now_ms)
        stats = topic_stats(topic, now_ms=now_ms, owner=owner, oldest=oldest)
        self._add("topic", stats)
        self._add("compaction", stats["compaction"])
        for publisher in stats["publishers"]:
            self._add("publisher", publisher)
        for subscription in stats["subscriptions"].values():
            self._add("subscription", subscription)
            for consumer in subscription["consumers"]:
                self._add("consumer", consumer)
                for draining in consumer["drainingHashes"]:
                    self._add("draining", draining)
        return stats

    def _add(self, level: str, stats: Mapping[str, Any]) -> None:
        for field, value in stats.items():
            self.values[level, field].add(repr(value))


class World:
    """A broker's core with a clock that the scenario moves."""

    def __init__(self, seen: Seen, *, begins_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.clock.advance(1_000 + begins_ms)
        self.harness = Harness()
        self.harness.topics.clock = self.clock
        self.harness.services = replace(self.harness.services, clock=self.clock)
        self._seen = seen

    @property
    def topic(self) -> Topic:
        return self.harness.topic

    async def look(self, *, owner: str = "a") -> dict[str, Any]:
        await settle()
        self.clock.advance(1_000)
        return await self._seen.look(self.topic, owner=owner)

    def set(self, **policies: Any) -> None:
        self.topic.apply_policies(self.topic.policies.with_values(**policies))

    async def consumer(self, sub_type: int, consumer_id: int = 0, **fields: Any) -> Client:
        client = self.harness.client()
        answer = await client.subscribe(consumer_id, subType=sub_type, **fields)
        assert answer.type == BaseCommand.SUCCESS, answer
        return client


def chunk(number: int, *, of: int = 2, **fields: Any) -> bytes:
    return entry(
        uuid="u", chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of, **fields
    )


async def publishing_and_reading(seen: Seen) -> None:
    world = World(seen)
    published_ms = world.clock.now_ms - 5_000
    world.harness.log.store(*(entry(publish_time=published_ms) for _ in range(2)), batch(10))
    client = world.harness.client()
    await client.produce()
    await client.produce(1, producer_name="named", metadata=[pb.KeyValue(key="app", value="x")])
    await world.look()
    await world.harness.client().produce(2)
    await client.subscribe(7, metadata=[pb.KeyValue(key="app", value="x")])
    await world.look(owner="b")
    client.flow(100, consumer_id=7)
    client.publish(0, 1)
    client.send_bytes(send_frame(0, 2, payload=chunk(0), is_chunk=True))
    stats = await world.look()
    assert stats["oldestBacklogMessageAgeSeconds"] == 8
    assert stats["oldestBacklogMessageSubscriptionName"] == "s"
    assert stats["msgChunkPublished"]
    assert stats["publishers"][0]["chunkedMessageRate"] > 0
    (consumer,) = stats["subscriptions"]["s"]["consumers"]
    assert consumer["chunkedMessageRate"] > 0
    assert stats["subscriptions"]["s"]["chunkedMessageRate"] == consumer["chunkedMessageRate"]
    assert consumer["lastConsumedFlowTimestamp"] == consumer["firstConsumedFlowTimestamp"] > 0
    await world.topic.subscriptions["s"].set_replicated(True)
    before = world.topic.subscriptions["s"].last_advanced_ms
    client.ack(Position(7, 2), consumer_id=7)
    await world.look()
    assert world.topic.subscriptions["s"].last_advanced_ms == before  # the first one is not acked
    client.ack(Position(7, 0), Position(7, 1), consumer_id=7)
    stats = await world.look()
    shown = stats["subscriptions"]["s"]
    assert shown["lastMarkDeleteAdvancedTimestamp"] == shown["lastAckedTimestamp"] > 0
    assert shown["messageAckRate"] > 0
    client.flow(1, consumer_id=7)
    client.publish(3)
    await world.look()


async def sharing(seen: Seen) -> None:
    world = World(seen, begins_ms=250)
    world.harness.log.store(*(entry() for _ in range(6)), chunk(0), chunk(1))
    client = await world.consumer(_TYPES.Shared, consumer_name="c")
    world.set(max_unacked_per_consumer=4)
    client.flow(4)
    stats = await world.look()
    assert stats["subscriptions"]["s"]["consumers"][0]["blockedConsumerOnUnackedMsgs"]
    world.set(max_unacked_per_consumer=0, max_unacked_per_subscription=4)
    await world.look()
    client.redeliver(Position(7, 0))
    client.ack(Position(7, 1))
    await world.look()
    world.set(max_unacked_per_subscription=0)
    client.flow(100)
    stats = await world.look()
    assert stats["subscriptions"]["s"]["chunkedMessageRate"] > 0
    world.topic.subscriptions["s"].consumers[0].peer.role = "me"  # type: ignore[misc]
    await world.look()


async def sharing_by_key(seen: Seen) -> None:
    world = World(seen)
    keys = [b"%d" % number for number in range(40)]
    world.harness.log.store(*(entry(partition_key=each.decode()) for each in keys + keys[:10]))
    first = await world.consumer(_TYPES.Key_Shared, consumer_name="a")
    first.flow(100)
    await world.look()
    second = await world.consumer(_TYPES.Key_Shared, 1, consumer_name="b")
    second.flow(100, consumer_id=1)
    for number, key in enumerate(keys[:20]):
        world.harness.log.store(entry(partition_key=key.decode()))
        if number % 2:
            world.harness.log.store(entry(partition_key=key.decode()))
    world.topic.subscriptions["s"].wake()
    stats = await world.look()
    holder = next(
        each for each in stats["subscriptions"]["s"]["consumers"] if each["drainingHashesCount"]
    )
    in_hand = sum(each["unackMsgs"] for each in holder["drainingHashes"])
    assert holder["drainingHashesUnackedMessages"] == in_hand > holder["drainingHashesCount"]
    first.ack(*(Position(7, at) for at in range(50)))
    stats = await world.look()
    assert stats["subscriptions"]["s"]["drainingHashesClearedTotal"] > 0
    loose = World(seen)
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, allowOutOfOrderDelivery=True)
    meta.hashRanges.add(start=0, end=65535)
    await loose.consumer(_TYPES.Key_Shared, keySharedMeta=meta)
    await loose.look()


async def producing_alone(seen: Seen) -> None:
    world = World(seen)
    client = world.harness.client(connect=False)
    flags = pb.FeatureFlags(supports_partial_producer=True)
    client.send(
        BaseCommand.CONNECT,
        connect=pb.CommandConnect(
            client_version="partial", protocol_version=20, feature_flags=flags
        ),
    )
    client.take(BaseCommand.CONNECTED)
    await client.produce(producer_access_mode=_MODES.Exclusive)
    await world.look()
    other = world.harness.client()
    await other.produce(1, producer_access_mode=_MODES.WaitForExclusive)
    await world.look()
    await client.subscribe(3, subType=_TYPES.Failover)
    await world.look()
    other.connection.lost()
    await settle()


async def limits(seen: Seen) -> None:
    world = World(seen)
    client = world.harness.client()
    await client.produce()
    consumer = await world.consumer(_TYPES.Exclusive)
    one = DispatchRate(messages=1, bytes=1)
    world.set(
        backlog_quotas={
            QuotaType.SIZE: BacklogQuota(bytes=1 << 20),
            QuotaType.AGE: BacklogQuota(seconds=60),
        },
        publish_rate=PublishRate(messages=1),
        dispatch_rate=one,
        subscription_dispatch_rate=one,
    )
    consumer.flow(100)
    client.publish(*range(5))
    await world.look()
    client.publish(5)
    await world.look()


async def delaying_and_expiring(seen: Seen) -> None:
    world = World(seen)
    client = world.harness.client()
    await client.produce()
    consumer = await world.consumer(_TYPES.Shared)
    consumer.flow(10)
    late = world.clock.now_ms + 60_000
    client.send_bytes(send_frame(0, 0, payload=entry(deliver_at_time=late)))
    client.send_bytes(send_frame(0, 1, payload=entry(sequence_id=1, deliver_at_time=late + 1)))
    await world.look()
    # What is due at once and does not fit into the dispatcher's queue waits in the index's view.
    context = world.topic.subscriptions["s"].context
    assert context is not None
    cast(Any, context.delays)._due.add(Position(7, 0))
    await world.look()
    expiry = Expiry(world.clock)
    subscriptions = list(world.topic.subscriptions.values())
    assert await expiry.expire(world.topic, subscriptions, age_s=1) == 2
    stats = await world.look()
    shown = stats["subscriptions"]["s"]
    assert shown["msgRateExpired"] > 0
    assert shown["totalMsgExpired"] == 2
    assert shown["lastExpireTimestamp"] == shown["lastMarkDeleteAdvancedTimestamp"] > 0


async def reading_without_a_place(seen: Seen) -> None:
    world = World(seen)
    await world.consumer(_TYPES.Exclusive, durable=False)
    await world.look()


class Showing(Feature):
    """Shows what transactions, compaction, offloading and deduplication show."""

    def shown(self) -> Mapping[str, Any]:
        compaction = {name: at for at, name in enumerate(sorted(PULSAR["compaction"]), 1)}
        return {
            "open_transactions": 1,
            "aborted_transactions": 2,
            "committed_transactions": 3,
            "compaction": compaction,
            "deduplicates": True,
            "offload": {name: at for at, name in enumerate(NOT_OFFLOADED, 1)},
        }


async def what_others_keep(seen: Seen) -> None:
    """Transactions, compaction, deduplication and stored cursors have tests of their own."""
    world = World(seen)
    client = await world.consumer(_TYPES.Exclusive)
    client.flow(1)
    await world.look()
    topic = world.topic
    topic.host(*topic.features, Showing())
    context = topic.subscriptions["s"].context
    assert context is not None
    node = SimpleNamespace(properties={"a": "b"}, cursor_ledger_id=5)
    saver = SimpleNamespace(node=node, last_entry=1, switched_ms=2, record_bytes=99)
    cursor = Cursor(
        "s",
        AckState(topic.log, EARLIEST),
        cast(CursorSaver, saver),
        path="p",
        position_properties={},
        settings=CursorSettings(),
        pace=None,
        clock=world.clock,
    )
    topic.subscriptions["s"].context = replace(context, cursor=cursor)
    topic.log.properties["magnetar.created_ms"] = "1234"  # type: ignore[index]
    await seen.look(topic)


async def passing(seen: Seen) -> None:
    clock = ManualClock()
    clock.advance(1_000)
    harness = Harness(turn_bytes_max=1 << 30)  # one read is one turn
    harness.topics.clock = clock
    harness.services = replace(harness.services, clock=clock)
    client = harness.client()
    await client.produce(topic=VOLATILE)
    await client.subscribe(topic=VOLATILE, subType=_TYPES.Key_Shared)
    topic = harness.topics.topic(VOLATILE)
    await seen.look(topic)
    client.flow(1)
    client.publish(*range(BATCH_ENTRIES_MAX + 3))
    await settle()
    clock.advance(1_000)
    stats = await seen.look(topic)
    assert stats["msgDropRate"] == stats["publishers"][0]["msgDropRate"] == 3
    assert stats["subscriptions"]["s"]["msgDropRate"] == 999


async def hoarding(seen: Seen) -> None:
    world = World(seen)
    world.harness.log.store(batch(HOARDING_MESSAGES_MIN))
    client = await world.consumer(_TYPES.Shared, consumer_name="c")
    client.flow(HOARDING_MESSAGES_MIN)
    assert (await world.look())["subscriptions"]["s"]["hoarders"] == []
    world.topic.sample(world.clock.wall_ms())
    world.clock.advance(HOARDING_AFTER_MS)
    assert (await world.look())["subscriptions"]["s"]["hoarders"] == ["c"]


async def all_scenarios() -> Seen:
    seen = Seen()
    for scenario in (
        publishing_and_reading,
        sharing,
        sharing_by_key,
        producing_alone,
        limits,
        delaying_and_expiring,
        reading_without_a_place,
        what_others_keep,
        passing,
        hoarding,
    ):
        await scenario(seen)
    return seen


async def test_every_field_of_pulsars_is_computed_or_a_constant_with_a_reason() -> None:
    seen = await all_scenarios()
    for level, fields in PULSAR.items():
        shown = {field for at, field in seen.values if at == level}
        assert fields - shown == {each for each in ABSENT if each in fields}, level
        assert shown - fields <= BEYOND | BEYOND_OF_CONSUMER, level
        constants = CONSTANTS.get(level, {})
        for field, (value, reason) in constants.items():
            assert reason
            assert seen.values[level, field] == {repr(value)}, (level, field)
        fixed = {
            field
            for field in shown - constants.keys()
            if len(seen.values[level, field]) < 2 and (level, field) not in ELSEWHERE
        }
        assert not fixed, f"{level}: these never change; compute them or name them as constants"


async def test_a_consumer_that_has_left_still_counts_for_the_times_of_its_subscription() -> None:
    world = World(Seen())
    world.harness.log.store(entry())
    client = await world.consumer(_TYPES.Shared)
    client.flow(1)
    await settle()
    client.ack(Position(7, 0))
    now_ms = world.clock.now_ms
    world.clock.advance(5_000)
    client.connection.lost()
    shown = (await world.look())["subscriptions"]["s"]
    assert not shown["consumers"]
    assert shown["lastConsumedTimestamp"] == shown["lastAckedTimestamp"] == now_ms
    assert shown["lastConsumedFlowTimestamp"] == now_ms


async def test_acknowledgements_are_counted_as_messages_where_they_are_known() -> None:
    """Shared knows the messages of what it has sent; the others count entries."""
    for sub_type, expected in ((_TYPES.Shared, 10), (_TYPES.Exclusive, 1)):
        world = World(Seen())
        world.harness.log.store(batch(10), entry(), entry())
        client = await world.consumer(sub_type)
        client.flow(100)
        await settle()
        client.ack(Position(7, 0))
        (consumer,) = world.topic.subscriptions["s"].consumers
        assert consumer.messages_acked == expected
        if sub_type == _TYPES.Exclusive:
            client.ack(Position(7, 2), ack_type=pb.CommandAck.Cumulative)
            assert consumer.messages_acked == 3


async def test_the_age_of_what_a_consumer_holds_is_known_from_one_sample_to_the_next() -> None:
    world = World(Seen())
    world.harness.log.store(*(entry() for _ in range(3)))
    client = await world.consumer(_TYPES.Shared)
    client.flow(3)
    await settle()

    async def held() -> Any:
        (consumer,) = (await world.look())["subscriptions"]["s"]["consumers"]
        return consumer["firstHeld"]

    def sample() -> None:
        world.topic.sample(world.clock.wall_ms())

    assert await held() is None  # nobody has looked yet
    client.ack(Position(7, 0))
    sample()
    world.clock.advance(60_000)
    assert await held() == {"messageId": "7:1", "seconds": 61}
    sample()
    world.clock.advance(60_000)
    assert await held() == {"messageId": "7:1", "seconds": 122}
    client.ack(Position(7, 1))
    assert await held() is None
    sample()
    assert await held() == {"messageId": "7:2", "seconds": 1}
    client.ack(Position(7, 2))
    sample()
    assert await held() is None


async def test_an_entry_that_is_redelivered_to_its_consumer_is_held_anew() -> None:
    world = World(Seen())
    world.harness.log.store(*(entry() for _ in range(2)))
    client = await world.consumer(_TYPES.Shared)
    client.flow(10)
    await settle()
    (consumer,) = world.topic.subscriptions["s"].consumers

    def sample() -> int:
        now_ms = world.clock.wall_ms()
        world.topic.sample(now_ms)
        return now_ms

    sample()
    world.clock.advance(60_000)
    client.redeliver(Position(7, 1))  # another one: the first is held on
    await settle()
    assert consumer.first_held(world.clock.wall_ms()) is not None
    client.redeliver(Position(7, 0))
    await settle()
    assert Position(7, 0) in consumer.pending
    assert consumer.first_held(world.clock.wall_ms()) is None
    since_ms = sample()
    world.clock.advance(5_000)
    now_ms = world.clock.wall_ms()
    assert consumer.first_held(now_ms) == (Position(7, 0), now_ms - since_ms)

    dispatcher = world.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, AccountedDispatcher)
    dispatcher.accounts.clear()
    assert consumer.first_held(now_ms) is None
    assert consumer.held is None  # whatever is sent again begins anew


async def test_the_oldest_message_is_read_once_while_nobody_acknowledges_it() -> None:
    world = World(Seen())
    world.harness.log.store(entry(publish_time=world.clock.now_ms), entry())
    client = await world.consumer(_TYPES.Exclusive)
    for age_s in (1, 2, 3):
        assert (await world.look())["oldestBacklogMessageAgeSeconds"] == age_s
    assert len(world.harness.log.reads) == 1
    client.ack(Position(7, 0), Position(7, 1))
    assert (await world.look())["oldestBacklogMessageAgeSeconds"] == -1
