"""Single acknowledgements of two clusters, whose topics are in memory: the test copies entries."""

from typing import Any

import pytest

from magnetar.broker.base.entry import ACKS_MARKER
from magnetar.broker.features.replication import ReplicatedSubscriptions
from magnetar.broker.features.replication.acks import Acks, OriginAcks
from magnetar.broker.features.replication.copies import Copy
from magnetar.broker.features.replication.markers import Marker, Update, encode_marker
from magnetar.broker.features.replication.source_marks import CopyPlace, Source
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.position import Position
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire import split_payload
from tests.unit.broker.harness import Client, consuming, entry, position_in
from tests.unit.broker.memory_parts import feature_of
from tests.unit.broker.replication.test_replicated_subscriptions import World, replicated
from tests.unit.broker.replication.test_two_clusters import Clusters, Side
from tests.waiting import settle, until

HERE, WEST, NORTH = Source("standalone", 5), Source("west", 7), Source("north", 8)
SHARED = pb.CommandSubscribe.Shared
SELDOM = {"replicated_subscriptions_snapshot_interval_ms": 60_000}


def pair() -> Clusters:
    clusters = Clusters()
    for side in (clusters.east, clusters.west):
        side.harness.topics.takes_acks = True
    return clusters


def acks_of(side: Side) -> int:
    """How many markers of acknowledgements the log of a side has."""
    found = [split_payload(each)[0].marker_type for each in side.harness.log.entries[7]]
    return found.count(ACKS_MARKER)


async def consumer_of(side: Side) -> Client:
    return await consuming(side.harness, replicate_subscription_state=True, subType=SHARED)


async def take_some(consumer: Client, count: int, *kept: str) -> None:
    for _ in range(count):
        ((message, payload),) = await consumer.messages(1)
        _, body_at = split_payload(payload)
        if payload[body_at:].decode() not in kept:
            consumer.ack(position_in(message))


async def test_what_is_acknowledged_behind_a_hole_is_acknowledged_at_the_other_cluster() -> None:
    clusters = pair()
    east, west = clusters.east, clusters.west
    consumer = await consumer_of(east)
    await east.publish("a", "b", "c")
    await west.publish("d", "e")
    await clusters.exchange()
    await take_some(consumer, 5, "a", "d")
    # In the order of west, which is another one.
    await clusters.until_told(west, "d", "a")
    await consumer_of(west)
    assert west.harness.topic.subscriptions["s"].is_replicated


async def test_markers_of_acknowledgements_do_not_lead_to_further_ones() -> None:
    """GL2: dispatchers acknowledge markers, behind the hole as well."""
    clusters = pair()
    east, west = clusters.east, clusters.west
    consumer = await consumer_of(east)
    await consumer_of(west)
    await east.publish("a", "b", "c")
    await take_some(consumer, 3, "a")
    await clusters.until_told(west, "a")
    lengths: list[int] = []

    async def is_quiet() -> bool:
        for side in (east, west):
            feature_of(side.harness.topic, ReplicatedSubscriptions).look()
        await clusters.exchange()
        lengths.append(len(east.harness.log.entries[7]) + len(west.harness.log.entries[7]))
        return len(lengths) > 20 and len(set(lengths[-20:])) == 1

    await until(is_quiet)
    # "b" and "c" may have been told in two parts; west tells nothing that it was told.
    assert acks_of(east) <= 4


async def test_nothing_is_told_where_nobody_takes_it() -> None:
    """Apache Pulsar, and Magnetars of before, never see such a marker."""
    clusters = Clusters()
    consumer = await consumer_of(clusters.east)
    await clusters.east.publish("a", "b", "c")
    await take_some(consumer, 3, "a")
    for _ in range(10):
        feature_of(clusters.east.harness.topic, ReplicatedSubscriptions).look()
        await clusters.exchange()
    assert acks_of(clusters.east) == 0


# One topic, and markers by hand


def acks(
    *ranges: AckRange,
    source: Source = WEST,
    batches: tuple[BatchAck, ...] = (),
    is_whole: bool = False,
) -> Acks:
    return Acks("s", {source: OriginAcks(ranges, batches)}, is_whole)


async def told(world: World, marker: Marker) -> None:
    await world.copy_marker(marker)

    def is_done() -> bool:
        task = world.feature._acks._task
        return task is None or task.done()

    await until(is_done)
    await settle()


def is_acked(world: World, entry_id: int) -> bool:
    return world.harness.topic.subscriptions["s"].cursor.is_acked(Position(7, entry_id))


async def test_a_message_that_the_teller_never_had_is_not_touched() -> None:
    """G11 and 17.29: names are exact, whatever stands between."""
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.copy(entry(b"a"))
    await world.publish("at home")
    await world.copy(entry(b"b"))
    await world.publish("at home, too")
    await told(world, acks(AckRange(1, 0, 1)))
    assert [is_acked(world, each) for each in range(4)] == [True, False, True, False]
    assert (world.counts.acks_applied, world.counts.acks_absent) == (2, 0)


async def test_what_is_of_this_cluster_is_named_by_its_position_and_life_of_the_log() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.publish("a", "b", "c")
    await told(world, acks(AckRange(7, 2, 2), source=HERE))
    await told(world, acks(AckRange(7, 1, 1), source=HERE._replace(incarnation=6)))
    assert [is_acked(world, each) for each in range(3)] == [False, False, True]


async def test_no_range_reaches_beyond_the_log() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.publish("a", "b")
    await told(world, acks(AckRange(7, 1, 1 << 62), AckRange(9, 0, 1 << 62), source=HERE))
    assert is_acked(world, 1)
    await world.publish("c")
    assert not is_acked(world, 3)


