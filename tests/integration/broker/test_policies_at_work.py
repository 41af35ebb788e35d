"""Policies on real bookies: what they do to a loaded topic, and that they outlive the broker."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.policies.model import AutoTopicCreation, Persistence, Policies
from magnetar.broker.policies.table import BY_FIELD
from magnetar.ledger.errors import MetadataUnavailableError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.metadata.store import WatchEvent
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand, TopicName, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WAIT_S, WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of

NAME = parse_topic_name(TOPIC)


async def set_of_topic(broker: Broker, **policies: object) -> None:
    await broker.services.policies.update_topic(NAME, lambda own: own.with_values(**policies))


async def quorums(cluster: Cluster, broker: Broker) -> list[tuple[int, int, int]]:
    """Of the topic's ledgers."""
    manager = LedgerManager(cluster.store, random=random.Random(1), clock=SystemClock())
    log = broker.services.topics.loaded[0].log
    found = [(await manager.read(each.ledger_id)).metadata for each in log.ledgers]
    return [(each.ensemble_size, each.write_quorum, each.ack_quorum) for each in found]


async def test_the_next_ledger_of_a_topic_has_the_quorums_of_its_policy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ledger_entries_max": 2, "ledger_age_min_s": 0}
    async with cluster_of(3, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.publish_ok(0)
        await set_of_topic(
            broker, persistence=Persistence(ensemble=3, write_quorum=3, ack_quorum=2)
        )
        async with asyncio.timeout(WAIT_S):
            sequence_id = 1
            while (found := await quorums(cluster, broker))[-1] != (3, 3, 2):
                await client.publish_ok(sequence_id)
                sequence_id += 1
        assert found[0] == (1, 1, 1)
        await client.close()


async def test_policies_are_there_after_a_restart_and_an_unload(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.produce(TOPIC)
            await set_of_topic(broker, max_producers=1)
            await client.close()
            topics = broker.services.topics
            await topics.ends.hand_over([NAME], None, timeout_s=WAIT_S)
            assert (await topics.get(NAME)).policies.max_producers == 1
        async with broker_on(cluster, seed=4) as broker:
            client = await WireClient.open(broker.port)
            assert (await client.produce(TOPIC)).type == BaseCommand.PRODUCER_SUCCESS
            refused = await client.produce(TOPIC, 1)
            assert refused.error.error == pb.ServerError.ProducerBusy
            await client.close()


async def test_a_topic_that_exists_is_served_where_none_may_appear(tmp_path: Path) -> None:
    never = AutoTopicCreation(allowed=False)
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await broker.services.policies.update_namespace(
            "public/default",
            lambda record: BY_FIELD["auto_topic_creation"].set_in_namespace(record, never),
        )
        await broker.services.topics.ends.hand_over([NAME], None, timeout_s=WAIT_S)
        await client.next(BaseCommand.CLOSE_PRODUCER)
        assert (await client.produce(TOPIC)).type == BaseCommand.PRODUCER_SUCCESS
        for answer in (
            await client.produce(f"{TOPIC}-new", 1),
            await client.subscribe(f"{TOPIC}-new"),
        ):
            assert answer.error.error == pb.ServerError.TopicNotFound
        await client.close()


async def test_unknown_tenants_and_namespaces_are_refused_and_named(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        for topic, says in (
            ("persistent://nobody/default/t", "there is no tenant nobody"),
            ("persistent://public/nothing/t", "namespace public/nothing does not exist"),
        ):
            for answer in (await client.produce(topic), await client.subscribe(topic)):
                assert answer.error.error == pb.ServerError.TopicNotFound
                assert says in answer.error.message
            client.send(
                BaseCommand.PARTITIONED_METADATA,
                partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1),
            )
            metadata = (await client.next()).partitionMetadataResponse
            assert metadata.error == pb.ServerError.TopicNotFound
            namespace = "/".join(topic.split("/")[2:4])
            client.send(
                BaseCommand.GET_TOPICS_OF_NAMESPACE,
                getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                    request_id=2, namespace=namespace
                ),
            )
            # As in Pulsar: who watches a pattern may come before the namespace.
            assert not (await client.next()).getTopicsOfNamespaceResponse.topics
        for answer in (
            await client.produce("persistent://../default/t"),
            await client.subscribe("persistent://../default/t"),
        ):
            assert answer.error.error == pb.ServerError.InvalidTopicName
            assert "tenant and namespace may only have" in answer.error.message
        await client.close()


def take_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata store answers nothing until `monkeypatch.undo()`."""

    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailableError("away")

    for name in ("get", "exists", "children", "create", "create_child", "set", "catch_up"):
        monkeypatch.setattr(cluster.store, name, away)


async def test_requests_wait_for_the_metadata_store_instead_of_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        take_away(cluster, monkeypatch)
        asked = [
            asyncio.create_task(clients[0].subscribe(TOPIC)),
            asyncio.create_task(clients[1].produce(TOPIC)),
        ]
        done, _ = await asyncio.wait(asked, timeout=0.1)
        assert not done
        monkeypatch.undo()
        answers = [(await each).type for each in asked]
        assert answers == [BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS]
        for client in clients:
            await client.close()


async def test_a_metadata_store_that_stays_away_is_given_up_as_bookies_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"topic_load_timeout_ms": 50, "topic_load_retry_ms": 10}
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, **settings) as broker:
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        take_away(cluster, monkeypatch)
        answer = await clients[0].produce(TOPIC)
        assert answer.error.error == pb.ServerError.ServiceNotReady
        with pytest.raises(ConnectionResetError):  # a retryable error would have clients hang
            await clients[1].subscribe(TOPIC)
        monkeypatch.undo()
        for client in clients:
            await client.close()


async def test_what_is_loaded_is_served_while_the_metadata_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        followed = broker.services.policies._namespaces["public/default"]
        take_away(cluster, monkeypatch)
        followed._on_event(WatchEvent.CHANGED)  # as after a lost contact
        assert (await client.produce(TOPIC, 1)).type == BaseCommand.PRODUCER_SUCCESS
        answer = await client.subscribe(TOPIC, durable=False)
        assert answer.type == BaseCommand.SUCCESS
        monkeypatch.undo()
        await client.close()


async def test_a_topic_whose_policies_are_all_removed_has_none(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await set_of_topic(broker, max_producers=1)
        await broker.services.policies.update_topic(NAME, lambda _: Policies())
        assert (await client.produce(TOPIC, 1)).type == BaseCommand.PRODUCER_SUCCESS
        await client.close()


async def test_a_topic_comes_back_with_more_subscriptions_than_a_later_policy_allows(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        for consumer_id, name in enumerate(("a", "b", "c")):
            await client.subscribe(TOPIC, subscription=name, consumer_id=consumer_id)
        await client.close()
        await set_of_topic(broker, max_subscriptions=1)
        await broker.services.topics.ends.hand_over([NAME], None, timeout_s=WAIT_S)
        topic = await broker.services.topics.get(NAME)
        assert sorted(topic.subscriptions) == ["a", "b", "c"]
        client = await WireClient.open(broker.port)
        assert (await client.subscribe(TOPIC, subscription="b")).type == BaseCommand.SUCCESS
        refused = await client.subscribe(TOPIC, subscription="d", consumer_id=1)
        assert refused.error.error == pb.ServerError.NotAllowedError
        await client.close()


async def test_messages_of_a_producer_whose_clock_is_behind_live_as_long_as_others(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        await client.subscribe(TOPIC)
        for sequence_id in range(5):
            await client.publish_ok(sequence_id)  # in 1970, by their producer
        topic = broker.services.topics.loaded[0]
        subscriptions = list(topic.subscriptions.values())
        expiry = broker.services.keeping.expiry
        assert await expiry.expire(topic, subscriptions, age_s=60) == 0
        assert await expiry.expire(topic, subscriptions, age_s=-1) == 5
        await client.close()


async def test_a_message_that_no_ledger_takes_is_refused_for_good(tmp_path: Path) -> None:
    mib = 1 << 20
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, message_bytes_max=6 * mib) as broker,
    ):
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        client.publish(0, bytes(58 * mib // 10))
        refused = (await client.next(BaseCommand.SEND_ERROR)).send_error
        assert refused.error == pb.ServerError.NotAllowedError, refused.message
        assert "entry_bytes_max" in refused.message
        await client.close()


async def test_what_a_former_owner_knew_of_producers_survives_policies_that_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner opens the topic by policies of before, because the store is slow."""
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster) as one,
        broker_on(cluster, seed=4) as two,
    ):
        policies = two.services.policies
        before = await policies.of(NAME)
        await set_of_topic(one, deduplication=True)
        client = await WireClient.open(one.port)
        await client.produce(TOPIC, producer_name="p")
        for sequence_id in range(3):
            await client.publish_ok(sequence_id)
        await one.services.topics.ends.hand_over([NAME], None, timeout_s=20)
        await client.close()
        of, behind = policies.of, [before]

        async def late(topic: TopicName) -> Policies:
            return behind.pop() if behind and topic == NAME else await of(topic)

        monkeypatch.setattr(policies, "of", late)
        client = await WireClient.open(two.port)
        answer = await client.produce(TOPIC, producer_name="p")
        assert not behind, "the topic was opened by them"
        assert answer.producer_success.last_sequence_id == 2
        await client.close()
