"""A topic by itself: on a log in memory, with peers that remember what they are sent.

No connection, no authorization, no coordinators: what a topic and its dispatchers stand on, and
nothing else.
"""

from collections.abc import Sequence

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.policies.model import DEFAULTS, Policies
from magnetar.broker.topic import Feature, PublishBatch, Topic
from magnetar.broker.topic.access import SHARED_ACCESS
from magnetar.broker.topic.consumer import SHARED, Consumer
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import (
    FRAME_BYTES_MAX,
    BaseCommand,
    FrameDecoder,
    MessageMetadata,
    encode_payload,
    parse_topic_name,
)
from tests.unit.broker.memory_log import HeldTenure, ManualClock, MemoryLog

SETTINGS = BrokerSettings(
    seek_return_timeout_ms=1_000,
    producers_waiting_per_topic_max=10,
    dispatch_bytes_max=1 << 20,
    failover_delay_ms=0,
    chunked_messages_max=10,
    key_shared_consistent_hashing=False,
    look_ahead_per_consumer_max=1_000,
    look_ahead_per_subscription_max=1_000,
    look_ahead_bytes_max=1 << 20,
    look_ahead_patience_ms=10,
    read_ahead_entries=100,
    read_retry_ms=1,
    read_retry_ms_max=10,
)


class MemoryPeer:
    """A client's connection, as a topic sees it."""

    protocol_version = 20
    takes_entry_metadata = False
    client_version = "test"
    role = ""
    is_partial_producer = False
    heard_ms = 0
    is_writable = True

    def __init__(self, address: str = "client:1") -> None:
        self.address = address
        self.done: list[PublishBatch] = []
        self.closed: list[Producer] = []
        self._decoder = FrameDecoder(FRAME_BYTES_MAX + 1024)
        self._commands: list[BaseCommand] = []

    def write(self, data: bytes) -> None:
        self._commands.extend(command for command, _ in self._decoder.feed(data))

    is_closed = False

    async def is_alive(self) -> bool:
        return True

    def on_publishes_done(self, batch: PublishBatch) -> None:
        self.done.append(batch)

    def producer_leaves(self, producer: Producer) -> None:
        """Do nothing: a test publishes by the producer itself."""

    def producer_closed(self, producer: Producer, destination: Destination | None) -> None:
        self.closed.append(producer)

    def commands(self) -> list[BaseCommand]:
        """What was written since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def delivered(self) -> list[int]:
        """The entry ids of the messages that were written since the last call."""
        kind = BaseCommand.MESSAGE
        return [each.message.message_id.entryId for each in self.commands() if each.type == kind]


class Alone:
    """One topic, with what features a test gives it."""

    def __init__(self, *features: Feature, policies: Policies = DEFAULTS) -> None:
        self.log = MemoryLog()
        self.tenure = HeldTenure()
        self.topic = Topic(
            parse_topic_name("persistent://public/default/topic"),
            self.log,
            TailCache(TailCachePool(1 << 20)),
            SETTINGS,
            self.tenure,
            policies,
            clock=ManualClock(),
        )
        self.topic.host(*features)
        self._consumers = 0

    async def produce(self, peer: MemoryPeer, name: str = "p") -> Producer:
        return await self.topic.access.join(peer, 0, name=name, epoch=0, access=SHARED_ACCESS)

    async def subscribe(
        self, peer: MemoryPeer, *, permits: int = 0, sub_type: int = SHARED, priority: int = 0
    ) -> tuple[Subscription, Consumer]:
        """A consumer of the subscription `s`, which begins with the first entry."""
        self._consumers += 1
        consumer = Consumer(
            peer,
            self._consumers,
            name=f"c{self._consumers}",
            sub_type=sub_type,
            priority=priority,
        )

        async def open_cursor() -> NonDurableCursor:
            return NonDurableCursor(self.log, "s", initial=EARLIEST)

        subscription = await self.topic.subscriptions.join(
            "s", consumer, is_durable=False, open_cursor=open_cursor
        )
        if permits:
            subscription.flow(consumer, permits)
        return subscription, consumer


def publish(producer: Producer, *sequence_ids: int) -> PublishBatch:
    """Messages of one read, which is what a connection makes of their SENDs."""
    batch = PublishBatch(producer.producer_id, producer.name, producer.checks, producer)
    for sequence_id in sequence_ids:
        metadata = MessageMetadata(
            producer_name=producer.name, sequence_id=sequence_id, publish_time=1
        )
        payload = encode_payload(metadata.SerializeToString(), b"body")
        batch.payloads.append(payload)
        batch.counts.append(1)
        batch.sequence_ids.append(sequence_id)
        batch.highest_ids.append(0)
        batch.messages += 1
        batch.size_bytes += len(payload)
    producer.publish(batch)
    return batch


def at(*entry_ids: int) -> Sequence[Position]:
    return [Position(7, each) for each in entry_ids]
