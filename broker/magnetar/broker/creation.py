"""Whether a topic that is used may appear by itself, and how many partitions it has then."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.partitions.record import PartitionedTopicRecord
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.sdk.wire import TopicName


class Partitioned(Protocol):
    """What must be known of partitioned topics; see `PartitionedTopics`."""

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> PartitionedTopicRecord | None: ...

    async def is_partition(self, topic: TopicName) -> bool: ...

    async def ensure(self, topic: TopicName, partitions: int) -> PartitionedTopicRecord: ...


class TopicCreation:
    """Asks the policies and the store."""

    def __init__(
        self,
        policies: PolicyRegistry,
        *,
        exists: Callable[[TopicName], Awaitable[bool]],
        names: Callable[[str], Awaitable[Sequence[str]]],
        partitioned: Partitioned,
    ) -> None:
        """`exists` and `names` (of a namespace) ask the metadata store."""
        self._partitioned = partitioned
        self._policies = policies
        self._exists = exists
        self._names = names

    async def check(self, name: TopicName, *, may_create: bool) -> None:
        """Refuse a topic that does not exist and must not appear, and one that is none itself.

        `may_create`: whether the request wants it to.

        Raises:
            TopicNotFoundError: it does not exist; the text says what keeps it from being created.
            NotAllowedError: the namespace has as many topics as it may have; the name is that of
                a partitioned topic, or beyond the last of its partitions.
            BrokerMetadataError
        """
        await self._policies.check_namespace(name.namespace_name)
        if await self._partitioned.is_partition(name) or await self._exists(name):
            return
        record = await self._find_whole(name)
        if record is not None:
            raise NotAllowedError(
                f"{name} has {record.partitions} partitions: use {name.partition(0)} and so on"
            )
        await self._check_new(name, may_create=may_create)
        await self.check_room(name.namespace_name, 1)

    async def partitions_of(self, name: TopicName, *, may_create: bool) -> int:
        """How many partitions a topic has, 0: it stands for itself; it may get them here.

        Raises:
            As `check`.
        """
        policies = await self._policies.of(name)
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
        if not policies.auto_topic_is_partitioned or name.partition_index >= 0:
            return 0
        await self.check_room(name.namespace_name, policies.auto_topic_partitions)
        return (await self._partitioned.ensure(name, policies.auto_topic_partitions)).partitions

    async def _find_whole(self, name: TopicName) -> PartitionedTopicRecord | None:
        """The record of a partitioned topic of that name, which certainly exists, or not."""
        if name.partition_index >= 0:
            return None
        return await self._partitioned.find(name, is_sure=True)

    async def _check_new(self, name: TopicName, *, may_create: bool) -> None:
        if not may_create:
            raise TopicNotFoundError(f"{name} does not exist")
        if not (await self._policies.of(name)).auto_topic_creation:
            raise TopicNotFoundError(
                f"{name} does not exist, and topics do not appear by themselves in "
                f"{name.namespace_name}: create it first"
            )

    async def check_room(self, namespace: str, more: int) -> None:
        """Refuse more topics than the namespace may have.

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
