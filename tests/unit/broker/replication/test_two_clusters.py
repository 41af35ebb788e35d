"""Replicated subscriptions of two clusters, whose topics are in memory: the test copies entries."""

from magnetar.broker.features.replication import ReplicatedSubscriptions
from magnetar.broker.features.replication.copies import as_copy, goes_to
from magnetar.broker.features.replication.names import replicator_name
from magnetar.broker.features.replication.source_marks import START, CopyPlace, Source
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, split_payload
from tests.unit.broker.harness import Client, Harness, consuming, entry, position_in, send_frame
from tests.unit.broker.memory_parts import feature_of
from tests.waiting import settle, until


class Side:
    """One cluster, and what copies its topic to the other one."""

    def __init__(self, name: str, other: str) -> None:
        self.name = name
        self.harness = Harness(cluster_name=name, replicated_subscriptions_snapshot_interval_ms=10)
        record = NamespaceRecord(replication_clusters=(name, other))
        self.harness.policies.namespaces["public/default"] = record
        self.harness.topics.sessions = {other: 1}
        self.copied = 0
        self.previous = START
        self.producer: Client | None = None

    async def publish(self, *bodies: str) -> None:
        client = self.harness.client()
        await client.produce()
        for at, body in enumerate(bodies):
            client.send_bytes(send_frame(0, at, payload=entry(body.encode(), sequence_id=at)))
        await settle()

    async def copy_to(self, other: "Side") -> None:
        if self.producer is None:
            self.producer = other.harness.client()
            answer = await self.producer.produce(
                producer_name=replicator_name(self.name, other.name)
            )
            assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        entries = self.harness.log.entries[7]
        while self.copied < len(entries):
            payload, position = entries[self.copied], Position(7, self.copied)
            self.copied += 1
            metadata, _ = split_payload(payload)
            if goes_to(other.name, metadata):
                place = CopyPlace(position, self.previous)
                copy = as_copy(payload, metadata, Source(self.name, 5), place, schema=b"")
                self.producer.send_bytes(send_frame(0, 0, payload=copy))
                self.previous = position
        await settle()

    def open_bodies(self) -> list[str]:
        """Messages that the subscription has not acknowledged."""
        cursor = self.harness.topic.subscriptions["s"].cursor
        found: list[str] = []
        for at, payload in enumerate(self.harness.log.entries[7]):
            metadata, body_at = split_payload(payload)
            if not metadata.HasField("marker_type") and not cursor.is_acked(Position(7, at)):
                found.append(payload[body_at:].decode())
        return found


class Clusters:
    """East and west."""

    def __init__(self) -> None:
        self.east = Side("east", "west")
        self.west = Side("west", "east")

    async def exchange(self) -> None:
        await self.east.copy_to(self.west)
        await self.west.copy_to(self.east)

    async def until_told(self, side: Side, *bodies: str) -> None:
        """Copy until the subscription of a side has these messages left."""

        async def is_so() -> bool:
            await self.exchange()
            return "s" in side.harness.topic.subscriptions and side.open_bodies() == list(bodies)

        await until(is_so)


async def consumer_of(side: Side) -> Client:
    return await consuming(side.harness, replicate_subscription_state=True)


async def take(consumer: Client, *bodies: str) -> None:
    """Receive these messages, and acknowledge them."""
    for body in bodies:
        ((message, payload),) = await consumer.messages(1)
        _, body_at = split_payload(payload)
        assert payload[body_at:].decode() == body
        consumer.ack(position_in(message))


async def test_a_consumer_moves_and_comes_back() -> None:
    clusters = Clusters()
    east, west = clusters.east, clusters.west
    consumer = await consumer_of(east)
    await east.publish("a", "b")
    await take(consumer, "a", "b")
    await clusters.until_told(west)
    await west.publish("c")
    consumer.connection.lost()
    consumer = await consumer_of(west)
    await take(consumer, "c")
    await east.publish("d")
    await clusters.exchange()
    await take(consumer, "d")
    await clusters.until_told(east)
    consumer.connection.lost()
    consumer = await consumer_of(east)
    await west.publish("e")
    await clusters.exchange()
    await take(consumer, "e")
    await clusters.until_told(west)


async def test_when_nothing_is_new_no_more_markers_are_written() -> None:
    """GL2: neither side's markers are news to the other."""
    clusters = Clusters()
    consumer = await consumer_of(clusters.east)
    await consumer_of(clusters.west)
    await clusters.east.publish("a")
    await take(consumer, "a")
    await clusters.until_told(clusters.west)
    lengths: list[int] = []

    async def is_quiet() -> bool:
        for side in (clusters.east, clusters.west):
            feature_of(side.harness.topic, ReplicatedSubscriptions).look()
        await clusters.exchange()
        sides = (clusters.east, clusters.west)
        lengths.append(sum(len(side.harness.log.entries[7]) for side in sides))
        return len(lengths) > 20 and len(set(lengths[-20:])) == 1

    await until(is_quiet)
    assert lengths[-1] < 40