async def test_no_batch_beyond_the_log_is_acknowledged_before_it_is_there() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.publish("a", "b")
    later = (BatchAck(7, 3, 0b101), BatchAck(9, 0, 0b101))
    await told(world, acks(source=HERE, batches=later))
    cursor = world.harness.topic.subscriptions["s"].cursor
    assert not cursor.remaining_words(Position(7, 3))
    assert not cursor.remaining_words(Position(9, 0))
    assert world.counts.acks_absent == 2


async def test_pending_messages_stay_with_their_consumer_and_do_not_come_again() -> None:
    world = World(**SELDOM)
    consumer = await replicated(world, subType=SHARED)
    for _ in range(3):
        await world.copy(entry(b"m"))
    (message, *_rest) = await consumer.messages(3)
    subscription = world.harness.topic.subscriptions["s"]
    assert subscription.unacked_messages == 3
    await told(world, acks(AckRange(1, 1, 1)))
    assert subscription.unacked_messages == 2
    subscription.check()
    consumer.ack(Position(7, 1))  # the consumer does not know
    await settle()
    assert subscription.unacked_messages == 2
    subscription.check()
    consumer.connection.lost()
    second = await replicated(world, subType=SHARED)
    again = [position_in(each) for each, _ in await second.messages(2)]
    assert again == [Position(7, 0), Position(7, 2)]
    assert position_in(message[0]) == Position(7, 0)


async def test_of_a_batch_only_the_messages_that_are_open_come() -> None:
    world = World(**SELDOM)
    consumer = await replicated(world, subType=SHARED)
    await world.copy(entry(b"batch", num_messages_in_batch=3))
    await consumer.messages(1)
    subscription = world.harness.topic.subscriptions["s"]
    await told(world, acks(batches=(BatchAck(1, 0, 0b101),)))
    assert subscription.cursor.remaining_words(Position(7, 0)) == (0b101,)
    assert subscription.unacked_messages == 2
    await told(world, acks(batches=(BatchAck(1, 0, 0b010),)))
    assert is_acked(world, 0)
    assert subscription.unacked_messages == 0
    subscription.check()


async def test_a_third_clusters_copy_may_come_later_than_its_acknowledgement() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.publish("a")
    await told(world, acks(AckRange(40, 0, 0), source=NORTH))
    assert world.counts.acks_waiting == 1
    copy = Copy(NORTH, CopyPlace(Position(40, 0)))
    world.feature.copied(Position(7, 2), copy)
    await world.publish("stands for the copy", "b")
    world.feature.look()
    await until(lambda: is_acked(world, 2))
    assert world.counts.acks_waiting == 0
    assert not is_acked(world, 3)


@pytest.mark.parametrize("count", [3, 4])
async def test_so_many_acknowledgements_wait_and_more_are_dropped(count: int) -> None:
    world = World(**SELDOM, replicated_subscriptions_acks_waiting_max=3)
    await replicated(world, subType=SHARED)
    await world.publish("a")
    for each in range(count):
        await told(world, acks(AckRange(40, 2 * each, 2 * each), source=NORTH))
    assert world.counts.acks_waiting == 3
    assert world.counts.acks_dropped == count - 3


async def test_a_subscription_that_is_not_replicated_is_left_alone() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    await world.publish("a")
    await world.harness.topic.subscriptions["s"].set_replicated(False)
    await told(world, acks(AckRange(7, 0, 0), source=HERE))
    assert not is_acked(world, 0)
    assert world.counts.acks_dropped == 1


async def test_it_is_made_only_if_the_teller_knows_its_log_from_the_beginning() -> None:
    world = World(**SELDOM)
    await world.publish("a", "b")
    await told(world, acks(AckRange(7, 1, 1), source=HERE))
    assert "s" not in world.harness.topic.subscriptions
    await told(world, acks(AckRange(7, 1, 1), source=HERE, is_whole=True))
    assert [is_acked(world, each) for each in range(2)] == [False, True]


async def test_without_it_updates_alone_count() -> None:
    world = World(**SELDOM, replicated_subscriptions_acks_enabled=False)
    await replicated(world, subType=SHARED)
    await world.publish("a", "b")
    await told(world, acks(AckRange(7, 1, 1), source=HERE))
    assert not is_acked(world, 1)
    await world.update(Position(7, 1))
    await until(lambda: is_acked(world, 1))


async def test_a_malformed_marker_harms_nobody() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=SHARED)
    marker = encode_marker(Update("s", {"west": Position(1, 1)}), now_ms=1)
    metadata, _ = split_payload(marker)
    fields: dict[str, Any] = {field.name: value for field, value in metadata.ListFields()}
    await world.copy(entry(b"\x02\x00", **{**fields, "marker_type": ACKS_MARKER}))
    await settle()
    assert world.counts.markers_malformed == 1


async def test_what_was_stored_before_the_topic_was_loaded_is_read_when_it_is_needed() -> None:
    world = World(**SELDOM)
    await world.copy(entry(b"a"))
    await world.publish("b")
    await world.copy(entry(b"c"))
    reads = len(world.harness.log.reads)
    await replicated(world, subType=SHARED)
    await told(world, acks(AckRange(1, 1, 1)))
    assert [is_acked(world, each) for each in range(3)] == [False, False, True]
    assert len(world.harness.log.reads) > reads


async def test_no_more_entries_are_read_than_the_window_has() -> None:
    world = World(**SELDOM, replicated_subscriptions_acks_window_entries=1)
    await world.copy(entry(b"a"))
    await world.copy(entry(b"b"))
    await replicated(world, subType=SHARED)
    await told(world, acks(AckRange(1, 0, 1)))
    assert [is_acked(world, each) for each in range(2)] == [False, True]
