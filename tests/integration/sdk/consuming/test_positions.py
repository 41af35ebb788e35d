"""Where a consumer or reader is, and whether there is more: as the broker knows it."""

import asyncio
from dataclasses import replace

import pulsar
import pytest

from magnetar.sdk import Client, ConsumerSettings, MessageId, ProducerSettings, ReaderSettings
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

FUTURE_MS = 1 << 50
INCLUSIVE = ReaderSettings(start_inclusive=True)
FROM_START = ConsumerSettings(initial_position=EARLIEST, ack_group_ms=1)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_reader_that_sought_a_time_past_the_end_has_no_message(
    server: Broker, client: Client, topic: str, partitions: int
) -> None:
    if partitions:
        await make_partitioned(server, topic, partitions)
    await send(client, topic, numbered(4))
    async with await client.reader(topic) as reader:
        assert await reader.has_message_available()
        await reader.seek_to_time(FUTURE_MS)
        assert not await reader.has_message_available()
        await send(client, topic, [b"new"])
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == b"new"
        assert not await reader.has_message_available()
        await reader.seek_to_time(0)
        assert await reader.has_message_available()
        assert len([await reader.read_next(timeout_s=30) for _ in range(5)]) == 5
        assert not await reader.has_message_available()


@pytest.mark.parametrize("batch", [1, 3])
async def test_an_inclusive_reader_at_the_latest_begins_with_the_newest_message(
    server: Broker, client: Client, topic: str, batch: int
) -> None:
    settings = ProducerSettings(batching=batch > 1, batch_messages_max=3, batch_delay_ms=10_000)
    async with await client.producer(topic, settings) as producer:
        await producer.send_many(numbered(3))

    def theirs(their_client: pulsar.Client) -> bytes:
        reader = their_client.create_reader(
            topic, pulsar.MessageId.latest, start_message_id_inclusive=True
        )
        assert reader.has_message_available()
        payload: bytes = reader.read_next(30_000).data()
        return payload

    assert await official(server, theirs) == b"2"
    async with await client.reader(topic, MessageId.LATEST, INCLUSIVE) as reader:
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == b"2"
        assert not await reader.has_message_available()
        await reader.seek(MessageId.LATEST)
        assert (await reader.read_next(timeout_s=30)).data == b"2"
    async with await client.reader(topic, MessageId.LATEST) as reader:
        assert not await reader.has_message_available()
        await reader.seek(MessageId.LATEST)
        assert not await reader.has_message_available()


async def test_an_inclusive_reader_at_the_latest_begins_with_the_newest_of_each_partition(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    for at in range(2):
        await send(client, f"{topic}-partition-{at}", numbered(3, 10 * at))
    async with await client.reader(topic, MessageId.LATEST, INCLUSIVE) as reader:
        newest = [(await reader.read_next(timeout_s=30)).data for _ in range(2)]
        assert sorted(newest) == [b"12", b"2"]
        assert not await reader.has_message_available()


async def test_an_inclusive_reader_of_an_empty_topic_waits_for_its_first_message(
    client: Client, topic: str
) -> None:
    async with await client.reader(topic, MessageId.LATEST, INCLUSIVE) as reader:
        assert not await reader.has_message_available()
        await send(client, topic, [b"first"])
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == b"first"


async def unload(server: Broker, topic: str) -> None:
    await admin(server, "PUT", f"{topic.replace('://', '/')}/unload")


@pytest.mark.parametrize("start", ["latest", "latest of nothing", "time"])
async def test_a_reader_keeps_its_place_though_it_attaches_again_before_its_first_message(
    server: Broker, client: Client, topic: str, start: str
) -> None:
    if start != "latest of nothing":
        await send(client, topic, [b"old"])
    first = MessageId.EARLIEST if start == "time" else MessageId.LATEST
    async with await client.reader(topic, first) as reader:
        if start == "time":
            await reader.seek_to_time(FUTURE_MS)
        await send(client, topic, [b"new"])
        await unload(server, topic)
        await until(lambda: reader.is_connected)
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == b"new"


async def test_after_a_reset_by_others_a_consumer_asks_the_broker_whether_there_is_more(
    server: Broker, client: Client, topic: str
) -> None:
    await send(client, topic, numbered(3))
    path = f"{topic.replace('://', '/')}/subscription/s"
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        messages = await take(consumer, 3)
        consumer.acknowledge_cumulative(messages[2])
        await consumer.flush_acks(confirmed=True)
        assert not await consumer.has_message_available()
        consumer.pause()
        await admin(server, "POST", f"{path}/resetcursor/0")
        assert await consumer.has_message_available()
        await consumer.seek(messages[0].message_id)
        assert await consumer.has_message_available()
        await admin(server, "POST", f"{path}/skip_all")
        assert not await consumer.has_message_available()
        consumer.resume()
        await asyncio.sleep(0)
        await send(client, topic, [b"new"])
        assert data(await take(consumer, 1)) == [b"new"]


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("moved_by", ["a seek", "a time", "an operator"])
async def test_a_consumer_that_is_moved_back_has_not_reached_the_end_of_the_topic_any_more(
    server: Broker, client: Client, topic: str, moved_by: str, partitions: int
) -> None:
    if partitions:
        await make_partitioned(server, topic, partitions)
    topics = [f"{topic}-partition-{at}" for at in range(partitions)] or [topic]
    for at, each in enumerate(topics):
        await send(client, each, numbered(3, 10 * at))
    async with await client.consumer(topic, "s", FROM_START) as consumer:

        async def to_the_end() -> list[bytes]:
            found: list[bytes] = []
            async for message in consumer:
                found.append(message.data)
                consumer.acknowledge(message)
            return sorted(found)

        everything = sorted(each for at in range(len(topics)) for each in numbered(3, 10 * at))
        for each in topics:
            await admin(server, "POST", f"{each.replace('://', '/')}/terminate")
        async with asyncio.timeout(30):
            assert await to_the_end() == everything
            assert consumer.reached_end
            if moved_by == "a seek":
                await consumer.seek(MessageId.EARLIEST)
            elif moved_by == "a time":
                await consumer.seek_to_time(0)
            else:
                for each in topics:
                    path = f"{each.replace('://', '/')}/subscription/s/resetcursor/0"
                    await admin(server, "POST", path)
                await until(lambda: not consumer.reached_end)
            found: list[bytes] = []
            while len(found) < len(everything):  # an operator resets one partition after the other
                found += await to_the_end()
            assert sorted(found) == everything
            await until(lambda: consumer.reached_end)


@pytest.mark.parametrize("is_reader", [False, True])
@pytest.mark.parametrize("terminated_first", [False, True])
async def test_the_end_of_a_topic_is_told_also_after_the_consumer_attaches_again(
    server: Broker, client: Client, topic: str, is_reader: bool, terminated_first: bool
) -> None:
    async def terminate() -> None:
        await admin(server, "POST", f"{topic.replace('://', '/')}/terminate")

    await send(client, topic, numbered(2))
    settings = replace(FROM_START, durable=not is_reader)
    async with await client.consumer(topic, "s", settings) as consumer:
        consumer.acknowledge_cumulative((await take(consumer, 2))[1])
        await consumer.flush_acks(confirmed=True)
        if terminated_first:
            await terminate()
            await until(lambda: consumer.reached_end)
        await unload(server, topic)
        if not terminated_first:
            await until(lambda: consumer.is_connected)
            await consumer.last_message_id()
            await terminate()
        await until(lambda: consumer.is_connected and consumer.reached_end)
        async with asyncio.timeout(30):
            assert [message async for message in consumer] == []
