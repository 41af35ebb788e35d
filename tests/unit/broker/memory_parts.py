"""What the broker's core stands on, in memory: logs, cursors, policies and the registry of topics.

`MemoryLog` stands for a managed log and confirms what was appended when the test says so.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast

from magnetar.broker.creation import TopicCreation
from magnetar.broker.deduplication import restore
from magnetar.broker.delayed.bucket_list import StoredBucket
from magnetar.broker.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.errors import (
    BrokerMetadataError,
    NamespaceNotFoundError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.non_persistent import NonPersistentTopic, VolatileLog
from magnetar.broker.partitions import PartitionedTopicRecord
from magnetar.broker.policies.effective import EffectivePolicies, effective
from magnetar.broker.policies.model import NamespaceRecord, PolicySet
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.policies.settings import default_policies
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.tail_cache import TailCache, TailCachePool
from magnetar.broker.topic import Topic, TopicLimits
from magnetar.broker.topic_config import (
    deduplication_limits,
    delayed_limits,
    topic_limits,
    transaction_limits,
)
from magnetar.broker.topics import Topics
from magnetar.broker.tracing import Spans, TopicTrace
from magnetar.broker.transactions.topic_log import TopicTransactionLog
from magnetar.broker.transactions.topic_transactions import TopicTransactions
from magnetar.cursors import NonDurableCursor, SubscriptionCursor
from magnetar.ledger.errors import LedgerError, LogError, LogTerminatedError
from magnetar.ledger.log import AppendBatch, ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_retention import Retention, trim_point
from magnetar.ledger.managed_log.log_shape import LogShape
from magnetar.ledger.managed_log.log_stored_times import stored_since_ms
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import (
    TopicName,
)

TOPIC = "persistent://public/default/topic"


class MemoryLog:
    """A log in memory. Appends wait until `confirm`, unless `is_immediate`."""

    def __init__(self, first_ledger_id: int = 7) -> None:
        self.is_immediate = True
        self.now_ms = 1_000_000
        self.entries: dict[int, list[bytes]] = {first_ledger_id: []}
        self.closed_ms: dict[int, int] = {}
        """When ledgers were closed, if not in 1970."""
        self.created_ms: dict[int, int] = {}
        """When ledgers were created, if that is known."""
        self.wall_ms = 1 << 62
        """Now, by the clock of the log's owner: no time above lies in the future."""
        self.waiting: deque[AppendBatch] = deque()
        self.reads: list[Position] = []
        self.read_error: LogError | None = None
        self.read_gate: asyncio.Event | None = None
        self.properties: dict[str, str] = {}
        self.properties_gate: asyncio.Event | None = None
        self.properties_error: Exception | None = None
        self.terminated: Position | None = None
        self._shape = LogShape([(first_ledger_id, 0)])

    # What a topic needs

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        if self.properties_gate is not None:
            await self.properties_gate.wait()
        if self.properties_error is not None:
            raise self.properties_error
        for name, value in changes.items():
            self.properties.pop(name, None)
            if value is not None:
                self.properties[name] = value

    def append(self, batch: AppendBatch) -> None:
        if self.terminated is not None:
            error = LogTerminatedError("the log was terminated")
            asyncio.get_running_loop().call_soon(batch.on_failed, error)
            return
        self.waiting.append(batch)
        if self.is_immediate:
            asyncio.get_running_loop().call_soon(self.confirm)

    @property
    def last_confirmed(self) -> Position:
        return self._shape.last_confirmed

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        last = next(reversed(self.entries))
        return [
            LogLedger(
                ledger_id,
                entries=len(entries),
                bytes=sum(map(len, entries)),
                closed_ms=0 if ledger_id == last else self.closed_ms.get(ledger_id, 1),
            )
            for ledger_id, entries in self.entries.items()
        ]

    def first_position(self) -> Position:
        return self._shape.first_at_or_after(Position(-1, -1))

    def previous_position(self, position: Position) -> Position:
        return Position(position.ledger_id, position.entry_id - 1)

    def next_position(self, position: Position) -> Position:
        return self._shape.next_position(position)

    def entries_between(self, lower: Position, upper: Position) -> int:
        return self._shape.entries_between(lower, upper)

    def stored_since_ms(self, position: Position) -> int:
        known_ms = [self.created_ms.get(position.ledger_id, 0)]
        return stored_since_ms(self.ledgers, position, known_ms, now_ms=self.wall_ms)

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        self.reads.append(start)
        if self.read_gate is not None:
            await self.read_gate.wait()
        if self.read_error is not None:
            raise self.read_error
        first = self._shape.first_at_or_after(start)
        if first > self.last_confirmed:
            return first, []
        found: list[bytes] = []
        for at in range(first.entry_id, len(self.entries[first.ledger_id])):
            if found and (bytes_max <= 0 or len(found) >= entries_max):
                break
            payload = self.entries[first.ledger_id][at]
            found.append(payload)
            bytes_max -= len(payload)
        return first, found

    async def rotate(self) -> None:
        self.roll(next(reversed(self.entries)) + 1)

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None:
        return trim_point(
            self.ledgers, consumed, retention, now_ms=self.now_ms, truncates=truncates
        )

    async def unlist(self, before: Position) -> int:
        gone = [each for each in self.entries if each < before.ledger_id]
        for _ in gone:
            self.trim()
        return len(gone)

    async def delete_unlisted(self) -> None:
        return None

    leftover_ledgers = 0

    async def terminate(self) -> Position:
        self.terminated = self.last_confirmed
        return self.terminated

    # What a test does

    def confirm(self, count: int | None = None) -> None:
        """Make the oldest waiting batches durable."""
        for _ in range(len(self.waiting) if count is None else count):
            batch = self.waiting.popleft()
            ledger_id = next(reversed(self.entries))
            entries = self.entries[ledger_id]
            first = len(entries)
            entries.extend(batch.payloads)
            self._shape.grow(len(entries))
            batch.on_appended(ledger_id, first)

    def fail(self, error: LogError) -> None:
        """Fail everything that waits."""
        while self.waiting:
            self.waiting.popleft().on_failed(error)

    def store(self, *payloads: bytes) -> None:
        """Entries that were there before."""
        self.entries[next(reversed(self.entries))].extend(payloads)
        self._rebuild()

    def roll(self, ledger_id: int) -> None:
        """Go on in a new ledger."""
        self.entries[ledger_id] = []
        self._rebuild()

    def trim(self) -> None:
        """Take the oldest ledger away."""
        del self.entries[next(iter(self.entries))]
        self._rebuild()

    def _rebuild(self) -> None:
        self._shape = LogShape([(each, len(entries)) for each, entries in self.entries.items()])


