"""Replicated subscriptions of one topic: what it writes, obeys and ignores; who pays nothing."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.features.replication import ReplicatedSubscriptions
from magnetar.broker.features.replication.markers import (
    Marker,
    Request,
    Response,
    Snapshot,
    Update,
    decode_marker,
    encode_marker,
)
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, split_payload
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, consuming, delivered_to, entry, send_frame
from tests.unit.broker.memory_parts import feature_of
from tests.waiting import settle, until

HERE = "standalone"
WEST = f"pulsar.repl.west-->{HERE}"
INTERVAL_MS = 10
SELDOM = {"replicated_subscriptions_snapshot_interval_ms": 60_000}
"""For tests that name positions: no snapshot comes between."""
_TYPES = pb.CommandSubscribe


class World:
    """A topic that is copied to west and from there."""

    def __init__(self, **settings: Any) -> None:
        interval = {"replicated_subscriptions_snapshot_interval_ms": INTERVAL_MS}
        self.harness = Harness(**{**interval, **settings})
        record = NamespaceRecord(replication_clusters=(HERE, "west"))
        self.harness.policies.namespaces["public/default"] = record
        self.harness.topics.sessions = {"west": 1}
        self.west: Client | None = None
        self.copies = 0

    @property
    def feature(self) -> ReplicatedSubscriptions:
        return feature_of(self.harness.topic, ReplicatedSubscriptions)

    @property
    def counts(self) -> Any:
        return self.harness.topics.subscription_counts

    async def publish(self, *bodies: str, **metadata: Any) -> None:
        client = self.harness.client()
        await client.produce()
        for at, body in enumerate(bodies):
            payload = entry(body.encode(), sequence_id=at, **metadata)
            client.send_bytes(send_frame(0, at, payload=payload))
        await settle()

    async def copy(self, payload: bytes) -> list[Any]:
        """An entry arrives from west, with its place; returns the answers."""
        if self.west is None:
            self.west = self.harness.client()
            answer = await self.west.produce(producer_name=WEST)
            assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        metadata, body_at = split_payload(payload)
        metadata.replicated_from = "west"
        source = pb.SourcePosition(incarnation=7, ledger_id=1, entry_id=self.copies)
        if self.copies:
            source.previous_ledger_id, source.previous_entry_id = 1, self.copies - 1
        self.copies += 1
        metadata.magnetar_source.CopyFrom(source)
        fields = {field.name: value for field, value in metadata.ListFields()}
        self.west.send_bytes(send_frame(0, 0, payload=entry(payload[body_at:], **fields)))
        await settle()
        return [command for command, _ in self.west.received()]

    async def copy_marker(self, marker: Marker) -> list[Any]:
        return await self.copy(encode_marker(marker, now_ms=1))

    async def update(self, through: Position, subscription: str = "s", *others: str) -> None:
        positions = {HERE: through} | dict.fromkeys(others, Position(1, 1))
        await self.copy_marker(Update(subscription, positions))

    def markers(self) -> list[Marker]:
        """Return the markers of this cluster, in the order of the log."""
        found: list[Marker] = []
        for payload in self.harness.log.entries[7]:
            metadata, body_at = split_payload(payload)
            if metadata.HasField("marker_type") and not metadata.HasField("replicated_from"):
                marker = decode_marker(metadata.marker_type, payload[body_at:])
                assert marker is not None
                found.append(marker)
        return found

    def last(self, kind: type) -> Any:
        return next((each for each in reversed(self.markers()) if isinstance(each, kind)), None)

    def is_open(self, subscription: str = "s") -> bool:
        """Whether the subscription is there, with its cursor."""
        found = self.harness.topic.subscriptions.get(subscription)
        return found is not None and found.is_open

    def mark(self, subscription: str = "s") -> Position:
        return self.harness.topic.subscriptions[subscription].cursor.mark_delete


async def replicated(world: World, **fields: Any) -> Client:
    return await consuming(world.harness, replicate_subscription_state=True, **fields)


async def delivered(consumer: Client, count: int) -> list[int]:
    """Entry ids of everything that was delivered, as soon as there are so many."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(delivered_to(consumer))
        return len(found) >= count

    await until(is_there)
    await settle()
    return found + delivered_to(consumer)


