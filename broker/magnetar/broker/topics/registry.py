"""The registry of this broker's topics, and of what exists in the metadata.

It is composed of a table of life cycle states, and of loading, ending and removing. Topics are
created automatically in existing namespaces if their policies allow it.
"""

import random
from collections.abc import Collection, Sequence

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import Ownership
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.features.offloading import OffloadSurroundings
from magnetar.broker.features.replication import ReplicationSurroundings, SubscriptionCounts
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.scalable import ScalableTopics, WholeSubscriptions
from magnetar.broker.features.tracing import Spans
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topic.tail_cache import TailCachePool
from magnetar.broker.topics.creation import CreationTurns, TopicCreation
from magnetar.broker.topics.deletion import TopicDeletion
from magnetar.broker.topics.ending import TopicEnds
from magnetar.broker.topics.loading import TopicLoader
from magnetar.broker.topics.non_persistent import VolatileLog
from magnetar.broker.topics.opening import MakeCoordinator, TopicOpener
from magnetar.broker.topics.removal import TopicRemoval
from magnetar.broker.topics.table import TopicTable
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName


class Topics:
    """Registry of topics. `ends` closes and moves topics, `removal` deletes them."""

    def __init__(
        self,
        settings: BrokerSettings,
        client: LedgerClient,
        store: MetadataStore,
        policies: PolicyRegistry,
        ownership: Ownership,
        *,
        clock: Clock,
        random: random.Random,
        spans: Spans | None = None,
        offloading: OffloadSurroundings | None = None,
        replicating: ReplicationSurroundings | None = None,
    ) -> None:
        self._store, self._policies = store, policies
        self._topics_max = settings.topics_max
        self._table = TopicTable()
        partitions_max = settings.partitions_max
        self.partitioned = PartitionedTopics(store, partitions_max=partitions_max, clock=clock)
        self.scalable = ScalableTopics(
            store,
            self.partitioned,
            clock,
            segments_max=settings.scalable_segments_max,
            entry_buckets=settings.scalable_entry_buckets,
        )
        self.whole_subscriptions = WholeSubscriptions(self.scalable)
        self.creation = self._make_creation(settings, random)
        self.ends = TopicEnds(settings, self._table)
        deletion = TopicDeletion(client, store)
        self.removal = TopicRemoval(
            self._table,
            self.ends,
            deletion,
            policies,
            ownership,
            is_scalable=self._is_scalable,
            acquire_timeout_s=settings.topic_load_timeout_ms / 1000,
        )
        self.offloading = offloading
        """Environment for moving ledgers to object stores; None if this broker has no store."""
        self._replicating = replicating
        self._opener = TopicOpener(
            settings,
            client,
            store,
            self.ends,
            deletion,
            self.partitioned,
            self.scalable,
            read_policies=policies.reread,
            clock=clock,
            random=random,
            spans=spans,
            offloading=offloading,
            replicating=replicating,
        )
        self._loader = TopicLoader(
            settings,
            self._table,
            self._opener,
            self.removal,
            self.creation,
            policies,
            ownership,
            clock=clock,
        )
        self.open_cursor = self._opener.open_cursor
        policies.on_change(self._policies_changed)

    def _make_creation(self, settings: BrokerSettings, random: random.Random) -> TopicCreation:
        return TopicCreation(
            self._policies,
            exists=self.exists,
            names=self.names,
            partitioned=self.partitioned,
            scalable=self.scalable if settings.scalable_topics else None,
            turns=CreationTurns(self._store, random),
        )

    async def _is_scalable(self, name: TopicName) -> bool:
        """Whether a scalable topic of a name exists, even one that is being deleted.

        Raises:
            BrokerMetadataError
        """
        return await self.scalable.find(name, is_sure=True) is not None

    def attach_coordinators(self, make: MakeCoordinator) -> None:
        """Set the function that makes transaction coordinators of the topics that are their
        places."""
        self._opener.make_coordinator = make

    @property
    def replicating_senders(self) -> Collection[Sending]:
        """Senders that copy topics of this broker to other clusters."""
        return self._replicating.senders if self._replicating is not None else ()

    @property
    def subscription_counts(self) -> SubscriptionCounts:
        """Counters of this broker's replicated subscriptions."""
        if self._replicating is None:
            return SubscriptionCounts()
        return self._replicating.subscriptions.counts

    async def spread_partitions(self, name: TopicName) -> str:
        """Create a partitioned topic in the clusters that its policies name; return failures as
        text.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        if self._replicating is None:
            return ""
        clusters = (await self._policies.of(name)).replicated_to
        return await self._replicating.spread_partitions(name, clusters)

    # In use

    async def get(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """Return the topic, loading it if need be; waits while the metadata store is unavailable.

        Raises:
            TopicNotFoundError: the topic does not exist and may not be created.
            ServiceNotReadyError: the topic could not be loaded in time, or the broker stops.
            BrokerPersistenceError, UnreadableRecordError: the topic cannot be loaded at all.
            NotAllowedError: too many topics, of this broker or of the namespace.
        """
        topic = await self._loader.get(name, may_create=may_create)
        topic.use.is_asked_for = True
        return topic

    async def open_ahead(self, name: TopicName) -> None:
        """Load a topic that is about to come into use, and that no client gets before then.

        A topic that is here already stays unchanged. Call this right after finding that the topic
        is coming, without an await in between.

        Raises:
            As `get`.
        """
        await self._loader.open_ahead(name)

    async def wake(self, name: TopicName) -> Topic:
        """Load a topic for the broker's own work, which does not count as use of the topic.

        The caller closes it again by `ends.put_to_rest`.

        Raises:
            As `get`.
        """
        return await self._loader.get(name, may_create=False)

    def is_here(self, name: TopicName) -> bool:
        """Whether the topic is served, being loaded or being closed here."""
        table = self._table
        return name in table.served or name in table.loading or name in table.closing

    def has_room(self, topics: int) -> bool:
        """Whether so many more topics can be loaded, and the broker is not stopping."""
        table = self._table
        count = len(table.served) + len(table.loading) + topics
        return count <= self._topics_max and not table.is_stopping

    @property
    def loaded(self) -> Sequence[Topic]:
        """Topics that are served here."""
        return list(self._table.served.values())

    def served(self, name: TopicName) -> Topic | None:
        """Return a topic that is served here, without loading it."""
        return self._table.served.get(name)

    def log_of(self, topic: Topic) -> ManagedLog:
        """Return the log of a loaded topic.

        Raises:
            ServiceNotReadyError: the topic has been closed.
            NotAllowedError: the topic is not persistent.
        """
        log = self._table.logs.get(topic)
        if isinstance(log, VolatileLog):
            raise NotAllowedError(f"{topic.name} is not persistent")
        if log is None:
            raise ServiceNotReadyError(f"{topic.name} is closing")
        return log

    def _policies_changed(self, namespace: str, base: TopicName | None) -> None:
        for name, topic in list(self._table.served.items()):
            if name.namespace_name == namespace and base in (None, name.partitioned):
                topic.apply_policies(self._policies.known(name))

    async def close(self, timeout_s: float) -> None:
        """Close every topic; what is not closed in time is left to the next owner's recovery."""
        await self.ends.close_all(timeout_s)

    # Existence

    async def check_namespace(self, namespace: str) -> None:
        """Refuse a namespace that does not exist.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self._policies.check_namespace(namespace)

    async def catch_up(self) -> None:
        """Return when the store has caught up with everything that any server knew at the time of
        the call.

        Raises:
            BrokerMetadataError: the store does not answer.
        """
        try:
            await self._store.catch_up()
        except MetadataError as error:
            raise BrokerMetadataError(f"the metadata store does not answer: {error}") from error

    async def exists(self, name: TopicName) -> bool:
        """Whether the topic exists, loaded or not.

        The answer "no" never comes from a store that lags behind: the client that has just created
        the topic would get it.

        Raises:
            BrokerMetadataError: the metadata store does not answer.
        """
        if name in self._table.served:
            return True
        path = naming.log_path(name)
        try:
            if await self._store.exists(path) is not None:
                return True
            await self._store.catch_up()
            return await self._store.exists(path) is not None
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot tell whether {name} exists: {error}") from error

    async def names(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics of a namespace, sorted.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self.check_namespace(namespace)
        try:
            nodes = await self._store.children(naming.topics_path(namespace))
        except NoNodeError:
            return []
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot list {namespace}: {error}") from error
        return sorted(naming.topic_at(namespace, node) for node in nodes)

    async def non_persistent_names(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's non-persistent topics on this broker, sorted.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self.check_namespace(namespace)
        names = [each for each in self._table.served if not each.is_persistent]
        return sorted(str(each) for each in names if each.namespace_name == namespace)

    # Counters

    @property
    def loads(self) -> int:
        return self._loader.loads

    @property
    def failed_loads(self) -> int:
        return self._loader.failed_loads

    @property
    def fenced(self) -> int:
        """Topics that were dropped because another broker has them, or may have."""
        return self.ends.fenced

    @property
    def cache(self) -> TailCachePool:
        """Memory pool that the tail caches of all topics share."""
        return self._opener.pool
