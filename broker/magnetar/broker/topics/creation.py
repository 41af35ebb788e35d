"""Automatic topic creation: whether a topic may be created at its use, and with how many
partitions.

A namespace with a limit on its topics needs turns: between the count and the creation, no other
broker and no other request may create one. Only such namespaces pay for that.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote_plus
from weakref import WeakValueDictionary

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NotAllowedError,
    PartitionedTopicError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.features.scalable import ScalableTopicRecord, SegmentRecord
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.ledger.errors import (
    MetadataError,
)
from magnetar.ledger.metadata.cell import bytes_cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_TURNS_ROOT = "/loadbalance/topic-creations"
_TURN_WAIT_S_MAX = 20.0
"""Longest wait, in seconds, for earlier creations."""
_TURN_RETRY_S = 0.02
_TOKEN_BITS = 64


class Partitioned(Protocol):
    """Interface of partitioned topics; see `PartitionedTopics`."""

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> PartitionedTopicRecord | None: ...

    async def is_partition(self, topic: TopicName) -> bool: ...

    async def ensure(self, topic: TopicName, partitions: int) -> PartitionedTopicRecord: ...

    async def create_log(
        self, topic: TopicName, properties: Mapping[str, str] | None = None
    ) -> bool: ...


class Scalable(Protocol):
    """Interface of scalable topics; see `ScalableTopics`."""

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> ScalableTopicRecord | None: ...

    async def find_settled(self, topic: TopicName) -> ScalableTopicRecord | None: ...

    async def segment(self, name: TopicName) -> SegmentRecord | None: ...

    async def is_pruned(self, name: TopicName) -> bool: ...

    async def finish(self, topic: TopicName) -> None: ...

    async def create(
        self,
        topic: TopicName,
        segments: int,
        properties: Mapping[str, str] | None = None,
        *,
        is_taken: Callable[[], Awaitable[bool]],
    ) -> ScalableTopicRecord: ...


class CreationTurns:
    """Turns for creations in a namespace, one at a time over all brokers: an ephemeral node per
    turn.

    If a node could not be deleted, its owner reuses it at the next turn. Other brokers wait until
    the owner's session ends.
    """

    def __init__(self, store: MetadataStore, random: random.Random) -> None:
        self._store = store
        self._value = f"{random.getrandbits(_TOKEN_BITS):016x}".encode()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by namespace; each exists while a request holds it or waits for it. A released lock
        counts as unlocked even if a waiter is about to get it, so `locked` cannot tell when to
        drop one."""
        self._ending: set[asyncio.Task[None]] = set()
        """A request that is cancelled twice no longer waits for its task."""

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Hold the namespace's turn.

        Raises:
            BrokerMetadataError: no turn came in time.
        """
        lock = self._locks.setdefault(namespace, asyncio.Lock())
        path = f"{_TURNS_ROOT}/{quote_plus(namespace)}"
        try:
            async with asyncio.timeout(_TURN_WAIT_S_MAX):
                await lock.acquire()
                try:
                    await self._take(path)
                except BaseException:
                    await self._end(path, lock)
                    raise
        except (TimeoutError, MetadataError) as error:
            raise BrokerMetadataError(
                f"no topic can be created in {namespace} while others are being created: {error!r}"
            ) from error
        try:
            yield
        finally:
            await self._end(path, lock)

    async def _take(self, path: str) -> None:
        turn = bytes_cell(self._store, path, ephemeral=True)
        while not await turn.create(self._value):
            found = await turn.read()
            if found is not None and found.value == self._value:
                return  # It was not given back the last time.
            await asyncio.sleep(_TURN_RETRY_S)

    async def _end(self, path: str, lock: asyncio.Lock) -> None:
        """Give the turn back and release the lock, even if the request is cancelled meanwhile.
        Otherwise other brokers would wait for the turn until this one's session ends."""
        ending = asyncio.create_task(self._give_back(path, lock))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise

    async def _give_back(self, path: str, lock: asyncio.Lock) -> None:
        """End the turn, if it is this broker's: it may have ended with its session, and another
        broker may have the next one. It may also have been taken without an answer."""
        try:
            found = await bytes_cell(self._store, path).read()
            if found is not None and found.value == self._value:
                await self._store.delete(path, version=found.version)
        except MetadataError:
            pass  # It ends with its session, or is reused next time.
        finally:
            lock.release()


