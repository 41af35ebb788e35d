"""Layouts of scalable topics and of partitioned ones, from records that are read and watched.

A broker that follows the layout of a scalable topic also notices a split or merge that is stalled
because the broker that began it is gone. After `patience_ms` it finishes the change; several
brokers may do so at once. A change stays stalled only while no client has the topic open anywhere.

For any other topic, the record of its partitions is sufficient: a topic without one has one
segment. So the watch on one node informs every broker of a growth, and of the deletion of a
partitioned topic.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import RequestError
from magnetar.broker.cluster.partitions.record import (
    PartitionedTopicRecord,
    partitioned_topic_path,
)
from magnetar.broker.features.scalable.layout import Layout, synthetic_layout
from magnetar.broker.features.scalable.record import PendingChange, ScalableTopicRecord
from magnetar.broker.features.scalable.scalable_topics import ScalableTopics
from magnetar.broker.policies.records import Followed
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_LAYOUT = "layout"
"""Name under which this part notes changes of layouts that clients follow."""
_READS_AT_ONCE = 8
"""Records that are read concurrently after changes."""


class _RecordLayout:
    """The layout of one scalable topic."""

    def __init__(
        self,
        store: MetadataStore,
        topics: ScalableTopics,
        topic: TopicName,
        on_change: Callable[[], None],
        at_once: asyncio.Semaphore,
        *,
        patience_s: float,
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._on_change = on_change
        self._patience_s = patience_s
        self._followed: Followed[ScalableTopicRecord | None] = Followed(
            store, naming.scalable_topic_path(topic), self._read, self._changed, at_once
        )
        self._made: tuple[ScalableTopicRecord, Layout] | None = None
        self._pending: PendingChange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None

    async def get(self) -> Layout | None:
        record = await self._followed.get()
        self._watch_over(record)
        return self._layout(record)

    async def reread(self) -> Layout | None:
        record = await self._followed.reread()
        self._watch_over(record)
        return self._layout(record)

    @property
    def known(self) -> Layout | None:
        return self._layout(self._followed.value)

    def close(self) -> None:
        self._followed.close()
        self._watch_over(None)
        if self._finishing is not None:
            self._finishing.cancel()

    async def _read(self) -> ScalableTopicRecord | None:
        return await self._topics.find(self._topic, is_sure=True)

    def _changed(
        self, before: ScalableTopicRecord | None, after: ScalableTopicRecord | None
    ) -> None:
        self._watch_over(after)
        self._on_change()

    def _layout(self, record: ScalableTopicRecord | None) -> Layout | None:
        """Return the layout of a record; it is built once per record, for all listeners."""
        if record is None:
            return None
        if self._made is None or self._made[0] != record:
            self._made = record, record.layout_of(self._topic)
        return self._made[1]

    # Stalled changes

    def _watch_over(self, record: ScalableTopicRecord | None) -> None:
        is_going = record is None or record.is_deleted
        pending = None if record is None or is_going else record.change
        if pending == self._pending:
            return
        self._pending = pending
        begun_ms = pending.begun_ms if pending is not None else None
        self._topics.counts.note(_LAYOUT, self._topic, begun_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pending is not None:
            self._set_timer()

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, self._carry_on)

    def _carry_on(self) -> None:
        self._timer = None
        if self._finishing is not None and not self._finishing.done():
            return  # Its end sets the timer again.
        self._finishing = asyncio.get_running_loop().create_task(
            self._finish(), name=f"carry-on-{self._topic}"
        )

    async def _finish(self) -> None:
        try:
            await self._topics.finish(self._topic)
        except RequestError as error:
            _log.warning("segments_change_not_finished", topic=str(self._topic), error=str(error))
        finally:  # whatever failed: there may be no other broker to finish the change
            # A change that was read meanwhile has a timer of its own already.
            if self._pending is not None and self._timer is None:
                self._set_timer()


class RecordLayouts:
    """Source of the layouts of scalable topics."""

    def __init__(self, store: MetadataStore, topics: ScalableTopics, *, patience_ms: int) -> None:
        """`patience_ms`: how long a change of another broker may take before this one finishes
        it."""
        self._store = store
        self._topics = topics
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)
        self._patience_s = patience_ms / 1000

    def follow(self, topic: TopicName, on_change: Callable[[], None]) -> _RecordLayout:
        return _RecordLayout(
            self._store,
            self._topics,
            topic,
            on_change,
            self._at_once,
            patience_s=self._patience_s,
        )


class Partitioned(Protocol):
    """Reads the records of partitioned topics; `PartitionedTopics` implements it."""

    def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> Awaitable[PartitionedTopicRecord | None]: ...


@dataclass(frozen=True, slots=True)
class _Count:
    """Inputs of a synthetic layout."""

    partitions: int
    """Number of partitions; 0 if the topic has none, or does not exist."""
    is_ending: bool


class _PartitionLayout:
    """The layout of one plain or partitioned topic."""

    def __init__(
        self,
        store: MetadataStore,
        partitioned: Partitioned,
        topic: TopicName,
        on_change: Callable[[], None],
        at_once: asyncio.Semaphore,
    ) -> None:
        self._partitioned = partitioned
        self._topic = topic
        self._on_change = on_change
        self._followed: Followed[_Count] = Followed(
            store, partitioned_topic_path(topic), self._read, self._changed, at_once
        )
        self._made: tuple[_Count, Layout] | None = None

    async def get(self) -> Layout:
        return self._layout(await self._followed.get())

    async def reread(self) -> Layout:
        """Return the layout as last read or watched. It has no holds, and may learn of a growth
        late."""
        return await self.get()

    @property
    def known(self) -> Layout | None:
        count = self._followed.value
        return None if count is None else self._layout(count)

    def close(self) -> None:
        self._followed.close()

    async def _read(self) -> _Count:
        record = await self._partitioned.find(self._topic, is_sure=True)
        if record is None:
            return _Count(0, is_ending=False)
        return _Count(record.partitions, record.is_deleted)

    def _changed(self, before: _Count, after: _Count) -> None:
        self._on_change()

    def _layout(self, count: _Count) -> Layout:
        """Return the layout of a count; it is built once per count, for all listeners."""
        if self._made is None or self._made[0] != count:
            layout = synthetic_layout(self._topic, count.partitions, is_ending=count.is_ending)
            self._made = count, layout
        return self._made[1]


class PartitionLayouts:
    """Source of the layouts of all topics, with partitions and without."""

    def __init__(self, store: MetadataStore, partitioned: Partitioned) -> None:
        self._store = store
        self._partitioned = partitioned
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)

    def follow(self, topic: TopicName, on_change: Callable[[], None]) -> _PartitionLayout:
        return _PartitionLayout(self._store, self._partitioned, topic, on_change, self._at_once)
