"""What tests of the SDK with an embedded broker have in common."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

import pulsar

from magnetar.sdk import Client, Consumer, InitialPosition, Message, ProducerSettings
from magnetar.testing import Broker
from tests.http_calls import ask
from tests.waiting import until

T = TypeVar("T")

EARLIEST = InitialPosition.EARLIEST
RECEIVE_S = 30.0


async def admin(broker: Broker, method: str, path: str, body: object = None) -> object:
    """A request to the admin interface, which must succeed."""
    return (await ask(broker.admin_url, method, path, body)).ok()


async def make_partitioned(broker: Broker, topic: str, partitions: int) -> None:
    await admin(broker, "PUT", f"{topic.replace('://', '/')}/partitions", partitions)


async def compact(broker: Broker, topic: str) -> None:
    """Compact a topic, and wait for the end."""
    path = f"{topic.replace('://', '/')}/compaction"
    await admin(broker, "PUT", path)

    async def is_compacted() -> bool:
        status = await admin(broker, "GET", path)
        assert isinstance(status, dict)
        return bool(status["status"] == "SUCCESS")

    await until(is_compacted, "the topic is compacted")


async def send(client: Client, topic: str, payloads: Iterable[bytes], key: str = "") -> None:
    """Each as an entry of its own."""
    async with await client.producer(topic, ProducerSettings(batching=False)) as producer:
        await asyncio.gather(*(producer.send(each, key=key or None) for each in payloads))


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=RECEIVE_S) for _ in range(count)]


def data(messages: Iterable[Message]) -> list[bytes]:
    return [message.data for message in messages]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % at for at in range(start, start + count)]


async def official(broker: Broker, work: Callable[[pulsar.Client], T]) -> T:
    """Something that the official client does, on a thread of its own."""

    def run() -> T:
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            return work(client)
        finally:
            client.close()

    return await asyncio.to_thread(run)
