"""The scalable topics of the cluster: create, read, split, merge, migrate and delete them.

Everything is in the metadata store, so any broker may do it, and several may do one thing at once.
A split or merge takes five steps. Any broker that finds the change in the record carries it on:

1. begin: one compare-and-set names the change in the record. Nothing else is different yet.
2. prepare: the children get logs, with all durable subscriptions of the parents at their beginning.
   Their owners load them, which nobody can use yet, so that publishing need not wait for that.
3. seal: the owner of each parent ends its log. Publishes under way are stored and answered, later
   ones are refused; a durable subscription that is new waits from here on.
4. carry: subscriptions that the parents have gained since step 2 are made in the children, too.
5. commit: one compare-and-set seals the parents and makes the children active, at a new epoch.

Each step can be taken again. A crash between any two leaves a change that the next one who looks
finishes: a broker that follows the layout for its clients, after a while (`record_layouts.py`), or
one that is asked to. Publishing stands still from step 3 to step 5. Before step 3 nothing is lost
by waiting; a parent that is sealed while the record still has it active is what must not last.

That subscriptions are there before the first append of a child follows from the order: nobody is
told of the children, or may publish to them, before step 5. No key is open in two segments, for the
parents are sealed before that.

A migration takes the same steps: the parents are the logs of a plain or partitioned topic, which
stays one until step 5. From step 3 on, its producers are refused as those of any topic that has
ended. Source: sheet of Pulsar 5, sections 3.2, 3.8 and 8.3.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_COPIES_AT_ONCE = 32
_AHEAD_S_MAX = 1.0
"""For the owners of children to load them before the parents are sealed."""
_PRUNED_AT_ONCE = 16
"""Sealed segments of a topic whose owners are asked at one time: that loads them."""
_WORK = "work"
"""The part of the broker that notes changes which it works on."""

_ChangeRecord = Callable[[ScalableTopicRecord | None], ScalableTopicRecord | None]
_Carried = dict[TopicName, set[str]]
"""Subscriptions that children certainly have."""


class SegmentOwners(Protocol):
    """Reaches the brokers that own segments; `topics/segment_owners.py` does."""

    async def seal(self, segment: TopicName) -> Sequence[str]:
        """Have a segment take no more messages; returns its durable subscriptions. Again: the same.

        Raises:
            RequestError: it is not sealed, or nobody knows.
        """
        ...

    async def open_ahead(self, segment: TopicName) -> None:
        """Have a segment loaded that a change under way makes. Nobody can use it before the change
        has come to its end.

        Raises:
            RequestError: it is not loaded, or nobody knows; that may be left at that.
        """
        ...

    async def delete(self, segment: TopicName) -> None:
        """Delete the data of a segment, also while clients use it. A segment that does not exist
        counts as deleted.

        Raises:
            RequestError: it is not deleted, or nobody knows.
        """
        ...

    async def unsubscribe(self, segment: TopicName, subscription: str, *, is_forced: bool) -> bool:
        """Delete a subscription of a segment; False: it has none of that name. `is_forced`: though
        it has consumers.

        Raises:
            RequestError: it is not deleted, or nobody knows.
        """
        ...

    async def seek(self, segment: TopicName, subscription: str, publish_ms: int | None) -> bool:
        """Have a subscription of a segment go on at what was published at or after a time; None: at
        its end. False: it has none of that name.

        Raises:
            RequestError: it has not moved, or nobody knows.
        """
        ...

    async def hold_back(self, topic: TopicName, subscription: str) -> None:
        """Have the coordinator of a subscription know the holds that the topic's record has now.

        Raises:
            RequestError: nobody knows whether it does.
        """
        ...

    async def is_used_up(self, segment: TopicName) -> bool:
        """Whether nothing in a sealed segment is wanted any more: all its durable subscriptions are
        durably done with it, and retention is over.

        Raises:
            RequestError: that cannot be told now.
        """
        ...

    async def classic_clients(self, segment: TopicName) -> int:
        """How many producers and consumers of a topic are not known to be of Pulsar 5.

        Raises:
            RequestError: that cannot be told now.
        """
        ...

    async def subscribe(self, segment: TopicName, subscription: str) -> None:
        """Have a durable subscription at the present end of a segment; one that is there stays.

        Raises:
            RequestError: it is not there, or nobody knows.
        """
        ...

    async def is_drained(self, segment: TopicName, subscription: str) -> bool:
        """Whether a segment is sealed, and everything in it acknowledged on a subscription.

        Raises:
            RequestError: that cannot be told now.
        """
        ...


class Logs(Protocol):
    """Makes and finds what lies under plain names; `PartitionedTopics` does."""

    async def create_log(
        self, topic: TopicName, properties: Mapping[str, str] | None = None
    ) -> bool: ...


class _OvertakenError(Exception):
    """The record does not name the change any more."""


class ScalableTopics:
    """Asks and changes the metadata store; remembers nothing but what is under way here."""

    def __init__(
        self,
        store: MetadataStore,
        logs: Logs,
        clock: Clock,
        *,
        segments_max: int,
        entry_buckets: int = 1,
    ) -> None:
        """`segments_max`: active segments of one topic. `entry_buckets`: of a topic for which
        nobody has asked for others, all segments together."""
        self._store = store
        self._logs = logs
        self._clock = clock
        self._segments_max = segments_max
        self._entry_buckets = entry_buckets
        self.owners: SegmentOwners | None = None
        """Set once the broker can reach others."""
        self._finishing: dict[TopicName, asyncio.Task[None]] = {}
        self._holding: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        """One writer of a topic's holds at a time: a client may seek in all segments at once, and
        changes of one record by comparing versions get in each other's way."""
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
        """The record of a scalable topic, by its `persistent://` name; None: there is none. With
        `is_sure`, absence is not what a store says that is behind.

        Raises:
            BrokerMetadataError
        """
        path = naming.scalable_topic_path(topic)
        found = await read_record(self._store, ScalableTopicRecord, path, is_sure=is_sure)
        return found[0] if found is not None else None

    async def get(self, topic: TopicName) -> ScalableTopicRecord:
        """The record of a scalable topic that exists.

        Raises:
            TopicNotFoundError: there is none, or it is being deleted.
            BrokerMetadataError
        """
        record = await self.find(topic, is_sure=True)
        if record is None or record.is_deleted:
            raise TopicNotFoundError(f"Scalable topic {topic} not found")
        return record

    async def segment(self, name: TopicName) -> SegmentRecord | None:
        """Return the part of its topic's record that describes a segment; None: the topic has no
        segment of that name. One that was a partition goes by its name.

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
        """Whether a change that is under way makes a segment: it is none yet.

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
        """Whether a change that is under way, or one that has come to its end, seals a segment.

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
        """Whether no change that is under way seals a topic: the record has it sealed, or it is
        none of a scalable topic.

        Raises:
            BrokerMetadataError
        """
        if name.is_segment:
            return await self.is_sealed(name)
        found = await self.segment(name)
        return found is None or found.is_sealed

    async def is_sealed(self, name: TopicName) -> bool:
        """Whether the record of its topic says that a segment is sealed; a broker that is behind
        may not know it yet.

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
        """Whether its topic had a segment of this id, and has it no more: each id is used once. One
        that a change under way makes is still to come.

        Raises:
            BrokerMetadataError
        """
        record, number = await self.find(name.partitioned), name.segment_id
        if record is None or record.is_deleted or number >= record.next_segment_id:
            return False
        coming = record.change.children if record.change is not None else ()
        return all(each.id != number for each in (*record.segments, *coming))

    async def names(self, namespace: str) -> list[str]:
        """The `topic://` names of a namespace's scalable topics, sorted.

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
        """Have a scalable topic. `is_taken`: whether a topic of another kind has the name.

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
        await self._change(topic, first)
        if await is_taken() and await self._give_way(topic, record):
            raise taken
        _log.info("scalable_topic_created", topic=str(topic), segments=segments)
        return record

    async def _give_way(self, topic: TopicName, record: ScalableTopicRecord) -> bool:
        """Leave the name to a plain topic that appeared by itself in this moment; returns whether
        it could be left. A client may have published to a segment meanwhile: what was acknowledged
        there must not become unreachable, and then there are both."""
        mark = partial(changes.mark_deleted, topic)
        await self._change(topic, mark)  # From here on no segment is loaded that has no log yet.
        paths = [naming.log_path(each.name_in(topic)) for each in record.segments]
        await asked(self._store.catch_up(), f"read segments of {topic}")
        for path in paths:
            if await asked(self._store.exists(path), f"read {path}") is not None:
                await self._change(topic, partial(mark, is_deleted=False))
                return False
        await self.forget(topic)
        return True

    async def split(
        self,
        topic: TopicName,
        segment_id: int,
        *,
        at: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Divide a segment in two; returns when the children take messages. `at`: first hash of
        the second; None: the middle. `epoch`: of the layout that it was decided on; None: any.

        Raises:
            As `changes.begin_split`.
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
        """Make one segment of two; returns when it takes messages. `epoch`: of the layout that it
        was decided on; None: any.

        Raises:
            As `changes.begin_merge`.
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
        """Replace a segment by one with so many entry buckets; returns when it takes messages.
        `epoch`: of the layout that it was decided on; None: any.

        Raises:
            As `changes.begin_rebucket`.
            ConflictError: the layout has another epoch by now.
            RequestError: it has begun; brokers that follow the topic carry it on.
        """
        now_ms = self._clock.wall_ms()

        def begin(record: ScalableTopicRecord | None) -> ScalableTopicRecord:
            _check_epoch(topic, record, epoch)
            return changes.begin_rebucket(topic, record, segment_id, buckets, now_ms=now_ms)

        await self._begin(topic, begin)

    async def set_auto_scale(self, topic: TopicName, policy: AutoScale | None) -> None:
        """Have a topic split and merged by a policy of its own; None: by that of its namespace.

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
        """Have stream consumers be given nothing of what came of a segment, None: of any, while a
        subscription goes back on it. Returns the hold's id, and when the topic was created.

        A coordinator that begins from here on knows of it; one that is there must be told.

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
        """Let go what a subscription that went back has held; again: nothing is done.

        Raises:
            BrokerMetadataError: it is held for some time still.
        """
        async with self._holding.setdefault(topic, asyncio.Lock()):
            await self._change(
                topic, lambda before: changes.end_hold(before, hold_id, created_ms=created_ms)
            )

    async def migrate(self, topic: TopicName, partitions: int) -> None:
        """Make a scalable topic of one with so many partitions, 0: a plain one; returns when its
        segments take messages. One that has begun goes on. The number of partitions must not
        change from here on.

        Raises:
            As `changes.begin_migration`.
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
        """Bring a change that is under way to its end; without one, nothing is done. It goes on
        when the caller is cancelled. `is_first`: nobody has tried to before.

        Raises:
            RequestError: not now; it can be tried again.
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
            finishing.exception()  # Retrieved, even if nobody waits any more.

    async def _finish(self, topic: TopicName, *, is_first: bool) -> None:
        record = await self.find(topic, is_sure=True)
        if record is None or record.is_deleted or record.change is None:
            return
        change = record.change
        parents = [each.name_in(topic) for each in record.segments if each.id in change.parents]
        self.counts.note(_WORK, topic, change.begun_ms)
        try:
            await self._take_steps(topic, change, parents, is_first=is_first)
        except _OvertakenError:
            return  # Somebody else has brought it to its end.
        except RequestError:
            self.counts.failures += 1
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
        """Steps 2 to 5.

        Raises:
            _OvertakenError, RequestError
        """
        carried: _Carried = {}
        await self._prepare(topic, change, parents, carried)
        if is_first:  # Otherwise the parents may be sealed, and nothing else is urgent.
            await self._open_ahead(topic, change)
        sealing_s = self._clock.monotonic_s()

        def stalled_s() -> float:
            """Since the parents take nothing; at most, if somebody may have sealed them before."""
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
            return
        seconds = max(0.0, (self._clock.wall_ms() - change.begun_ms) / 1000)
        self.counts.ended(change.kind, seconds=seconds, stall_s=stalled_s())
        _log.info("segments_changed", topic=str(topic), epoch=after.epoch)

    async def _prepare(
        self,
        topic: TopicName,
        change: PendingChange,
        parents: Sequence[TopicName],
        carried: _Carried,
    ) -> None:
        """Make the logs of the children, with the subscriptions that the parents have now: what is
        done here need not be done while publishing stands still."""
        for child in change.children:
            await self._check_current(topic, change)
            await self._logs.create_log(child.name_in(topic))
        names = {parent: await self._subscriptions(parent) for parent in parents}
        await self._carry(topic, change, parents, names, carried)

    async def _open_ahead(self, topic: TopicName, change: PendingChange) -> None:
        """Have the children loaded. What is not done in time is done at the first use."""
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
        """Have the parents take no more messages, side by side: the first one waits for the last.

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
        """Have each of these subscriptions at the beginning of all children that lack it. `carried`
        says which are there for certain, and is told more: nothing is asked again while publishing
        stands still.

        Raises:
            _OvertakenError: the change has come to its end: children may be in use, and what
                somebody deletes there must not come back.
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
            await self._copy(copies, carried)

    async def _copy(
        self, copies: Iterable[tuple[TopicName, TopicName, str]], carried: _Carried
    ) -> None:
        limit = asyncio.Semaphore(_COPIES_AT_ONCE)

        async def copy(parent: TopicName, child: TopicName, name: str) -> None:
            async with limit:
                try:
                    if await copy_cursor(
                        self._store, naming.log_path(parent), naming.log_path(child), name
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
        """The durable subscriptions of a segment, by the store."""
        return await durable_subscriptions(self._store, segment)

    async def _check_current(self, topic: TopicName, change: PendingChange) -> None:
        record = await self.find(topic)
        if record is None or record.change != change or record.is_deleted:
            raise _OvertakenError

    async def subscribe_behind(self, segment: TopicName, subscription: str) -> None:
        """Have a subscription that begins now in all active descendants of a sealed segment.

        A stream consumer is given these only when it is done with the sealed one: what is published
        until then is behind the end where it began.

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
        """Take segments that nobody needs out of a topic, some at a time, and delete the logs of
        those that were taken out by earlier calls.

        One compare-and-set takes them out, and names them as pruned. At the next call their owners
        delete the logs; then the names go. Until then, a client that was told of the layout before
        can use them still: to Java's, a subscription to one that is gone is the failure of all.
        Each step can be taken again, also by several brokers at once: ids are used once, so a name
        never means another segment. `record`: as it was read last.

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
            await self._change(topic, lambda now: changes.prune(now, gone))
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
            await self._change(topic, lambda now: changes.forget_pruned(now, gone))
        for result in results:
            if isinstance(result, BaseException):
                raise result  # All have been tried.

    # Deletion

    async def delete_segments(self, topic: TopicName) -> None:
        """Mark a topic as deleted, and delete what its segments hold; the record is kept until
        `forget`. A deletion that was interrupted goes on when it is asked for again.

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

    async def forget(self, topic: TopicName) -> None:
        """Remove the record of a topic whose segments are gone.

        Raises:
            BrokerMetadataError
        """
        await self._change(topic, lambda _: None)
        _log.info("scalable_topic_deleted", topic=str(topic))

    async def used_by(self, topic: TopicName) -> Sequence[str]:
        """The durable subscriptions of a topic, over all segments, sorted.

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


def _check_epoch(topic: TopicName, record: ScalableTopicRecord | None, epoch: int | None) -> None:
    if epoch is not None and record is not None and record.epoch != epoch:
        raise ConflictError(
            f"the layout of {topic} has epoch {record.epoch}, not {epoch}: somebody else has "
            "changed it meanwhile"
        )


async def durable_subscriptions(store: MetadataStore, segment: TopicName) -> list[str]:
    """The durable subscriptions of a topic, by what is stored; none if it has no log.

    Raises:
        BrokerMetadataError
    """
    path = naming.log_path(segment)
    await asked(store.catch_up(), f"read {path}")
    names = await asked(list_cursors(store, path), f"read {path}")
    return [name for name in names if not naming.is_internal_cursor(name)]
