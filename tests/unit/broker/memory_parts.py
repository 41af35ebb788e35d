"""What the broker's core stands on, in memory: cursors, policies and the registry of topics.

A topic by itself needs less: `memory_log.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeVar, cast

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NamespaceNotFoundError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.partitions import PartitionedTopicRecord
from magnetar.broker.features.deduplication import Deduplication, NoDeduplication
from magnetar.broker.features.delayed.bucket_ledgers import StoredBucket
from magnetar.broker.features.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.features.message_index import MessageIndex
from magnetar.broker.features.replication import (
    Receiving,
    ReceivingSurroundings,
    ReplicatedSubscriptions,
    SubscriptionCounts,
)
from magnetar.broker.features.replication.subscriptions import ReplicatedSubscriptionsSurroundings
from magnetar.broker.features.retention.expiry import advance
from magnetar.broker.features.tracing import Spans, TopicTrace
from magnetar.broker.features.transactions.topic_log import TopicTransactionLog
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.policies.model import NamespaceRecord, Policies
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.policies.table import effective, policies_of_broker
from magnetar.broker.topic import Feature, Topic
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.broker.topics import Topics
from magnetar.broker.topics.creation import TopicCreation
from magnetar.broker.topics.non_persistent import NonPersistentTopic, VolatileLog
from magnetar.cursors import NonDurableCursor, SubscriptionCursor
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import (
    TopicName,
)
from tests.unit.broker.memory_log import HeldTenure, MemoryLog

F = TypeVar("F", bound=Feature)

TOPIC = "persistent://public/default/topic"


class MemorySnapshot:
    """The cursor of a deduplication: saves at once, unless `is_saving`."""

    def __init__(self, log: MemoryLog) -> None:
        self.mark_delete = log.last_confirmed
        self.persisted_mark_delete = self.mark_delete
        self.position_properties: Mapping[str, int] = {}
        self.is_saving = False
        self.saves = 0

    def ack_cumulative(self, position: Position) -> bool:
        self.mark_delete = position
        self.saves += 1
        if not self.is_saving:
            self.persisted_mark_delete = position
        return True

    def set_position_properties(self, properties: Mapping[str, int]) -> None:
        self.position_properties = dict(properties)


class MemoryBuckets:
    """Buckets of an index of delayed messages, in memory; they outlive the topic."""

    def __init__(self) -> None:
        self.ledgers: dict[int, list[bytes]] = {}
        self.named: list[StoredBucket] = []
        self.reads = 0
        self.error: LedgerError | None = None
        """Raised by everything that is stored or read."""
        self.broken: dict[int, Exception] = {}
        """Raised by reads of a ledger."""
        self.read_gates: dict[int, asyncio.Event] = {}
        """Reads of a ledger wait for its event."""
        self._made = 1000

    def stored(self) -> Sequence[StoredBucket]:
        return self.named

    async def write(self, segments: Sequence[bytes], _policies: Policies) -> int:
        await self._pause()
        self._made += 1
        self.ledgers[self._made] = list(segments)
        return self._made

    async def name(self, buckets: Sequence[StoredBucket]) -> None:
        await self._pause()
        self.named = list(buckets)

    async def read(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        await self._pause()
        self.reads += 1
        if ledger_id in self.read_gates:
            await self.read_gates[ledger_id].wait()
        if ledger_id in self.broken:
            raise self.broken[ledger_id]
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError(f"there is no ledger {ledger_id}")
        return self.ledgers[ledger_id][first : last + 1]

    async def delete(self, ledger_id: int) -> None:
        await self._pause()
        del self.ledgers[ledger_id]

    async def _pause(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


class MemoryPolicies:
    """Policies in memory. Set `namespaces` and `topics`, then `apply` them to loaded topics."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.defaults = policies_of_broker(settings)
        self.namespaces = {name: NamespaceRecord() for name in settings.namespaces}
        self.topics: dict[TopicName, Policies] = {}
        self.unreadable: set[str] = set()
        """Namespaces whose records cannot be read."""

    async def check_namespace(
        self, namespace: str, *, may_be_deleted: bool = False
    ) -> NamespaceRecord:
        if namespace in self.unreadable:
            raise BrokerMetadataError(f"{namespace} cannot be read")
        if namespace not in self.namespaces:
            raise NamespaceNotFoundError(f"namespace {namespace} does not exist")
        return self.namespaces[namespace]

    async def have_namespace(self, namespace: str) -> None:
        self.namespaces.setdefault(namespace, NamespaceRecord())

    async def of(self, topic: TopicName) -> Policies:
        await self.check_namespace(topic.namespace_name)
        return self.known(topic)

    async def of_namespace(self, namespace: str) -> Policies:
        return effective(self.defaults, await self.check_namespace(namespace))

    def known(self, topic: TopicName) -> Policies:
        record = self.namespaces.get(topic.namespace_name)
        return effective(self.defaults, record, self.topics.get(topic.partitioned))