# Who is replicated


async def test_a_consumer_that_does_not_ask_for_it_leaves_a_subscription_replicated() -> None:
    world = World(**SELDOM)
    await replicated(world, subType=pb.CommandSubscribe.Shared)
    subscription = world.harness.topic.subscriptions["s"]
    assert subscription.is_replicated
    await consuming(world.harness, subType=pb.CommandSubscribe.Shared)
    assert len(subscription.consumers) == 2
    assert subscription.is_replicated


async def test_a_topic_without_replicated_subscriptions_pays_nothing() -> None:
    world = World()
    await consuming(world.harness)
    rows = world.harness.topic.line
    await world.publish("a", "b")
    assert not world.feature.is_at_work
    assert world.feature.rows().listeners == ()
    assert (rows.checks, rows.gates) == ((), ())
    assert len(world.harness.log.entries[7]) == 2


async def test_a_topic_that_is_copied_nowhere_writes_no_markers() -> None:
    world = World()
    world.harness.policies.namespaces["public/default"] = NamespaceRecord()
    await replicated(world)
    await world.publish("a")
    assert world.harness.topic.subscriptions["s"].is_replicated
    assert not world.feature.is_at_work
    assert world.feature.rows().listeners == ()


async def test_a_subscription_is_replicated_once_a_consumer_has_asked_for_it() -> None:
    world = World()
    first = await consuming(world.harness)
    subscription = world.harness.topic.subscriptions["s"]
    assert not subscription.is_replicated
    first.connection.lost()
    second = await replicated(world)
    assert subscription.is_replicated
    second.connection.lost()
    await consuming(world.harness)
    assert subscription.is_replicated, "one that does not ask for it changes nothing"


@pytest.mark.parametrize(
    "fields", [{"durable": False}, {"topic": "non-persistent://public/default/t"}]
)
async def test_what_keeps_no_place_is_not_replicated(fields: dict[str, Any]) -> None:
    world = World()
    await replicated(world, **fields)
    (topic,) = world.harness.topics.loaded
    assert not topic.subscriptions["s"].is_replicated


async def test_a_broker_may_replicate_none() -> None:
    world = World(replicated_subscriptions_enabled=False)
    await replicated(world)
    assert not world.harness.topic.subscriptions["s"].is_replicated
    await world.copy_marker(Request("id", "west"))
    assert world.markers() == []


# Telling


async def test_what_was_there_before_the_subscription_was_replicated_gets_a_snapshot() -> None:
    world = World()
    await world.publish("a")
    await consuming(world.harness)
    assert world.markers() == []
    await world.harness.topic.subscriptions["s"].set_replicated(True)
    await until(lambda: world.last(Request) is not None)


async def test_a_topic_that_comes_to_be_copied_gets_a_snapshot() -> None:
    world = World()
    record = world.harness.policies.namespaces["public/default"]
    world.harness.policies.namespaces["public/default"] = NamespaceRecord()
    await replicated(world)
    await world.publish("a")
    world.harness.policies.namespaces["public/default"] = record
    world.harness.topics.apply_policies()
    assert world.feature.is_at_work
    await until(lambda: world.last(Request) is not None)


@pytest.mark.parametrize(
    "sub_type", [_TYPES.Exclusive, _TYPES.Failover, _TYPES.Shared, _TYPES.Key_Shared]
)
async def test_acknowledgements_become_an_update_that_consumers_do_not_see(sub_type: int) -> None:
    world = World()
    consumer = await replicated(world, subType=sub_type)
    await world.publish("a", "b")
    await until(lambda: world.last(Request) is not None)
    request = world.last(Request)
    assert (world.counts.snapshots_pending, request.cluster) == (1, HERE)
    await world.copy_marker(Response(request.snapshot_id, "west", Position(30, 5)))
    snapshot = world.last(Snapshot)
    assert snapshot == Snapshot(request.snapshot_id, Position(7, 3), {"west": Position(30, 5)})
    assert await delivered(consumer, 2) == [0, 1]
    consumer.ack(Position(7, 0))
    world.feature.look()
    await settle()
    assert world.last(Update) is None
    consumer.ack(Position(7, 1))
    await until(lambda: world.last(Update) is not None)
    assert world.last(Update) == Update("s", {"west": Position(30, 5)})
    await until(lambda: world.harness.topic.subscriptions["s"].cursor.backlog_entries == 0)
    assert delivered_to(consumer) == []
    assert world.counts.updates_sent == 1