class HeldTenure:
    """A tenure that ends when the test says so."""

    def __init__(self) -> None:
        self.is_held = True

    def holds(self) -> bool:
        return self.is_held


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
        self._made = 1000

    def stored(self) -> Sequence[StoredBucket]:
        return self.named

    async def write(self, segments: Sequence[bytes], _policies: EffectivePolicies) -> int:
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
        return self.ledgers[ledger_id][first : last + 1]

    async def delete(self, ledger_id: int) -> None:
        await self._pause()
        del self.ledgers[ledger_id]

    async def _pause(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


class ManualClock:
    """Time that tests move. The wall clock may jump."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000_000
        self.steady_s = 0.0

    def monotonic_s(self) -> float:
        return self.steady_s

    def boot_s(self) -> float:
        return self.steady_s

    def wall_ms(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.steady_s += milliseconds / 1000


class MemoryPolicies:
    """Policies in memory. Set `namespaces` and `topics`, then `apply` them to loaded topics."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.defaults = default_policies(settings)
        self.namespaces = {name: NamespaceRecord() for name in settings.namespaces}
        self.topics: dict[TopicName, PolicySet] = {}
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

    async def of(self, topic: TopicName) -> EffectivePolicies:
        await self.check_namespace(topic.namespace_name)
        return self.known(topic)

    async def of_namespace(self, namespace: str) -> EffectivePolicies:
        return effective(self.defaults, await self.check_namespace(namespace))

    def known(self, topic: TopicName) -> EffectivePolicies:
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


class MemoryTopics:
    """A registry of topics on memory logs; cursors keep their acknowledgements in memory."""

    def __init__(self, settings: BrokerSettings, policies: MemoryPolicies) -> None:
        self._settings = settings
        self._policies = policies
        self._topics: dict[TopicName, Topic] = {}
        self.logs: dict[str, MemoryLog] = {}
        self.cursors: dict[str, SubscriptionCursor] = {}
        self.snapshots: dict[str, MemorySnapshot] = {}
        self.buckets: dict[str, MemoryBuckets] = {}
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
        limits = topic_limits(self._settings)
        if not name.is_persistent:
            known = self._policies.known(name)
            log, cache = VolatileLog(str(name)), TailCache(self.pool)
            topic = NonPersistentTopic(
                name, log, cache, limits, self.tenure, known, clock=self.clock
            )
            self._topics[name] = topic
            return topic
        return await self._load(name, limits)

    async def _load(self, name: TopicName, limits: TopicLimits) -> Topic:
        log = self.logs.setdefault(str(name), MemoryLog())
        topic = Topic(
            name,
            log,
            TailCache(self.pool),
            limits,
            self.tenure,
            self._policies.known(name),
            clock=self.clock,
        )
        if topic.policies.deduplication:
            snapshot = self.snapshots.setdefault(str(name), MemorySnapshot(log))
            topic.deduplication = await restore(
                str(name),
                log,
                snapshot,
                deduplication_limits(self._settings),
                snapshot_entries=topic.policies.dedup_snapshot_entries,
                connected=topic.producers,
                clock=SystemClock(),
                read_entries_max=100,
                read_bytes_max=1 << 20,
            )
            topic.update_checks()
        buckets = self.buckets.setdefault(str(name), MemoryBuckets())
        topic.delayed = DelayedDelivery(topic, buckets, delayed_limits(self._settings), self.clock)
        topic.update_checks()
        await topic.delayed.restore()
        await self._host_more(topic)
        self._topics[name] = topic
        return topic

    async def _host_more(self, topic: Topic) -> None:
        if self.spans is not None:
            topic.trace = TopicTrace(str(topic.name), self.spans, messages_max=100)
        if self.has_transactions:
            beside = self.transaction_logs.setdefault(str(topic.name), MemoryTransactionLog(100))

            async def open_log() -> TopicTransactionLog:
                return TopicTransactionLog(cast(ManagedLog, beside), part_bytes_max=1 << 20)

            limits = transaction_limits(self._settings)
            topic.transactions = TopicTransactions(topic, open_log, limits, self.clock)
            await topic.transactions.restore()
        topic.update_checks()

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
