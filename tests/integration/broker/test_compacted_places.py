"""Subscriptions keep their place among compacted messages whose ledgers are trimmed.

Positions are saved long after these tests: a crash leaves what creating and seeking have stored.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.features.compaction import compaction_of
from magnetar.broker.features.retention import trimming
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import REPLICATED_PROPERTY
from magnetar.broker.topics import operating
from magnetar.ledger.position import EARLIEST, LATEST
from magnetar.sdk import Client, ConsumerSettings, InitialPosition, ProducerSettings
from magnetar.sdk.wire import parse_topic_name
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.ledger.cluster import cluster_of

_NEVER_MS = 600_000
_SETTINGS: dict[str, Any] = {
    "ack_persist_interval_ms": _NEVER_MS,
    "ack_persist_interval_ms_max": _NEVER_MS,
    "retention_check_interval_s": 0,
}
_NEWEST = [b"a 2", b"b 2", b"c 2"]
_LAST = b"d 1"
_READS_COMPACTED = ConsumerSettings(
    initial_position=InitialPosition.EARLIEST, read_compacted=True, receiver_queue_messages=1
)


class Scene:
    """A broker with a compacted topic; the first of the newest messages is trimmed from its log."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topics = broker.services.topics

    async def topic(self) -> Topic:
        return await self.topics.get(parse_topic_name(TOPIC))

    async def publish(self, *bodies: bytes) -> None:
        async with self.client() as client:
            producer = await client.producer(TOPIC, ProducerSettings(batching=False))
            for body in bodies:
                await producer.send(body, key=body[:1].decode())

    async def roll_over(self) -> None:
        log = (await self.topic()).log
        await log.rotate()
        await log.rotate()  # waits until the first ledger is closed

    async def compact(self) -> None:
        topic = await self.topic()
        compaction_of(topic).start()
        await compaction_of(topic).finished()
        assert await trimming.trim(topic) == 1

    async def crash(self) -> None:
        """Lose what of the topic is only in memory."""
        topic = await self.topic()
        topic.reload("a crash")
        assert topic is not await self.topic()

    def client(self) -> Client:
        return Client(f"pulsar://127.0.0.1:{self.broker.port}")

    async def received(self) -> list[bytes]:
        """Publish `_LAST`, and receive all messages up to it."""
        await self.publish(_LAST)
        found: list[bytes] = []
        async with self.client() as client:
            consumer = await client.consumer(TOPIC, "s", _READS_COMPACTED)
            while _LAST not in found:
                found.append((await consumer.receive(timeout_s=20)).data)
        return found


@asynccontextmanager
async def compacted(directory: Path) -> AsyncIterator[Scene]:
    async with cluster_of(1, directory) as cluster, broker_on(cluster, **_SETTINGS) as broker:
        scene = Scene(broker)
        await compaction_of(await scene.topic()).have_cursor()
        await scene.publish(b"a 1", b"b 1", b"c 1", *_NEWEST[:1])
        await scene.roll_over()
        await scene.publish(*_NEWEST[1:])
        await scene.compact()
        yield scene


async def _subscribe(scene: Scene) -> None:
    async with scene.client() as client:
        await client.consumer(TOPIC, "s", _READS_COMPACTED)


async def _create(scene: Scene) -> None:
    await operating.create_subscription(scene.topics, await scene.topic(), "s", EARLIEST, {})


async def _create_with_a_producer(scene: Scene) -> None:
    async with scene.client() as client:
        await client.producer(TOPIC, ProducerSettings(initial_subscription="s"))


async def _create_replicated(scene: Scene) -> None:
    topic = await scene.topic()
    properties = {REPLICATED_PROPERTY: 1}
    open_cursor = partial(
        scene.topics.open_cursor, topic, scene.topics.log_of(topic), "s", EARLIEST
    )
    await topic.subscriptions.ensure("s", partial(open_cursor, position_properties=properties))


async def _seek_back(scene: Scene) -> None:
    topic = await scene.topic()
    await operating.create_subscription(scene.topics, topic, "s", LATEST, {})
    await operating.reset(topic.subscriptions["s"], EARLIEST)


@pytest.mark.parametrize(
    "place", [_subscribe, _create, _create_with_a_producer, _create_replicated, _seek_back]
)
async def test_one_at_the_beginning_gets_all_compacted_messages_after_a_crash(
    tmp_path: Path, place: Callable[[Scene], Awaitable[None]]
) -> None:
    async with compacted(tmp_path) as scene:
        await place(scene)
        await scene.crash()
        is_replicated = (await scene.topic()).subscriptions["s"].is_replicated
        assert is_replicated is (place is _create_replicated)
        assert await scene.received() == [*_NEWEST, _LAST]


async def test_one_that_sought_to_the_end_gets_no_compacted_message_after_a_crash(
    tmp_path: Path,
) -> None:
    async with compacted(tmp_path) as scene:
        await _create(scene)
        await operating.reset((await scene.topic()).subscriptions["s"], LATEST)
        await scene.crash()
        assert await scene.received() == [_LAST]