async def test_a_cluster_that_is_connected_anew_is_told_again() -> None:
    """The owner there may have crashed before what it was told was stored."""
    world = World()
    consumer = await replicated(world)
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    consumer.ack(Position(7, 0))
    await until(lambda: world.last(Update) is not None)

    def updates() -> list[Marker]:
        return [each for each in world.markers() if isinstance(each, Update)]

    for session, count in ((1, 1), (0, 1), (2, 2), (2, 2)):
        world.harness.topics.sessions = {"west": session}
        world.feature.look()
        await until(lambda: world.feature._timer is None)
        await settle()
        assert len(updates()) == count
    assert set(map(str, updates())) == {str(Update("s", {"west": Position(30, 5)}))}


async def test_a_consumer_that_has_left_needs_not_pass_the_snapshot() -> None:
    world = World()
    consumer = await replicated(world)
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    consumer.ack(Position(7, 0))
    consumer.connection.lost()
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    await until(lambda: world.last(Update) is not None)
    assert world.last(Update) == Update("s", {"west": Position(30, 5)})


async def test_markers_of_before_the_load_are_passed_where_nobody_consumes() -> None:
    world = World()
    markers = [encode_marker(Request(f"old{n}", HERE), now_ms=1) for n in range(3)]
    world.harness.log.store(entry(b"a"), *markers)
    consumer = await replicated(world)
    consumer.ack(Position(7, 0))
    world.harness.topic.disconnect_all()
    world.harness.topics.cursors["s"] = NonDurableCursor(
        world.harness.log, "s", initial=Position(7, 1)
    )
    again = await replicated(world, subType=_TYPES.Shared)
    again.connection.lost()
    await until(lambda: world.last(Request).snapshot_id != "old2")
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    await until(lambda: world.last(Update) is not None)


async def test_a_hole_holds_the_update_back() -> None:
    world = World()
    consumer = await replicated(world, subType=_TYPES.Shared)
    await world.publish("a", "b", "c")
    await until(lambda: world.last(Request) is not None)
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    consumer.ack(Position(7, 0), Position(7, 2))
    world.feature.look()
    await settle()
    assert world.last(Update) is None
    consumer.ack(Position(7, 1))
    await until(lambda: world.last(Update) is not None)


async def test_snapshots_that_were_there_before_the_topic_was_loaded_count() -> None:
    """Dispatchers pass them once more, acknowledged though they are, and they are read."""
    world = World()
    there = Snapshot("old", Position(7, 0), {"west": Position(30, 5)})
    world.harness.log.store(
        entry(b"a"), encode_marker(there, goes_to=[HERE], now_ms=1), entry(b"b")
    )
    world.harness.topics.sessions = {"west": 0}
    consumer = await replicated(world, subType=_TYPES.Shared)
    assert await delivered(consumer, 2) == [0, 2]
    consumer.connection.lost()
    world.harness.topic.disconnect_all()
    again = await replicated(world, subType=_TYPES.Shared)
    assert await delivered(again, 2) == [0, 2]
    again.ack(Position(7, 0))
    await until(lambda: world.last(Update) is not None)
    assert world.last(Update) == Update("s", {"west": Position(30, 5)})


