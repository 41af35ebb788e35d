"""Single clients are disconnected over HTTP: the client hears of it, and work goes on elsewhere."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import Answer, ask
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

PLACE = "/magnetar/v1/topics/persistent/public/default"
SHARED = {"subType": pb.CommandSubscribe.Shared}


class Scene:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def disconnect(self, whom: str, topic: str = "topic", **client: Any) -> Answer:
        path = f"{PLACE}/{topic}/{whom}/disconnect"
        return await ask(self.broker.http_port, "POST", path, client)

    async def consumers(self) -> list[dict[str, Any]]:
        path = "/admin/v2/persistent/public/default/topic/stats"
        stats = (await ask(self.broker.http_port, "GET", path)).json
        found: list[dict[str, Any]] = stats["subscriptions"]["s"]["consumers"]
        return found


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        yield Scene(broker)


async def test_a_disconnected_consumer_is_told_and_others_get_what_it_held(scene: Scene) -> None:
    hoarder, worker, publisher = [await WireClient.open(scene.broker.port) for _ in range(3)]
    await hoarder.subscribe(TOPIC, 10, consumer_name="hoarder", **SHARED)
    await publisher.produce(TOPIC)
    for number in range(3):
        await publisher.publish_ok(number, b"%d" % number)
    assert await hoarder.bodies(3) == [b"0", b"1", b"2"]
    await worker.subscribe(TOPIC, 10, consumer_name="worker", **SHARED)
    answer = await scene.disconnect("consumers", subscription="s", consumer="hoarder")
    assert (answer.status, answer.json) == (200, {"disconnected": 1})
    closed = await hoarder.next(BaseCommand.CLOSE_CONSUMER)
    assert closed.close_consumer.consumer_id == 0
    assert not closed.close_consumer.assignedBrokerServiceUrl
    assert await worker.bodies(3) == [b"0", b"1", b"2"]
    assert [each["consumerName"] for each in await scene.consumers()] == ["worker"]
    # The connection is still there, and takes the consumer again under its old id.
    again = await hoarder.subscribe(TOPIC, consumer_name="hoarder", **SHARED)
    assert again.type == BaseCommand.SUCCESS
    for each in (hoarder, worker, publisher):
        await each.close()


async def test_of_two_consumers_of_one_name_the_address_tells_which(scene: Scene) -> None:
    one, other = [await WireClient.open(scene.broker.port) for _ in range(2)]
    for each in (one, other):
        await each.subscribe(TOPIC, consumer_name="twin", **SHARED)
    before = [each["address"] for each in await scene.consumers()]
    answer = await scene.disconnect(
        "consumers", subscription="s", consumer="twin", address=before[0]
    )
    assert answer.json == {"disconnected": 1}
    assert [each["address"] for each in await scene.consumers()] == before[1:]
    await one.next(BaseCommand.CLOSE_CONSUMER)
    for each in (one, other):
        await each.close()


async def test_a_disconnected_producer_is_told_and_publishes_again(scene: Scene) -> None:
    client = await WireClient.open(scene.broker.port)
    await client.produce(TOPIC, producer_name="sensor")
    await client.publish_ok(0)
    answer = await scene.disconnect("producers", producer="sensor")
    assert (answer.status, answer.json) == (200, {"disconnected": 1})
    closed = await client.next(BaseCommand.CLOSE_PRODUCER)
    assert closed.close_producer.producer_id == 0
    again = await client.produce(TOPIC, producer_name="sensor")
    assert again.type == BaseCommand.PRODUCER_SUCCESS
    await client.publish_ok(1)
    await client.close()


async def test_whoever_is_not_there_is_named_and_nobody_else_is_disconnected(scene: Scene) -> None:
    client = await WireClient.open(scene.broker.port)
    await client.subscribe(TOPIC, consumer_name="here")
    for whom, named, words in (
        ("consumers", {"subscription": "s", "consumer": "gone"}, "consumer gone of subscription s"),
        ("consumers", {"subscription": "no", "consumer": "here"}, "subscription no"),
        ("consumers", {"subscription": "s", "address": "10.0.0.1:1"}, "consumer at 10.0.0.1:1"),
        ("producers", {"producer": "gone"}, "producer gone"),
    ):
        answer = await scene.disconnect(whom, **named)
        assert answer.status == 404
        assert words in answer.json["reason"]
    # Everybody would fit.
    for whom, named in (("consumers", {"subscription": "s"}), ("producers", {})):
        answer = await scene.disconnect(whom, **named)
        assert answer.status == 412
        assert "give the name" in answer.json["reason"]
    assert (await scene.disconnect("producers", "missing", producer="p")).status == 404
    assert len(await scene.consumers()) == 1
    await client.close()


async def test_a_consumer_leaves_every_partition_of_a_topic(scene: Scene) -> None:
    path = "/admin/v2/persistent/public/default/whole/partitions"
    assert (await ask(scene.broker.http_port, "PUT", path, 3)).status == 204
    client = await WireClient.open(scene.broker.port)
    for index in range(3):
        await client.subscribe(
            f"persistent://public/default/whole-partition-{index}",
            consumer_id=index,
            consumer_name="c",
        )
    answer = await scene.disconnect("consumers", "whole", subscription="s", consumer="c")
    assert (answer.status, answer.json) == (200, {"disconnected": 3})
    closed = [await client.next(BaseCommand.CLOSE_CONSUMER) for _ in range(3)]
    assert sorted(each.close_consumer.consumer_id for each in closed) == [0, 1, 2]
    again = await scene.disconnect("consumers", "whole", subscription="s", consumer="c")
    assert again.status == 404
    await client.close()


async def test_a_topic_that_nobody_uses_is_not_loaded_to_find_nobody(scene: Scene) -> None:
    path = "/admin/v2/persistent/public/default/resting"
    assert (await ask(scene.broker.http_port, "PUT", path)).status == 204
    assert (await ask(scene.broker.http_port, "PUT", f"{path}/unload")).status == 204
    assert (await scene.disconnect("producers", "resting", producer="p")).status == 404
    assert scene.broker.services.topics.loaded == []
