"""What policies refuse, and the code that a client gets; they count from when they are set."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.policies import model
from magnetar.broker.policies.model import (
    AutoTopicCreation,
    NamespaceRecord,
    Policies,
    SubscriptionType,
)
from magnetar.broker.topic import Topic, admission
from magnetar.broker.topic.admission import SubscribeRate
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

ERROR = pb.ServerError
SHARED = pb.CommandSubscribe.Shared
NAMESPACE = "public/default"


def of_topic(harness: Harness, **policies: Any) -> None:
    """Policies of the topic, from now on."""
    harness.policies.topics[parse_topic_name(TOPIC)] = Policies(**policies)
    harness.topics.apply_policies()


def of_namespace(harness: Harness, **fields: Any) -> None:
    harness.policies.namespaces[NAMESPACE] = NamespaceRecord(**fields)
    harness.topics.apply_policies()


def close(client: Client, consumer_id: int) -> None:
    """CLOSE_CONSUMER, and its answer."""
    client.send(
        BaseCommand.CLOSE_CONSUMER,
        close_consumer=pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=9),
    )
    client.take(BaseCommand.SUCCESS)


@pytest.mark.parametrize("level", ["broker", "namespace", "topic"])
async def test_more_producers_than_may_be_are_busy_at_every_level(level: str) -> None:
    harness = Harness(max_producers_per_topic=2 if level == "broker" else 0)
    if level == "namespace":
        of_namespace(harness, policies=Policies(max_producers=2))
    if level == "topic":
        of_topic(harness, max_producers=2)
    client = harness.client()
    for producer_id in (0, 1):
        assert (await client.produce(producer_id)).type == BaseCommand.PRODUCER_SUCCESS
    assert (await client.produce(2)).error.error == ERROR.ProducerBusy
    of_topic(harness, max_producers=3)
    assert (await client.produce(2)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_lower_limit_leaves_the_producers_that_are_there() -> None:
    harness = Harness()
    client = harness.client()
    for producer_id in (0, 1):
        await client.produce(producer_id)
    of_topic(harness, max_producers=1)
    assert len(harness.topic.producers) == 2
    assert (await client.produce(2)).error.error == ERROR.ProducerBusy


async def test_a_producer_of_a_dead_connection_does_not_count() -> None:
    harness = Harness()
    of_topic(harness, max_producers=1)
    dead = harness.client()
    await dead.produce(producer_name="dead")
    answer = await harness.client().produce(producer_name="new")  # nobody answers the PING
    assert answer.type == BaseCommand.PRODUCER_SUCCESS
    assert list(harness.topic.producers) == ["new"]


async def test_producers_of_a_dead_connection_do_not_count_however_many_they_are() -> None:
    harness = Harness()
    dead = harness.client()
    for producer_id in range(300):
        await dead.produce(producer_id)
    of_topic(harness, max_producers=1)
    new = await harness.connected()
    answer = await new.produce(producer_name="new")
    assert answer.type == BaseCommand.PRODUCER_SUCCESS
    assert list(harness.topic.producers) == ["new"]


async def test_consumers_of_a_dead_connection_do_not_count_however_many_they_are() -> None:
    harness = Harness()
    dead = harness.client()
    for consumer_id in range(300):
        # Two of each subscription, and those of a reader end with its consumers.
        await dead.subscribe(
            consumer_id,
            subscription=f"s{consumer_id // 2}",
            subType=SHARED,
            durable=consumer_id < 100,
        )
    of_topic(harness, max_consumers=1)
    new = await harness.connected()
    answer = await new.subscribe(subscription="s149", subType=SHARED, durable=False)
    assert answer.type == BaseCommand.SUCCESS
    found = harness.topic.subscriptions
    assert list(found) == [*(f"s{each}" for each in range(50)), "s149"]
    assert [each.peer for each in found["s149"].consumers] == [new.connection.link]
    await settle()
    assert [len(each.consumers) for each in found.values()] == [0] * 50 + [1]


async def test_a_consumer_counts_while_its_connection_answers() -> None:
    harness = Harness()
    of_topic(harness, max_consumers=1)
    holder, other = harness.client(), harness.client()
    await holder.subscribe()
    other.send_subscribe(subscription="other")
    await holder.next(BaseCommand.PING)
    holder.send(BaseCommand.PONG, pong=pb.CommandPong())
    assert (await other.next()).error.error == ERROR.ConsumerBusy
    answer = await other.subscribe(subscription="other")  # this time nobody answers the PING
    assert answer.type == BaseCommand.SUCCESS
    assert holder.io.is_closed


async def test_a_producer_must_encrypt_where_that_is_required() -> None:
    harness = Harness()
    of_namespace(harness, encryption_required=True)
    client = harness.client()
    answer = await client.produce(0, encrypted=False)
    assert answer.error.error == ERROR.MetadataError
    assert "requires encryption" in answer.error.message
    assert (await client.produce(1, encrypted=True)).type == BaseCommand.PRODUCER_SUCCESS


async def test_more_consumers_of_a_topic_than_may_be_are_busy() -> None:
    harness = Harness()
    of_topic(harness, max_consumers=2)
    client = harness.client()
    for consumer_id in (0, 1):
        answer = await client.subscribe(consumer_id, subscription=f"s{consumer_id}")
        assert answer.type == BaseCommand.SUCCESS
    answer = await client.subscribe(2, subscription="third")
    assert answer.error.error == ERROR.ConsumerBusy
    assert harness.topic.subscriptions.keys() == {"s0", "s1"}
    close(client, 0)
    assert (await client.subscribe(2, subscription="third")).type == BaseCommand.SUCCESS


async def test_consumers_that_join_at_once_are_no_more_than_the_topic_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    await harness.client().produce()
    of_topic(harness, max_consumers=1)
    go_on = asyncio.Event()
    open_cursor = harness.topics.open_cursor

    async def slow(*args: Any, **fields: Any) -> Any:
        await go_on.wait()
        return await open_cursor(*args, **fields)

    monkeypatch.setattr(harness.topics, "open_cursor", slow)
    clients = [harness.client() for _ in range(3)]
    for at, client in enumerate(clients):
        client.send_subscribe(subscription=f"s{at}")
    await settle()
    go_on.set()
    answers = [await client.next() for client in clients]
    assert [each.type == BaseCommand.SUCCESS for each in answers].count(True) == 1
    assert [each.error.error for each in answers].count(ERROR.ConsumerBusy) == 2


async def test_a_topic_that_is_closed_while_a_consumer_waits_gets_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic may have been deleted: the cursor would have no log, or a later topic's."""
    harness = Harness()
    of_topic(harness, max_consumers=1)
    holder, other = harness.client(), harness.client()
    await holder.subscribe()
    closed = harness.topic
    opened_in = topics_that_open_cursors(harness, monkeypatch)
    other.send_subscribe(subscription="other")
    await holder.next(BaseCommand.PING)  # The broker waits for the answer.
    closed.disconnect_all()
    assert (await other.next()).type == BaseCommand.SUCCESS
    assert closed not in opened_in
    assert len(opened_in) == 1, "the topic that was loaded then"


