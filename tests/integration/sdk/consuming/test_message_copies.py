"""Copies of messages in dead letter and retry topics can be read as the messages can."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import pulsar
import pytest

from magnetar.sdk import (
    Client,
    Consumer,
    ConsumerSettings,
    DeadLetterPolicy,
    Message,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.schema import T
from magnetar.sdk.schemas import (
    INT64,
    STRING,
    AutoConsumeSchema,
    AvroSchema,
    JsonSchema,
    KeyValue,
    KeyValueEncoding,
    KeyValueSchema,
    Schema,
)
from magnetar.testing import Broker
from tests.integration.sdk.embedded import EARLIEST, make_partitioned, official
from tests.waiting import until

GIVES_UP = ConsumerSettings(
    initial_position=EARLIEST,
    subscription_type=SubscriptionType.SHARED,
    nack_delay_ms=10,
    ack_group_ms=1,
    dead_letters=DeadLetterPolicy(redeliveries_max=0),
)
RETRIES = replace(GIVES_UP, retry_topic=True, dead_letters=DeadLetterPolicy(redeliveries_max=1))


@dataclass
class Order:
    item: str
    count: int


@dataclass
class PricedOrder:
    item: str
    count: int
    price: float | None = None


PricedOrder.__name__ = "Order"


async def give_up(consumer: Consumer[Any], count: int) -> None:
    """Refuse messages until they are dead letters."""
    for _ in range(count):
        consumer.negative_acknowledge(await consumer.receive(timeout_s=30))
    await until(lambda: consumer.stats().given_up == count)


async def letters_of(client: Client, topic: str, count: int, schema: Schema[T]) -> list[Message[T]]:
    async with await client.reader(f"{topic}-work-DLQ", schema=schema) as reader:
        return [await reader.read_next(timeout_s=30) for _ in range(count)]


@pytest.mark.parametrize("reads", ["with the schema", "bytes"])
async def test_a_dead_letter_has_the_schema_version_that_it_was_written_with(
    client: Client, topic: str, reads: str
) -> None:
    older, newer = AvroSchema(Order), AvroSchema(PricedOrder)
    async with await client.producer(topic, schema=older) as producer:
        await producer.send(Order("nail", 7))
    async with await client.producer(topic, schema=newer) as renewed:
        await renewed.send(PricedOrder("screw", 8, 0.5))
    schema = newer if reads == "with the schema" else None
    async with await client.consumer(topic, "work", GIVES_UP, schema=schema) as consumer:
        await give_up(consumer, 2)
    letters = await letters_of(client, topic, 2, newer)
    assert [each.value() for each in letters] == [
        PricedOrder("nail", 7),
        PricedOrder("screw", 8, 0.5),
    ]
    assert len({each.schema_version for each in letters}) == 2
    found = await letters_of(client, topic, 2, AutoConsumeSchema())
    assert found[0].value() == {"item": "nail", "count": 7}


async def test_messages_that_are_put_off_keep_their_schema_and_so_do_their_letters(
    client: Client, topic: str
) -> None:
    older, newer = AvroSchema(Order), AvroSchema(PricedOrder)
    async with await client.producer(topic, schema=older) as producer:
        await producer.send(Order("nail", 7))
    async with await client.consumer(topic, "work", RETRIES, schema=newer) as consumer:
        for _ in range(2):
            message = await consumer.receive(timeout_s=30)
            assert message.value() == PricedOrder("nail", 7)
            await consumer.reconsume_later(message)
    [letter] = await letters_of(client, topic, 1, newer)
    assert letter.value() == PricedOrder("nail", 7)


async def test_nulls_keys_of_bytes_and_pairs_stay_what_they_are(client: Client, topic: str) -> None:
    schema = KeyValueSchema(INT64, JsonSchema(Order), KeyValueEncoding.SEPARATED)
    pairs: list[KeyValue[int, Order]] = [
        KeyValue(1, Order("nail", 7)),
        KeyValue(2, None),
        KeyValue(None, Order("screw", 8)),
    ]
    async with await client.producer(topic, schema=schema) as producer:
        await producer.send_many(pairs)
        await producer.send(None, key="text")
    async with await client.consumer(topic, "work", GIVES_UP, schema=schema) as consumer:
        await give_up(consumer, 4)
    letters = await letters_of(client, topic, 4, AutoConsumeSchema())
    assert [each.value() for each in letters[:3]] == [
        KeyValue(1, {"item": "nail", "count": 7}),
        KeyValue(2, None),
        KeyValue(None, {"item": "screw", "count": 8}),
    ]
    assert (letters[3].is_null, letters[3].key) == (True, "text")


async def test_a_schema_that_the_letters_refuse_keeps_no_message_of_bytes_from_them(
    client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.producer(f"{topic}-work-DLQ", schema=INT64)
    async with await client.producer(topic, schema=STRING) as producer:
        await producer.send("text")
    async with await client.consumer(topic, "work", GIVES_UP) as consumer:
        with caplog.at_level(logging.WARNING):
            await give_up(consumer, 1)
    assert "copied_without_schema" in caplog.text
    async with await client.reader(f"{topic}-work-DLQ") as reader:
        letter = await reader.read_next(timeout_s=30)
    assert (letter.data, letter.schema_version) == (b"text", b"")


async def test_a_schema_that_the_letters_refuse_keeps_the_message_where_it_can_be_read(
    client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.producer(f"{topic}-work-DLQ", schema=INT64)
    async with await client.producer(topic, schema=STRING) as producer:
        await producer.send("text")
    async with await client.consumer(topic, "work", GIVES_UP, schema=STRING) as consumer:
        consumer.negative_acknowledge(await consumer.receive(timeout_s=30))
        await until(lambda: caplog.text.count("dead_letter_failed") > 1)
        assert consumer.stats().given_up == 0
    settings = replace(GIVES_UP, dead_letters=None)
    async with await client.consumer(topic, "work", settings, schema=STRING) as consumer:
        assert (await consumer.receive(timeout_s=30)).value() == "text"


async def test_a_message_put_together_of_chunks_fits_the_letters(
    client: Client, topic: str
) -> None:
    payload = bytes(range(256)) * 25_000
    settings = ProducerSettings(batching=False, chunking=True)
    async with await client.producer(topic, settings) as producer:
        await producer.send(payload)
    async with await client.consumer(topic, "work", GIVES_UP) as consumer:
        await give_up(consumer, 1)
    async with await client.reader(f"{topic}-work-DLQ") as reader:
        assert (await reader.read_next(timeout_s=30)).data == payload


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_letters_come_also_while_their_subscription_is_in_use(
    server: Broker, client: Client, topic: str, kind: SubscriptionType, partitions: int
) -> None:
    letters = f"{topic}-work-DLQ"
    if partitions:
        await make_partitioned(server, letters, partitions)
    policy = DeadLetterPolicy(redeliveries_max=0, initial_subscription="morgue")
    async with await client.producer(topic) as producer:
        await producer.send(b"bad")
    reads = ConsumerSettings(subscription_type=kind)
    async with (
        await client.consumer(letters, "morgue", reads) as morgue,
        await client.consumer(topic, "work", replace(GIVES_UP, dead_letters=policy)) as consumer,
    ):
        await give_up(consumer, 1)
        assert (await morgue.receive(timeout_s=30)).data == b"bad"


async def test_letters_wait_in_the_subscription_that_was_asked_for_in_every_partition(
    server: Broker, client: Client, topic: str
) -> None:
    letters = f"{topic}-work-DLQ"
    await make_partitioned(server, letters, 2)
    policy = DeadLetterPolicy(redeliveries_max=0, initial_subscription="morgue")
    async with await client.producer(topic) as producer:
        for at in range(4):
            await producer.send(b"bad", key=f"k{at}")
    settings = replace(GIVES_UP, dead_letters=policy)
    async with await client.consumer(topic, "work", settings) as consumer:
        await give_up(consumer, 4)

    def read(theirs: pulsar.Client) -> int:
        own = theirs.subscribe(letters, "morgue", consumer_type=pulsar.ConsumerType.Shared)
        return len([own.receive(30_000) for _ in range(4)])

    assert await official(server, read) == 4
