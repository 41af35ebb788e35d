"""The topics of this broker: loading on first use, closing, moving; what exists in the metadata.

Loading a topic takes its log over (fencing a former owner), then recovers its cursors. It happens
once, however many requests wait for it, and does not hold up other topics. Failures that may pass
are tried again until `topic_load_timeout_ms`: to the official client, an error it may retry is
worse than waiting (trap 10 of the protocol sheet's appendix C).

A topic ends in one of three ways. *Closed*: its ledgers and cursors are closed in the metadata.
*Handed over*: the same after its publishes were answered, and its clients are told where it goes.
*Dropped*, when it may have another owner: nothing more is written, sent or answered.

Topics appear by themselves in namespaces that exist, if their policies allow it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog

from magnetar.broker import compaction, deduplication, inactive_topics, naming
from magnetar.broker.compaction import Compaction, CompactionSurroundings
from magnetar.broker.creation import TopicCreation
from magnetar.broker.delayed.bucket_ledgers import BucketLedgers
from magnetar.broker.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.deletion import TopicDeletion, check_members
from magnetar.broker.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.broker.non_persistent import NonPersistentTopic, VolatileLog
from magnetar.broker.ownership import Destination, Ownership, Tenure
from magnetar.broker.partitions import PartitionedTopics
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.model import PolicySet
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.tail_cache import TailCache, TailCachePool
from magnetar.broker.topic import Topic
from magnetar.broker.topic_config import (
    compaction_limits,
    cursor_settings,
    deduplication_limits,
    delayed_limits,
    follow_quorums,
    log_config,
    topic_limits,
)
from magnetar.cursors import (
    Cursor,
    CursorError,
    CursorUnavailableError,
    list_cursors,
)
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LogFencedError, MetadataError, NoNodeError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_deletion import is_marked
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_CURSORS_AT_ONCE = 32
_HAND_OVERS_AT_ONCE = 256
"""Topics that are closed side by side; each waits for the metadata store. Of several bundles the
first one is closed first: its next owner begins while others are still being closed."""


class _Closing:
    """A topic that is being closed."""

    def __init__(
        self, topic: Topic, log: ManagedLog | VolatileLog, cursors: Sequence[Cursor]
    ) -> None:
        self.topic = topic
        self.log = log
        self.cursors = cursors
        self.task: asyncio.Task[None]

    def abandon(self, reason: str) -> None:
        """Write nothing more."""
        for cursor in self.cursors:
            cursor.abandon()
        self.log.abandon(reason)


class Topics:
    """Registry of loaded topics."""

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
    ) -> None:
        self._settings = settings
        self._client = client
        self._store = store
        self._policies = policies
        self._ownership = ownership
        self._clock = clock
        self._random = random
        self._pool = TailCachePool(settings.tail_cache_bytes_max)
        self._limits = topic_limits(settings)
        self._deduplication_limits = deduplication_limits(settings)
        self._delayed_limits = delayed_limits(settings)
        self._compactions = CompactionSurroundings(
            ledgers=client,
            limits=compaction_limits(settings),
            at_once=asyncio.Semaphore(settings.compactions_at_once),
            clock=clock,
        )
        self._topics: dict[TopicName, Topic] = {}
        self._logs: dict[Topic, ManagedLog | VolatileLog] = {}
        self._loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self._closing: dict[TopicName, _Closing] = {}
        self._moving: dict[TopicName, asyncio.Task[None]] = {}
        """Topics that are being handed over."""
        self._held: dict[TopicName, asyncio.Future[None]] = {}
        """Topics that are not loaded now: somebody deletes them."""
        self._deletion = TopicDeletion(client, store)
        self._unwanted: set[TopicName] = set()
        """Topics that were dropped while they were being loaded."""
        # Thousands of loads at once would stand before the guard's own question to the metadata
        # store, in one queue, until the session counts as lost.
        self._loads_at_once = asyncio.Semaphore(settings.topic_loads_at_once)
        self._hand_overs_at_once = asyncio.Semaphore(_HAND_OVERS_AT_ONCE)
        self._is_stopping = False
        self.loads = 0
        self.failed_loads = 0
        self.fenced = 0
        policies.on_change(self._policies_changed)
        self.partitioned = PartitionedTopics(store, partitions_max=settings.partitions_max)
        self.creation = TopicCreation(
            policies, exists=self.exists, names=self.names, partitioned=self.partitioned
        )

    @property
    def loaded(self) -> Sequence[Topic]:
        """The topics that are in use, for statistics."""
        return list(self._topics.values())

    @property
    def cached_bytes(self) -> int:
        return self._pool.size_bytes

    # Existence

    async def check_namespace(self, namespace: str) -> None:
        """Refuse namespaces that do not exist.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self._policies.check_namespace(namespace)

    async def exists(self, name: TopicName) -> bool:
        """Whether the topic exists, loaded or not.

        Raises:
            BrokerMetadataError: the metadata store does not answer.
        """
        if name in self._topics:
            return True
        try:
            return await self._store.exists(naming.log_path(name)) is not None
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
        names = [each for each in self._topics if not each.is_persistent]
        return sorted(str(each) for each in names if each.namespace_name == namespace)

    # Loading

    async def get(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """The topic, loaded now if need be; a metadata store that is away is waited for.

        Raises:
            TopicNotFoundError: it does not exist and may not be created.
            ServiceNotReadyError: it could not be loaded in time, or the broker stops.
            BrokerPersistenceError, UnreadableRecordError: it cannot be loaded at all.
            NotAllowedError: too many topics, of this broker or of the namespace.
        """
        deadline_s = self._clock.monotonic_s() + self._settings.topic_load_timeout_ms / 1000
        while True:
            try:
                return await self._get(name, deadline_s, may_create=may_create)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                if self._clock.monotonic_s() >= deadline_s or self._is_stopping:
                    raise ServiceNotReadyError(f"{name} cannot be loaded now: {error}") from error
            await asyncio.sleep(self._settings.topic_load_retry_ms / 1000)

    async def _get(self, name: TopicName, deadline_s: float, *, may_create: bool) -> Topic:
        await self.check_namespace(name.namespace_name)
        while True:
            topic = self._topics.get(name)
            if topic is not None and not topic.is_closed:
                return topic
            if self._is_stopping:
                raise ServiceNotReadyError("the broker is stopping")
            if (closing := self._closing.get(name)) is not None:
                await asyncio.wait([closing.task])
                continue
            if (held := self._held.get(name)) is not None:
                await asyncio.wait([held])
                continue
            if name not in self._loading:
                if not self._ownership.is_serving:
                    # Cut off from the store it cannot tell what exists, but where others are.
                    left_s = max(0.0, deadline_s - self._clock.monotonic_s())
                    await self._ownership.acquire(name, timeout_s=left_s)
                await self.creation.check(name, may_create=may_create)
            await asyncio.shield(self._start_loading(name))

    def _start_loading(self, name: TopicName) -> "asyncio.Task[Topic]":
        loading = self._loading.get(name)
        if loading is None:
            if len(self._topics) + len(self._loading) >= self._settings.topics_max:
                raise NotAllowedError(
                    f"the broker serves {len(self._topics)} topics, which is its limit"
                )
            loading = asyncio.get_running_loop().create_task(self._load(name), name=f"load-{name}")
            self._loading[name] = loading
            loading.add_done_callback(partial(self._loaded, name))
        return loading

    def _loaded(self, name: TopicName, loading: "asyncio.Task[Topic]") -> None:
        del self._loading[name]
        if loading.cancelled():
            return
        error = loading.exception()  # retrieved, even if nobody waits any more
        if error is None:
            self.loads += 1
        else:
            self.failed_loads += 1
            _log.warning("topic_not_loaded", topic=str(name), error=str(error))

    async def _load(self, name: TopicName) -> Topic:
        started_s = self._clock.monotonic_s()
        deadline_s = started_s + self._settings.topic_load_timeout_ms / 1000
        while True:
            try:
                topic = await self._try_load(name, deadline_s)
            except (LedgerError, CursorError, BrokerPersistenceError) as error:
                # Losing a race for the log is no reason to give up: whoever won may be gone.
                may_pass = getattr(error, "retryable", False) or isinstance(error, LogFencedError)
                if not may_pass:
                    raise BrokerPersistenceError(f"{name} cannot be loaded: {error}") from error
                if self._clock.monotonic_s() >= deadline_s or self._is_stopping:
                    raise ServiceNotReadyError(f"{name} cannot be loaded now: {error}") from error
                await asyncio.sleep(self._settings.topic_load_retry_ms / 1000)
            else:
                _log.info(
                    "topic_loaded",
                    topic=str(name),
                    subscriptions=len(topic.subscriptions),
                    milliseconds=round((self._clock.monotonic_s() - started_s) * 1000),
                )
                return topic

    async def _try_load(self, name: TopicName, deadline_s: float) -> Topic:
        self._unwanted.discard(name)
        left_s = max(0.0, deadline_s - self._clock.monotonic_s())
        tenure = await self._ownership.acquire(name, timeout_s=left_s)
        async with self._loads_at_once:
            if not tenure.holds():
                raise LogFencedError(f"the lease of {name} was lost while it waited to be loaded")
            return await self._load_owned(name, tenure)

    async def _load_owned(self, name: TopicName, tenure: Tenure) -> Topic:
        policies = await self._policies.of(name)
        if not name.is_persistent:
            return self._open_volatile(name, tenure, policies)
        log = await ManagedLog.open(
            self._client,
            self._store,
            naming.log_path(name),
            log_config(self._settings, policies),
            clock=self._clock,
            random=self._random,
            may_own=tenure.holds,
        )
        await self._check_alone(name, log)
        if is_marked(log.properties):
            log.abandon("it is being deleted")
            await log.close()
            await self._deletion.finish(name)
            raise ServiceNotReadyError(f"{name} was being deleted, and is gone: try again")
        topic = Topic(name, log, TailCache(self._pool), self._limits, tenure, policies)
        topic.reload = partial(self._reload, topic)
        topic.reopen = partial(self._reopen, topic)
        follow_quorums(topic, log)
        log.on_fenced(partial(self.fence, topic))
        storage = BucketLedgers(self._client, log)
        topic.delayed = DelayedDelivery(topic, storage, self._delayed_limits, self._clock)
        topic.update_checks()
        try:
            await topic.delayed.restore()
            names = await list_cursors(self._store, log.path)
            await self._restore_compaction(topic, log, names)
            await self._restore_subscriptions(topic, log, names)
            if policies.deduplication:
                await self._restore_deduplication(topic, log)
            elif deduplication.CURSOR in names:
                await self._remove_deduplication(topic, log)
            if topic.is_closed:
                raise LogFencedError(f"{name} was taken over while it was loaded")
            if name in self._unwanted or not tenure.holds():
                log.abandon("the lease was lost while it was loaded")
                raise LogFencedError(f"the lease of {name} was lost while it was loaded")
        except BaseException:
            self._abandon_cursors(topic)
            topic.disconnect_all()
            await log.close()
            raise
        self._logs[topic] = log
        self._topics[name] = topic
        topic.apply_policies(self._policies.known(name))  # They may have changed meanwhile.
        return topic

    def _open_volatile(self, name: TopicName, tenure: Tenure, policies: EffectivePolicies) -> Topic:
        if name in self._unwanted or not tenure.holds():
            raise LogFencedError(f"the lease of {name} was lost while it was loaded")
        log = VolatileLog(str(name))
        cache = TailCache(self._pool)
        topic = NonPersistentTopic(name, log, cache, self._limits, tenure, policies)
        topic.reload = partial(self._reload, topic)
        topic.reopen = partial(self._reopen, topic)
        log.on_fenced(partial(self.fence, topic))
        self._logs[topic] = log
        self._topics[name] = topic
        return topic

    async def _check_alone(self, name: TopicName, log: ManagedLog) -> None:
        """Give up a topic that appeared in the moment in which one with partitions was created."""
        if name.partition_index < 0 and log.last_confirmed.entry_id < 0:
            try:
                record = await self.partitioned.find(name)
                if record is not None:
                    if not await list_cursors(self._store, log.path):
                        await log.delete()
                    raise NotAllowedError(f"{name} has {record.partitions} partitions")
            except BaseException:
                await log.close()
                raise

    def _policies_changed(self, namespace: str, base: TopicName | None) -> None:
        for name, topic in list(self._topics.items()):
            if name.namespace_name == namespace and base in (None, name.partitioned):
                topic.apply_policies(self._policies.known(name))

    async def _restore_subscriptions(
        self, topic: Topic, log: ManagedLog, names: Sequence[str]
    ) -> None:
        at_once = asyncio.Semaphore(_CURSORS_AT_ONCE)

        async def restore(subscription: str) -> None:
            async with at_once:
                open_cursor = partial(self.open_cursor, topic, log, subscription)
                await topic.ensure_subscription(subscription, open_cursor)

        subscriptions = [
            name for name in names if name not in (deduplication.CURSOR, compaction.CURSOR)
        ]
        # All are waited for, so that none is still being opened when a failure closes the log.
        results = await asyncio.gather(*map(restore, subscriptions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _restore_compaction(
        self, topic: Topic, log: ManagedLog, names: Sequence[str]
    ) -> None:
        open_cursor = partial(self.open_cursor, topic, log, compaction.CURSOR)
        topic.compaction = Compaction(topic, log, open_cursor, self._compactions)
        if compaction.CURSOR in names:
            await topic.compaction.restore()

    async def _restore_deduplication(self, topic: Topic, log: ManagedLog) -> None:
        settings = self._settings
        cursor = await self.open_cursor(topic, log, deduplication.CURSOR, LATEST)
        topic.internal_cursors[deduplication.CURSOR] = cursor
        topic.deduplication = await deduplication.restore(
            str(topic.name),
            log,
            cursor,
            self._deduplication_limits,
            snapshot_entries=topic.policies.dedup_snapshot_entries,
            connected=topic.producers,
            clock=self._clock,
            read_entries_max=settings.read_ahead_entries,
            read_bytes_max=settings.read_ahead_bytes,
        )
        topic.update_checks()

    async def _remove_deduplication(self, topic: Topic, log: ManagedLog) -> None:
        """Before anything is stored: what is stored meanwhile is in no snapshot."""
        cursor = await self.open_cursor(topic, log, deduplication.CURSOR)
        await cursor.delete()

    async def open_cursor(
        self,
        topic: Topic,
        log: ManagedLog,
        subscription: str,
        initial: Position | None = None,
        properties: dict[str, str] | None = None,
    ) -> Cursor:
        """Open the durable cursor of a subscription; with `initial`, create it if need be.

        Raises:
            CursorError
        """
        cursor = await Cursor.open(
            log,
            self._client,
            self._store,
            subscription,
            initial=initial,
            properties=properties,
            settings=cursor_settings(self._settings, topic.policies),
            clock=self._clock,
        )
        cursor.on_fenced(partial(self.fence, topic))
        return cursor

    def log_of(self, topic: Topic) -> ManagedLog:
        """The log of a loaded topic.

        Raises:
            ServiceNotReadyError: it has been closed.
            NotAllowedError: the topic is not persistent.
        """
        log = self._logs.get(topic)
        if isinstance(log, VolatileLog):
            raise NotAllowedError(f"{topic.name} is not persistent")
        if log is None:
            raise ServiceNotReadyError(f"{topic.name} is closing")
        return log

    # Ending

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Topics that are loaded, being loaded or being closed here."""
        names = dict.fromkeys([*self._topics, *self._loading, *self._closing])
        return [name for name in names if belongs(name)]

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics so that another owner opens them at once, and tell their clients where.

        Publishes under way are answered first. What is not closed in time is dropped: the next
        owner recovers it.
        """

        async def hand_over(name: TopicName) -> None:
            async with self._hand_overs_at_once:
                await self._hand_over(name, destination)

        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*map(hand_over, names))
        except TimeoutError:
            _log.warning("topics_not_handed_over_in_time", timeout_s=timeout_s)
            self.drop(names, "it could not be closed in time")

    async def _hand_over(self, name: TopicName, destination: Destination | None) -> None:
        await asyncio.wait([self._start_moving(name, destination)])

    def _start_moving(self, name: TopicName, destination: Destination | None) -> asyncio.Task[None]:
        """Once, whoever asks: the first destination counts."""
        moving = self._moving.get(name)
        if moving is None:
            moving = self._moving[name] = asyncio.get_running_loop().create_task(
                self._move(name, destination), name=f"hand-over-{name}"
            )
            moving.add_done_callback(lambda _: self._moving.pop(name))
        return moving

    async def _move(self, name: TopicName, destination: Destination | None) -> None:
        loading = self._loading.get(name)
        if loading is not None:
            await asyncio.wait([loading])
        topic = self._topics.get(name)
        if topic is not None:
            await topic.drain(self._settings.publish_drain_timeout_ms / 1000)
            if topic in self._logs:
                self._start_closing(topic, destination)
        if (closing := self._closing.get(name)) is not None:
            await asyncio.wait([closing.task])

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        """Stop serving at once: nothing more is written, answered or sent; clients look again."""
        for name in names:
            if name in self._loading:
                self._unwanted.add(name)
            if (closing := self._closing.get(name)) is not None:
                closing.abandon(reason)
            topic = self._topics.get(name)
            if topic is not None and topic in self._logs:
                self._logs[topic].abandon(reason)  # which comes back as `fence`
                if topic in self._logs:  # but for a terminated one
                    self.fence(topic)

    @asynccontextmanager
    async def held_back(self, name: TopicName) -> AsyncIterator[None]:
        """Have a topic not loaded by anybody else; what is under way is waited for."""
        while (held := self._held.get(name)) is not None:
            await asyncio.wait([held])
        held = self._held[name] = asyncio.get_running_loop().create_future()
        try:
            if (loading := self._loading.get(name)) is not None:
                await asyncio.wait([loading])
            if (closing := self._closing.get(name)) is not None:
                await asyncio.wait([closing.task])
            yield
        finally:
            del self._held[name]
            held.set_result(None)

    async def delete(self, name: TopicName, *, is_forced: bool) -> None:
        """Delete a topic with all there is of it; `is_forced`: whoever uses it, is sent away.

        A deletion that was interrupted is completed by calling it again, or by loading the topic.

        Raises:
            TopicNotFoundError: it does not exist.
            NotAllowedError: somebody uses it.
            RequestError: it is another broker's, or cannot be deleted now.
        """
        async with self.held_back(name):
            if name.is_persistent and not is_forced:
                await self._deletion.check_unused(name)
            await self._delete(name, None if is_forced else check_members)

    async def delete_unless_used(self, topic: Topic) -> None:
        """Delete a topic of this broker that has been out of use.

        Raises:
            NotAllowedError: it was used meanwhile.
            RequestError: it cannot be deleted now.
        """
        async with self.held_back(topic.name):
            if self._topics.get(topic.name) is topic:
                await self._delete(topic.name, inactive_topics.check_unused)

    async def _delete(self, name: TopicName, check: Callable[[Topic], None] | None) -> None:
        """`check` refuses, in the last moment, topics that are loaded."""
        timeout_s = self._settings.topic_load_timeout_ms / 1000
        tenure = await self._ownership.acquire(name, timeout_s=timeout_s)
        topic = self._topics.get(name)
        if topic is not None:
            if check is not None:
                check(topic)
            self.drop([name], "it is deleted")
        if (closing := self._closing.get(name)) is not None:
            await asyncio.wait([closing.task])
        if not tenure.holds():
            raise ServiceNotReadyError(f"the lease of {name} was lost: ask its next owner")
        if name.is_persistent:
            await self._deletion.mark(name)
            await self._deletion.finish(name)
        elif topic is None:
            raise TopicNotFoundError(f"Topic {name} not found")
        if name.partition_index < 0:
            await self.forget_policies(name)

    async def check_unused(self, name: TopicName) -> None:
        """Refuse to delete a topic that is seen to be used: loaded here, or by its subscriptions.

        Raises:
            NotAllowedError, BrokerMetadataError
        """
        topic = self._topics.get(name)
        if topic is not None:
            check_members(topic)
        await self._deletion.check_unused(name)

    async def forget_policies(self, name: TopicName) -> None:
        """A topic that is gone has no policies of its own.

        Raises:
            BrokerMetadataError
        """
        await self._policies.update_topic(name, lambda _: PolicySet())

    def _reload(self, topic: Topic, reason: str) -> None:
        """Drop a topic that is ours, so that it is recovered when somebody asks for it."""
        _log.warning("topic_reloaded", topic=str(topic.name), reason=reason)
        log = self._logs.get(topic)
        if log is not None:
            log.abandon(reason)  # which comes back as `fence`

    def _reopen(self, topic: Topic, reason: str) -> None:
        """Close a topic in order; its clients come back and have it loaded again."""
        _log.info("topic_reopened", topic=str(topic.name), reason=reason)
        self._start_moving(topic.name, None)

    def fence(self, topic: Topic) -> None:
        """It has another owner, or may have: drop it at once, write nothing, let clients look."""
        if topic not in self._logs:
            topic.is_closed = True  # still loading: whoever does that looks at it in the end
            return
        self.fenced += 1
        _log.warning("topic_fenced", topic=str(topic.name))
        self._abandon_cursors(topic)
        self._start_closing(topic)

    def _abandon_cursors(self, topic: Topic) -> None:
        for cursor in topic.durable_cursors():
            cursor.abandon()

    def _start_closing(self, topic: Topic, destination: Destination | None = None) -> None:
        closing = _Closing(topic, self._logs.pop(topic), topic.durable_cursors())
        del self._topics[topic.name]
        topic.disconnect_all(destination)
        self._closing[topic.name] = closing
        closing.task = asyncio.get_running_loop().create_task(
            self._close(closing), name=f"close-{topic.name}"
        )
        closing.task.add_done_callback(lambda _: self._closing.pop(topic.name))

    async def _close(self, closing: _Closing) -> None:
        """Within its time; a stuck close must not keep the topic from its next owner (10.4)."""
        try:
            async with asyncio.timeout(self._settings.topic_close_timeout_ms / 1000):
                await self._close_parts(closing)
        except TimeoutError:
            _log.warning("topic_not_closed_in_time", topic=str(closing.topic.name))
            closing.abandon("it could not be closed in time")
        _log.info("topic_closed", topic=str(closing.topic.name))

    async def _close_parts(self, closing: _Closing) -> None:
        if closing.topic.compaction is not None:
            await closing.topic.compaction.finished()
        ends = [cursor.close() for cursor in closing.cursors]
        for result in await asyncio.gather(closing.log.close(), *ends, return_exceptions=True):
            if isinstance(result, CursorUnavailableError):
                # Nothing is lost: what was not saved is delivered again.
                _log.warning("cursor_not_saved", topic=str(closing.topic.name), error=str(result))
            elif isinstance(result, LedgerError):
                _log.warning("log_not_closed", topic=str(closing.topic.name), error=str(result))
            elif isinstance(result, BaseException) and not isinstance(result, CursorError):
                raise result

    async def close(self, timeout_s: float) -> None:
        """Close every topic; what is not done in time is left to the next owner's recovery."""
        self._is_stopping = True
        for loading in self._loading.values():
            loading.cancel()
        await self.hand_over(self.names_of(lambda _: True), None, timeout_s=timeout_s)
        unfinished = [*(each.task for each in self._closing.values()), *self._loading.values()]
        if unfinished:
            _log.warning("topics_not_closed", topics=len(unfinished))
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished, timeout=1.0)