class MemoryPartitioned:
    """Partitioned topics in memory: set `records`."""

    def __init__(self) -> None:
        self.records: dict[TopicName, PartitionedTopicRecord] = {}

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> PartitionedTopicRecord | None:
        return self.records.get(topic)

    async def is_partition(self, topic: TopicName) -> bool:
        record = self.records.get(topic.partitioned)
        if topic.partition_index < 0 or record is None:
            return False
        if topic.partition_index >= record.partitions:
            raise NotAllowedError(f"{topic} has {record.partitions} partitions")
        return True

    async def ensure(self, topic: TopicName, partitions: int) -> PartitionedTopicRecord:
        return self.records.setdefault(topic, PartitionedTopicRecord(partitions=partitions))

    async def create_log(
        self, _topic: TopicName, _properties: Mapping[str, str] | None = None
    ) -> bool:
        return True


class MemoryTransactionLog(MemoryLog):
    """The log beside a topic's own, which keeps what its transactions need."""

    async def shrink(self, before: Position) -> int:
        return await self.unlist(before)

    def on_fenced(self, callback: object) -> None:
        """Never."""


def memory_transactions(
    topic: Topic,
    beside: MemoryTransactionLog,
    clock: Clock,
    *cursors: str,
    settings: BrokerSettings | None = None,
) -> TopicTransactions:
    """The transactions of a topic whose stored cursors have these names."""

    async def open_log() -> TopicTransactionLog:
        return TopicTransactionLog(cast(ManagedLog, beside), part_bytes_max=1 << 20)

    async def cursor_names() -> Sequence[str]:
        return cursors

    settings = settings or BrokerSettings()
    return TopicTransactions(
        topic, open_log, settings, clock, cursor_names=cursor_names, begun=topic.line.update
    )


def feature_of(topic: Topic, kind: type[F]) -> F:
    """A feature that a topic has."""
    found = topic.find(kind)
    assert found is not None
    return found


