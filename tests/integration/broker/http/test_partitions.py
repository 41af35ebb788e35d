"""Partitioned topics over HTTP and on the wire, on real bookies."""

import asyncio
import random
from pathlib import Path

from magnetar.broker.broker import Broker
from magnetar.broker.policies.model import AutoTopicCreation
from magnetar.broker.policies.table import BY_FIELD
from magnetar.broker.topics.creation import CreationTurns
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

TOPICS = "/admin/v2/persistent/public/default"
WHOLE = "persistent://public/default/whole"


async def metadata(client: WireClient, topic: str, *, creates: bool = True) -> object:
    """The number of partitions, or the code of the refusal."""
    client.send(
        BaseCommand.PARTITIONED_METADATA,
        partitionMetadata=pb.CommandPartitionedTopicMetadata(
            topic=topic, request_id=1, metadata_auto_creation_enabled=creates
        ),
    )
    answer = (await client.next()).partitionMetadataResponse
    if answer.response == pb.CommandPartitionedTopicMetadataResponse.Success:
        return answer.partitions
    return pb.ServerError.Name(answer.error)


async def test_a_partitioned_topic_lives_over_http(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        path = f"{TOPICS}/whole/partitions"
        assert (await ask(port, "PUT", path, 2)).status == 204
        assert (await ask(port, "PUT", path, 2)).status == 409
        assert (await ask(port, "PUT", path, 0)).status == 406
        assert (await ask(port, "PUT", path, "many")).status == 400
        assert (await ask(port, "PUT", f"{TOPICS}/whole-partition-0/partitions", 2)).status == 412
        assert (
            await ask(port, "PUT", "/admin/v2/persistent/no/where/x/partitions", 2)
        ).status == 404
        assert (await ask(port, "GET", path)).json == {"partitions": 2, "deleted": False}
        assert (await ask(port, "GET", f"{TOPICS}/partitioned")).json == [WHOLE]
        every = [f"{WHOLE}-partition-{index}" for index in range(2)]
        assert (await ask(port, "GET", TOPICS)).json == every

        assert (await ask(port, "POST", path, 3)).status == 204
        assert (await ask(port, "POST", path, 1)).status == 422
        assert (await ask(port, "POST", f"{TOPICS}/missing/partitions", 3)).status == 404
        assert (await ask(port, "GET", path)).json["partitions"] == 3
        missed = await ask(port, "POST", f"{TOPICS}/whole/createMissedPartitions")
        assert missed.status == 204

        named = f"{TOPICS}/named/partitions"
        assert (
            await ask(port, "PUT", named, {"partitions": 1, "properties": {"a": "b"}})
        ).status == 204
        assert (await ask(port, "GET", named)).json["properties"] == {"a": "b"}


async def test_plain_and_partitioned_topics_do_not_share_a_name(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        client = await WireClient.open(broker.port)
        plain = "persistent://public/default/plain"
        assert (await client.produce(plain)).type == BaseCommand.PRODUCER_SUCCESS
        assert (await ask(port, "PUT", f"{TOPICS}/plain/partitions", 2)).status == 409
        assert (await ask(port, "POST", f"{TOPICS}/plain/partitions", 2)).status == 409
        assert await metadata(client, plain, creates=False) == 0

        assert (await ask(port, "PUT", f"{TOPICS}/whole/partitions", 2)).status == 204
        assert await metadata(client, WHOLE) == 2
        assert await metadata(client, f"{WHOLE}-partition-1", creates=False) == 0
        refused = await client.produce(WHOLE, 1)
        assert refused.error.error == pb.ServerError.NotAllowedError
        refused = await client.subscribe(WHOLE)
        assert refused.error.error == pb.ServerError.NotAllowedError
        refused = await client.produce(f"{WHOLE}-partition-2", 2)
        assert refused.error.error == pb.ServerError.NotAllowedError
        answer = await client.produce(f"{WHOLE}-partition-1", 3)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        assert await metadata(client, "missing", creates=False) == "TopicNotFound"
        await client.close()


async def _auto_create(broker: Broker, creation: AutoTopicCreation) -> None:
    await broker.services.policies.update_namespace(
        "public/default",
        lambda record: BY_FIELD["auto_topic_creation"].set_in_namespace(record, creation),
    )


async def test_topics_appear_with_the_partitions_that_the_policies_say(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        creation = AutoTopicCreation(allowed=True, is_partitioned=True, partitions=3)
        await _auto_create(broker, creation)
        assert await metadata(client, "new", creates=False) == "TopicNotFound"
        assert await metadata(client, "new") == 3
        assert await metadata(client, "new", creates=False) == 3
        await _auto_create(broker, AutoTopicCreation(allowed=False))
        assert await metadata(client, "newer") == "TopicNotFound"
        # What was created is there, whatever the policies say now.
        answer = await client.produce("persistent://public/default/new-partition-2")
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        await client.close()


async def test_an_unload_of_the_whole_unloads_its_partitions(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port = broker.http_port
        assert (await ask(port, "PUT", f"{TOPICS}/whole/partitions", 2)).status == 204
        client = await WireClient.open(broker.port)
        for index in range(2):
            await client.produce(f"{WHOLE}-partition-{index}", index)
        assert (await ask(port, "PUT", f"{TOPICS}/whole/unload")).status == 204
        for _ in range(2):
            assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
        await client.close()


async def test_topics_that_are_created_at_once_are_no_more_than_the_namespace_may_have(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        port, namespace = broker.http_port, "/admin/v2/namespaces/public/default"
        limit = f"{namespace}/maxTopicsPerNamespace"
        assert (await ask(port, "POST", limit, 5)).status == 204
        clients = [await WireClient.open(broker.port) for _ in range(8)]

        async def produce(at: int) -> bool:
            answer = await clients[at].produce(f"persistent://public/default/produced-{at}")
            return bool(answer.type == BaseCommand.PRODUCER_SUCCESS)

        async def create(at: int) -> bool:
            return (await ask(port, "PUT", f"{TOPICS}/plain-{at}")).status == 204

        async def partition(at: int) -> bool:
            return (await ask(port, "PUT", f"{TOPICS}/parted-{at}/partitions", 2)).status == 204

        works = [each(at) for at in range(8) for each in (produce, create, partition)]
        made = await asyncio.gather(*works)
        assert any(made)
        assert len((await ask(port, "GET", TOPICS)).json) == 5
        assert (await ask(port, "POST", limit, 8)).status == 204
        first, second = f"{TOPICS}/whole-a/partitions", f"{TOPICS}/whole-b/partitions"
        assert (
            (await ask(port, "PUT", first, 1)).status
            == (await ask(port, "PUT", second, 1)).status
            == 204
        )
        grown = await asyncio.gather(ask(port, "POST", first, 2), ask(port, "POST", second, 2))
        assert sorted(each.status for each in grown) == [204, 412]
        assert len((await ask(port, "GET", TOPICS)).json) == 8
        for client in clients:
            await client.close()


async def test_creations_of_two_brokers_take_turns(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        brokers = [CreationTurns(cluster.store, random.Random(seed)) for seed in range(2)]
        inside = most = 0

        async def create(turns: CreationTurns) -> None:
            nonlocal inside, most
            async with turns.turn("public/default"):
                inside += 1
                most = max(most, inside)
                await cluster.store.catch_up()
                inside -= 1

        await asyncio.gather(*(create(turns) for turns in brokers for _ in range(5)))
        assert most == 1


async def test_a_topic_that_all_ask_for_at_once_appears_in_a_namespace_it_fills(
    tmp_path: Path,
) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        await _auto_create(
            broker, AutoTopicCreation(allowed=True, is_partitioned=True, partitions=3)
        )
        await broker.services.policies.update_namespace(
            "public/default", lambda record: BY_FIELD["max_topics"].set_in_namespace(record, 3)
        )
        clients = [await WireClient.open(broker.port) for _ in range(5)]
        assert await asyncio.gather(*(metadata(each, WHOLE) for each in clients)) == [3] * 5
        for client in clients:
            await client.close()
