"""The scalable topics of the cluster: creates, reads, splits, merges, migrates and deletes them.

All state is in the metadata store. So any broker may act, and several brokers may do the same thing
at once. A split or merge takes five steps. Any broker that finds the change in the record continues
it:

1. begin: one compare-and-set names the change in the record. Nothing else is different yet.
2. prepare: the children get logs, with all durable subscriptions of the parents at their beginning.
   Their owners load them, though no client can use them yet, so that publishing need not wait.
3. seal: the owner of each parent ends its log. Pending publishes are stored and answered, later
   ones are refused; a new durable subscription waits from here on.
4. carry: subscriptions that the parents have gained since step 2 are made in the children, too.
5. commit: one compare-and-set seals the parents and makes the children active, at a new epoch.

Each step can be repeated. A crash between any two leaves a change that another broker finishes: one
that follows the layout for its clients, after a while (`record_layouts.py`), or one that gets a
request to do so. Publishing stops from step 3 to step 5. Before step 3 nothing is lost by waiting.
A parent that is sealed while the record still has it active must not last.

The order makes sure that subscriptions exist before the first append to a child: no client learns
of the children, or may publish to them, before step 5. No key is open in two segments, because the
parents are sealed before that.

A migration takes the same steps: the parents are the logs of a plain or partitioned topic, which
stays one until step 5. From step 3 on, its producers are refused as for any terminated topic.
Source: sheet of Pulsar 5, sections 3.2, 3.8 and 8.3.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    RequestError,
    ServiceNotReadyError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.change_counts import ChangeCounts
from magnetar.broker.features.scalable.record import (
    PendingChange,
    ScalableTopicRecord,
    SegmentRecord,
)
from magnetar.broker.policies.model import AutoScale
from magnetar.broker.policies.records import asked, change_record, read_record
from magnetar.cursors import CursorError, copy_cursor, list_cursors
from magnetar.ledger.errors import LedgerError, MetadataError, NoNodeError
from magnetar.ledger.managed_log.log_deletion import DELETED, is_marked_at, remove_marked
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_COPIES_AT_ONCE = 32
_AHEAD_S_MAX = 1.0
"""Longest wait, in seconds, for the owners of children to load them before the parents are
sealed."""
_PRUNED_AT_ONCE = 16
"""Sealed segments of a topic whose owners are asked at one time, which loads the segments."""
_WORK = "work"
"""Name under which this part notes changes on which it works."""

_ChangeRecord = Callable[[ScalableTopicRecord | None], ScalableTopicRecord | None]
_Carried = dict[TopicName, set[str]]
"""Subscriptions that each child certainly has."""


class SegmentOwners(Protocol):
    """Reaches the brokers that own segments; `topics/segment_owners.py` implements it."""

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Seal a segment; return its durable subscriptions. Repeating it returns them again.

        Raises:
            RequestError: it is not sealed, or the outcome is unknown.
        """
        ...

    async def open_ahead(self, segment: TopicName) -> None:
        """Load a segment that a pending change makes. Clients cannot use it before the change is
        committed.

        Raises:
            RequestError: it is not loaded, or the outcome is unknown. The caller may ignore it.
        """
        ...

    async def delete(self, segment: TopicName) -> None:
        """Delete the data of a segment, even while clients use it. A segment that does not exist
        counts as deleted.

        Raises:
            RequestError: it is not deleted, or the outcome is unknown.
        """
        ...

    async def unsubscribe(self, segment: TopicName, subscription: str, *, is_forced: bool) -> bool:
        """Delete a subscription of a segment; return False if it does not exist. `is_forced`: even
        if it has consumers.

        Raises:
            RequestError: it is not deleted, or the outcome is unknown.
        """
        ...

    async def seek(self, segment: TopicName, subscription: str, publish_ms: int | None) -> bool:
        """Move a subscription of a segment to what was published at or after a time; None: to its
        end. Return False if it does not exist.

        Raises:
            RequestError: it has not moved, or the outcome is unknown.
        """
        ...

    async def hold_back(self, topic: TopicName, subscription: str) -> None:
        """Make the coordinator of a subscription read the holds that the topic's record has now.

        Raises:
            RequestError: the coordinator may not have read them.
        """
        ...

    async def is_used_up(self, segment: TopicName) -> bool:
        """Return whether nothing in a sealed segment is needed any more: all its durable
        subscriptions have durably consumed it, and retention is over.

        Raises:
            RequestError: that cannot be found out now.
        """
        ...

    async def classic_clients(self, segment: TopicName) -> int:
        """Return how many producers and consumers of a topic are not known to be of Pulsar 5.

        Raises:
            RequestError: that cannot be found out now.
        """
        ...

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Create a durable subscription at the present end of a segment; an existing one stays.

        Raises:
            RequestError: it does not exist, or the outcome is unknown.
        """
        ...

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Return whether a segment is sealed, and everything in it acknowledged on a subscription.

        Raises:
            RequestError: that cannot be found out now.
        """
        ...