class TopicCreation:
    """Decides about topic creation by the policies and the metadata store."""

    def __init__(
        self,
        policies: PolicyRegistry,
        *,
        exists: Callable[[TopicName], Awaitable[bool]],
        names: Callable[[str], Awaitable[Sequence[str]]],
        partitioned: Partitioned,
        scalable: Scalable | None = None,
        turns: CreationTurns | None = None,
    ) -> None:
        """`exists` and `names` (of a namespace) query the metadata store. `scalable`: None if there
        are no scalable topics. `turns`: None if nothing else creates topics."""
        self._turns = turns
        self._partitioned = partitioned
        self._scalable = scalable
        self._policies = policies
        self._exists = exists
        self._names = names

    async def check(self, name: TopicName, *, may_create: bool) -> bool:
        """Refuse a topic that does not exist and must not be created, or a name that is no topic's.

        Return whether it has a log, as far as that was found out. A partition or a segment exists
        without one. `may_create`: whether the request allows creation.

        Raises:
            TopicNotFoundError: it does not exist; the text says why it is not created.
            NotAllowedError: the namespace has reached its limit of topics.
            PartitionedTopicError: the name is that of a partitioned topic.
            BrokerMetadataError
        """
        await self._policies.check_namespace(name.namespace_name)
        if name.is_segment:
            return await self._check_segment(name)
        if await self._partitioned.is_partition(name):
            return False
        if await self._exists(name):
            return True
        record = await self._find_whole(name)
        if record is not None:
            raise PartitionedTopicError(
                f"{name} has {record.partitions} partitions: use {name.partition(0)} and so on"
            )
        await self._check_new(name, may_create=may_create)
        limit = (await self._policies.of_namespace(name.namespace_name)).max_topics
        if not limit or not name.is_persistent:
            await self.check_room(name.namespace_name, 1)
            return False
        async with self.turn(name.namespace_name):
            if not await self._exists(name):
                await self.check_room(name.namespace_name, 1)
                await self._partitioned.create_log(name)
        return True

    async def partitions_of(self, name: TopicName, *, may_create: bool) -> int:
        """Return how many partitions a topic has, 0: it is not partitioned; create them if need be.

        Raises:
            As `check`.
        """
        policies = await self._policies.of(name)
        if name.is_segment:
            await self._check_segment(name)
            return 0
        record = await self._partitioned.find(name) if name.partition_index < 0 else None
        if record is None:
            if await self._partitioned.is_partition(name) or await self._exists(name):
                return 0
            record = await self._find_whole(name)
        if record is not None:
            if record.is_deleted:
                raise TopicNotFoundError(f"{name} is being deleted")
            return record.partitions
        await self._check_new(name, may_create=may_create)
        if not policies.auto_topic_creation.is_partitioned or name.partition_index >= 0:
            return 0
        async with self.turn(name.namespace_name):
            if await self._partitioned.find(name, is_sure=True) is None:
                await self.check_room(name.namespace_name, policies.auto_topic_creation.partitions)
            record = await self._partitioned.ensure(name, policies.auto_topic_creation.partitions)
        return record.partitions

    async def _check_segment(self, name: TopicName) -> bool:
        """Refuse a segment that its topic does not have. Return whether it has a log, as far as
        that was found out.

        A segment of a deleted topic, or one whose log is deleted, must not come back because a
        client still knows it.
        """
        scalable = self._scalable
        found = await scalable.segment(name) if scalable is not None else None
        if found is not None and not found.is_sealed:
            return False
        is_known = found is not None or (scalable is not None and await scalable.is_pruned(name))
        if not is_known or not await self._exists(name):
            raise TopicNotFoundError(f"{name} does not exist")
        return True

    async def have_scalable(self, name: TopicName, *, may_create: bool) -> None:
        """Ensure that a scalable topic exists, by its `persistent://` name; a new one has one
        segment.

        Raises:
            TopicNotFoundError: it does not exist and must not be created, or a topic of another
                kind does.
            NotAllowedError: the namespace has reached its limit of topics.
            RequestError: a running migration cannot be finished now.
        """
        scalable, called = self._scalable, naming.resolved_name(name)
        record = await scalable.find_settled(name) if scalable is not None else None
        if scalable is not None and record is not None and record.is_migrating:
            await scalable.finish(name)  # It is announced already, and exists in a moment.
            record = await scalable.find(name, is_sure=True)
        if record is not None:
            if record.is_deleted:
                raise TopicNotFoundError(f"{called} is being deleted")
            return
        if scalable is None or await self.is_taken(name):
            raise TopicNotFoundError(
                f"{called} not found: the topic of that name is not scalable; use {name}"
            )
        await self._check_new(name, may_create=may_create)
        async with self.turn(name.namespace_name):
            await self.check_room(name.namespace_name, 1)
            try:
                await scalable.create(name, 1, is_taken=lambda: self.is_taken(name))
            except TopicConflictError as error:
                if await scalable.find(name, is_sure=True) is None:
                    raise TopicNotFoundError(f"{called} not found: {error}") from error

    async def is_scalable(self, name: TopicName) -> bool:
        """Whether there is a scalable topic, by its `persistent://` name.

        Raises:
            BrokerMetadataError
        """
        return self._scalable is not None and await self._scalable.find(name) is not None

    async def is_taken(self, name: TopicName) -> bool:
        """Whether a topic that is not scalable has the name, partitioned or not.

        Raises:
            BrokerMetadataError
        """
        return await self._exists(name) or await self._find_whole(name) is not None

    async def _find_whole(self, name: TopicName) -> PartitionedTopicRecord | None:
        """Return the record of a partitioned topic of that name; None if there certainly is
        none."""
        if name.partition_index >= 0:
            return None
        return await self._partitioned.find(name, is_sure=True)

    async def _check_new(self, name: TopicName, *, may_create: bool) -> None:
        if not may_create:
            raise TopicNotFoundError(f"{name} does not exist")
        whole, scalable = name.partitioned, self._scalable
        if scalable is not None and name.is_persistent and await scalable.find(whole) is not None:
            raise TopicNotFoundError(
                f"{name} does not exist; there is a scalable topic {naming.resolved_name(whole)}"
            )
        if not (await self._policies.of(name)).auto_topic_creation.allowed:
            raise TopicNotFoundError(
                f"{name} does not exist, and automatic topic creation is off in "
                f"{name.namespace_name}: create it first"
            )

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Hold the namespace's turn for creating topics after `check_room`.

        In a namespace with a limit, nothing else creates topics meanwhile.

        Raises:
            BrokerMetadataError: no turn came in time.
            NamespaceNotFoundError
        """
        if self._turns is None or not (await self._policies.of_namespace(namespace)).max_topics:
            yield
            return
        async with self._turns.turn(namespace):
            yield

    async def check_room(self, namespace: str, more: int) -> None:
        """Refuse more topics than the namespace may have. Call it in the `turn` that creates them.

        Raises:
            NotAllowedError, NamespaceNotFoundError, BrokerMetadataError
        """
        limit = (await self._policies.of_namespace(namespace)).max_topics
        if limit:
            count = len(await self._names(namespace))
            if count + more > limit:
                raise NotAllowedError(
                    f"namespace {namespace} has {count} topics, and the limit is {limit}"
                )
