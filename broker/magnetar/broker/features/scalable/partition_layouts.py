"""Layouts of topics of today: from the record of their partitions, which is read and watched.

The record says all: a topic without one has one segment. So a growth, and the deletion of a
partitioned topic, reach every broker by the watch on one node.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.cluster.partitions.record import (
    PartitionedTopicRecord,
    partitioned_topic_path,
)
from magnetar.broker.features.scalable.layout import Layout, synthetic_layout
from magnetar.broker.policies.records import Followed
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_READS_AT_ONCE = 8
"""Records that are read side by side after changes."""


class Partitioned(Protocol):
    """Reads the records of partitioned topics; `PartitionedTopics` does."""

    def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> Awaitable[PartitionedTopicRecord | None]: ...


@dataclass(frozen=True, slots=True)
class _Count:
    """What a layout is made of."""

    partitions: int
    """0: the topic has none, or does not exist."""
    is_ending: bool


class _PartitionLayout:
    """The layout of one topic."""

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
        """One object per count: it is made once for all who follow."""
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
