"""The topics of this broker, for those who use them; and what exists in the metadata.

Composes the parts: a table of what is where in its life, loading, ending and removing. Topics
appear by themselves in namespaces that exist, if their policies allow it.
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
    """Registry of topics. `ends` closes and moves them, `removal` deletes them."""

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
        self._store = store
        self._policies = policies
        self._topics_max = settings.topics_max
        self._table = TopicTable()
        self.partitioned = PartitionedTopics(
            store, partitions_max=settings.partitions_max, clock=clock
        )
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
        """What moves ledgers to object stores; None: this broker has no store."""
        self._replicating = replicating
        self._opener = TopicOpener(
            settings,
            client,
            store,
            self.ends,
            deletion,
            self.partitioned,
            self.scalable,
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
        """Whether there is a scalable topic of a name, also while it is being deleted.

        Raises:
            BrokerMetadataError
        """
        return await self.scalable.find(name, is_sure=True) is not None

    def attach_coordinators(self, make: MakeCoordinator) -> None:
        """Have coordinators of transactions made of the topics that are their places."""
        self._opener.make_coordinator = make

    @property
    def replicating_senders(self) -> Collection[Sending]:
        """The senders that copy topics of this broker to other clusters."""
        return self._replicating.senders if self._replicating is not None else ()

    @property
    def subscription_counts(self) -> SubscriptionCounts:
        """The counters of this broker's replicated subscriptions."""
        if self._replicating is None:
            return SubscriptionCounts()
        return self._replicating.subscriptions.counts

    async def spread_partitions(self, name: TopicName) -> str:
        """Have a partitioned topic in the clusters that its policies name; returns what did not
        work, in words.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        if self._replicating is None:
            return ""
        clusters = (await self._policies.of(name)).replicated_to
        return await self._replicating.spread_partitions(name, clusters)

    # In use

    async def get(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """The topic, loaded now if need be; a metadata store that is away is waited for.

        Raises:
            TopicNotFoundError: it does not exist and may not be created.
            ServiceNotReadyError: it could not be loaded in time, or the broker stops.
            BrokerPersistenceError, UnreadableRecordError: it cannot be loaded at all.
            NotAllowedError: too many topics, of this broker or of the namespace.
        """
        topic = await self._loader.get(name, may_create=may_create)
        topic.use.is_asked_for = True
        return topic

    async def open_ahead(self, name: TopicName) -> None:
        """Load a topic that is about to come into use, and that nobody is given before it may be
        used; one that is here already stays as it is. Call it right after it was found to be
        coming, without a wait in between.

        Raises:
            As `get`.
        """
        await self._loader.open_ahead(name)

    async def wake(self, name: TopicName) -> Topic:
        """Load a topic for the broker's own work, which does not count as a use of it. Whoever
        calls this closes it again, by `ends.put_to_rest`.

        Raises:
            As `get`.
        """
        return await self._loader.get(name, may_create=False)

    def is_here(self, name: TopicName) -> bool:
        """Whether the topic is served here, being loaded or being closed."""
        table = self._table
        return name in table.served or name in table.loading or name in table.closing

    def has_room(self, topics: int) -> bool:
        """Whether so many more topics can be loaded, and the broker is not stopping."""
        table = self._table
        count = len(table.served) + len(table.loading) + topics
        return count <= self._topics_max and not table.is_stopping

    @property
    def loaded(self) -> Sequence[Topic]:
        """The topics that are in use, for statistics."""
        return list(self._table.served.values())

    def served(self, name: TopicName) -> Topic | None:
        """A topic that is in use here; nothing is loaded."""
        return self._table.served.get(name)

    def log_of(self, topic: Topic) -> ManagedLog:
        """The log of a loaded topic.

        Raises:
            ServiceNotReadyError: it has been closed.
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
        """Close every topic; what is not done in time is left to the next owner's recovery."""
        await self.ends.close_all(timeout_s)

    # Existence

    async def check_namespace(self, namespace: str) -> None:
        """Refuse namespaces that do not exist.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self._policies.check_namespace(namespace)

    async def catch_up(self) -> None:
        """Return when the store knows what was known anywhere when this was called.

        Raises:
            BrokerMetadataError: it does not answer.
        """
        try:
            await self._store.catch_up()
        except MetadataError as error:
            raise BrokerMetadataError(f"the metadata store does not answer: {error}") from error

    async def exists(self, name: TopicName) -> bool:
        """Whether the topic exists, loaded or not; that it does not is never what a store says
        that is behind: whoever has just made it would be told so.

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
        """Full names of the persistent topics of a namespace, sorted.

        Raises:
            TopicNotFoundError, BrokerMetadataError
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
        """Full names of the non-persistent topics of a namespace that this broker has, sorted.

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
        """Topics that were dropped because somebody else has them, or may have."""
        return self.ends.fenced

    @property
    def cache(self) -> TailCachePool:
        """What the tail caches of all topics share."""
        return self._opener.pool
