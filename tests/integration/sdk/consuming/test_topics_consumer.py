"""Consumers of several topics: partitions, lists, patterns; topics come and go."""

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pulsar
import pytest

from magnetar.sdk import (
    Client,
    ConsumerSettings,
    KeySharedPolicy,
    MessageId,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from magnetar.sdk.errors import (
    AlreadyClosedError,
    CorruptMessageError,
    NotSupportedError,
    ServiceError,
    UnknownTopicError,
)
from magnetar.sdk.schemas import AvroObjectSchema
from magnetar.sdk.wire.pulsar_pb2 import CompressionType, MessageMetadata
from magnetar.testing import Broker
from tests.integration.sdk.embedded import (
    EARLIEST,
    admin,
    data,
    make_partitioned,
    numbered,
    official,
    send,
    take,
)
from tests.waiting import until

FROM_START = ConsumerSettings(initial_position=EARLIEST)
NUMBER = {"name": "number", "type": "int", "default": 0}
QUICK = replace(FROM_START, topics_update_ms=50)


async def test_a_partitioned_topic_is_one(server: Broker, client: Client, topic: str) -> None:
    await make_partitioned(server, topic, 3)
    for index in range(3):
        await send(client, f"{topic}-partition-{index}", numbered(50, 100 * index))
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        assert consumer.topics == tuple(f"{topic}-partition-{index}" for index in range(3))
        messages = await take(consumer, 150)
        for index in range(3):
            own = [each.data for each in messages if each.topic.endswith(f"-{index}")]
            assert own == numbered(50, 100 * index)
            assert {each.message_id.partition for each in messages if each.data in own} == {index}
        consumer.acknowledge_many(messages[::2])
        # Among partitions an id says which it is of.
        for message in messages[1::2]:
            consumer.acknowledge(message.message_id)
        await consumer.flush_acks(confirmed=True)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.2)


async def test_nobody_starves_behind_a_busy_topic(server: Broker, client: Client) -> None:
    topics = [server.new_topic() for _ in range(3)]
    for topic, count in zip(topics, (2_000, 20, 20), strict=True):
        await send(client, topic, numbered(count))
    settings = replace(FROM_START, receiver_queue_messages=2_000)
    async with await client.consumer(topics, "s", settings) as consumer:

        async def has_arrived() -> bool:
            stats = await consumer.broker_stats()
            return [each.permits for each in stats] == [0, 1_980, 1_980]

        await until(has_arrived)
        first = await take(consumer, 400)
        assert Counter(each.topic for each in first)[topics[1]] == 20
        assert Counter(each.topic for each in first)[topics[2]] == 20


async def test_credit_is_bounded_over_all_topics(server: Broker, client: Client) -> None:
    topics = [server.new_topic() for _ in range(4)]
    for topic in topics:
        await send(client, topic, numbered(60))
    settings = replace(FROM_START, receiver_queue_messages_total=40)
    async with await client.consumer(topics, "s", settings) as consumer:

        async def has_used_its_credit() -> bool:
            return all(each.permits == 0 for each in await consumer.broker_stats())

        await until(has_used_its_credit)
        everything = consumer.take_nowait(1_000)
        assert len(everything) == 40
        everything += await take(consumer, 200)
        assert Counter(each.topic for each in everything) == dict.fromkeys(topics, 60)


async def test_new_partitions_appear_by_themselves(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 1)
    settings = replace(QUICK, receiver_queue_messages_total=20)
    async with await client.consumer(topic, "s", settings) as consumer:
        await admin(server, "POST", f"{topic.replace('://', '/')}/partitions", 2)
        await send(client, f"{topic}-partition-1", [b"new"])
        assert data(await take(consumer, 1)) == [b"new"]
        assert len(consumer.topics) == 2
        await send(client, f"{topic}-partition-0", numbered(100))
        assert data(await take(consumer, 100)) == numbered(100)