async def test_the_last_message_is_none_of_the_markers() -> None:
    """17.22: else a reader would wait for a message that never comes."""
    world = World()
    consumer = await replicated(world)
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    consumer.received()
    consumer.send(
        BaseCommand.GET_LAST_MESSAGE_ID,
        getLastMessageId=pb.CommandGetLastMessageId(consumer_id=0, request_id=1),
    )
    answer = await consumer.next(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    last = answer.getLastMessageIdResponse.last_message_id
    assert (last.ledgerId, last.entryId) == (7, 0)


async def test_a_topic_that_closes_has_no_snapshot_under_way() -> None:
    world = World()
    await replicated(world)
    await world.publish("a")
    await until(lambda: world.counts.snapshots_pending == 1)
    world.harness.topic.disconnect_all()
    assert world.counts.snapshots_pending == 0


async def lose_next_append(world: World) -> None:
    """Have the log fail what is appended next."""
    log = world.harness.log
    log.is_immediate = False
    await until(lambda: bool(log.waiting))
    log.fail(LogUnavailableError("no quorum"))
    log.is_immediate = True


async def test_a_request_that_is_not_stored_is_written_again() -> None:
    world = World()
    await replicated(world)
    world.harness.log.is_immediate = False
    await world.publish("a")
    world.harness.log.confirm()  # the message, not the request behind it
    await lose_next_append(world)
    await until(lambda: world.last(Request) is not None)
    assert world.counts.snapshots_pending == 1
    other = await consuming(world.harness, subscription="t")
    assert await delivered(other, 1) == [0]


async def test_a_snapshot_that_is_not_stored_is_taken_again() -> None:
    world = World()
    await replicated(world)
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    first = world.last(Request)
    world.harness.log.is_immediate = False
    copied = asyncio.create_task(
        world.copy_marker(Response(first.snapshot_id, "west", Position(30, 5)))
    )
    await until(lambda: bool(world.harness.log.waiting))
    world.harness.log.confirm()  # the response, not the snapshot behind it
    await lose_next_append(world)
    await copied
    await until(lambda: world.last(Request) != first)
    assert world.last(Snapshot) is None
    response = Response(world.last(Request).snapshot_id, "west", Position(30, 6))
    await world.copy_marker(response)
    assert world.last(Snapshot).positions == {"west": Position(30, 6)}


async def test_an_update_that_is_not_stored_is_written_again() -> None:
    world = World()
    consumer = await replicated(world)
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    assert await delivered(consumer, 1) == [0]
    consumer.ack(Position(7, 0))
    await lose_next_append(world)
    assert world.last(Update) is None
    await until(lambda: world.last(Update) is not None)
    assert world.last(Update) == Update("s", {"west": Position(30, 5)})


# Being told


async def test_a_request_is_answered_to_the_one_that_asked() -> None:
    world = World()
    await world.publish("a")
    await world.copy_marker(Request("id", "west"))
    assert world.last(Response) == Response("id", HERE, Position(7, 1))
    metadata, _ = split_payload(world.harness.log.entries[7][2])
    assert list(metadata.replicate_to) == ["west"]


async def test_news_of_another_cluster_get_a_snapshot_among_three() -> None:
    """West may have got a message of north's late, behind what it told for the last snapshot."""
    world = World()
    record = NamespaceRecord(replication_clusters=(HERE, "west", "north"))
    world.harness.policies.namespaces["public/default"] = record
    world.harness.topics.sessions = {"west": 1, "north": 1}
    await replicated(world)
    await settle()
    assert world.markers() == []
    await world.copy_marker(Request("id", "west"))
    await until(lambda: world.last(Request) is not None)
    assert world.last(Request).snapshot_id.endswith("-f"), "nobody follows it"


async def test_a_cluster_that_nothing_is_copied_to_is_not_answered() -> None:
    """17.23."""
    world = World()
    world.harness.topics.sessions = {"north": 1}
    await world.copy_marker(Request("id", "west"))
    assert world.markers() == []


async def test_an_update_moves_the_subscription_or_makes_it() -> None:
    world = World(**SELDOM)
    consumer = await replicated(world)
    await world.publish("a", "b", "c")
    assert await delivered(consumer, 3) == [0, 1, 2]
    await world.update(Position(7, 1))
    assert world.mark() == Position(7, 1)
    await world.update(Position(7, 0))
    assert world.mark() == Position(7, 1), "never back"
    await world.update(Position(7, 1), "other")
    assert world.mark("other") == Position(7, 1)
    assert world.harness.topic.subscriptions["other"].is_replicated
    assert world.counts.updates_applied == 2


async def test_who_told_us_is_not_told() -> None:
    world = World()
    await replicated(world, subscription="idle")
    await world.publish("a")
    await until(lambda: world.last(Request) is not None)
    await world.copy_marker(Response(world.last(Request).snapshot_id, "west", Position(30, 5)))
    await world.update(Position(7, 2), "idle")
    assert world.mark("idle") >= Position(7, 2)
    world.feature.look()
    await settle()
    assert world.last(Update) is None


async def test_a_subscription_that_is_not_replicated_is_left_alone() -> None:
    world = World(**SELDOM)
    await consuming(world.harness)
    await world.publish("a", "b")
    await world.update(Position(7, 1))
    assert world.mark() < Position(7, 0)
    assert world.counts.updates_refused == 1


async def test_what_the_other_cluster_does_not_have_is_not_acknowledged_for_it() -> None:
    """17.29."""
    world = World(**SELDOM)
    consumer = await replicated(world)
    await world.publish("a")
    await world.publish("local", replicate_to=["__local__"])
    await world.publish("b", "c")
    await world.update(Position(7, 3))
    assert world.mark() == Position(7, 0)
    consumer.ack(Position(7, 1))
    world.feature.look()
    await until(lambda: world.mark() >= Position(7, 3))


async def test_what_was_there_before_copying_began_is_not_acknowledged_for_it() -> None:
    world = World(**SELDOM)
    world.harness.topics.not_copied_through = Position(7, 1)
    consumer = await replicated(world)
    await world.publish("a", "b", "c")
    await world.update(Position(7, 2))
    assert world.mark() < Position(7, 0)
    consumer.ack(Position(7, 0), Position(7, 1))
    world.feature.look()
    await until(lambda: world.mark() >= Position(7, 2))


async def test_what_an_update_does_not_cover_is_not_known_to_be_copied() -> None:
    """An entry is read with what a first update covers, and then taken from what is copied."""
    world = World(**SELDOM)
    await replicated(world)
    await world.publish("a", "b", "c")
    await world.update(Position(7, 0))
    await until(lambda: world.mark() == Position(7, 0))
    world.harness.topics.not_copied_through = Position(7, 1)
    await world.update(Position(7, 2))
    assert world.mark() == Position(7, 0)


async def test_copies_of_a_cluster_that_does_not_copy_to_the_other_one_stay() -> None:
    """A ring: north copies to here, and not to west."""
    world = World(**SELDOM)
    await replicated(world)
    north = world.harness.client()
    await north.produce(producer_name=f"pulsar.repl.north-->{HERE}")
    source = pb.SourcePosition(incarnation=3, ledger_id=1, entry_id=0)
    copied = entry(b"x", replicated_from="north", magnetar_source=source)
    north.send_bytes(send_frame(0, 0, payload=copied))
    await settle()
    await world.publish("a")
    await world.update(Position(7, 1))
    assert world.mark() < Position(7, 0)
    await world.update(Position(7, 1), "s", "north")
    assert world.mark() >= Position(7, 1), "in a mesh it does"


async def test_an_update_that_a_crash_has_cut_off_is_carried_out_at_the_next_load() -> None:
    world = World(**SELDOM)
    await world.publish("a", "b")
    update = encode_marker(Update("s", {HERE: Position(7, 1)}), now_ms=1)
    await world.copy(entry(b"c"))
    metadata, body_at = split_payload(update)
    metadata.replicated_from = "west"
    fields = {field.name: value for field, value in metadata.ListFields()}
    world.harness.topic.disconnect_all()
    world.harness.log.store(entry(update[body_at:], **fields))
    await world.harness.client().produce()
    await until(world.is_open)
    await until(lambda: world.mark() == Position(7, 1))


async def test_reading_that_fails_is_tried_again() -> None:
    world = World(**SELDOM)
    await replicated(world)
    await world.publish("a", "b")
    world.harness.log.read_error = LogUnavailableError("no bookies")
    await world.update(Position(7, 1))
    assert world.mark() < Position(7, 0)
    world.harness.log.read_error = None
    world.feature.look()
    await until(lambda: world.mark() >= Position(7, 1))


# What makes no sense


@pytest.mark.parametrize(
    ("payload", "malformed", "unknown"),
    [
        (entry(b"nonsense", marker_type=10), 1, 0),
        (entry(b"", marker_type=13), 1, 0),
        (entry(b"whatever", marker_type=14), 0, 1),
        (entry(b"whatever", marker_type=99), 0, 1),
        (encode_marker(Update("s", {HERE: Position(7, 999)}), now_ms=1), 1, 0),
        (encode_marker(Update("pulsar.dedup", {HERE: Position(7, 0)}), now_ms=1), 1, 0),
        (encode_marker(Update("s", {"north": Position(7, 0)}), now_ms=1), 0, 0),
        (encode_marker(Response("id", "west", Position(1, 1)), now_ms=1), 0, 0),
        (encode_marker(Snapshot("id", Position(1, 1), {"a": Position(1, 1)}), now_ms=1), 0, 0),
    ],
)
async def test_a_marker_that_makes_no_sense_is_counted_and_harms_nobody(
    payload: bytes, malformed: int, unknown: int
) -> None:
    world = World(**SELDOM)
    consumer = await replicated(world)
    await world.publish("a")
    (answer,) = await world.copy(payload)
    assert answer.type == BaseCommand.SEND_RECEIPT
    (answer,) = await world.copy(entry(b"b"))
    assert answer.type == BaseCommand.SEND_RECEIPT
    assert world.counts.markers_malformed == malformed
    assert world.counts.markers_unknown == unknown
    assert await delivered(consumer, 2) == [0, 2]
    assert world.mark() < Position(7, 0)


@pytest.mark.parametrize("marker_type", [20, 21, 22])
async def test_ends_of_transactions_of_another_cluster_are_refused(marker_type: int) -> None:
    """17.18."""
    world = World()
    answers = await world.copy(entry(b"", marker_type=marker_type))
    assert answers[0].send_error.error == pb.NotAllowedError
    assert world.harness.log.entries[7] == []


@pytest.mark.parametrize("marker_type", [10, 13, 21, 99])
async def test_clients_may_not_write_markers(marker_type: int) -> None:
    """Rule 15.2: brokers obey them."""
    world = World()
    client = world.harness.client()
    await client.produce()
    client.send_bytes(send_frame(0, 0, payload=entry(b"", marker_type=marker_type)))
    assert (await client.next()).send_error.error == pb.NotAllowedError


async def test_markers_pass_the_transactions_of_a_topic() -> None:
    """17.18."""
    world = World()
    world.harness.topics.has_transactions = True
    (answer,) = await world.copy_marker(Request("id", "west"))
    assert answer.type == BaseCommand.SEND_RECEIPT
    assert world.last(Response) is not None


async def test_a_marker_that_comes_again_is_obeyed_once() -> None:
    world = World()
    await world.copy_marker(Request("id", "west"))
    world.copies -= 1
    (answer,) = await world.copy_marker(Request("id", "west"))
    assert answer.type == BaseCommand.SEND_RECEIPT
    assert len(world.markers()) == 1


async def test_an_answer_that_could_not_be_written_is_written_at_the_next_look() -> None:
    """The cluster that asks would wait for its timeout, and longer before it asks again."""
    world = World()
    await world.publish("a")
    log = world.harness.log
    await world.copy(entry(b"b"))  # west is connected
    log.is_immediate = False
    answers = world.copy_marker(Request("id", "west"))
    asking = asyncio.ensure_future(answers)
    await settle()
    log.confirm()
    await asking
    log.fail(LogUnavailableError("the bookies are away"))
    await settle()
    assert world.last(Response) is None
    log.is_immediate = True
    await until(lambda: world.last(Response) is not None)
    assert world.last(Response) == Response("id", HERE, Position(7, 2))
    assert not world.feature.is_at_work
