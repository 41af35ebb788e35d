"""Opens a topic that this broker owns: takes over its log, then restores what is stored beside it.

The order is: the log (which fences a former owner), the message index, the index of delayed
messages, transactions, compaction, subscriptions, deduplication, the state of copies from other
clusters, and the state of a coordinator. If a step fails, nothing stays open.

Only this module knows which features exist, and in which order a topic hosts them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial

from magnetar.broker.base import naming
from magnetar.broker.base.errors import PartitionedTopicError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import Tenure
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.features import compaction, deduplication, replication
from magnetar.broker.features.compaction import Compaction, CompactionCursor, CompactionSurroundings
from magnetar.broker.features.deduplication import Deduplication, NoDeduplication
from magnetar.broker.features.delayed.bucket_ledgers import BucketLedgers
from magnetar.broker.features.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.features.message_index import MessageIndex, initial_properties
from magnetar.broker.features.offloading import (
    Manifests,
    Offload,
    OffloadSurroundings,
    Scrubbing,
)
from magnetar.broker.features.replication import (
    Receiving,
    ReceivingSurroundings,
    ReplicatedSubscriptions,
    Replication,
    ReplicationSurroundings,
)
from magnetar.broker.features.retention.expiry import advance
from magnetar.broker.features.scalable import ScalableTopics, SegmentSealing
from magnetar.broker.features.tracing import Spans, TopicTrace
from magnetar.broker.features.transactions.topic_log import TopicTransactionLog
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import Feature, Topic
from magnetar.broker.topic.subscription import REPLICATED_PROPERTY
from magnetar.broker.topic.tail_cache import TailCache, TailCachePool
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.broker.topics.ending import TopicEnds
from magnetar.broker.topics.non_persistent import NonPersistentTopic, VolatileLog
from magnetar.broker.topics.table import ServedLog
from magnetar.broker.topics.topic_config import (
    FollowsQuorums,
    cursor_settings,
    log_config,
)
from magnetar.cursors import Cursor, CursorUnavailableError, SavePace, list_cursors
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_deletion import is_marked
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import TopicName

_CURSORS_AT_ONCE = 32

MakeCoordinator = Callable[[Topic], Feature | None]
"""Makes the coordinator whose place is a topic; None: the topic is not such a place."""


class TopicOpener:
    """Opens topics by name."""

    def __init__(
        self,
        settings: BrokerSettings,
        client: LedgerClient,
        store: MetadataStore,
        ends: TopicEnds,
        deletion: TopicDeletion,
        partitioned: PartitionedTopics,
        scalable: ScalableTopics,
        *,
        read_policies: Callable[[TopicName], Awaitable[Policies]],
        clock: Clock,
        random: random.Random,
        spans: Spans | None = None,
        offloading: OffloadSurroundings | None = None,
        replicating: ReplicationSurroundings | None = None,
    ) -> None:
        """`read_policies`: returns the policies of a topic as they are stored now; those that it is
        opened with may be older."""
        self._settings = settings
        self._read_policies = read_policies
        self._replicating = replicating
        self._offloading = offloading
        self._spans = spans
        self._client = client
        self._store = store
        self._ends = ends
        self._deletion = deletion
        self._partitioned = partitioned
        self._scalable = scalable
        self._clock = clock
        self._random = random
        self.pool = TailCachePool(settings.tail_cache_bytes_max)
        self._save_pace = SavePace(
            saves_per_s_max=settings.cursor_saves_per_s_max,
            delay_s_max=settings.ack_persist_interval_ms_max / 1000,
        )
        self._given_up_buckets: set[int] = set()
        """Ledgers of indexes of delayed messages that cannot be read, until no topic lists them."""
        self.make_coordinator: MakeCoordinator | None = None
        self._compactions = CompactionSurroundings(
            ledgers=client,
            settings=settings,
            at_once=asyncio.Semaphore(settings.compactions_at_once),
            clock=clock,
        )

    async def open(
        self, name: TopicName, tenure: Tenure, policies: Policies, *, must_exist: bool = False
    ) -> tuple[Topic, ServedLog]:
        """Open a topic and return it with its log; the caller registers it.

        Raises:
            NoSuchLogError: the topic has no log, and `must_exist` is set.
            ServiceNotReadyError: the topic was being deleted; the deletion is now complete.
            PartitionedTopicError: a partitioned topic of that name exists.
            LedgerError, CursorError, BrokerPersistenceError: `retryable` tells whether it may pass.
            LogFencedError: another broker has taken the log over.
        """
        if not name.is_persistent:
            return self._open_volatile(name, tenure, policies)
        log = await ManagedLog.open(
            self._client,
            self._store,
            naming.log_path(name),
            # The properties are for a new log.
            log_config(
                self._settings,
                policies,
                properties=self._properties(name, policies),
            ),
            clock=self._clock,
            random=self._random,
            must_exist=must_exist,
            may_own=partial(self._ends.is_wanted, name, tenure),
        )
        await self._check_alone(name, log)
        if is_marked(log.properties):
            log.abandon("it is being deleted")
            await log.close()
            await self._deletion.finish(name, tenure.holds)
            raise ServiceNotReadyError(f"{name} was being deleted, and is gone: try again")
        cache = TailCache(self.pool)
        topic = Topic(name, log, cache, self._settings, tenure, policies, clock=self._clock)
        self._ends.attach(topic, log)
        try:
            await self._host(topic, log)
            self._ends.check_wanted(topic, log)
        except BaseException:
            topic.abandon_cursors()
            topic.disconnect_all()
            await log.close()
            raise
        return topic, log

    def _properties(self, name: TopicName, policies: Policies) -> dict[str, str]:
        """Return the properties of a new log."""
        found = {CREATED_PROPERTY: str(self._clock.wall_ms())}
        if not naming.is_system_topic(str(name)):
            found.update(initial_properties(policies))
        return found

    def _open_volatile(
        self, name: TopicName, tenure: Tenure, policies: Policies
    ) -> tuple[Topic, ServedLog]:
        log = VolatileLog(str(name))
        cache = TailCache(self.pool)
        topic = NonPersistentTopic(
            name, log, cache, self._settings, tenure, policies, clock=self._clock
        )
        self._ends.attach(topic, log)
        self._ends.check_wanted(topic, log)
        return topic, log

    async def _check_alone(self, name: TopicName, log: ManagedLog) -> None:
        """Give up a topic that was created at the same moment as a partitioned topic of its
        name."""
        if name.is_segment:
            return  # A partitioned topic never has the name of a segment.
        if name.partition_index < 0 and log.last_confirmed.entry_id < 0:
            try:
                record = await self._partitioned.find(name)
                if record is not None:
                    if not await list_cursors(self._store, log.path):
                        await log.delete()
                    raise PartitionedTopicError(f"{name} has {record.partitions} partitions")
            except BaseException:
                await log.close()
                raise

    # State stored beside the log

    async def _host(self, topic: Topic, log: ManagedLog) -> None:
        """Give the topic its features, and restore their state."""
        stored = _StoredCursors(self._store, log)
        delayed = DelayedDelivery(
            topic,
            BucketLedgers(self._client, log),
            self._settings,
            self._clock,
            self._given_up_buckets,
        )
        transactions = TopicTransactions(
            topic,
            partial(self._open_transaction_log, topic),
            self._settings,
            self._clock,
            cursor_names=stored.names,
            begun=partial(_hold_apart, topic, log),
        )
        compacting = self._compaction_of(topic, log, stored)
        deduplicating = self._deduplication_of(topic, log, stored)
        copying = self._replication_of(topic, log, stored)
        replicated = self._replicated_subscriptions_of(topic, log, copying)
        receiving = self._receiving_of(topic, log, stored, replicated)
        features: list[Feature] = [delayed, transactions, receiving, deduplicating, compacting]
        features.append(FollowsQuorums(topic, log))
        around = self._offloading_of(topic)
        manifests = Manifests(topic, log, around.manifests if around is not None else None)
        offload = Offload(topic, log, around, manifests)
        features += [offload, manifests, Scrubbing(topic, log, around, offload.steps)]
        coordinator = self.make_coordinator(topic) if self.make_coordinator is not None else None
        features.extend(each for each in (copying, replicated, coordinator) if each is not None)
        if not naming.is_system_topic(str(topic.name)):
            features.append(await self._sealing_of(topic))
        if self._spans is not None:
            messages_max = self._settings.tracing_messages_max
            features.append(TopicTrace(str(topic.name), self._spans, messages_max=messages_max))
        indexed = _index_of(topic)
        topic.host(*features, indexed)
        await indexed.restore()
        # Features that withhold or hide entries are restored before subscriptions are opened.
        await delayed.restore()
        await transactions.restore()
        await compacting.restore()
        await self._restore_subscriptions(topic, log, await stored.names())
        await deduplicating.restore()
        await receiving.restore()
        if copying is not None:
            await copying.restore()
        if coordinator is not None:
            await coordinator.restore()

    async def _sealing_of(self, topic: Topic) -> SegmentSealing:
        """Return the feature that seals the topic if it is a segment.

        Raises:
            BrokerMetadataError: it cannot be determined now whether a terminated topic was
                migrated.
        """
        name, is_part = topic.name, topic.name.is_segment
        if topic.log.terminated is not None and not is_part:
            is_part = await self._scalable.segment(name) is not None
        return SegmentSealing(topic, partial(self._scalable.is_settled, name), is_part=is_part)

    async def catch_up(self, topic: Topic, log: ServedLog) -> None:
        """Restore the subscriptions that were created in the store since the topic was opened
        ahead.

        Raises:
            As `open`.
        """
        assert isinstance(log, ManagedLog), "only what is stored is opened ahead"
        stored = await list_cursors(self._store, log.path)
        names = [name for name in stored if name not in topic.subscriptions]
        await self._restore_subscriptions(topic, log, names)

    async def _restore_subscriptions(
        self, topic: Topic, log: ManagedLog, names: Sequence[str]
    ) -> None:
        at_once = asyncio.Semaphore(_CURSORS_AT_ONCE)

        async def restore(subscription: str) -> None:
            async with at_once:
                open_cursor = partial(self.open_cursor, topic, log, subscription)
                await topic.subscriptions.ensure(subscription, open_cursor, is_stored=True)

        subscriptions = [name for name in names if not naming.is_internal_cursor(name)]
        # Wait for all of them: none may still be opening when a failure closes the log.
        results = await asyncio.gather(*map(restore, subscriptions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _offloading_of(self, topic: Topic) -> OffloadSurroundings | None:
        """Return the offloading environment of a topic; None if its ledgers stay on bookies.

        The cluster's own topics stay there: brokers need them to start, and that must not depend on
        an object store (tiered storage, defect 14.10).
        """
        return None if naming.is_system_topic(str(topic.name)) else self._offloading

    def _compaction_of(self, topic: Topic, log: ManagedLog, stored: "_StoredCursors") -> Compaction:
        async def is_stored() -> bool:
            return compaction.CURSOR in await stored.names()

        return Compaction(
            topic,
            log,
            CompactionCursor(is_stored, partial(self.open_cursor, topic, log, compaction.CURSOR)),
            self._compactions,
            find_last=topic.last_message.find,
        )

    def _deduplication_of(
        self, topic: Topic, log: ManagedLog, stored: "_StoredCursors"
    ) -> Deduplication | NoDeduplication:
        if topic.policies.deduplication:
            return Deduplication(
                topic,
                partial(self.open_cursor, topic, log, deduplication.CURSOR, LATEST),
                self._settings,
                connected=topic.producers,
                clock=self._clock,
            )

        async def remove_cursor() -> None:
            if deduplication.CURSOR not in await stored.names():
                return
            if (await self._read_policies(topic.name)).deduplication:
                # A former owner knew them, and made the cursor.
                raise CursorUnavailableError(
                    f"{topic.name} was opened by policies that have changed: it is opened again"
                )
            cursor = await self.open_cursor(topic, log, deduplication.CURSOR)
            await cursor.delete()

        return NoDeduplication(topic, remove_cursor)

    def _receiving_of(
        self,
        topic: Topic,
        log: ManagedLog,
        stored: "_StoredCursors",
        replicated: ReplicatedSubscriptions | None,
    ) -> Receiving:
        settings = self._settings

        async def is_stored() -> bool:
            return replication.MARKS_CURSOR in await stored.names()

        return Receiving(
            topic,
            ReceivingSurroundings(
                settings.cluster_name,
                self._clock,
                settings.read_ahead_entries,
                settings.read_ahead_bytes,
            ),
            is_stored=is_stored,
            open_cursor=partial(self.open_cursor, topic, log, replication.MARKS_CURSOR, LATEST),
            begun=partial(_hold_apart, topic, log),
            markers=replicated,
        )

    def _replicated_subscriptions_of(
        self, topic: Topic, log: ManagedLog, copying: Replication | None
    ) -> ReplicatedSubscriptions | None:
        """Return the feature for replicated subscriptions; None for the cluster's own topics."""
        if self._replicating is None or copying is None:
            return None

        async def create(name: str) -> None:
            properties = {REPLICATED_PROPERTY: 1}
            open_cursor = partial(
                self.open_cursor, topic, log, name, EARLIEST, position_properties=properties
            )
            await topic.subscriptions.ensure(name, open_cursor)

        return ReplicatedSubscriptions(
            topic,
            self._replicating.subscriptions,
            sessions=copying.sessions,
            takes_acks=copying.takes_acks,
            incarnation=copying.incarnation,
            is_copied=copying.is_copied,
            create=create,
            advance=advance,
            changed=topic.line.update,
        )

    def _replication_of(
        self, topic: Topic, log: ManagedLog, stored: "_StoredCursors"
    ) -> Replication | None:
        """Return the feature that copies the topic to other clusters; None for the cluster's own
        topics."""
        if (
            self._replicating is None
            or topic.name.is_segment
            or naming.is_system_topic(str(topic.name))
        ):
            return None
        return Replication(
            topic,
            log,
            self._replicating,
            stored_cursors=stored.names,
            open_cursor=partial(self.open_cursor, topic, log),
            read_policies=partial(self._read_policies, topic.name),
            changed=topic.line.update,
            published=lambda: (topic.line.messages_in, topic.line.bytes_in),
            hold=topic.line.hold,
            release=topic.line.release,
        )

    async def _open_transaction_log(self, topic: Topic) -> TopicTransactionLog:
        settings = self._settings
        return await TopicTransactionLog.open(
            self._client,
            self._store,
            topic.name,
            log_config(settings, topic.policies),
            clock=self._clock,
            random=self._random,
            may_own=topic.tenure.holds,
            part_bytes_max=settings.transaction_part_bytes_max,
        )

    async def open_cursor(
        self,
        topic: Topic,
        log: ManagedLog,
        subscription: str,
        initial: Position | None = None,
        properties: dict[str, str] | None = None,
        position_properties: dict[str, int] | None = None,
        initial_words: Sequence[int] = (),
    ) -> Cursor:
        """Open the durable cursor of a subscription; with `initial`, create it if need be.

        A new one has its place in the compacted ledger, too. `initial_words` (ack_set) mark passed
        indexes of the entry `initial`.

        Raises:
            CursorError
            ServiceNotReadyError: it is new, and its segment is being sealed, or its topic was
                closed meanwhile; a retry helps.
        """
        is_new = initial is not None and not naming.is_internal_cursor(subscription)
        sealing = topic.find(SegmentSealing) if is_new else None
        compacting = topic.find(Compaction) if is_new else None
        if compacting is not None and initial is not None:
            position_properties = {**(position_properties or {}), **compacting.place_of(initial)}
        async with sealing.placing() if sealing is not None else nullcontext():
            if is_new and topic.is_closed:  # Perhaps deleted, and the cursor a later topic's.
                raise ServiceNotReadyError(f"{topic.name} is closing")
            cursor = await Cursor.open(
                log,
                self._client,
                self._store,
                subscription,
                initial=initial,
                initial_words=initial_words,
                properties=properties,
                position_properties=position_properties,
                settings=cursor_settings(self._settings, topic.policies),
                pace=self._save_pace,
                clock=self._clock,
            )
        cursor.on_fenced(partial(self._ends.fence, topic))
        return cursor


def _hold_apart(topic: Topic, log: ManagedLog) -> None:
    """Have a takeover find a prefix of the appends: a feature tells from now on by what is stored
    which messages were sent before."""
    log.hold_ledgers_apart()
    topic.line.update()


def _index_of(topic: Topic) -> MessageIndex:
    return MessageIndex(
        topic,
        clock=topic.clock,
        subscriptions=topic.subscriptions,
        cache=topic.tail.cache,
        may_be_on=not naming.is_system_topic(str(topic.name)),
        changed=topic.line.update,
    )


class _StoredCursors:
    """Names of the durable cursors that are stored for a topic, read at the first use."""

    def __init__(self, store: MetadataStore, log: ManagedLog) -> None:
        self._store = store
        self._log = log
        self._names: Sequence[str] | None = None

    async def names(self) -> Sequence[str]:
        """Return the names of the stored cursors.

        Raises:
            CursorError
        """
        if self._names is None:
            self._names = await list_cursors(self._store, self._log.path)
        return self._names
