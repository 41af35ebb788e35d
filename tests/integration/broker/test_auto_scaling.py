"""A scalable topic under load on a real broker: it is split by itself, and merged afterwards."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.sdk.wire import parse_topic_name
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.version_5 import V5Producer, V5StreamConsumer
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

_NAME = "topic://public/default/t"
_TOPIC = parse_topic_name("persistent://public/default/t")
_KEYS = [f"key-{number}" for number in range(32)]
_TEST_S_MAX = 120.0

_EAGER: dict[str, Any] = {
    "scalable_auto_scale_interval_s": 0.2,
    "scalable_split_msg_rate_in": 20,
    "scalable_merge_msg_rate_in": 10,
    "scalable_split_cooldown_s": 0.2,
    "scalable_merge_cooldown_s": 0.2,
    "scalable_merge_window_s": 0.5,
    "scalable_segments_max": 4,
}


async def _active(broker: Broker) -> int:
    return len((await broker.services.topics.scalable.get(_TOPIC)).active)


async def test_a_topic_under_load_is_split_by_itself_and_merged_after_in_the_order_of_its_keys(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, **_EAGER) as broker,
    ):
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        producer, consumer = V5Producer(clients[0], _NAME), V5StreamConsumer(clients[1], _NAME)
        await producer.open()
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consumer.run())
            while producer.most_segments < 3:
                for key in _KEYS:
                    await producer.publish(key)
            assert producer.most_segments <= 4
            total = producer.sent.total()
            await until(lambda: consumer.count == total, "all messages are consumed")

            async def is_whole() -> bool:
                record = await broker.services.topics.scalable.get(_TOPIC)
                return len(record.segments) == 1 and not record.pruned

            await until(is_whole, "it is merged into one segment, and what was before is pruned")
            consuming.cancel()
        assert consumer.received == {key: list(range(producer.sent[key])) for key in _KEYS}, (
            "each message once, in the order of its key"
        )
        for client in clients:
            await client.close()


async def test_a_namespace_that_switches_it_off_keeps_its_segments(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, **{**_EAGER, "scalable_auto_scale": False}) as broker,
    ):
        client = await WireClient.open(broker.port)
        producer = V5Producer(client, _NAME)
        await producer.open()
        looks = _count_looks(broker)
        while len(looks) < 3:
            for key in _KEYS:
                await producer.publish(key)
        assert await _active(broker) == 1
        await client.close()


@pytest.mark.parametrize("are_kept", [True, False])
async def test_a_sealed_segment_that_nobody_has_subscribed_to_is_kept_if_the_broker_is_told_so(
    tmp_path: Path, are_kept: bool
) -> None:
    settings: dict[str, Any] = {
        "scalable_auto_scale": False,
        "unsubscribed_retention": are_kept,
    }
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, **settings) as broker,
    ):
        client = await WireClient.open(broker.port)
        producer = V5Producer(client, _NAME)
        await producer.open()
        await producer.publish(_KEYS[0])
        topics = broker.services.topics.scalable
        await topics.split(_TOPIC, 0)
        (sealed,) = [each for each in (await topics.get(_TOPIC)).segments if each.is_sealed]
        is_used_up = await topics.reached_owners.is_used_up(sealed.name_in(_TOPIC))
        assert is_used_up is not are_kept
        (await broker.services.topics.get(sealed.name_in(_TOPIC))).use.hold_for_reading(60)
        assert not await topics.reached_owners.is_used_up(sealed.name_in(_TOPIC)), "it is read"
        await client.close()


def _count_looks(broker: Broker) -> list[None]:
    """Gets an item with each look of the broker."""
    looks: list[None] = []
    look = broker.auto_scaling.look

    async def counted() -> None:
        await look()
        looks.append(None)

    broker.auto_scaling.look = counted  # type: ignore[method-assign]
    return looks
