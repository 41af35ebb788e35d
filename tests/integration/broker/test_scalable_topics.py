"""Scalable topics on a broker with a real metadata store and real bookies: through splits, merges
and deletions, by the commands that clients of Pulsar 5 send."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.base.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.broker import Broker
from magnetar.broker.features.scalable import ScalableTopicRecord, ScalableTopics
from magnetar.broker.features.scalable.changes import begin_split
from magnetar.sdk.wire import BaseCommand, TopicName, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.test_scalable_commands import (
    look_up,
    register,
    topics_of,
)
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import cluster_of

_NAME = "topic://public/default/t"
_TOPIC = parse_topic_name("persistent://public/default/t")
_ROOT = "segment://public/default/t/0000-ffff-0"
_CHILDREN = ["segment://public/default/t/0000-7fff-1", "segment://public/default/t/8000-ffff-2"]


class _Scene:
    """A broker, and clients of it."""

    def __init__(self, broker: Broker, clients: Sequence[WireClient]) -> None:
        self.broker = broker
        self.one, self.other, self.third = clients

    @property
    def scalable(self) -> ScalableTopics:
        return self.broker.services.topics.scalable


@asynccontextmanager
async def _served(directory: Path, **settings: Any) -> AsyncIterator[_Scene]:
    async with cluster_of(1, directory) as cluster, broker_on(cluster, **settings) as broker:
        clients = [await WireClient.open(broker.port) for _ in range(3)]
        yield _Scene(broker, clients)
        for client in clients:
            await client.close()


async def _update(client: WireClient) -> pb.CommandScalableTopicUpdate:
    return (await client.next(BaseCommand.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate


async def _pushed(client: WireClient) -> tuple[pb.CommandScalableTopicUpdate, list[BaseCommand]]:
    """The next layout, and what came before it."""
    before: list[BaseCommand] = []
    while (command := await client.next()).type != BaseCommand.SCALABLE_TOPIC_UPDATE:
        before.append(command)
    return command.scalableTopicUpdate, before


async def _skip_to(client: WireClient, kind: int) -> BaseCommand:
    """The next command of a kind; others before it are dropped."""
    while (command := await client.next()).type != kind:
        pass
    return command


async def _assigned(client: WireClient) -> pb.ScalableConsumerAssignment:
    """The next assignment of a stream consumer."""
    command = await _skip_to(client, BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
    return command.scalableTopicAssignmentUpdate.assignment


def _states(dag: pb.ScalableTopicDAG) -> list[tuple[int, bool]]:
    """Ids of the segments, and whether each takes messages."""
    return [(each.segment_id, each.state == pb.ACTIVE) for each in dag.segments]


async def test_a_lookup_creates_a_topic_of_one_segment_if_it_may(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        answer = await look_up(scene.one, _NAME, create_if_missing=False)
        assert answer.error == pb.ServerError.TopicNotFound
        answer = await look_up(scene.one, _NAME)
        assert answer.resolved_topic_name == _NAME
        assert answer.dag.epoch == 1
        (segment,) = answer.dag.segments
        assert (segment.hash_start, segment.hash_end, segment.state) == (0, 0xFFFF, pb.ACTIVE)
        assert list(segment.entry_bucket_splits) == [0x4000, 0x8000, 0xC000]
        assert not segment.HasField("legacy_topic_name")
        assert not segment.HasField("sealed_at_epoch")
        # By its persistent name it is the same topic, and no plain one of that name appears.
        answer = await look_up(scene.other, str(_TOPIC))
        assert (answer.dag.epoch, len(answer.dag.segments)) == (1, 1)
        refused = await scene.other.produce(str(_TOPIC))
        assert refused.error.error == pb.ServerError.TopicNotFound


async def test_a_topic_of_the_namespace_that_forbids_it_is_not_created(tmp_path: Path) -> None:
    async with _served(tmp_path, auto_topic_creation=False) as scene:
        answer = await look_up(scene.one, _NAME)
        assert answer.error == pb.ServerError.TopicNotFound
        assert "automatic topic creation is off" in answer.message
        assert await scene.scalable.find(_TOPIC) is None


async def test_a_plain_topic_is_not_found_by_a_scalable_name(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        await scene.one.produce(str(_TOPIC))
        answer = await look_up(scene.other, _NAME)
        assert answer.error == pb.ServerError.TopicNotFound
        assert answer.message.endswith(f"use {_TOPIC}")


async def test_only_segments_that_the_topic_has_are_made(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        for name in (_ROOT, _CHILDREN[0]):
            refused = await scene.one.produce(name)
            assert refused.error.error == pb.ServerError.TopicNotFound
        await look_up(scene.one, _NAME)
        assert (await scene.one.produce(_ROOT)).type == BaseCommand.PRODUCER_SUCCESS
        refused = await scene.one.produce(_CHILDREN[0], 1)
        assert refused.error.error == pb.ServerError.TopicNotFound


async def test_a_split_moves_producers_on_and_queue_consumers_miss_nothing(tmp_path: Path) -> None:
    """The commands of the Java client: its producer hears that its topic is closed, looks again,
    is told that the segment is sealed, and goes to the children of the next layout."""
    async with _served(tmp_path) as scene:
        producer, consumer = scene.one, scene.other
        await look_up(producer, _NAME)
        await look_up(consumer, _NAME)
        await producer.produce(_ROOT)
        await producer.publish_ok(0, b"before")
        answer = await consumer.subscribe(
            _ROOT,
            100,
            subType=pb.CommandSubscribe.Shared,
            initialPosition=pb.CommandSubscribe.Latest,
        )
        assert answer.type == BaseCommand.SUCCESS
        await producer.publish_ok(1, b"seen")

        await scene.scalable.split(_TOPIC, 0)
        update, before = await _pushed(producer)
        assert [each.type for each in before] == [BaseCommand.CLOSE_PRODUCER]
        assert (update.dag.epoch, _states(update.dag)) == (2, [(0, False), (1, True), (2, True)])
        parent, first, second = update.dag.segments
        assert (list(parent.child_ids), parent.sealed_at_epoch) == ([1, 2], 2)
        assert list(first.parent_ids) == list(second.parent_ids) == [0]
        refused = await producer.produce(_ROOT, 9)
        assert refused.error.error == pb.ServerError.TopicTerminatedError
        for number, name in enumerate(_CHILDREN):
            await producer.produce(name, number)
            await producer.publish_ok(0, b"child %d" % number, number)

        # The consumer is late: what its subscription has in the children is from their beginning.
        bodies = await consumer.bodies(1)
        for number, name in enumerate(_CHILDREN):
            late = await WireClient.open(scene.broker.port)
            await late.subscribe(
                name,
                100,
                consumer_id=number,
                subType=pb.CommandSubscribe.Shared,
                initialPosition=pb.CommandSubscribe.Latest,
            )
            bodies += await late.bodies(1)
            await late.close()
        assert bodies == [b"seen", b"child 0", b"child 1"]


async def test_publishes_under_way_at_a_split_are_stored_in_the_parent_or_not_at_all(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        for number in range(50):
            scene.one.publish(number, b"%d" % number)
        await scene.scalable.split(_TOPIC, 0)
        _, before = await _pushed(scene.one)
        receipts = [
            each.send_receipt.sequence_id
            for each in before
            if each.type == BaseCommand.SEND_RECEIPT
        ]
        assert receipts == list(range(len(receipts))), "a prefix was stored, in order"
        assert before[-1].type == BaseCommand.CLOSE_PRODUCER
        await scene.other.subscribe(_ROOT, 100)
        if receipts:
            bodies = await scene.other.bodies(len(receipts))
            assert bodies == [b"%d" % number for number in receipts]


async def test_a_stream_consumer_gets_children_once_it_is_done_with_the_parent(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path, scalable_entry_buckets=1) as scene:
        producer, consumer = scene.one, scene.other
        await look_up(producer, _NAME)
        await producer.produce(_ROOT)
        await producer.publish_ok(0, b"parent")
        assert topics_of((await register(consumer, _NAME, "a")).assignment) == [_ROOT]
        await consumer.subscribe(_ROOT, 100)
        message = (await _skip_to(consumer, BaseCommand.MESSAGE)).message
        await scene.scalable.split(_TOPIC, 0)
        assert topics_of(await _assigned(consumer)) == [_ROOT]
        # Another consumer of the group has nothing as long as the parent is not acknowledged.
        registered = await register(scene.third, _NAME, "b")
        assert topics_of(registered.assignment) == []
        assert registered.assignment.layout_epoch == 2
        consumer.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=0, ack_type=pb.CommandAck.Cumulative, message_id=[message.message_id]
            ),
        )
        assert topics_of(await _assigned(scene.third)) == [_CHILDREN[1]]
        assert topics_of(await _assigned(consumer)) == [_CHILDREN[0]]


async def test_a_subscription_that_goes_back_gets_its_parents_anew_before_the_children(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as scene:
        producer, consumer = scene.one, scene.other
        await look_up(producer, _NAME)
        await producer.produce(_ROOT)
        await producer.publish_ok(0, b"parent")
        await register(consumer, _NAME, "a")
        await consumer.subscribe(_ROOT, 100)
        message = (await _skip_to(consumer, BaseCommand.MESSAGE)).message
        consumer.ack(message.message_id)
        await scene.scalable.split(_TOPIC, 0)
        while topics_of(await _assigned(consumer)) != _CHILDREN:
            pass
        path = "/admin/v2/scalable/public/default/t/subscriptions/s"
        port = scene.broker.http_port
        assert (await ask(port, "POST", f"{path}/seek?timestamp=0")).status == 204
        assert topics_of(await _assigned(consumer)) == [_ROOT], "the children wait again"
        await _skip_to(consumer, BaseCommand.CLOSE_CONSUMER)
        await consumer.subscribe(_ROOT, 100, consumer_id=1)
        message = (await _skip_to(consumer, BaseCommand.MESSAGE)).message
        consumer.ack(message.message_id, consumer_id=1)
        assert topics_of(await _assigned(consumer)) == _CHILDREN
        assert (await ask(port, "DELETE", path)).status == 412
        assert (await ask(port, "DELETE", f"{path}?force=true")).status == 204
        for name in (_ROOT, *_CHILDREN):
            topic = await scene.broker.services.topics.get(parse_topic_name(name))
            assert "s" not in topic.subscriptions
        assert (await ask(port, "DELETE", path)).status == 404


async def test_a_seek_of_a_client_on_a_sealed_segment_holds_its_children_back(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        sent = await scene.one.publish_ok(0, b"parent")
        await scene.other.subscribe(_ROOT, 100)
        message = (await _skip_to(scene.other, BaseCommand.MESSAGE)).message
        scene.other.ack(message.message_id)
        await scene.scalable.split(_TOPIC, 0)
        registered = await register(scene.third, _NAME, "a")
        if topics_of(registered.assignment) != _CHILDREN:
            assert topics_of(await _assigned(scene.third)) == _CHILDREN
        scene.other.send(
            BaseCommand.SEEK,
            seek=pb.CommandSeek(
                consumer_id=0, request_id=scene.other.request_id(), message_id=sent.message_id
            ),
        )
        assert topics_of(await _assigned(scene.third)) == [_ROOT]


async def test_consumers_beyond_the_segments_share_one_that_has_entry_buckets(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.subscribe(_ROOT, 100)
        path = "/admin/v2/scalable/public/default/t/rebucket/0?bucketCount=2"
        assert (await ask(scene.broker.http_port, "POST", path)).status == 204
        pushed = await _skip_to(scene.one, BaseCommand.SCALABLE_TOPIC_UPDATE)
        _, segment = pushed.scalableTopicUpdate.dag.segments
        assert list(segment.entry_bucket_splits) == [32768]
        assert (segment.hash_start, segment.hash_end) == (0, 65535)
        answer = await register(scene.other, _NAME, "a")
        while topics_of(answer.assignment) != [successor := f"{_ROOT[:-1]}1"]:
            answer.assignment.CopyFrom(await _assigned(scene.other))
        assert not answer.assignment.segments[0].bucket_ranges, "it has the segment for itself"
        shared = (await register(scene.third, _NAME, "b")).assignment
        buckets = [pb.IntRange(start=0, end=32767), pb.IntRange(start=32768, end=65535)]
        assert (topics_of(shared), list(shared.segments[0].bucket_ranges)) == ([successor], buckets)
        assert list((await _assigned(scene.other)).segments[0].bucket_ranges) == buckets


async def test_the_next_coordinator_gives_children_to_those_who_are_done_with_the_parent(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.other.subscribe(_ROOT, 100)
        await scene.scalable.split(_TOPIC, 0)
        scene.broker.services.segment_coordinators.end([_TOPIC])
        assert topics_of((await register(scene.third, _NAME, "a")).assignment) == _CHILDREN


async def test_a_merge_has_both_parents_subscriptions(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.scalable.split(_TOPIC, 0)
        await scene.other.subscribe(_CHILDREN[0], 100, subscription="left")
        await scene.third.subscribe(_CHILDREN[1], 100, subscription="right")
        await scene.scalable.merge(_TOPIC, 1, 2)
        merged = parse_topic_name("segment://public/default/t/0000-ffff-3")
        topic = await scene.broker.services.topics.get(merged)
        assert sorted(topic.subscriptions) == ["left", "right"]


async def test_a_deleted_topic_ends_its_sessions_and_may_be_made_anew(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.other.produce(_ROOT)
        await scene.other.publish_ok(0)
        await scene.scalable.split(_TOPIC, 0)
        await _update(scene.one)
        created_ms = await scene.scalable.delete_segments(_TOPIC)
        refused = await look_up(scene.third, _NAME)
        assert refused.error == pb.ServerError.TopicNotFound
        await scene.scalable.forget(_TOPIC, created_ms)
        assert (await _update(scene.one)).error == pb.ServerError.TopicNotFound
        again = await WireClient.open(scene.broker.port)
        assert (await look_up(again, _NAME)).dag.epoch == 1
        await again.produce(_ROOT)
        assert (await again.publish_ok(0)).message_id.entryId == 0
        await again.close()


async def test_those_who_watch_a_namespace_hear_of_its_scalable_topics(tmp_path: Path) -> None:
    async with _served(tmp_path, topic_list_pause_ms=0) as scene:
        await look_up(scene.one, "topic://public/default/first")
        scene.other.send(
            BaseCommand.WATCH_SCALABLE_TOPICS,
            watchScalableTopics=pb.CommandWatchScalableTopics(
                watch_id=3, namespace="public/default"
            ),
        )
        update = await scene.other.next(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        names = list(update.watchScalableTopicsUpdate.snapshot.topics)
        assert names == ["topic://public/default/first"]
        await look_up(scene.one, "topic://public/default/second", 2)
        update = await scene.other.next(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        diff = update.watchScalableTopicsUpdate.diff
        assert list(diff.added) == ["topic://public/default/second"]
        first = parse_topic_name("first")
        created_ms = await scene.scalable.delete_segments(first)
        await scene.scalable.forget(first, created_ms)
        update = await scene.other.next(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        diff = update.watchScalableTopicsUpdate.diff
        assert list(diff.removed) == ["topic://public/default/first"]


async def _begin_split(scene: _Scene) -> None:
    """The first write of a split, as by a broker that dies right behind it."""
    now_ms = scene.broker.services.clock.wall_ms()
    await scene.scalable._change(
        _TOPIC, lambda record: begin_split(_TOPIC, record, 0, now_ms=now_ms, segments_max=8)
    )


@asynccontextmanager
async def _held_before_the_seal(scene: _Scene) -> AsyncIterator[None]:
    """A split whose children are loaded, and whose parent takes messages still; afterwards it has
    come to its end."""
    ready, go_on = asyncio.Event(), asyncio.Event()
    seal = scene.scalable._seal

    async def wait_and_seal(parents: Any) -> Any:
        ready.set()
        await go_on.wait()
        return await seal(parents)

    scene.scalable._seal = wait_and_seal  # type: ignore[method-assign]
    splitting = asyncio.ensure_future(scene.scalable.split(_TOPIC, 0))
    await ready.wait()
    try:
        yield
    finally:
        go_on.set()
    await splitting


async def test_children_that_are_loaded_ahead_can_be_used_when_the_split_has_ended(
    tmp_path: Path,
) -> None:
    names = [parse_topic_name(each) for each in _CHILDREN]
    async with _served(tmp_path, topics_max=3) as scene:
        topics = scene.broker.services.topics
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        async with _held_before_the_seal(scene):
            ahead = [topics.served(each) for each in names]
            assert None not in ahead
            for number, child in enumerate(_CHILDREN, 1):
                refused = await scene.other.produce(child, number)
                assert refused.error.error == pb.ServerError.TopicNotFound
                refused = await scene.other.subscribe(child, consumer_id=number)
                assert refused.error.error == pb.ServerError.TopicNotFound
            await scene.one.publish_ok(0, b"parent")
        for number, child in enumerate(_CHILDREN, 1):
            assert (await scene.other.produce(child, number)).type == BaseCommand.PRODUCER_SUCCESS
            await scene.other.publish_ok(0, b"child", number)
        assert [topics.served(each) for each in names] == ahead, "they were not loaded again"


async def test_a_subscription_of_the_last_moment_is_open_in_children_that_were_loaded_before(
    tmp_path: Path,
) -> None:
    """Nothing of the children is trimmed before it is done with that."""
    async with _served(tmp_path) as scene:
        topics = scene.broker.services.topics
        await look_up(scene.one, _NAME)
        await scene.other.subscribe(_ROOT, subscription="early")
        async with _held_before_the_seal(scene):
            answer = await scene.third.subscribe(_ROOT, subscription="late")
            assert answer.type == BaseCommand.SUCCESS
        for number, child in enumerate(_CHILDREN, 1):
            await scene.one.produce(child, number)
            found = await topics.get(parse_topic_name(child))
            assert sorted(found.subscriptions) == ["early", "late"]
            assert all(each.is_open for each in found.subscriptions.values())


async def test_children_that_are_loaded_ahead_go_with_a_topic_that_is_deleted(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path, scalable_change_patience_ms=60_000) as scene:
        topics = scene.broker.services.topics
        await look_up(scene.one, _NAME)
        await _begin_split(scene)
        assert scene.scalable.owners is not None
        names = [parse_topic_name(each) for each in _CHILDREN]
        for each in names:
            await scene.scalable.owners.open_ahead(each)
        assert None not in [topics.served(each) for each in names]
        created_ms = await scene.scalable.delete_segments(_TOPIC)
        for each in names:
            await scene.scalable.owners.open_ahead(each)  # late: the change is under way no more
            assert not await topics.exists(each)
        await scene.scalable.forget(_TOPIC, created_ms)


async def test_a_segment_that_has_just_been_pruned_can_be_used_until_the_next_look(
    tmp_path: Path,
) -> None:
    """By clients that were told of it in the moment before."""
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        await scene.scalable.split(_TOPIC, 0)
        await scene.scalable.prune(_TOPIC, await scene.scalable.get(_TOPIC))
        assert (await scene.scalable.get(_TOPIC)).find(0) is None
        answer = await scene.other.subscribe(_ROOT, subscription="late")
        assert answer.type == BaseCommand.SUCCESS
        refused = await scene.third.produce(_ROOT, 1)
        assert refused.error.error == pb.ServerError.TopicTerminatedError
        await scene.scalable.prune(_TOPIC, await scene.scalable.get(_TOPIC))
        assert not await scene.broker.services.topics.exists(parse_topic_name(_ROOT))
        refused = await scene.third.subscribe(_ROOT, subscription="late")
        assert refused.error.error == pb.ServerError.TopicNotFound


async def test_a_producer_that_comes_back_when_its_segment_is_gone_is_sent_to_the_next_layout(
    tmp_path: Path,
) -> None:
    """Clients ask again for ever for what is not found, once they had it."""
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.scalable.split(_TOPIC, 0)
        for _ in range(2):
            await scene.scalable.prune(_TOPIC, await scene.scalable.get(_TOPIC))
        assert not await scene.broker.services.topics.exists(parse_topic_name(_ROOT))
        refused = await scene.third.produce(_ROOT)
        assert refused.error.error == pb.ServerError.TopicTerminatedError
        assert not await scene.broker.services.topics.exists(parse_topic_name(_ROOT))
        await scene.scalable.delete_segments(_TOPIC)
        refused = await scene.third.produce(_ROOT, 1)
        assert refused.error.error == pb.ServerError.TopicNotFound


async def test_a_segment_that_no_change_makes_is_not_loaded_ahead(tmp_path: Path) -> None:
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        port, root = scene.broker.http_port, "/admin/v2/segments/public/default/t"
        for descriptor in ("0000-7fff-1", "0000-ffff-0"):
            assert (await ask(port, "PUT", f"{root}/{descriptor}/ahead")).status == 204
        assert scene.broker.services.topics.served(parse_topic_name(_CHILDREN[0])) is None
        await _begin_split(scene)
        assert (await ask(port, "PUT", f"{root}/0000-7fff-1/ahead")).status == 204
        assert scene.broker.services.topics.served(parse_topic_name(_CHILDREN[0])) is not None


async def test_a_change_that_its_broker_left_is_carried_on_while_clients_have_the_topic_open(
    tmp_path: Path,
) -> None:
    """As after a crash between the seal and the commit: producers wait for no longer than that."""
    async with _served(tmp_path, scalable_change_patience_ms=50) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        await _begin_split(scene)
        update, before = await _pushed(scene.one)
        assert [each.type for each in before] == [BaseCommand.CLOSE_PRODUCER]
        assert update.dag.epoch == 2


async def test_subscriptions_of_a_sealed_segment_wait_until_clients_are_told_of_its_children(
    tmp_path: Path,
) -> None:
    async with _served(tmp_path, scalable_change_patience_ms=60_000) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        await _begin_split(scene)
        assert scene.scalable.owners is not None
        await scene.scalable.owners.seal(parse_topic_name(_ROOT))
        late = asyncio.ensure_future(scene.other.subscribe(_ROOT, subscription="late"))
        await _skip_to(scene.one, BaseCommand.CLOSE_PRODUCER)
        await look_up(scene.third, _NAME)
        assert not late.done()
        await scene.scalable.finish(_TOPIC)
        assert (await late).type == BaseCommand.SUCCESS


async def test_a_stream_subscription_that_begins_at_the_end_misses_nothing_from_then_on(
    tmp_path: Path,
) -> None:
    """The coordinator gives the sealed parent first: the children have the subscription by then."""
    async with _served(tmp_path) as scene:
        await look_up(scene.one, _NAME)
        await scene.one.produce(_ROOT)
        await scene.one.publish_ok(0, b"before the split")
        await scene.scalable.split(_TOPIC, 0)
        await _pushed(scene.one)
        await scene.one.produce(_CHILDREN[0], 1)
        await scene.one.publish_ok(0, b"before the subscription", 1)
        latest = pb.CommandSubscribe.Latest
        await scene.other.subscribe(_ROOT, 100, initialPosition=latest)
        await scene.one.publish_ok(1, b"after it", 1)
        await scene.third.subscribe(_CHILDREN[0], 100, initialPosition=latest)
        assert await scene.third.bodies(1) == [b"after it"]


async def _create(scene: _Scene) -> ScalableTopicRecord:
    async def is_taken() -> bool:
        return False

    return await scene.scalable.create(_TOPIC, 1, is_taken=is_taken)


async def test_a_segment_is_not_made_after_the_decision_that_its_topic_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment was looked up before. What a client published to it would be lost."""
    name = parse_topic_name(_ROOT)
    async with _served(tmp_path) as scene:
        topics, record = scene.broker.services.topics, await _create(scene)
        found, is_decided, may_store = asyncio.Event(), asyncio.Event(), asyncio.Event()
        check, change = topics.creation.check, scene.scalable._change
        changes = 0

        async def checked(topic: TopicName, *, may_create: bool) -> bool:
            has_log = await check(topic, may_create=may_create)
            found.set()
            await is_decided.wait()
            return has_log

        async def changed(*args: Any) -> ScalableTopicRecord | None:
            nonlocal changes
            changes += 1
            if changes == 2:  # The first one hides the topic, the second one stores the decision.
                is_decided.set()
                await may_store.wait()
            return await change(*args)

        monkeypatch.setattr(topics.creation, "check", checked)
        loading = asyncio.ensure_future(topics.get(name))
        await found.wait()
        monkeypatch.setattr(scene.scalable, "_change", changed)
        giving_way = asyncio.ensure_future(scene.scalable._give_way(_TOPIC, record))
        with pytest.raises(ServiceNotReadyError, match="being deleted"):
            await loading
        may_store.set()
        assert await giving_way
        assert not await topics.exists(name)
        monkeypatch.undo()
        with pytest.raises(TopicNotFoundError):
            await topics.get(name)
        await _create(scene)
        assert await topics.get(name), "a later topic is not affected"
