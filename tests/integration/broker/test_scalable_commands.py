"""What clients of Pulsar 5 send, on a broker with a real metadata store and real bookies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.broker.broker import Broker
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

_NAME = "persistent://public/default/t"
_TOPIC = parse_topic_name(_NAME)


@asynccontextmanager
async def _served(
    directory: Path, **settings: Any
) -> AsyncIterator[tuple[Broker, WireClient, WireClient]]:
    """A broker and two clients of it."""
    async with cluster_of(1, directory) as cluster, broker_on(cluster, **settings) as broker:
        clients = [await WireClient.open(broker.port) for _ in range(2)]
        yield broker, clients[0], clients[1]
        for client in clients:
            await client.close()


async def look_up(
    client: WireClient, topic: str, session_id: int = 1, **fields: Any
) -> pb.CommandScalableTopicUpdate:
    """SCALABLE_TOPIC_LOOKUP, and the answer."""
    client.send(
        BaseCommand.SCALABLE_TOPIC_LOOKUP,
        scalableTopicLookup=pb.CommandScalableTopicLookup(
            session_id=session_id, topic=topic, **fields
        ),
    )
    return (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate


async def register(
    client: WireClient, topic: str, name: str, consumer_id: int = 1
) -> pb.CommandScalableTopicSubscribeResponse:
    """SCALABLE_TOPIC_SUBSCRIBE of a stream consumer, and the answer."""
    client.send(
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
        scalableTopicSubscribe=pb.CommandScalableTopicSubscribe(
            request_id=client.request_id(),
            topic=topic,
            subscription="s",
            consumer_name=name,
            consumer_id=consumer_id,
            consumer_type=pb.STREAM,
        ),
    )
    answer = await client.next(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    return answer.scalableTopicSubscribeResponse


def topics_of(assignment: pb.ScalableConsumerAssignment) -> list[str]:
    """Names of the segments that a consumer has."""
    return [each.segment_topic for each in assignment.segments]


async def next_topics(client: WireClient) -> list[str]:
    """Names of the segments of the next assignment."""
    update = await client.next(BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
    return topics_of(update.scalableTopicAssignmentUpdate.assignment)


async def test_the_layout_follows_the_partitions_from_none_to_a_deletion(tmp_path: Path) -> None:
    async with _served(tmp_path) as (broker, client, other):
        answer = await look_up(client, _NAME)
        assert (answer.dag.epoch, answer.resolved_topic_name) == (0, "topic://public/default/t")
        assert [each.legacy_topic_name for each in answer.dag.segments] == [_NAME]
        assert answer.dag.controller_broker_url == broker.service_url
        partitioned = broker.services.topics.partitioned
        await partitioned.create(_TOPIC, 1)
        update = (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
        assert (update.dag.epoch, len(update.dag.segments)) == (1, 1)
        assert (await look_up(other, _NAME)).dag.epoch == 1
        await partitioned.grow(_TOPIC, 3, is_forced=False)
        for each in (client, other):
            update = (await each.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
            assert [each.legacy_topic_name for each in update.dag.segments] == [
                f"{_NAME}-partition-{number}" for number in range(3)
            ]
        await partitioned.mark_deleted(_TOPIC)
        await partitioned.forget(_TOPIC)
        for each in (client, other):
            update = (await each.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
            assert update.error == pb.ServerError.TopicNotFound


async def test_messages_reach_the_consumers_of_the_segments_through_a_growth(
    tmp_path: Path,
) -> None:
    """Commands in the order of the Java client: register, subscribe to each segment, publish."""
    async with _served(tmp_path) as (broker, consumer, producer):
        partitioned = broker.services.topics.partitioned
        await partitioned.create(_TOPIC, 1)
        mine = topics_of((await register(consumer, _NAME, "a")).assignment)
        assert mine == [f"{_NAME}-partition-0"]
        answer = await consumer.subscribe(mine[0], 100, consumer_name="a-seg-0")
        assert answer.type == BaseCommand.SUCCESS
        await partitioned.grow(_TOPIC, 2, is_forced=False)
        mine = await next_topics(consumer)
        assert mine == [f"{_NAME}-partition-{number}" for number in (0, 1)]
        # Published before the consumer has come to the new partition: growth made its cursor.
        for number, name in enumerate(mine):
            answer = await producer.produce(name, number)
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
            await producer.publish_ok(0, b"%d" % number, number)
        answer = await consumer.subscribe(mine[1], 0, consumer_id=1, consumer_name="a-seg-1")
        while answer.type != BaseCommand.SUCCESS:  # The message of the first one comes when it may.
            assert answer.type == BaseCommand.MESSAGE
            answer = await consumer.next()
        consumer.flow(100, 1)
        assert (await consumer.bodies(1))[-1] in (b"0", b"1")


async def test_two_stream_consumers_share_the_segments_and_the_one_that_stays_gets_all(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path, scalable_consumer_grace_ms=100) as (broker, first, second):
        await broker.services.topics.partitioned.create(_TOPIC, 2)
        assert len(topics_of((await register(first, _NAME, "a")).assignment)) == 2
        mine = topics_of((await register(second, _NAME, "b")).assignment)
        assert mine == [f"{_NAME}-partition-1"]
        assert await next_topics(first) == [f"{_NAME}-partition-0"]
        await second.close()
        assert len(await next_topics(first)) == 2


async def test_bad_input_is_refused_and_the_connection_serves_on(tmp_path: Path) -> None:
    async with _served(tmp_path, scalable_sessions_per_connection_max=1) as (_, client, _other):
        for name, code in (
            ("topic://public/default/t", pb.ServerError.TopicNotFound),
            (f"{_NAME}-partition-0", pb.ServerError.TopicNotFound),
            ("non-persistent://public/default/t", pb.ServerError.NotAllowedError),
            ("persistent://nobody/there/t", pb.ServerError.TopicNotFound),
        ):
            answer = await look_up(client, name, create_if_missing=False)
            assert (answer.error, bool(answer.message)) == (code, True)
        assert not (await look_up(client, _NAME)).HasField("error")
        assert (await look_up(client, _NAME, 2)).error == pb.ServerError.NotAllowedError
        registered = await register(client, "a/b", "c")
        assert registered.error == pb.ServerError.InvalidTopicName
        assert (await client.produce(_NAME)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_lookup_with_a_bad_name_ends_its_connection_alone(tmp_path: Path) -> None:
    async with _served(tmp_path) as (_, client, other):
        client.send(
            BaseCommand.SCALABLE_TOPIC_LOOKUP,
            scalableTopicLookup=pb.CommandScalableTopicLookup(session_id=1, topic="a/b"),
        )
        await client.closed()
        assert not (await look_up(other, _NAME)).HasField("error")


async def test_transaction_coordinators_are_made_and_named(tmp_path: Path) -> None:
    async with _served(tmp_path, transaction_coordinators=2) as (broker, client, _):
        client.send(
            BaseCommand.WATCH_TC_ASSIGNMENTS,
            watchTcAssignments=pb.CommandWatchTcAssignments(watch_id=1),
        )
        update = await client.next(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)
        snapshot = update.watchTcAssignmentsUpdate.snapshot
        assert snapshot.parallelism == 2
        assert [(each.tc_id, each.broker_service_url) for each in snapshot.assignments] == [
            (number, broker.service_url) for number in range(2)
        ]
        await client.begin(_NAME)