async def test_a_pattern_takes_in_what_appears_and_lets_go_what_is_deleted(
    server: Broker, client: Client, topic: str
) -> None:
    name = topic.rpartition("/")[2]
    await send(client, f"{topic}-a", [b"a"])
    await send(client, f"other-{name}-a", [b"no"])
    pattern = re.compile(f"{name}-.*")
    # The broker tells of news: nobody has to ask.
    settings = replace(FROM_START, topics_update_ms=3_600_000)
    async with await client.consumer(pattern, "s", settings) as consumer:
        (first,) = await take(consumer, 1)
        assert first.data == b"a"
        await make_partitioned(server, f"{topic}-b", 2)
        await until(lambda: len(consumer.topics) == 3, "the partitions are consumed")
        await send(client, f"{topic}-b-partition-1", [b"b"])
        assert data(await take(consumer, 1)) == [b"b"]
        await admin(server, "DELETE", f"{topic.replace('://', '/')}-a?force=true")
        await until(lambda: f"{topic}-a" not in consumer.topics, "the deleted topic is let go")
        names = await admin(server, "GET", "persistent/public/default")
        assert isinstance(names, list)
        assert f"{topic}-a" not in names  # nobody brought it back
        # What is said of its messages is for nobody any more, and no error.
        consumer.acknowledge(first)
        await consumer.acknowledge_confirmed(first)


async def test_a_topic_that_goes_while_its_schema_is_asked_for_does_not_end_the_others(
    server: Broker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic.rpartition("/")[2]
    going, staying = f"{topic}-a", f"{topic}-b"
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def ask(_: object, asked_topic: str, *__: object) -> None:
        if asked_topic == going:
            is_asked.set()
            await may_answer.wait()

    monkeypatch.setattr("magnetar.sdk.consuming.topic_consumer.load_versions", ask)
    written = AvroObjectSchema({"type": "record", "name": "R", "fields": []})
    read = AvroObjectSchema({"type": "record", "name": "R", "fields": [NUMBER]})
    senders = [await client.producer(each, schema=written) for each in (going, staying)]
    pattern = re.compile(f"{name}-.*")
    async with await client.consumer(pattern, "s", QUICK, schema=read) as consumer:
        receiving = asyncio.create_task(consumer.receive(timeout_s=30))
        await senders[0].send({})
        await is_asked.wait()
        assert isinstance(consumer, TopicsConsumer)
        member = consumer._members.by_topic[going]
        await senders[1].send({})
        await senders[0].close()  # it would bring the topic back
        await admin(server, "DELETE", f"{going.replace('://', '/')}?force=true")
        await until(lambda: consumer.topics == (staying,), "the deleted topic is let go")
        # A message that is taken before its consumer is closed may be given.
        await until(lambda: not member._queue.has_some, "its consumer is closed")
        may_answer.set()
        assert (await receiving).topic == staying


async def test_a_pattern_is_polled_where_brokers_tell_nothing(
    server: Broker, client: Client, topic: str
) -> None:
    name = topic.rpartition("/")[2]
    # Too long for a broker to watch.
    pattern = re.compile(f"persistent://public/default/{name}-({'x' * 60}|y)")
    async with await client.consumer(pattern, "s", QUICK) as consumer:
        assert consumer.topics == ()
        await send(client, f"{topic}-y", [b"y"])
        assert data(await take(consumer, 1)) == [b"y"]


async def test_topics_of_which_one_cannot_be_consumed_are_not_consumed_at_all(
    server: Broker, client: Client
) -> None:
    good, taken = server.new_topic(), server.new_topic()
    async with await client.consumer(taken, "s"):
        with pytest.raises(ServiceError, match="s"):
            await client.consumer([good, taken], "s")
    stats = await admin(server, "GET", f"{good.replace('://', '/')}/stats")
    assert isinstance(stats, dict)
    assert stats["subscriptions"]["s"]["consumers"] == []


async def test_an_id_alone_does_not_tell_its_topic(server: Broker, client: Client) -> None:
    topics = [server.new_topic(), server.new_topic()]
    await send(client, topics[0], [b"a"])
    async with await client.consumer(topics, "s", FROM_START) as consumer:
        message = (await take(consumer, 1))[0]
        with pytest.raises(UnknownTopicError, match="pass the message"):
            consumer.acknowledge(message.message_id)
        await consumer.acknowledge_confirmed(message)
        with pytest.raises(NotSupportedError, match="last_message_ids"):
            await consumer.last_message_id()


async def test_seek_moves_all_topics(server: Broker, client: Client, topic: str) -> None:
    await make_partitioned(server, topic, 2)
    for index in range(2):
        await send(client, f"{topic}-partition-{index}", numbered(10))
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        messages = await take(consumer, 20)
        assert not await consumer.has_message_available()
        await consumer.seek(MessageId.EARLIEST)
        assert await consumer.has_message_available()
        assert Counter(data(await take(consumer, 20))) == Counter(data(messages))
        await consumer.seek_to_time(min(each.publish_time_ms for each in messages))
        assert Counter(data(await take(consumer, 20))) == Counter(data(messages))
        # An id of one partition moves that one.
        fifth = next(each for each in messages if each.data == b"5")
        await consumer.seek(fifth.message_id)
        again = await take(consumer, 5)
        assert data(again) == numbered(5, 5)
        assert {each.topic for each in again} == {fifth.topic}
        last = await consumer.last_message_ids()
        assert set(last) == set(consumer.topics)
        await consumer.seek(MessageId.LATEST)
        assert not await consumer.has_message_available()


async def test_a_cancelled_receive_of_several_topics_loses_nothing(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 3)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        sending = asyncio.ensure_future(spread(client, topic, 300))
        seen: list[bytes] = []
        while len(seen) < 300:
            receiving = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)
            receiving.cancel()
            try:
                seen.append((await receiving).data)
            except asyncio.CancelledError:
                batch = asyncio.ensure_future(consumer.receive_batch())
                await asyncio.wait([batch], timeout=0.005)
                if batch.done():
                    seen += data(batch.result())
                else:
                    batch.cancel()
                    await asyncio.gather(batch, return_exceptions=True)
        await sending
        assert Counter(seen) == Counter(numbered(300))