class MemoryTopics:
    """A registry of topics on memory logs; cursors keep their acknowledgements in memory."""

    def __init__(self, settings: BrokerSettings, policies: MemoryPolicies) -> None:
        self._settings = settings
        self._policies = policies
        self._topics: dict[TopicName, Topic] = {}
        self.logs: dict[str, MemoryLog] = {}
        self.cursors: dict[str, SubscriptionCursor] = {}
        self.snapshots: dict[str, MemorySnapshot] = {}
        self.marks: dict[str, MemorySnapshot] = {}
        """Cursors of what is known of copies from other clusters."""
        self.sessions: dict[str, int] = {}
        """Connections to the clusters that topics are copied to; see `Replication.sessions`."""
        self.takes_acks = False
        """Whether one of them takes single acknowledgements."""
        self.not_copied_through = EARLIEST
        """The last entry before those that are copied to other clusters."""
        self.subscription_counts = SubscriptionCounts()
        self.buckets: dict[str, MemoryBuckets] = {}
        self.given_up_buckets: set[int] = set()
        self.transaction_logs: dict[str, MemoryTransactionLog] = {}
        self.has_transactions = False
        """Whether topics that are loaded from now on can take part in transactions."""
        self.spans: Spans | None = None
        """Keeps the traces of messages of topics that are loaded from now on."""
        self.clock: Clock = SystemClock()
        self.gate: asyncio.Event | None = None
        self.tenure = HeldTenure()
        self.is_unavailable = False
        self.pool = TailCachePool(settings.tail_cache_bytes_max)
        self.check_namespace = Topics.check_namespace.__get__(self)
        self.partitioned = MemoryPartitioned()
        self.creation = TopicCreation(
            cast(PolicyRegistry, policies),
            exists=self.exists,
            names=self.names,
            partitioned=self.partitioned,
        )

    @property
    def loaded(self) -> Sequence[Topic]:
        return list(self._topics.values())

    def served(self, name: TopicName) -> Topic | None:
        return self._topics.get(name)

    async def exists(self, name: TopicName) -> bool:
        return name in self._topics

    async def names(self, namespace: str) -> list[str]:
        await self.check_namespace(namespace)
        return sorted(str(name) for name in self._topics if name.namespace_name == namespace)

    async def non_persistent_names(self, namespace: str) -> list[str]:
        await self.check_namespace(namespace)
        return []

    async def get(self, name: TopicName, *, may_create: bool = True) -> Topic:
        await self.check_namespace(name.namespace_name)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_unavailable:
            raise ServiceNotReadyError("the bookies are away")
        topic = self._topics.get(name)
        if topic is not None and not topic.is_closed:
            return topic
        if topic is None:
            await self.creation.check(name, may_create=may_create)
        if not name.is_persistent:
            known = self._policies.known(name)
            log, cache = VolatileLog(str(name)), TailCache(self.pool)
            topic = NonPersistentTopic(
                name, log, cache, self._settings, self.tenure, known, clock=self.clock
            )
            self._topics[name] = topic
            return topic
        return await self._load(name)

    async def _load(self, name: TopicName) -> Topic:
        log = self.logs.setdefault(str(name), MemoryLog())
        topic = Topic(
            name,
            log,
            TailCache(self.pool),
            self._settings,
            self.tenure,
            self._policies.known(name),
            clock=self.clock,
        )
        topic.host(*self._features_of(topic))
        for feature in topic.features:
            await feature.restore()
        self._topics[name] = topic
        return topic

    def _features_of(self, topic: Topic) -> list[Feature]:
        """In the order of `TopicOpener`."""
        name, settings = str(topic.name), self._settings
        buckets = self.buckets.setdefault(name, MemoryBuckets())
        given_up = self.given_up_buckets
        features: list[Feature] = [DelayedDelivery(topic, buckets, settings, self.clock, given_up)]
        if self.has_transactions:
            beside = self.transaction_logs.setdefault(name, MemoryTransactionLog(100))
            features.append(memory_transactions(topic, beside, self.clock, settings=settings))
        replicated = self._replicated_subscriptions_of(topic)
        features.append(self._receiving_of(topic, replicated))
        features.append(self._deduplication_of(topic))
        features.append(replicated)
        if self.spans is not None:
            features.append(TopicTrace(name, self.spans, messages_max=100))
        features.append(
            MessageIndex(
                topic,
                clock=self.clock,
                subscriptions=topic.subscriptions,
                cache=topic.tail.cache,
                may_be_on=True,
                changed=topic.line.update,
            )
        )
        return features

    def _deduplication_of(self, topic: Topic) -> Deduplication | NoDeduplication:
        async def open_cursor() -> MemorySnapshot:
            log = self.logs[str(topic.name)]
            return self.snapshots.setdefault(str(topic.name), MemorySnapshot(log))

        async def remove_cursor() -> None:
            """There is none."""

        if not topic.policies.deduplication:
            return NoDeduplication(topic, remove_cursor)
        return Deduplication(
            topic,
            open_cursor,
            self._settings,
            connected=topic.producers,
            clock=SystemClock(),
        )

    def _replicated_subscriptions_of(self, topic: Topic) -> ReplicatedSubscriptions:
        async def create(name: str) -> None:
            open_cursor = partial(self.open_cursor, topic, self.logs[str(topic.name)], name)
            await topic.subscriptions.ensure(name, partial(open_cursor, EARLIEST, {}))
            await topic.subscriptions[name].set_replicated(True)

        return ReplicatedSubscriptions(
            topic,
            ReplicatedSubscriptionsSurroundings(
                self._settings.cluster_name,
                self.clock,
                Random(1),
                self._settings,
                self.subscription_counts,
            ),
            sessions=lambda: self.sessions,
            takes_acks=lambda: self.takes_acks,
            incarnation=lambda: 5,
            is_copied=lambda _, position: position > self.not_copied_through,
            create=create,
            advance=advance,
            changed=topic.line.update,
        )

    def _receiving_of(self, topic: Topic, replicated: ReplicatedSubscriptions) -> Receiving:
        name, settings = str(topic.name), self._settings

        async def is_stored() -> bool:
            return name in self.marks

        async def open_cursor() -> MemorySnapshot:
            return self.marks.setdefault(name, MemorySnapshot(self.logs[name]))

        return Receiving(
            topic,
            ReceivingSurroundings(
                settings.cluster_name,
                SystemClock(),
                settings.read_ahead_entries,
                settings.read_ahead_bytes,
            ),
            is_stored=is_stored,
            open_cursor=open_cursor,
            begun=topic.line.update,
            markers=replicated,
        )

    def unload(self) -> None:
        """Drop all topics as a crash would: the next request loads a topic again."""
        self._topics.clear()

    def apply_policies(self) -> None:
        """The policies of the tests count for the loaded topics from now on."""
        for topic in self._topics.values():
            topic.apply_policies(self._policies.known(topic.name))

    def attach_coordinators(self, attach: object) -> None:
        """None of its topics is the place of one."""

    def log_of(self, topic: Topic) -> MemoryLog:
        return self.logs[str(topic.name)]

    async def open_cursor(
        self,
        topic: Topic,
        log: MemoryLog,
        subscription: str,
        initial: Position,
        properties: dict[str, str],
    ) -> SubscriptionCursor:
        cursor = self.cursors.get(subscription)
        if cursor is None:
            cursor = NonDurableCursor(log, subscription, initial=initial)
            self.cursors[subscription] = cursor
        return cursor

    def topic(self, name: str = TOPIC) -> Topic:
        return next(topic for topic in self._topics.values() if str(topic.name) == name)
