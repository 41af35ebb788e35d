"""The registry of partitioned topics: reads, creates, grows and deletes them.

All state is in the metadata store, so any broker may do it. A partition exists from the moment its
topic was created or has grown, loaded or not: lists and patterns show it.

Growth loses nothing. The new partitions and, in them, the durable subscriptions of the topic exist
before the new count does, and no producer may use a partition beyond the count. A consumer that
subscribes meanwhile knows only the old count. Those subscriptions are copied once the new count is
stored. The record names the new partitions until then, so that the next growth, which may be to the
same count, completes one that was interrupted.

A deletion may overtake a creation or a growth. It deletes the partitions of the record, and perhaps
not those that are made at this moment. So a request that makes partitions reads the record again,
at times and in the end. If the topic is gone, it removes what it has made: a later topic of the
name would have it otherwise.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote_plus

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    NotAllowedError,
    PartitionCountError,
    RequestError,
    ServiceNotReadyError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.partitions.record import (
    PartitionedTopicRecord,
    partitioned_topic_path,
    partitioned_topics_root,
)
from magnetar.broker.policies.records import asked, change_record, read_record
from magnetar.cursors import CursorError, copy_cursor, list_cursors
from magnetar.cursors.node import cursor_path
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerError,
    MetadataError,
    NoNodeError,
    NotEmptyError,
)
from magnetar.ledger.managed_log.log_deletion import is_marked_at, mark_unopened, remove_marked
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogMetadata
from magnetar.ledger.metadata.cell import GONE, Deletion, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_WRITES_AT_ONCE = 32
_MADE_PER_LOOK = 32
"""Partitions that are made until the record is read again."""
_REMOVAL_TRIES_MAX = 5

PARTITIONS_MAX = 100_000
"""Largest number of partitions, whatever the settings say: a request about a topic goes through
all."""


class PartitionedTopics:
    """Reads and changes the records of partitioned topics; stateless."""

    def __init__(self, store: MetadataStore, *, partitions_max: int, clock: Clock) -> None:
        """`partitions_max`: limit per topic; 0 for `PARTITIONS_MAX`."""
        self._store = store
        self._clock = clock
        self._partitions_max = partitions_max

    # Questions

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> PartitionedTopicRecord | None:
        """Return the record of a partitioned topic; None if there is none.

        With `is_sure`, a store that is behind catches up before it reports that there is none.

        Raises:
            BrokerMetadataError
        """
        path = partitioned_topic_path(topic)
        found = await read_record(self._store, PartitionedTopicRecord, path, is_sure=is_sure)
        return found[0] if found is not None else None

    async def get(self, topic: TopicName) -> PartitionedTopicRecord:
        """Return the record of a partitioned topic.

        Raises:
            TopicConflictError: a topic of that name exists, and has no partitions.
            TopicNotFoundError: there is no topic of that name.
            BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is None:
            if await self._has_log(topic):
                raise TopicConflictError(f"Topic {topic} is not partitioned topic")
            raise TopicNotFoundError(f"Partitioned topic {topic} not found")
        return record

    async def names(self, namespace: str, domain: str = "persistent") -> list[TopicName]:
        """Return the partitioned topics of an existing namespace, sorted.

        Raises:
            BrokerMetadataError
        """
        root = partitioned_topics_root(namespace, domain)
        try:
            nodes = await asked(self._store.children(root), f"list {root}")
        except NoNodeError:
            return []
        tenant, _, name = namespace.partition("/")
        topics = [TopicName(domain, tenant, name, unquote_plus(node)) for node in nodes]
        return sorted(topics, key=str)

    async def is_partition(self, topic: TopicName) -> bool:
        """Return whether a topic is a partition, by its name and the record of its partitioned
        topic.

        Raises:
            NotAllowedError: it is beyond the last partition, or they are being deleted.
            BrokerMetadataError
        """
        index = topic.partition_index
        if index < 0:
            return False
        whole = topic.partitioned
        record = await self.find(whole)
        if record is not None and index >= record.partitions:
            await asked(self._store.catch_up(), f"read partitions of {whole}")
            record = await self.find(whole)
        if record is None:
            return False
        if record.is_deleted:
            raise NotAllowedError(f"{whole} is being deleted")
        if index >= record.partitions:
            raise NotAllowedError(
                f"Illegal topic partition name {topic} with max allowed "
                f"{record.partitions} partitions"
            )
        return True

    # Changes

    def check_count(self, partitions: int) -> None:
        """Refuse an invalid number of partitions.

        Raises:
            PartitionCountError
        """
        limit = self._partitions_max or PARTITIONS_MAX
        if partitions < 1:
            raise PartitionCountError("Number of partitions should be more than 0")
        if partitions > limit:
            raise PartitionCountError(
                f"Number of partitions should be less than or equal to {limit}"
            )

    async def create(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> PartitionedTopicRecord:
        """Create a partitioned topic, with all its partitions.

        Raises:
            PartitionCountError
            TopicConflictError: there is a topic of that name, of either kind.
            TopicNotFoundError: another request deleted it meanwhile.
            NotAllowedError: the name is that of a partition.
            BrokerMetadataError
        """
        self.check_count(partitions)
        if topic.partition_index >= 0:
            raise NotAllowedError(f"{topic} has the name of a partition: it cannot be partitioned")
        record = PartitionedTopicRecord(partitions=partitions, properties=dict(properties or {}))

        def first(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord:
            if before is not None:
                raise TopicConflictError(f"This topic already exists: {topic} is partitioned")
            return record

        if await self._has_log(topic):
            raise TopicConflictError(f"This topic already exists: {topic} is not partitioned")
        path = partitioned_topic_path(topic)
        await change_record(self._store, PartitionedTopicRecord, path, first)
        if await self._has_log(topic):
            # A plain topic was created automatically at this moment. It has messages, this one has
            # none.
            await change_record(
                self._store,
                PartitionedTopicRecord,
                path,
                lambda now: None if now == record else now,
            )
            raise TopicConflictError(f"This topic already exists: {topic} is not partitioned")
        async with self._making(topic, known=partitions) as made:
            await self._create_logs(topic, range(partitions), made, known=partitions)
        return record

    async def ensure(self, topic: TopicName, partitions: int) -> PartitionedTopicRecord:
        """Create a partitioned topic on first use; keep an existing one.

        Raises:
            as for `create`.
            ServiceNotReadyError: another request deleted it meanwhile.
        """
        try:
            return await self.create(topic, partitions)
        except TopicConflictError:
            return await self.get(topic)
        except TopicNotFoundError as error:
            raise ServiceNotReadyError(f"{error}: try again") from error

    async def grow(self, topic: TopicName, partitions: int, *, is_forced: bool) -> None:
        """Add partitions. `is_forced`: existing topics with the names of new partitions become
        partitions.

        Raises:
            PartitionCountError: fewer than now, or too many.
            TopicNotFoundError: it does not exist.
            TopicConflictError: it has no partitions, or there are such topics.
            BrokerMetadataError
        """
        record = await self.get(topic)
        if record.is_deleted:  # Before anything is made that the deletion would miss.
            raise TopicNotFoundError(f"{topic} is being deleted")
        _check_not_final(topic, record)
        self.check_count(partitions)
        if partitions < record.partitions:
            raise PartitionCountError(
                f"Desired partitions {partitions} can't be less than the current partitions "
                f"{record.partitions}"
            )
        new = range(record.partitions, partitions)
        for index in () if is_forced or not topic.is_persistent else new:
            if await self._has_log(topic.partition(index)):
                raise TopicConflictError(
                    f"{topic.partition(index)} exists: delete it, or grow with force"
                )
        async with self._making(topic, known=record.partitions) as made:
            await self._create_logs(topic, new, made, known=record.partitions, inherits=True)
            after = await self._store_growth(topic, partitions, known=record.partitions)
        if after.growing_from is not None:
            await self._bring_along(topic, range(after.growing_from, after.partitions))
            await self._end_growth(topic, after)

    async def _store_growth(
        self, topic: TopicName, partitions: int, *, known: int
    ) -> PartitionedTopicRecord:
        """Store the new number of partitions. `known`: how many there were when growth began.

        Raises:
            TopicNotFoundError, TopicConflictError, BrokerMetadataError
        """

        def grown(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord:
            _check_there(topic, before, known)
            assert before is not None
            _check_not_final(topic, before)
            # Another broker may have grown it further meanwhile.
            most = max(before.partitions, partitions)
            update = {"partitions": most}
            if topic.is_persistent and before.growing_from is None and most > before.partitions:
                update["growing_from"] = before.partitions
            return before.model_copy(update=update)

        path = partitioned_topic_path(topic)
        after = await change_record(self._store, PartitionedTopicRecord, path, grown)
        assert after is not None
        return after

    async def _end_growth(self, topic: TopicName, grown: PartitionedTopicRecord) -> None:
        """Note that all partitions of a record have their subscriptions, unless the topic has grown
        again meanwhile."""

        same = grown.partitions, grown.growing_from

        def ended(now: PartitionedTopicRecord | None) -> PartitionedTopicRecord | None:
            if now is None or (now.partitions, now.growing_from) != same:
                return now
            return now.model_copy(update={"growing_from": None})

        path = partitioned_topic_path(topic)
        await change_record(self._store, PartitionedTopicRecord, path, ended)

    async def create_missed(self, topic: TopicName) -> None:
        """Create missing partitions, since a creation may have been interrupted.

        Raises:
            TopicNotFoundError, TopicConflictError, BrokerMetadataError
        """
        record = await self.get(topic)
        if record.is_deleted:
            raise TopicNotFoundError(f"{topic} is being deleted")
        count = record.partitions
        async with self._making(topic, known=count) as made:
            await self._create_logs(topic, range(count), made, known=count, inherits=True)

    async def make_final(self, topic: TopicName) -> int | None:
        """Fix the number of partitions for good; return it, or None if the topic is not
        partitioned.

        Raises:
            TopicNotFoundError: it is being deleted.
            BrokerMetadataError
        """
        if await self.find(topic, is_sure=True) is None:
            return None

        def final(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord:
            if before is None or before.is_deleted:
                raise TopicNotFoundError(f"Partitioned topic {topic} not found")
            return before.model_copy(update={"is_final": True})

        path = partitioned_topic_path(topic)
        record = await change_record(self._store, PartitionedTopicRecord, path, final)
        assert record is not None
        return record.partitions

    async def mark_deleted(
        self, topic: TopicName, *, is_deleted: bool = True, with_scalable: bool = False
    ) -> int:
        """Hide all partitions, or show them again; return their number.

        `with_scalable`: even if they are a part of a scalable topic, which is deleted, too.

        Raises:
            TopicNotFoundError, BrokerMetadataError
            TopicConflictError: they are a part of a scalable topic.
        """

        def marked(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord:
            if before is None:
                raise TopicNotFoundError(f"Partitioned topic {topic} not found")
            if not with_scalable:
                _check_not_final(topic, before)
            return before.model_copy(update={"is_deleted": is_deleted})

        path = partitioned_topic_path(topic)
        record = await change_record(self._store, PartitionedTopicRecord, path, marked)
        assert record is not None
        return record.partitions

    async def mark_migrated_deleted(self, topic: TopicName) -> None:
        """Hide the partitions of a topic that was migrated, and is deleted as a scalable one.

        A partitioned topic that was created anew under the name stays as it is.

        Raises:
            BrokerMetadataError
        """

        def marked(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord | None:
            if before is None or not before.is_final:
                return before
            return before.model_copy(update={"is_deleted": True})

        path = partitioned_topic_path(topic)
        await change_record(self._store, PartitionedTopicRecord, path, marked)

    async def check_deleted(self, topic: TopicName) -> None:
        """Make sure that a topic is still being deleted: of several requests to delete it, one
        completes that, and then a new topic may have the name.

        Raises:
            TopicNotFoundError: another request has completed the deletion.
            ConflictError: there is a topic of that name, and it is not being deleted.
            BrokerMetadataError
        """
        await asked(self._store.catch_up(), f"read partitions of {topic}")
        record = await self.find(topic)
        if record is None:
            raise TopicNotFoundError(f"{topic} was deleted by another request")
        if not record.is_deleted:
            raise ConflictError(
                f"{topic} is not being deleted any more: another request gave that up, or has "
                "completed it, and the topic was created anew; delete it again if it must go"
            )

    async def forget(self, topic: TopicName) -> None:
        """Remove the record after the partitions are deleted. One that is not marked stays: it is
        of a topic that was created anew since.

        Raises:
            BrokerMetadataError
        """

        def without(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord | None:
            return None if before is None or before.is_deleted else before

        path = partitioned_topic_path(topic)
        await change_record(self._store, PartitionedTopicRecord, path, without)

    async def update_properties(
        self, topic: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Replace its properties by the result of `change`.

        Raises:
            TopicNotFoundError, BrokerMetadataError
        """

        def changed(before: PartitionedTopicRecord | None) -> PartitionedTopicRecord:
            if before is None:
                raise TopicNotFoundError(f"Partitioned topic {topic} not found")
            properties = change(dict(before.properties))
            return before.model_copy(update={"properties": properties})

        path = partitioned_topic_path(topic)
        await change_record(self._store, PartitionedTopicRecord, path, changed)

    # Logs and cursors

    async def _has_log(self, topic: TopicName) -> bool:
        if not topic.is_persistent:
            return False
        path = naming.log_path(topic)
        if await asked(self._store.exists(path), f"look for {path}") is not None:
            return True
        await asked(self._store.catch_up(), f"look for {path}")
        return await asked(self._store.exists(path), f"look for {path}") is not None

    @asynccontextmanager
    async def _making(self, topic: TopicName, *, known: int) -> AsyncIterator[list[TopicName]]:
        """Yield a list for the partitions that are made. If that fails because the topic was
        deleted, or became final, remove those that it does not have.

        `known`: how many partitions the topic has at least, as long as it is the same.
        """
        made: list[TopicName] = []
        try:
            yield made
        except RequestError:
            try:
                if made:
                    await self._take_back_made(topic, made, known=known)
            except RequestError as error:
                _log.warning("partitions_left_behind", topic=str(topic), error=str(error))
            raise

    async def _take_back_made(
        self, topic: TopicName, made: Sequence[TopicName], *, known: int
    ) -> None:
        record = await self._read_now(topic)
        if record is None or record.is_deleted:
            kept = 0
        elif record.is_final or record.partitions < known:
            kept = record.partitions
        else:
            return  # Repeating the request completes it.
        await _at_once(self.take_back(each) for each in made if each.partition_index >= kept)
        record = await self._read_now(topic)
        if record is not None and not record.is_deleted:
            # The deletion was given up, or there is a new topic of that name.
            has = [
                each.partition_index for each in made if each.partition_index < record.partitions
            ]
            await self._create_logs(topic, has, [], known=record.partitions, inherits=True)

    async def _read_now(self, topic: TopicName) -> PartitionedTopicRecord | None:
        await asked(self._store.catch_up(), f"read partitions of {topic}")
        return await self.find(topic)

    async def _create_logs(
        self,
        topic: TopicName,
        indexes: Sequence[int],
        made: list[TopicName],
        *,
        known: int,
        inherits: bool = False,
    ) -> None:
        """Create a log without ledgers for each partition; an existing one stays as it is.

        Args:
            made: gets the partitions whose logs are new.
            known: how many partitions the topic has at least, as long as it is the same.
            inherits: the new ones have the durable subscriptions of the first partition, from their
                beginning.

        Raises:
            TopicNotFoundError: the topic was deleted meanwhile.
            BrokerMetadataError
        """
        if not topic.is_persistent or not indexes:
            return
        names = await self._durable_subscriptions(topic) if inherits else []
        is_over = False

        async def create(number: int, index: int) -> None:
            nonlocal is_over
            if is_over:
                return
            try:
                if number and number % _MADE_PER_LOOK == 0:
                    _check_there(topic, await self.find(topic), known)
                if await self.create_log(topic.partition(index)):
                    made.append(topic.partition(index))
                for name in names:
                    await self._inherit(topic, index, name)
            except TopicNotFoundError:
                is_over = True
                raise

        await _at_once(create(number, index) for number, index in enumerate(indexes))
        _check_there(topic, await self._read_now(topic), known)

    async def take_back(self, topic: TopicName) -> None:
        """Remove the log of a topic that was never loaded, with the subscriptions that were copied
        to it. Leave what was loaded: that is in use, and perhaps of a later topic of the name.

        The log is marked first, so that no broker loads it from there on. If the rest fails, the
        next load completes it, like any deletion.

        Raises:
            BrokerMetadataError
        """
        path = naming.log_path(topic)
        try:
            if await mark_unopened(self._store, path):
                await self._remove_marked(path)
        except LedgerError as error:
            raise BrokerMetadataError(f"{path} is not taken back: {error}") from error

    async def _remove_marked(self, path: str) -> None:
        """Remove a marked log and its subscriptions. One more may be copied to it after they were
        listed, so they are listed again then.

        Raises:
            NotEmptyError: that happened too often.
            LedgerError
        """
        for tries_left in reversed(range(_REMOVAL_TRIES_MAX)):
            for name in await list_cursors(self._store, path):
                await self._remove_copied(path, name)
            try:
                await remove_marked(self._store, path)
                return
            except NotEmptyError:
                if not tries_left:
                    raise

    async def _remove_copied(self, path: str, name: str) -> None:
        """Remove a subscription of a marked log.

        Another process may complete the removal meanwhile, and the names may be in use again. So
        the node is read before the mark is, and compared: see `topics/deletion.py`.
        """

        async def remove(node: bytes | None) -> Deletion | None:
            if node is None or not await is_marked_at(self._store, path):
                return None
            return GONE

        await bytes_cell(self._store, cursor_path(path, name)).change_async(remove)

    async def _bring_along(self, topic: TopicName, indexes: Sequence[int]) -> None:
        """Copy subscriptions that the first partition gained meanwhile to the new partitions.

        These exist for clients by now, and may be deleted like any other: a deleted partition does
        not come back.
        """
        names = await self._durable_subscriptions(topic)

        async def bring(index: int) -> None:
            partition = topic.partition(index)
            path = naming.log_path(partition)
            there = await asked(list_cursors(self._store, path), f"read {path}")
            for name in names:
                if name in there:
                    continue
                record = await self.find(topic, is_sure=True)
                if record is None or record.is_deleted or not await self._has_log(partition):
                    return
                with suppress(TopicNotFoundError):
                    await self._inherit(topic, index, name)

        await _at_once(bring(index) for index in indexes)

    async def _durable_subscriptions(self, topic: TopicName) -> list[str]:
        """Return the durable subscriptions of the first partition."""
        path = naming.log_path(topic.partition(0))
        await asked(self._store.catch_up(), f"read {path}")
        cursors = await asked(list_cursors(self._store, path), f"read {path}")
        return [name for name in cursors if not naming.is_internal_cursor(name)]

    async def create_plain(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Create a topic without partitions.

        Raises:
            TopicConflictError: there is a topic of that name, of either kind.
            BrokerMetadataError
        """
        if not await self.create_log(topic, properties):
            raise TopicConflictError(f"This topic already exists: {topic}")
        if await self.find(topic, is_sure=True) is None:
            return
        # A partitioned one was created at this moment, perhaps after its last check for this one.
        path = naming.log_path(topic)
        try:
            await self._store.delete(path, version=0)
        except (BadVersionError, NoNodeError):
            pass  # A broker that has loaded it gives it up.
        except MetadataError as error:
            raise BrokerMetadataError(f"{path} is not taken back: {error}") from error
        raise TopicConflictError(f"This topic already exists: {topic} is partitioned")

    async def create_log(
        self, topic: TopicName, properties: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic's log, which is loaded when the topic is used; return False if it existed.

        Raises:
            BrokerMetadataError
        """
        path = naming.log_path(topic)
        created = {CREATED_PROPERTY: str(self._clock.wall_ms())}
        value = LogMetadata(properties={**(properties or {}), **created}).to_json()
        try:
            return await bytes_cell(self._store, path).create(value)
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot create {topic}: {error}") from error

    async def _inherit(self, topic: TopicName, index: int, name: str) -> None:
        """Copy a subscription of the first partition to another one.

        Raises:
            TopicNotFoundError: the other one was deleted meanwhile.
            BrokerMetadataError
        """
        first, own = naming.log_path(topic.partition(0)), naming.log_path(topic.partition(index))
        try:
            await copy_cursor(self._store, first, own, name, now_ms=self._clock.wall_ms())
        except NoNodeError as error:
            raise TopicNotFoundError(f"{topic.partition(index)} was deleted meanwhile") from error
        except (CursorError, MetadataError) as error:
            raise BrokerMetadataError(
                f"subscription {name} cannot be made in {topic.partition(index)}: {error}"
            ) from error


def _check_there(topic: TopicName, record: PartitionedTopicRecord | None, known: int) -> None:
    """Make sure that a topic still exists, and is no later one of its name: `known` is how many
    partitions it has at least, and their number never falls.

    Raises:
        TopicNotFoundError
    """
    if record is None or record.is_deleted or record.partitions < known:
        raise TopicNotFoundError(f"Partitioned topic {topic} not found: it was deleted meanwhile")


def _check_not_final(topic: TopicName, record: PartitionedTopicRecord) -> None:
    if record.is_final:
        raise TopicConflictError(
            f"{topic} is, or becomes, a part of a scalable topic: change or delete "
            f"{naming.resolved_name(topic)}; if its migration was broken off, migrate it again"
        )


async def _at_once(works: Iterable[Awaitable[None]]) -> None:
    """Run all, some concurrently; raise the first error when all have ended."""
    limit = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def bounded(work: Awaitable[None]) -> None:
        async with limit:
            await work

    for result in await asyncio.gather(*map(bounded, works), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