async def spread(client: Client, topic: str, count: int) -> None:
    for index in range(3):
        await send(client, f"{topic}-partition-{index}", numbered(count)[index::3])


async def test_a_corrupt_message_of_one_topic_costs_no_message_of_the_others(
    server: Broker, client: Client
) -> None:
    topics = [server.new_topic() for _ in range(3)]
    for topic in topics:
        await send(client, topic, numbered(5))
    async with await client.producer(topics[1], ProducerSettings(batching=False)) as producer:
        damaged = MessageMetadata(compression=CompressionType.LZ4, uncompressed_size=100)
        producer.send_encoded_nowait(b"no LZ4", damaged)
        await producer.flush()
    await send(client, topics[1], [b"behind"])
    async with await client.consumer(topics, "s", FROM_START) as consumer:
        seen: list[bytes] = []
        corrupt = 0
        while len(seen) < 16:
            try:
                seen += data(await consumer.receive_many(100, timeout_s=30))
            except CorruptMessageError:
                corrupt += 1
        assert Counter(seen) == Counter([*numbered(5) * 3, b"behind"])
        assert corrupt == 1


async def test_unsubscribing_deletes_the_subscription_of_every_topic(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    consumer = await client.consumer(topic, "s")
    await consumer.unsubscribe()
    for index in range(2):
        path = f"{topic.replace('://', '/')}-partition-{index}"
        assert await admin(server, "GET", f"{path}/subscriptions") == []


async def test_a_closed_consumer_says_so_to_those_who_wait(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    consumer = await client.consumer(topic, "s")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(AlreadyClosedError):
        await waiting


async def test_iteration_ends_with_the_last_topic(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    await spread_two(client, topic)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        seen: list[bytes] = []
        await admin(server, "POST", f"{topic.replace('://', '/')}/terminate/partitions")
        async for message in consumer:
            seen.append(message.data)
            await consumer.acknowledge_confirmed(message)
        assert Counter(seen) == Counter(numbered(10))


async def test_iteration_ends_when_the_last_topic_without_an_end_is_deleted(
    server: Broker, client: Client, topic: str
) -> None:
    ending, going = f"{topic}-ending", f"{topic}-going"
    pattern = re.compile(f"{topic.rpartition('/')[2]}-.*")
    await send(client, ending, [b"a"])
    await send(client, going, [b"a"])
    await admin(server, "POST", f"{ending.replace('://', '/')}/terminate")
    async with await client.consumer(pattern, "s", QUICK) as consumer:
        assert isinstance(consumer, TopicsConsumer)
        members = consumer._members

        async def iterate() -> None:
            async for message in consumer:
                await consumer.acknowledge_confirmed(message)

        iterating = asyncio.create_task(iterate())
        await until(lambda: members.by_topic[ending].reached_end, "one topic has ended")
        assert not consumer.reached_end
        await admin(server, "DELETE", f"{going.replace('://', '/')}?force=true")
        async with asyncio.timeout(10):
            await iterating
        # Without any topic left there may be others later.
        await admin(server, "DELETE", f"{ending.replace('://', '/')}?force=true")
        await until(lambda: not consumer.topics, "the ended topic is let go")
        await until(lambda: not consumer.reached_end)


async def spread_two(client: Client, topic: str) -> None:
    for index in range(2):
        await send(client, f"{topic}-partition-{index}", numbered(10)[index::2])


async def test_readers_read_all_partitions(server: Broker, client: Client, topic: str) -> None:
    await make_partitioned(server, topic, 2)
    await spread_two(client, topic)
    async with await client.reader(topic) as reader:
        seen: list[bytes] = []
        while await reader.has_message_available():
            seen += data(await reader.read_many(3, timeout_s=30))
        assert Counter(seen) == Counter(numbered(10))
        await reader.seek(MessageId.EARLIEST)
        batches = await reader.read_batches(20, timeout_s=30)
        assert {batch.topic for batch in batches} <= set(reader.topics)
    async with await client.reader(topic, MessageId.LATEST) as reader:
        assert not await reader.has_message_available()
        await send(client, f"{topic}-partition-1", [b"late"])
        assert (await reader.read_next(timeout_s=30)).data == b"late"
    with pytest.raises(NotSupportedError, match="EARLIEST or LATEST"):
        await client.reader(topic, MessageId(1, 1))


async def test_hash_ranges_divide_a_topic_among_readers(client: Client, topic: str) -> None:
    for at in range(40):
        await send(client, topic, [b"%d" % at], key=f"k{at}")
    lower = ReaderSettings(hash_ranges=((0, 32_767),))
    upper = ReaderSettings(hash_ranges=((32_768, 65_535),))
    async with (
        await client.reader(topic, settings=lower) as one,
        await client.reader(topic, settings=upper) as other,
    ):
        halves: tuple[list[bytes], list[bytes]] = ([], [])
        while len(halves[0]) + len(halves[1]) < 40:
            for reader, seen in zip((one, other), halves, strict=True):
                seen += data(await reader.read_many(100, timeout_s=0.2))
    assert Counter(halves[0] + halves[1]) == Counter(numbered(40))
    assert all(halves)


async def test_key_shared_consumers_have_the_ranges_they_ask_for(
    client: Client, topic: str
) -> None:
    def sticky(*ranges: tuple[int, int]) -> ConsumerSettings:
        return replace(
            FROM_START,
            subscription_type=SubscriptionType.KEY_SHARED,
            key_shared=KeySharedPolicy(hash_ranges=ranges, allow_out_of_order=True),
        )

    async with (
        await client.consumer(topic, "s", sticky((0, 9_999), (30_000, 65_535))) as one,
        await client.consumer(topic, "s", sticky((10_000, 29_999))) as other,
    ):
        with pytest.raises(ServiceError, match=r"20000|overlap|range"):
            await client.consumer(topic, "s", sticky((20_000, 20_001)))
        for at in range(60):
            await send(client, topic, [b"%d" % at], key=f"k{at}")
        received: tuple[list[bytes], list[bytes]] = ([], [])
        while len(received[0]) + len(received[1]) < 60:
            for consumer, some in zip((one, other), received, strict=True):
                some += data(await consumer.receive_many(100, timeout_s=0.2))
        assert Counter(received[0] + received[1]) == Counter(numbered(60))
        assert all(received)
    with pytest.raises(ValueError, match="overlaps"):
        KeySharedPolicy(hash_ranges=((0, 10), (10, 20)))


async def test_failover_tells_who_is_active(server: Broker, client: Client, topic: str) -> None:
    await make_partitioned(server, topic, 2)
    told: list[tuple[str, bool]] = []
    settings = replace(
        FROM_START,
        subscription_type=SubscriptionType.FAILOVER,
        on_active_change=lambda name, is_active: told.append((name, is_active)),
    )
    async with await client.consumer(topic, "s", settings) as consumer:
        await until(lambda: len(told) == 2, "both partitions tell")
        assert sorted(told) == [(f"{topic}-partition-{index}", True) for index in range(2)]
        assert consumer.is_active


async def test_subscriptions_have_the_properties_of_their_first_consumer(
    server: Broker, client: Client, topic: str
) -> None:
    settings = replace(
        FROM_START,
        subscription_properties={"owner": "billing"},
        priority_level=3,
        subscription_type=SubscriptionType.SHARED,
    )
    async with await client.consumer(topic, "s", settings):
        stats = await admin(server, "GET", f"{topic.replace('://', '/')}/stats")
        assert isinstance(stats, dict)
        subscription = stats["subscriptions"]["s"]
        assert subscription["subscriptionProperties"] == {"owner": "billing"}
        assert len(subscription["consumers"]) == 1


async def test_a_subscription_is_replicated_if_its_consumer_asks_for_it(
    server: Broker, client: Client, topic: str
) -> None:
    asks = replace(FROM_START, replicate_subscription_state=True)
    async with (
        await client.consumer(topic, "asks", asks),
        await client.consumer(topic, "does not", FROM_START),
    ):
        stats = await admin(server, "GET", f"{topic.replace('://', '/')}/stats")
        assert isinstance(stats, dict)
        found = {name: each["isReplicated"] for name, each in stats["subscriptions"].items()}
        assert found == {"asks": True, "does not": False}


async def test_a_topic_is_not_made_if_that_is_not_wanted(client: Client, topic: str) -> None:
    with pytest.raises(ServiceError, match=re.escape(topic.rpartition("/")[2])):
        await client.consumer(topic, "s", ConsumerSettings(create_topic=False))


async def test_a_start_that_is_not_durable_can_be_an_id(client: Client, topic: str) -> None:
    await send(client, topic, numbered(5))
    async with await client.reader(topic) as reader:
        ids = [(await reader.read_next(timeout_s=30)).message_id for _ in range(5)]
    settings = ConsumerSettings(durable=False, start_message_id=ids[2], start_inclusive=True)
    async with await client.consumer(topic, "tail", settings) as consumer:
        assert data(await take(consumer, 3)) == numbered(3, 2)


async def test_both_clients_share_a_partitioned_subscription(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 3)

    def produce(theirs: pulsar.Client) -> None:
        producer = theirs.create_producer(topic)
        for each in numbered(90):
            producer.send(each, partition_key=each.decode())

    await official(server, produce)
    settings = replace(FROM_START, subscription_type=SubscriptionType.SHARED)
    async with await client.consumer(topic, "s", settings) as consumer:
        mine = await take(consumer, 30)
        await consumer.acknowledge_confirmed(*mine)

    def consume(theirs: pulsar.Client) -> list[bytes]:
        own = theirs.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        return [own.receive(30_000).data() for _ in range(60)]

    assert Counter(data(mine) + await official(server, consume)) == Counter(numbered(90))