class Logs(Protocol):
    """Creates the logs of segments, and takes them back; `PartitionedTopics` implements it."""

    async def create_log(
        self, topic: TopicName, properties: Mapping[str, str] | None = None
    ) -> bool: ...

    async def take_back(self, topic: TopicName) -> None: ...


class _OvertakenError(Exception):
    """The record does not name the change any more."""

    def __init__(self, *, is_deleted: bool) -> None:
        """`is_deleted`: the topic was deleted; otherwise another broker has finished the change."""
        super().__init__()
        self.is_deleted = is_deleted


class ScalableTopics:
    """Reads and changes the records of scalable topics. The only state in memory is of work under
    way."""

    def __init__(
        self,
        store: MetadataStore,
        logs: Logs,
        clock: Clock,
        *,
        segments_max: int,
        entry_buckets: int = 1,
    ) -> None:
        """`segments_max`: limit of active segments per topic. `entry_buckets`: default of a topic,
        for all its segments together."""
        self._store = store
        self._logs = logs
        self._clock = clock
        self._segments_max = segments_max
        self._entry_buckets = entry_buckets
        self.owners: SegmentOwners | None = None
        """Set once the broker can reach others."""
        self._finishing: dict[TopicName, asyncio.Task[None]] = {}
        self._holding: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        """Locks, so that a topic's holds have one writer at a time. A client may seek in all
        segments at once, and concurrent compare-and-sets of one record would fail."""
        self.counts = ChangeCounts()

    @property
    def reached_owners(self) -> SegmentOwners:
        """The owners of segments.

        Raises:
            ServiceNotReadyError: this broker cannot reach others yet.
        """
        if self.owners is None:
            raise ServiceNotReadyError("this broker is starting: try again")
        return self.owners

    # Questions

    async def find(self, topic: TopicName, *, is_sure: bool = False) -> ScalableTopicRecord | None:
        """Return the record of a scalable topic, by its `persistent://` name; None if there is
        none.

        With `is_sure`, a store that is behind catches up before it reports that there is none.

        Raises:
            BrokerMetadataError
        """
        path = naming.scalable_topic_path(topic)
        found = await read_record(self._store, ScalableTopicRecord, path, is_sure=is_sure)
        return found[0] if found is not None else None

    async def get(self, topic: TopicName) -> ScalableTopicRecord:
        """Return the record of a scalable topic that exists.

        Raises:
            TopicNotFoundError: there is none, or it is being deleted.
            BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is None or record.is_deleted:
            raise TopicNotFoundError(f"Scalable topic {topic} not found")
        return record

    async def segment(self, name: TopicName) -> SegmentRecord | None:
        """Return the part of its topic's record that describes a segment; None if the topic has no
        segment of that name. A segment that was a partition has the partition's name.

        Raises:
            BrokerMetadataError
        """
        topic = name.partitioned
        for is_behind in (True, False):
            record = await self.find(topic)
            if record is not None and record.is_deleted:
                return None
            found = record.find_named(topic, name) if record is not None else None
            if found is not None:
                return found
            if is_behind:
                await asked(self._store.catch_up(), f"read segments of {topic}")
        return None

    async def is_coming(self, name: TopicName) -> bool:
        """Whether a pending change makes this segment, which is not in the layout yet.

        Raises:
            BrokerMetadataError
        """
        topic = name.partitioned
        for is_behind in (True, False):
            record = await self.find(topic)
            change = record.change if record is not None and not record.is_deleted else None
            if change is not None and any(each.name_in(topic) == name for each in change.children):
                return True
            if is_behind:
                await asked(self._store.catch_up(), f"read segments of {topic}")
        return False

    async def is_parting(self, name: TopicName) -> bool:
        """Whether a segment is sealed, or a pending change seals it.

        Raises:
            BrokerMetadataError
        """
        topic = name.partitioned
        for is_behind in (True, False):
            record = await self.find(topic)
            change = record.change if record is not None else None
            found = record.find_named(topic, name) if record is not None else None
            is_named = change is not None and found is not None and found.id in change.parents
            if found is not None and (found.is_sealed or is_named):
                return True
            if is_behind:
                await asked(self._store.catch_up(), f"read segments of {topic}")
        return False

    async def is_settled(self, name: TopicName) -> bool:
        """Whether no pending change seals a topic: its record has it sealed, or it is not part of a
        scalable topic.

        Raises:
            BrokerMetadataError
        """
        if name.is_segment:
            return await self.is_sealed(name)
        found = await self.segment(name)
        return found is None or found.is_sealed

    async def is_sealed(self, name: TopicName) -> bool:
        """Whether the record of its topic has a segment sealed; a broker that is behind may not
        know that yet.

        Raises:
            BrokerMetadataError
        """
        found = await self.segment(name)
        return found.is_sealed if found is not None else await self.is_pruned(name)

    async def is_pruned(self, name: TopicName) -> bool:
        """Whether a segment has left the layout, while its log is still to be deleted.

        Raises:
            BrokerMetadataError
        """
        topic = name.partitioned
        record = await self.find(topic)
        pruned = record.pruned if record is not None and not record.is_deleted else ()
        return any(each.name_in(topic) == name for each in pruned)

    async def is_gone(self, name: TopicName) -> bool:
        """Whether its topic once had a segment of this id, and no longer has it: each id is used
        once. A segment that a pending change makes is not gone.

        Raises:
            BrokerMetadataError
        """
        record, number = await self.find(name.partitioned), name.segment_id
        if record is None or record.is_deleted or number >= record.next_segment_id:
            return False
        coming = record.change.children if record.change is not None else ()
        return all(each.id != number for each in (*record.segments, *coming))

    async def names(self, namespace: str) -> list[str]:
        """Return the `topic://` names of a namespace's scalable topics, sorted.

        Raises:
            BrokerMetadataError
        """
        root = naming.scalable_topics_path(namespace)
        try:
            nodes = await asked(self._store.children(root), f"list {root}")
        except NoNodeError:
            return []
        return sorted(naming.scalable_topic_at(namespace, node) for node in nodes)

    # Changes

    async def create(
        self,
        topic: TopicName,
        segments: int,
        properties: Mapping[str, str] | None = None,
        *,
        is_taken: Callable[[], Awaitable[bool]],
    ) -> ScalableTopicRecord:
        """Create a scalable topic. `is_taken`: whether a topic of another kind has the name.

        The logs of its segments are made when they are first used.

        Raises:
            TopicConflictError: there is a topic of that name, of any kind.
            NotAllowedError: it cannot have so many segments.
            BrokerMetadataError
        """
        record = changes.new_topic(
            segments,
            now_ms=self._clock.wall_ms(),
            segments_max=self._segments_max,
            properties=properties,
            entry_buckets=self._entry_buckets,
        )

        def first(before: ScalableTopicRecord | None) -> ScalableTopicRecord:
            if before is not None:
                what = "is being deleted" if before.is_deleted else "is a scalable topic"
                raise TopicConflictError(f"This topic already exists: {topic} {what}")
            return record

        taken = TopicConflictError(f"This topic already exists: {topic} is not scalable")
        if await is_taken():
            raise taken
        try:
            await self._change(topic, first)
        except TopicConflictError:
            if await self.find_settled(topic) is not None:
                raise
            await self._change(topic, first)
        if await is_taken() and await self._give_way(topic, record):
            raise taken
        _log.info("scalable_topic_created", topic=str(topic), segments=segments)
        return record

    async def _give_way(self, topic: TopicName, record: ScalableTopicRecord) -> bool:
        """Leave the name to a plain topic that was created automatically at the same moment.

        Return whether that was possible. A client may have published to a segment meanwhile. What
        was acknowledged there must stay reachable, so then both topics exist.
        """
        created_ms = record.created_ms
        # From here on no segment without a log is loaded.
        await self._change(topic, lambda now: changes.give_way(now, created_ms=created_ms))
        after = await self._settle(topic, record)
        return after is None or after.created_ms != created_ms or after.is_deleted

    async def find_settled(self, topic: TopicName) -> ScalableTopicRecord | None:
        """Return the record of a scalable topic, after it is decided whether the topic stays: its
        creation may have been interrupted while it gave way to a plain topic.

        Raises:
            BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is None or not record.gives_way:
            return record
        return await self._settle(topic, record)

    async def _settle(
        self, topic: TopicName, record: ScalableTopicRecord
    ) -> ScalableTopicRecord | None:
        """Keep a topic that gives way if one of its segments was used, otherwise remove it; return
        its record. Several brokers may do so at once.

        A load that looked the segment up before may make its log at any moment. So a segment
        without a log gets one that is marked as deleted, until the record is gone: such a log is
        never opened.
        """
        created_ms, names = record.created_ms, [each.name_in(topic) for each in record.segments]
        marked: list[TopicName] = []
        for name in names:
            if not await self._mark_unused(name):
                break
            marked.append(name)
        after = await self._change(
            topic, lambda now: changes.settle(now, created_ms=created_ms, stays=marked != names)
        )
        for name in marked:
            await self._remove_mark(name)
        return after

    async def _mark_unused(self, name: TopicName) -> bool:
        """Keep the log of a segment from being made; return False if there is one.

        Raises:
            BrokerMetadataError
        """
        if await self._logs.create_log(name, {DELETED: "true"}):
            return True
        path = naming.log_path(name)
        return await asked(is_marked_at(self._store, path), f"read {path}")

    async def _remove_mark(self, name: TopicName) -> None:
        """Remove what `_mark_unused` made. If that fails, the next load of a segment of that name
        does it."""
        path = naming.log_path(name)
        try:
            await remove_marked(self._store, path)
        except LedgerError as error:
            _log.warning("segment_left_marked", topic=str(name), error=str(error))

    async def split(
        self,
        topic: TopicName,
        segment_id: int,
        *,
        at: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Divide a segment in two; return when the children take messages.

        `at`: first hash of the second; None: the middle. `epoch`: that of the layout on which the
        split was decided; None: any.

        Raises:
            as for `changes.begin_split`
            ConflictError: the layout has another epoch by now.
            RequestError: it has begun; brokers that follow the topic carry it on.
        """
        now_ms = self._clock.wall_ms()

        def begin(record: ScalableTopicRecord | None) -> ScalableTopicRecord:
            _check_epoch(topic, record, epoch)
            return changes.begin_split(
                topic, record, segment_id, now_ms=now_ms, segments_max=self._segments_max, at=at
            )

        await self._begin(topic, begin)

    async def merge(
        self, topic: TopicName, one: int, other: int, *, epoch: int | None = None
    ) -> None:
        """Merge two segments; return when the new one takes messages.

        `epoch`: that of the layout on which the merge was decided; None: any.

        Raises:
            as for `changes.begin_merge`
            ConflictError: the layout has another epoch by now.
            RequestError: it has begun; brokers that follow the topic carry it on.
        """
        now_ms = self._clock.wall_ms()

        def begin(record: ScalableTopicRecord | None) -> ScalableTopicRecord:
            _check_epoch(topic, record, epoch)
            return changes.begin_merge(
                topic, record, one, other, now_ms=now_ms, entry_buckets=self._entry_buckets
            )

        await self._begin(topic, begin)

    async def rebucket(
        self, topic: TopicName, segment_id: int, buckets: int, *, epoch: int | None = None
    ) -> None:
        """Replace a segment by one with this many entry buckets; return when that takes messages.

        `epoch`: that of the layout on which the change was decided; None: any.

        Raises:
            as for `changes.begin_rebucket`
            ConflictError: the layout has another epoch by now.
            RequestError: it has begun; brokers that follow the topic carry it on.
        """
        now_ms = self._clock.wall_ms()

        def begin(record: ScalableTopicRecord | None) -> ScalableTopicRecord:
            _check_epoch(topic, record, epoch)
            return changes.begin_rebucket(topic, record, segment_id, buckets, now_ms=now_ms)

        await self._begin(topic, begin)

    async def set_auto_scale(self, topic: TopicName, policy: AutoScale | None) -> None:
        """Set a topic's own policy of splits and merges; None: that of its namespace applies.

        Raises:
            TopicNotFoundError: there is no such topic, or it is being deleted.
            BrokerMetadataError
        """

        def change(record: ScalableTopicRecord | None) -> ScalableTopicRecord:
            if record is None or record.is_deleted:
                raise TopicNotFoundError(f"Scalable topic {topic} not found")
            return record.model_copy(update={"auto_scale": policy})

        await self._change(topic, change)

    async def begin_hold(
        self, topic: TopicName, subscription: str, segment_id: int | None
    ) -> tuple[int, int]:
        """Withhold a segment's descendants from stream consumers while a subscription moves back on
        it.

        With `segment_id` None, it moves back on all segments. Return the hold's id, and when the
        topic was created. A coordinator that begins from here on finds the hold; the caller has to
        notify a running one.

        Raises:
            TopicNotFoundError, BrokerMetadataError
            ConflictError: too many seeks are under way; a retry helps.
        """
        now_ms = self._clock.wall_ms()
        async with self._holding.setdefault(topic, asyncio.Lock()):
            record = await self._change(
                topic,
                lambda before: changes.begin_hold(
                    topic, before, subscription, segment_id, now_ms=now_ms
                ),
            )
        assert record is not None
        return record.seeks, record.created_ms

    async def end_hold(self, topic: TopicName, hold_id: int, created_ms: int) -> None:
        """Remove the hold of a subscription that has moved back. Repeating it does nothing.

        Raises:
            BrokerMetadataError: the hold stays until it is given up.
        """
        async with self._holding.setdefault(topic, asyncio.Lock()):
            await self._change(
                topic, lambda before: changes.end_hold(before, hold_id, created_ms=created_ms)
            )

    async def migrate(self, topic: TopicName, partitions: int) -> None:
        """Make a topic with this many partitions scalable, 0 for a plain one; return when its
        segments take messages. A migration that has begun continues. The number of partitions must
        not change from here on.

        Raises:
            as for `changes.begin_migration`
            RequestError: it has begun; call again, or brokers that follow the topic carry it on.
        """
        now_ms = self._clock.wall_ms()
        await self._begin(
            topic,
            lambda record: changes.begin_migration(
                topic,
                record,
                partitions,
                now_ms=now_ms,
                segments_max=self._segments_max,
                entry_buckets=self._entry_buckets,
            ),
        )

    async def _begin(self, topic: TopicName, begin: _ChangeRecord) -> None:
        is_first = False

        def begun(before: ScalableTopicRecord | None) -> ScalableTopicRecord | None:
            nonlocal is_first
            is_first = before is None or before.change is None
            return begin(before)

        record = await self._change(topic, begun)
        assert record is not None
        if record.change is not None:
            kind, parents = record.change.kind.lower(), record.change.parents
            _log.info("segments_change_began", topic=str(topic), kind=kind, segments=parents)
        await self.finish(topic, is_first=is_first)

    async def finish(self, topic: TopicName, *, is_first: bool = False) -> None:
        """Finish a pending change; without one, do nothing. The work continues if the caller is
        cancelled. `is_first`: whether no broker has tried before.

        Raises:
            RequestError: it failed for now; a retry helps.
        """
        finishing = self._finishing.get(topic)
        if finishing is None:
            finishing = asyncio.get_running_loop().create_task(
                self._finish(topic, is_first=is_first), name=f"finish-{topic}"
            )
            self._finishing[topic] = finishing
            finishing.add_done_callback(partial(self._finished, topic))
        await asyncio.shield(finishing)

    def _finished(self, topic: TopicName, finishing: "asyncio.Task[None]") -> None:
        self._finishing.pop(topic, None)
        if not finishing.cancelled():
            finishing.exception()  # Retrieved, even if there is no waiter left.

    async def _finish(self, topic: TopicName, *, is_first: bool) -> None:
        record = await self.find(topic, is_sure=True)
        if record is None or record.is_deleted or record.change is None:
            return
        change = record.change
        parents = [each.name_in(topic) for each in record.segments if each.id in change.parents]
        self.counts.note(_WORK, topic, change.begun_ms)
        try:
            await self._take_steps(topic, change, parents, is_first=is_first)
        except _OvertakenError as overtaken:
            if overtaken.is_deleted:
                await self._take_back(topic, change)
        except RequestError:
            self.counts.failures += 1
            with suppress(RequestError):
                await self._take_back(topic, change)
            raise
        finally:
            self.counts.note(_WORK, topic, None)

    async def _take_steps(
        self,
        topic: TopicName,
        change: PendingChange,
        parents: Sequence[TopicName],
        *,
        is_first: bool,
    ) -> None:
        """Take steps 2 to 5.

        Raises:
            _OvertakenError, RequestError
        """
        carried: _Carried = {}
        await self._prepare(topic, change, parents, carried)
        if is_first:  # Otherwise the parents may be sealed, and nothing else is urgent.
            await self._open_ahead(topic, change)
        sealing_s = self._clock.monotonic_s()

        def stalled_s() -> float:
            """Return for how long the parents have refused messages; an upper bound if another
            broker may have sealed them before."""
            if is_first:
                return self._clock.monotonic_s() - sealing_s
            return max(0.0, (self._clock.wall_ms() - change.begun_ms) / 1000)

        names = await self._seal(parents)
        await self._carry(topic, change, parents, names, carried)
        is_ours = False

        def commit(now: ScalableTopicRecord | None) -> ScalableTopicRecord | None:
            nonlocal is_ours
            is_ours = now is not None and now.change == change and not now.is_deleted
            return changes.commit(
                now,
                change,
                now_ms=self._clock.wall_ms(),
                stalled_ms=round(1000 * stalled_s()),
            )

        after = await self._change(topic, commit)
        if after is None or not is_ours:
            raise _OvertakenError(is_deleted=after is None or after.is_deleted)
        seconds = max(0.0, (self._clock.wall_ms() - change.begun_ms) / 1000)
        self.counts.ended(change.kind, seconds=seconds, stall_s=stalled_s())
        _log.info("segments_changed", topic=str(topic), epoch=after.epoch)

    async def _take_back(self, topic: TopicName, change: PendingChange) -> None:
        """Remove the logs of a change's children, if the topic was deleted meanwhile.

        The deletion found only those that existed then. Ids start anew in a later topic of the
        name, which would have the logs otherwise.

        If there is a later topic already, they stay: its own split may have adopted them, or have
        made them anew at this moment. The version of the node is the same in each case, so a
        removal could take subscriptions of the later topic with it.

        Raises:
            BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is not None and not record.is_deleted:
            return  # It goes on; or a later topic has the name.
        for child in change.children:
            await self._logs.take_back(child.name_in(topic))

    async def _prepare(
        self,
        topic: TopicName,
        change: PendingChange,
        parents: Sequence[TopicName],
        carried: _Carried,
    ) -> None:
        """Make the logs of the children, with the subscriptions that the parents have now. This
        shortens the time for which publishing stops later."""
        for child in change.children:
            await self._check_current(topic, change)
            await self._logs.create_log(child.name_in(topic))
        names = {parent: await self._subscriptions(parent) for parent in parents}
        await self._carry(topic, change, parents, names, carried)

    async def _open_ahead(self, topic: TopicName, change: PendingChange) -> None:
        """Load the children. Those not loaded in time are loaded at their first use."""
        open_ahead = self.reached_owners.open_ahead
        names = [each.name_in(topic) for each in change.children]
        try:
            async with asyncio.timeout(_AHEAD_S_MAX):
                results = await asyncio.gather(*map(open_ahead, names), return_exceptions=True)
        except TimeoutError:
            _log.info("segments_not_opened_ahead", topic=str(topic), error="it took too long")
            return
        for result in results:
            if isinstance(result, RequestError):
                _log.info("segments_not_opened_ahead", topic=str(topic), error=str(result))
            elif isinstance(result, BaseException):
                raise result

    async def _seal(self, parents: Sequence[TopicName]) -> Mapping[TopicName, Sequence[str]]:
        """Seal the parents concurrently, so that the first one sealed waits as little as possible.

        Raises:
            RequestError: all were tried; this is the first that failed.
        """
        owners = self.reached_owners
        names = await asyncio.gather(*map(owners.seal, parents), return_exceptions=True)
        sealed: dict[TopicName, Sequence[str]] = {}
        for parent, result in zip(parents, names, strict=True):
            if isinstance(result, BaseException):
                raise result
            sealed[parent] = result
        return sealed

    async def _carry(
        self,
        topic: TopicName,
        change: PendingChange,
        parents: Sequence[TopicName],
        names: Mapping[TopicName, Sequence[str]],
        carried: _Carried,
    ) -> None:
        """Create each of these subscriptions at the beginning of all children that lack it.

        `carried` contains those that certainly exist, and is updated, so that nothing is asked
        again while publishing is stopped.

        Raises:
            _OvertakenError: the change has ended. Children may be in use, and a subscription that
                was deleted there must not come back; or they were deleted with their topic.
            BrokerMetadataError
        """
        wanted = {name for parent in parents for name in names[parent]}
        copies: list[tuple[TopicName, TopicName, str]] = []
        for child in (each.name_in(topic) for each in change.children):
            there = carried.setdefault(child, set())
            if wanted <= there:
                continue
            path = naming.log_path(child)
            there.update(await asked(list_cursors(self._store, path), f"read {path}"))
            copies += [
                (parent, child, name)
                for parent in parents
                for name in names[parent]
                if name not in there
            ]
        if copies:
            await self._check_current(topic, change)
            try:
                await self._copy(copies, carried)
            except BrokerMetadataError:
                await self._check_current(topic, change)
                raise

    async def _copy(
        self, copies: Iterable[tuple[TopicName, TopicName, str]], carried: _Carried
    ) -> None:
        limit = asyncio.Semaphore(_COPIES_AT_ONCE)

        async def copy(parent: TopicName, child: TopicName, name: str) -> None:
            async with limit:
                try:
                    if await copy_cursor(
                        self._store,
                        naming.log_path(parent),
                        naming.log_path(child),
                        name,
                        now_ms=self._clock.wall_ms(),
                    ):
                        carried[child].add(name)
                except (CursorError, MetadataError) as error:
                    raise BrokerMetadataError(
                        f"subscription {name} of {parent} cannot be made in {child}: {error}"
                    ) from error

        results = await asyncio.gather(*(copy(*each) for each in copies), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _subscriptions(self, segment: TopicName) -> list[str]:
        """Return the stored durable subscriptions of a segment."""
        return await durable_subscriptions(self._store, segment)

    async def _check_current(self, topic: TopicName, change: PendingChange) -> None:
        record = await self.find(topic)
        if record is None or record.change != change or record.is_deleted:
            raise _OvertakenError(is_deleted=record is None or record.is_deleted)

    async def subscribe_behind(self, segment: TopicName, subscription: str) -> None:
        """Create a subscription that begins now in all active descendants of a sealed segment.

        A stream consumer gets these only when it has finished the sealed one. What is published
        until then must be delivered, too.

        Raises:
            RequestError: not everywhere; it can be tried again.
        """
        record = await self.find(segment.partitioned)
        first = record.find_named(segment.partitioned, segment) if record is not None else None
        if record is None or first is None or not first.is_sealed or self.owners is None:
            return
        behind = [
            each.name_in(segment.partitioned)
            for each in record.descendants(first)
            if not each.is_sealed
        ]
        subscribe = self.owners.subscribe
        results = await asyncio.gather(
            *(subscribe(each, subscription) for each in behind), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result  # All have been tried.

    # Pruning

    async def prune(self, topic: TopicName, record: ScalableTopicRecord) -> None:
        """Take unneeded segments out of a topic, some at a time, and delete the logs of those that
        earlier calls took out.

        One compare-and-set takes them out, and names them as pruned. At the next call their owners
        delete the logs; then the names are removed. Until then, a client that knows the former
        layout can still use them: a Java client fails as a whole if it subscribes to a missing one.
        Each step can be repeated, even by several brokers at once: ids are used once, so a name
        never means another segment. `record`: the record as last read.

        Raises:
            RequestError: not all; call again.
        """
        owners = self.owners
        if owners is None or record.is_deleted:
            return
        candidates = changes.prunable(record)[:_PRUNED_AT_ONCE] if record.change is None else []
        used_up = await asyncio.gather(
            *(owners.is_used_up(each.name_in(topic)) for each in candidates), return_exceptions=True
        )
        gone = {each.id for each, is_it in zip(candidates, used_up, strict=True) if is_it is True}
        if gone:
            await self._change_same(topic, record, lambda now: changes.prune(now, gone))
            _log.info("segments_pruned", topic=str(topic), segments=sorted(gone))
        await self._delete_pruned(topic, record, owners)
        for result in used_up:
            if isinstance(result, BaseException):
                raise result

    async def _delete_pruned(
        self, topic: TopicName, record: ScalableTopicRecord, owners: SegmentOwners
    ) -> None:
        if not record.pruned:
            return
        names = [each.name_in(topic) for each in record.pruned]
        results = await asyncio.gather(*map(owners.delete, names), return_exceptions=True)
        gone = {
            each.id
            for each, result in zip(record.pruned, results, strict=True)
            if not isinstance(result, BaseException)
        }
        self.counts.pruned += len(gone)
        if gone:
            await self._change_same(topic, record, lambda now: changes.forget_pruned(now, gone))
        for result in results:
            if isinstance(result, BaseException):
                raise result  # All have been tried.

    # Deletion

    async def delete_segments(self, topic: TopicName) -> int:
        """Mark a topic as deleted, and delete the data of its segments; `forget` removes the
        record. Calling it again continues an interrupted deletion.

        Return when the topic was created, which tells it from a later one of its name.

        Raises:
            TopicNotFoundError: there is no such topic.
            RequestError: it is marked, and not wholly deleted; call again.
        """
        owners = self.reached_owners
        record = await self._change(topic, lambda before: changes.mark_deleted(topic, before))
        assert record is not None
        made = record.change.children if record.change is not None else ()
        names = [each.name_in(topic) for each in (*record.segments, *made, *record.pruned)]
        for result in await asyncio.gather(*map(owners.delete, names), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result  # All have been tried.
        return record.created_ms

    async def check_deleted(self, topic: TopicName, created_ms: int) -> None:
        """Make sure that the topic that was created then is still being deleted: of several
        requests to delete it, one completes that, and then a new topic may have the name.

        Raises:
            TopicNotFoundError: another request has completed the deletion.
            ConflictError: the topic is not being deleted.
            BrokerMetadataError
        """
        await asked(self._store.catch_up(), f"read segments of {topic}")
        record = await self.find(topic)
        if record is None or record.created_ms != created_ms:
            raise TopicNotFoundError(f"Scalable topic {topic} was deleted by another request")
        if not record.is_deleted:
            raise ConflictError(f"{topic} is not being deleted any more; delete it again")

    async def check_going(self, name: TopicName) -> None:
        """Refuse to delete the data of a segment that its topic needs.

        The request may be late: its topic is gone, and a new one has segments of the same names.

        Raises:
            TopicNotFoundError: there is no such topic any more, and so no such segment.
            ConflictError: its topic is not being deleted, and has not pruned the segment.
            BrokerMetadataError
        """
        topic = name.partitioned
        await asked(self._store.catch_up(), f"read segments of {topic}")
        record = await self.find(topic)
        if record is None:
            raise TopicNotFoundError(f"{name} was deleted with its topic")
        is_pruned = any(each.name_in(topic) == name for each in record.pruned)
        if not record.is_deleted and not is_pruned:
            raise ConflictError(
                f"{name} is not deleted: its topic is in use, and was perhaps created anew; delete "
                "the topic again if it must go"
            )

    async def forget(self, topic: TopicName, created_ms: int) -> None:
        """Remove the record of a topic whose segments are deleted; that of a later topic of its
        name stays.

        Raises:
            BrokerMetadataError
        """
        is_removed = False

        def without(before: ScalableTopicRecord | None) -> ScalableTopicRecord | None:
            nonlocal is_removed
            is_removed = (
                before is not None and before.is_deleted and before.created_ms == created_ms
            )
            return None if is_removed else before

        await self._change(topic, without)
        if is_removed:
            _log.info("scalable_topic_deleted", topic=str(topic))

    async def used_by(self, topic: TopicName) -> Sequence[str]:
        """Return the durable subscriptions of a topic, over all segments, sorted.

        Raises:
            TopicNotFoundError, BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is None:
            raise TopicNotFoundError(f"Scalable topic {topic} not found")
        found: set[str] = set()
        for each in record.segments:
            found.update(await self._subscriptions(each.name_in(topic)))
        return sorted(found)

    async def _change(self, topic: TopicName, change: _ChangeRecord) -> ScalableTopicRecord | None:
        path = naming.scalable_topic_path(topic)
        return await change_record(self._store, ScalableTopicRecord, path, change)

    async def _change_same(
        self, topic: TopicName, record: ScalableTopicRecord, change: _ChangeRecord
    ) -> None:
        """Change the record of the topic of which `record` was read, and no later topic's."""

        def changed(now: ScalableTopicRecord | None) -> ScalableTopicRecord | None:
            is_same = now is not None and now.created_ms == record.created_ms
            return change(now) if is_same else now

        await self._change(topic, changed)


def _check_epoch(topic: TopicName, record: ScalableTopicRecord | None, epoch: int | None) -> None:
    if epoch is not None and record is not None and record.epoch != epoch:
        raise ConflictError(
            f"the layout of {topic} has epoch {record.epoch}, not {epoch}: somebody else has "
            "changed it meanwhile"
        )


async def durable_subscriptions(store: MetadataStore, segment: TopicName) -> list[str]:
    """Return the stored durable subscriptions of a topic; none if it has no log.

    Raises:
        BrokerMetadataError
    """
    path = naming.log_path(segment)
    await asked(store.catch_up(), f"read {path}")
    names = await asked(list_cursors(store, path), f"read {path}")
    return [name for name in names if not naming.is_internal_cursor(name)]
