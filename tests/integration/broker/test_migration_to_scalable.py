"""Plain and partitioned topics become scalable while they are used, on a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.features.scalable.sealing import SegmentSealing
from magnetar.broker.policies.model import DEFAULTS
from magnetar.broker.schemas import SchemaData, SchemaType
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.test_scalable_commands import look_up
from tests.integration.broker.version_5 import V5Producer, V5StreamConsumer
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.waiting import until

_NAME = "persistent://public/default/t"
_TOPIC = parse_topic_name(_NAME)
_PLAIN = "/admin/v2/persistent/public/default/t"
_SCALABLE = "/admin/v2/scalable/public/default/t"
_CHILD = "segment://public/default/t/0000-ffff-1"
_KEYS = [f"key-{number}" for number in range(16)]
_TEST_S_MAX = 120.0


@asynccontextmanager
async def _served(directory: Path, **settings: Any) -> AsyncIterator[tuple[Cluster, Broker]]:
    async with (
        asyncio.timeout(_TEST_S_MAX),
        cluster_of(1, directory) as cluster,
        broker_on(cluster, **settings) as broker,
    ):
        yield cluster, broker


async def _publish(producer: V5Producer, rounds: int) -> None:
    for _ in range(rounds):
        for key in _KEYS:
            await producer.publish(key)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_clients_of_pulsar_5_go_on_through_a_migration_in_the_order_of_their_keys(
    tmp_path: Path, partitions: int
) -> None:
    async with _served(tmp_path) as (_, broker):
        if partitions:
            created = await ask(broker.http_port, "PUT", f"{_PLAIN}/partitions", partitions)
        else:
            created = await ask(broker.http_port, "PUT", _PLAIN)
        assert created.status == 204
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        producer, consumer = V5Producer(clients[0], _NAME), V5StreamConsumer(clients[1], _NAME)
        await producer.open()
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consumer.run())
            await _publish(producer, 2)
            migrating = group.create_task(ask(broker.http_port, "POST", f"{_SCALABLE}/migrate"))
            await _publish(producer, 5)
            assert (await migrating).status == 204
            await _publish(producer, 2)
            total = producer.sent.total()
            await until(lambda: consumer.count == total, "all messages are consumed")
            consuming.cancel()
        assert consumer.received == {key: list(range(9)) for key in _KEYS}
        shown = (await ask(broker.http_port, "GET", _SCALABLE)).json
        states = [each["state"] for each in shown["segments"].values()]
        count = max(1, partitions)
        assert states == ["SEALED"] * count + ["ACTIVE"] * count
        for client in clients:
            await client.close()


async def test_a_producer_of_version_4_is_refused_and_what_it_has_stored_is_consumed(
    tmp_path: Path,
) -> None:
    """Without force it is not migrated. With it, publishes under way are stored, or refused."""
    async with _served(tmp_path) as (_, broker):
        port = broker.http_port
        producer, consumer = [await WireClient.open(broker.port) for _ in range(2)]
        await producer.produce(_NAME)
        await producer.publish_ok(0, b"0")
        await consumer.subscribe(_NAME, 1_000)
        refused = await ask(port, "POST", f"{_SCALABLE}/migrate")
        assert (refused.status, "2 producers and consumers" in refused.text) == (409, True)
        await producer.publish_ok(1, b"1")
        for number in range(2, 50):
            producer.publish(number, b"%d" % number)
        assert (await ask(port, "POST", f"{_SCALABLE}/migrate?force=true")).status == 204
        stored = 2
        while (command := await producer.next()).type == BaseCommand.SEND_RECEIPT:
            assert command.send_receipt.sequence_id == stored, "a prefix was stored, in order"
            stored += 1
        assert command.type == BaseCommand.CLOSE_PRODUCER
        again = await producer.produce(_NAME, 1)
        while again.type in (BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER):
            again = await producer.next()
        assert again.error.error == pb.ServerError.TopicTerminatedError
        assert await consumer.bodies(stored) == [b"%d" % number for number in range(stored)]
        # The subscription is in the segment behind it, from its beginning.
        child = await broker.services.topics.get(parse_topic_name(_CHILD))
        assert list(child.subscriptions) == ["s"]
        for client in (producer, consumer):
            await client.close()


async def test_a_new_subscription_waits_while_its_topic_is_migrated(tmp_path: Path) -> None:
    async with _served(tmp_path) as (_, broker):
        scalable = broker.services.topics.scalable
        producer, consumer = [await WireClient.open(broker.port) for _ in range(2)]
        await broker.services.topics.get(_TOPIC)
        seal, carry = asyncio.Event(), asyncio.Event()
        original = scalable._seal

        async def seal_and_wait(parents: Any) -> Any:
            names = await original(parents)
            seal.set()
            await carry.wait()
            return names

        scalable._seal = seal_and_wait  # type: ignore[method-assign]
        migrating = asyncio.ensure_future(scalable.migrate(_TOPIC, 0))
        await seal.wait()
        late = asyncio.ensure_future(consumer.subscribe(_NAME, subscription="late"))
        await look_up(producer, _NAME)
        assert not late.done()
        carry.set()
        await migrating
        assert (await late).type == BaseCommand.SUCCESS
        for client in (producer, consumer):
            await client.close()


async def test_who_asks_for_the_scalable_topic_finishes_a_migration_that_was_broken_off(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as (_, broker):
        scalable = broker.services.topics.scalable
        assert (await ask(broker.http_port, "PUT", _PLAIN)).status == 204
        prepare = scalable._prepare

        async def crash(*_: object) -> None:
            raise asyncio.CancelledError

        scalable._prepare = crash  # type: ignore[method-assign, assignment]
        with pytest.raises(asyncio.CancelledError):
            await scalable.migrate(_TOPIC, 0)
        scalable._prepare = prepare  # type: ignore[method-assign]
        client = await WireClient.open(broker.port)
        answer = await look_up(client, "topic://public/default/t", create_if_missing=False)
        assert (answer.dag.epoch, len(answer.dag.segments)) == (2, 2)
        await client.close()


async def test_the_parts_of_a_scalable_topic_go_with_the_whole_alone(tmp_path: Path) -> None:
    async with _served(tmp_path) as (cluster, broker):
        port = broker.http_port
        assert (await ask(port, "POST", f"{_SCALABLE}/migrate")).status == 404
        assert (await ask(port, "PUT", f"{_PLAIN}/partitions", 2)).status == 204
        assert (await ask(port, "POST", f"{_SCALABLE}/migrate")).status == 204
        assert (await ask(port, "POST", f"{_SCALABLE}/migrate")).status == 409
        assert (await ask(port, "POST", f"{_PLAIN}/partitions", 3)).status == 409
        assert (await ask(port, "DELETE", f"{_PLAIN}/partitions?force=true")).status == 409
        assert (await ask(port, "DELETE", f"{_PLAIN}-partition-0?force=true")).status == 409
        stats = (await ask(port, "GET", f"{_SCALABLE}/stats")).json
        assert stats["layout"]["lastOperation"]["operation"] == "MIGRATION"
        assert stats["layout"]["segments"]["1"]["name"] == f"{_NAME}-partition-1"
        assert (await ask(port, "DELETE", f"{_SCALABLE}?force=true")).status == 204
        assert await broker.services.topics.partitioned.find(_TOPIC) is None
        root = "/managed-ledgers/public/default"
        assert await cluster.store.children(f"{root}/persistent") == []
        assert (await ask(port, "PUT", _PLAIN)).status == 204


async def test_a_migrated_topic_is_known_as_a_part_when_it_is_loaded_again(tmp_path: Path) -> None:
    """A part is not deleted for its disuse, and its policies with it."""
    async with _served(tmp_path) as (_, broker):
        topics = broker.services.topics
        assert (await ask(broker.http_port, "PUT", _PLAIN)).status == 204
        sealing = (await topics.get(_TOPIC)).find(SegmentSealing)
        assert sealing is not None
        assert not sealing.is_part
        await topics.scalable.migrate(_TOPIC, 0)
        assert sealing.is_part
        await topics.ends.hand_over([_TOPIC], None, timeout_s=10.0)
        again = (await topics.get(_TOPIC)).find(SegmentSealing)
        assert again is not None
        assert again is not sealing
        assert again.is_part


async def test_policies_and_schemas_of_a_topic_outlive_the_log_that_it_had_before(
    tmp_path: Path,
) -> None:
    """The plain topic's log is pruned under the name that keeps what belongs to the whole topic."""
    async with _served(tmp_path) as (_, broker):
        topics, schemas = broker.services.topics, broker.services.schemas
        assert (await ask(broker.http_port, "PUT", _PLAIN)).status == 204
        ttl = f"{_PLAIN}/messageTTL?messageTTL=7"
        assert (await ask(broker.http_port, "POST", ttl)).status == 204
        await schemas.put(_TOPIC, SchemaData(SchemaType.STRING), DEFAULTS)
        await topics.scalable.migrate(_TOPIC, 0)
        for _ in range(2):  # out of the layout; then its log goes
            await topics.scalable.prune(_TOPIC, await topics.scalable.get(_TOPIC))
        record = await topics.scalable.get(_TOPIC)
        assert not record.sealed
        assert not record.pruned
        assert (await topics.get(parse_topic_name(_CHILD))).policies.message_ttl_s == 7
        assert await schemas.has(_TOPIC)
