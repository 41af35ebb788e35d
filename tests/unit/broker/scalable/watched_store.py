"""Records of partitioned topics in memory, whose watches a test fires."""

import asyncio
from collections.abc import Callable

from magnetar.broker.cluster.partitions.record import (
    PartitionedTopicRecord,
    partitioned_topic_path,
)
from magnetar.ledger.metadata.store import Watch, WatchEvent
from magnetar.sdk.wire import TopicName
from tests.dictionary_store import DictionaryStore


class WatchedStore(DictionaryStore):
    """A store that calls its watches when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: dict[str, list[Callable[[WatchEvent], None]]] = {}

    def watch(self, path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        self.watches.setdefault(path, []).append(callback)
        store = self

        class Closing:
            def close(self) -> None:
                store.watches[path].remove(callback)
                if not store.watches[path]:
                    del store.watches[path]

        return Closing()

    def fire(self, path: str) -> None:
        """Something may have changed at a path."""
        for callback in list(self.watches.get(path, ())):
            callback(WatchEvent.CHANGED)


class WatchedPartitions:
    """Records of partitioned topics, with their watches."""

    def __init__(
        self, store: WatchedStore, records: dict[TopicName, PartitionedTopicRecord] | None = None
    ) -> None:
        self.store = store
        self.records = {} if records is None else records
        self.reads = 0
        self.gate: asyncio.Event | None = None
        """Reads wait until it is set."""

    async def find(
        self, topic: TopicName, *, is_sure: bool = False
    ) -> PartitionedTopicRecord | None:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        return self.records.get(topic)

    def set(self, topic: TopicName, partitions: int, *, is_deleted: bool = False) -> None:
        """A topic has so many partitions from now on; 0: no record."""
        if partitions:
            record = PartitionedTopicRecord(partitions=partitions, is_deleted=is_deleted)
            self.records[topic] = record
        else:
            self.records.pop(topic, None)
        self.store.fire(partitioned_topic_path(topic))
