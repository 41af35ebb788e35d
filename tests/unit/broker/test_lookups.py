"""Partition metadata, lookup, topic lists, schemas."""

from typing import Any

import pytest

from magnetar.broker.topics.topic_lists import topics_hash
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import SERVICE_URL, Client, Harness
from tests.unit.broker.memory_parts import TOPIC

_METADATA = pb.CommandPartitionedTopicMetadataResponse
_LOOKUP = pb.CommandLookupTopicResponse


def _ask_metadata(client: Client, topic: str, **fields: Any) -> None:
    client.send(
        BaseCommand.PARTITIONED_METADATA,
        partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1, **fields),
    )


async def test_partition_metadata_of_any_topic_is_zero_and_creates_nothing() -> None:
    harness = Harness()
    client = harness.client()
    _ask_metadata(client, TOPIC)
    answer = (await client.next()).partitionMetadataResponse
    assert answer.HasField("response")  # trap 1
    assert (answer.response, answer.partitions) == (_METADATA.Success, 0)
    assert not harness.topics.loaded


async def test_partition_metadata_without_creation_knows_what_exists() -> None:
    harness = Harness()
    client = harness.client()
    _ask_metadata(client, TOPIC, metadata_auto_creation_enabled=False)
    answer = (await client.next()).partitionMetadataResponse
    assert (answer.response, answer.error) == (_METADATA.Failed, pb.ServerError.TopicNotFound)
    await client.produce()
    _ask_metadata(client, TOPIC, metadata_auto_creation_enabled=False)
    assert (await client.next()).partitionMetadataResponse.response == _METADATA.Success


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("persistent://nobody/default/t", pb.ServerError.TopicNotFound),
        ("persistent://public/nothing/t", pb.ServerError.TopicNotFound),
        ("a/b", pb.ServerError.InvalidTopicName),
        ("volatile://public/default/t", pb.ServerError.InvalidTopicName),
    ],
)
async def test_unknown_namespaces_and_bad_names_are_refused(
    topic: str, code: pb.ServerError
) -> None:
    client = Harness().client()
    _ask_metadata(client, topic)
    metadata = (await client.next()).partitionMetadataResponse
    assert (metadata.response, metadata.error) == (_METADATA.Failed, code)
    client.send(BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic=topic, request_id=2))
    lookup = (await client.next()).lookupTopicResponse
    assert (lookup.response, lookup.error) == (_LOOKUP.Failed, code)
    assert (await client.produce(topic=topic)).error.error == code


async def test_a_lookup_connects_here_and_creates_nothing() -> None:
    harness = Harness()
    client = harness.client()
    client.send(BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=5))
    answer = (await client.next()).lookupTopicResponse
    assert answer.HasField("response")  # trap 1
    assert (answer.response, answer.authoritative) == (_LOOKUP.Connect, True)
    assert (answer.request_id, answer.brokerServiceUrl) == (5, SERVICE_URL)
    assert not harness.topics.loaded


async def test_the_topics_of_a_namespace_and_their_hash() -> None:
    harness = Harness()
    client = harness.client()
    names = [f"persistent://public/default/{name}" for name in "ba"]
    for producer_id, name in enumerate(names):
        await client.produce(producer_id, topic=name)

    def ask(known: str | None) -> None:
        client.send(
            BaseCommand.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                request_id=1, namespace="public/default", topics_hash=known
            ),
        )

    ask(None)
    answer = (await client.next()).getTopicsOfNamespaceResponse
    assert list(answer.topics) == sorted(names)
    assert (answer.topics_hash, answer.changed) == ("c7559e98", True)
    ask("c7559e98")
    answer = (await client.next()).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.changed) == ([], False)


async def test_system_topics_are_not_listed_and_unknown_namespaces_have_none() -> None:
    harness = Harness(message_bytes_max=4096)
    client = harness.client()
    for producer_id, name in enumerate(["__change_events", "x__transaction_pending_ack", "mine"]):
        await client.produce(producer_id, topic=name)

    def ask(
        namespace: str,
        mode: pb.CommandGetTopicsOfNamespace.Mode = pb.CommandGetTopicsOfNamespace.ALL,
    ) -> None:
        client.send(
            BaseCommand.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                request_id=1, namespace=namespace, mode=mode
            ),
        )

    ask("public/default")
    answer = (await client.next()).getTopicsOfNamespaceResponse
    assert list(answer.topics) == ["persistent://public/default/mine"]
    ask("public/default", pb.CommandGetTopicsOfNamespace.NON_PERSISTENT)
    answer = (await client.next()).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.topics_hash) == ([], "00000000")
    ask("public/nowhere")
    answer = (await client.next()).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.topics_hash) == ([], "00000000")
    ask("nonsense")
    assert (await client.next()).error.error == pb.ServerError.TopicNotFound
    # What fits no frame is refused: a client would drop the connection over it.
    for producer_id in range(10, 20):
        await client.produce(producer_id, topic=f"{producer_id}" + 500 * "n")
    ask("public/default")
    assert (await client.next()).error.error == pb.ServerError.NotAllowedError


def test_the_hash_of_no_topics() -> None:
    assert topics_hash([]) == "00000000"