async def test_a_topic_that_is_closed_while_ledgers_are_trimmed_gets_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    client = harness.client()
    await harness.client().produce()
    closed = harness.topic
    opened_in = topics_that_open_cursors(harness, monkeypatch)
    async with closed.gate.trimming():
        client.send_subscribe(subscription="s")
        await settle()
        closed.disconnect_all()
    assert (await client.next()).type == BaseCommand.SUCCESS
    assert closed not in opened_in
    assert len(opened_in) == 1, "the topic that was loaded then"


def topics_that_open_cursors(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[Topic]:
    """Return a list that gets each topic in which a cursor is opened from now on."""
    found: list[Topic] = []
    open_cursor = harness.topics.open_cursor

    async def noted(topic: Topic, *args: Any, **fields: Any) -> Any:
        found.append(topic)
        return await open_cursor(topic, *args, **fields)

    monkeypatch.setattr(harness.topics, "open_cursor", noted)
    return found


async def test_more_consumers_of_a_subscription_than_may_be_are_busy() -> None:
    harness = Harness()
    of_topic(harness, max_consumers_per_subscription=1)
    client = harness.client()
    await client.subscribe(0, subType=SHARED)
    answer = await client.subscribe(1, subType=SHARED)
    assert answer.error.error == ERROR.ConsumerBusy
    assert (await client.subscribe(2, subscription="other")).type == BaseCommand.SUCCESS


async def test_more_subscriptions_than_may_be_are_not_allowed() -> None:
    harness = Harness()
    of_topic(harness, max_subscriptions=1)
    client = harness.client()
    await client.subscribe(0, subscription="first")
    for fields in ({}, {"durable": False}):
        answer = await client.subscribe(1, subscription="second", **fields)
        assert answer.error.error == ERROR.NotAllowedError
    of_topic(harness, max_subscriptions=0)
    assert (await client.subscribe(1, subscription="second")).type == BaseCommand.SUCCESS


async def test_a_type_that_is_not_enabled_is_not_allowed() -> None:
    harness = Harness()
    of_topic(harness, subscription_types=frozenset({SubscriptionType.FAILOVER}))
    client = harness.client()
    refused = await client.subscribe(0, subType=SHARED)
    assert refused.error.error == ERROR.NotAllowedError
    assert "Failover" in refused.error.message
    answer = await client.subscribe(1, subType=pb.CommandSubscribe.Failover)
    assert answer.type == BaseCommand.SUCCESS


async def test_durable_subscriptions_do_not_appear_where_they_must_not() -> None:
    harness = Harness()
    client = harness.client()
    await client.subscribe(0, subscription="before")
    of_topic(harness, auto_subscription_creation=False)
    answer = await client.subscribe(1, subscription="new")
    assert answer.error.error == ERROR.SubscriptionNotFound
    reader = await client.subscribe(2, subscription="reader", durable=False)
    assert reader.type == BaseCommand.SUCCESS
    close(client, 0)
    assert (await client.subscribe(3, subscription="before")).type == BaseCommand.SUCCESS


async def test_a_producer_creates_no_subscription_where_they_must_not_appear() -> None:
    harness = Harness()
    await harness.client().produce()
    of_topic(harness, auto_subscription_creation=False)
    answer = await harness.client().produce(initial_subscription_name="dead-letters")
    assert answer.error.error == ERROR.NotAllowedError
    assert not harness.topic.subscriptions


@pytest.mark.parametrize("setting", [True, False])
async def test_topics_do_not_appear_where_they_must_not(setting: bool) -> None:
    harness = Harness(auto_topic_creation=setting)
    if setting:  # The namespace says no, then yes; the broker says no all the time otherwise.
        of_namespace(harness, auto_topic_creation=AutoTopicCreation(allowed=False))
    client = harness.client()
    assert (await client.produce()).error.error == ERROR.TopicNotFound
    assert (await client.subscribe()).error.error == ERROR.TopicNotFound
    client.send(
        BaseCommand.PARTITIONED_METADATA,
        partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1),
    )
    metadata = (await client.next()).partitionMetadataResponse
    assert metadata.error == ERROR.TopicNotFound
    assert not harness.topics.loaded
    of_namespace(harness, auto_topic_creation=AutoTopicCreation(allowed=True))
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_full_namespace_takes_no_more_topics_but_serves_those_it_has() -> None:
    harness = Harness()
    of_namespace(harness, max_topics=1)
    client = harness.client()
    await client.produce(0)
    answer = await client.produce(1, topic="persistent://public/default/second")
    assert answer.error.error == ERROR.NotAllowedError
    assert (await client.produce(2)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_consumer_that_subscribes_too_often_is_not_allowed() -> None:
    harness = Harness()
    of_topic(harness, subscribe_rate=model.SubscribeRate(per_consumer=1, period_s=3600))
    client = harness.client()
    await client.subscribe(0)
    close(client, 0)
    assert (await client.subscribe(0)).error.error == ERROR.NotAllowedError
    assert (await client.subscribe(1, subscription="other")).type == BaseCommand.SUCCESS


def test_a_subscribe_rate_counts_anew_in_each_period_and_forgets() -> None:
    policies = Policies(subscribe_rate=model.SubscribeRate(per_consumer=2, period_s=10))
    rate = SubscribeRate()
    for now_s in (0.0, 9.0, 10.0, 19.9):
        rate.check("t", policies, "consumer", now_s)
    with pytest.raises(NotAllowedError, match="2 times per 10 s"):
        rate.check("t", policies, "consumer", 19.9)
    for number in range(5000):
        rate.check("t", policies, number, 20.0 + number)
    assert len(rate._counts) <= 1024
    rate.check("t", Policies(), "consumer", 20.0)
    assert not rate._counts


def test_a_subscribe_rate_drops_only_what_has_expired_however_many_consumers_there_are() -> None:
    policies = Policies(subscribe_rate=model.SubscribeRate(per_consumer=1, period_s=10))
    rate = SubscribeRate()
    for number in range(2000):
        rate.check("t", policies, number, number / 1000)
    counts = rate._counts
    rate.check("t", policies, "late", 10.0)  # The period of the first one has ended.
    assert rate._counts is counts
    assert len(counts) == 2000
    with pytest.raises(NotAllowedError):
        rate.check("t", policies, 1, 10.0)


def test_beyond_the_limit_a_subscribe_rate_forgets_the_consumer_that_it_knows_longest() -> None:
    policies = Policies(subscribe_rate=model.SubscribeRate(per_consumer=1, period_s=10))
    rate = SubscribeRate()
    for number in range(admission.COUNTED_CONSUMERS_MAX):
        rate.check("t", policies, number, 0.0)
    with pytest.raises(NotAllowedError):
        rate.check("t", policies, 0, 1.0)
    rate.check("t", policies, "one more", 1.0)
    assert len(rate._counts) == admission.COUNTED_CONSUMERS_MAX
    rate.check("t", policies, 0, 1.0)
