"""A walk over the stored topics that are not loaded, so that upkeep reaches them, too.

The broker's ticker looks at loaded topics, and a topic is loaded when a client requests it. Without
the walk, a topic that no client has requested since a restart would keep its ledgers for ever,
whatever its policies say. The walk reads the stored state of each topic that this broker owns and
has not loaded (`due.py`). If something is due, it loads the topic, runs each job of the ticker, and
closes the topic again.

Bounds: a number of reads per second, a few topics loaded at a time, none while the broker has no
room for more. A namespace's names are in memory while the walk is in it, about 100 bytes each.

A load by the walk does not count as use of the topic or of its subscriptions. A topic that a client
requests meanwhile stays loaded.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import RequestError, TopicNotFoundError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Ownership
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics import Topics
from magnetar.broker.topics.at_rest.births import Births
from magnetar.broker.topics.at_rest.disuse import Disuse, UnusedSince
from magnetar.broker.topics.at_rest.due import ObjectUpkeep, StoredTopic, what_is_due
from magnetar.cursors import CursorError, StoredCursor, list_cursors, read_stored
from magnetar.ledger.errors import LedgerError, MetadataError, NoNodeError
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_READS_PER_LOOK = 2
"""Reads of the metadata store per look: the ledger list, and the names of the cursors."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A topic in which something is due."""

    due: str
    unused: UnusedSince
    created: str | None
    """Stored creation time of the topic, which tells it from a later topic of the name."""


class LooksAfterTopics(Protocol):
    """Interface of `Upkeep` for the walk."""

    @property
    def jobs(self) -> Collection[str]: ...

    async def look_after(self, topic: Topic) -> int: ...


class TopicsAtRest:
    """Walks over the topics at rest. `start`, `stop`; one walk at a time."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        policies: PolicyRegistry,
        ownership: Ownership,
        store: MetadataStore,
        upkeep: LooksAfterTopics,
        *,
        note_unused: Callable[[Topic, UnusedSince], None],
        clock: Clock,
        objects: ObjectUpkeep,
    ) -> None:
        """Set up the walk; `start` begins it.

        Args:
            note_unused: takes a topic that was just loaded, and since when it is unused.
            objects: when ledgers move to an object store, and are read back there.
        """
        self._settings = settings
        self._topics = topics
        self._policies = policies
        self._ownership = ownership
        self._store = store
        self._upkeep = upkeep
        self._note_unused = note_unused
        self._objects = objects
        self._clock = clock
        self._disuse = Disuse(
            clock.monotonic_s(), remembered_max=settings.topics_at_rest_remembered_max
        )
        self._births = Births(clock, remembered_max=settings.topics_at_rest_records_max)
        self._places = asyncio.Semaphore(settings.topics_at_rest_loaded_max)
        self._working: dict[TopicName, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._next_read_s = 0.0
        self.looks = 0
        """Topics whose stored state was read."""
        self.loads = 0
        """Topics that were loaded because something was due."""
        self.failures = 0
        """Topics that could not be looked at, or not be loaded; each was logged."""
        topics.ends.on_closing.append(self._closing)
        topics.removal.on_deleted.append(self._disuse.forget)

    def start(self) -> None:
        """Start walking; the first walk begins after one interval."""
        assert self._task is None, "it walks already"
        if self._settings.topics_at_rest_interval_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="topics-at-rest")

    async def stop(self) -> None:
        """Load nothing more, and cancel running work; the topics are closed elsewhere."""
        tasks = list(self._working.values())
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.topics_at_rest_interval_s)
            started_s, looks, loads = self._clock.monotonic_s(), self.looks, self.loads
            try:
                await self.walk()
            except (MetadataError, RequestError) as error:
                _log.warning("topics_at_rest_not_listed", error=str(error))
            except Exception:  # noqa: BLE001 - a bug with one topic is not the end of all walks
                self.failures += 1
                _log.exception("topics_at_rest_broke")
            else:
                _log.info(
                    "topics_at_rest_seen",
                    topics=self.looks - looks,
                    loaded=self.loads - loads,
                    seconds=round(self._clock.monotonic_s() - started_s),
                )

    async def walk(self) -> None:
        """Look at every stored topic once, and wait until all due work is done.

        Raises:
            MetadataError: the topics cannot be listed now.
        """
        is_whole = False
        try:
            for tenant in await self._children(naming.ROOT):
                for namespace in await self._children(f"{naming.ROOT}/{tenant}"):
                    path = naming.topics_path(f"{tenant}/{namespace}")
                    for node in await self._children(path):
                        await self._visit(naming.topic_at(f"{tenant}/{namespace}", node))
            is_whole = True
        finally:
            self._births.end(is_whole=is_whole)
        while self._working:
            await asyncio.wait(self._working.values())

    async def _children(self, path: str) -> list[str]:
        await self._pace(1)
        try:
            return sorted(await self._store.children(path))
        except NoNodeError:
            return []

    async def _pace(self, reads: int) -> None:
        """Wait until that many reads are allowed by the rate limit."""
        now_s = self._clock.monotonic_s()
        start_s = max(self._next_read_s, now_s)
        self._next_read_s = start_s + reads / self._settings.topics_at_rest_reads_per_s
        await asyncio.sleep(start_s - now_s)

    async def _visit(self, full_name: str) -> None:
        if naming.is_system_topic(full_name):
            return  # The part of the broker that needs one loads it, and trims it.
        try:
            name = naming.topic_of(full_name)
            if self._topics.is_here(name):
                return
            since_s = await self._ownership.alone_since_s(name)
            if since_s is None:
                return
            since_s = max(since_s, self._disuse.since_s(name))
            found = await self._look_at(name, since_s)
        except (LedgerError, CursorError, RequestError) as error:
            self.failures += 1
            self._births.miss(full_name)
            _log.warning("topic_at_rest_not_read", topic=full_name, error=str(error))
            return
        if found is None or name in self._working:
            return
        await self._places.acquire()
        task = asyncio.get_running_loop().create_task(
            self._work(name, found), name=f"at-rest-{name}"
        )
        self._working[name] = task
        task.add_done_callback(lambda _: self._done(name))

    def _done(self, name: TopicName) -> None:
        del self._working[name]
        self._places.release()

    async def _look_at(self, name: TopicName, since_s: float) -> _Found | None:
        """Return the upkeep that is due for a topic; None if there is none.

        Args:
            since_s: since when the topic is unused, if it existed then.

        Raises:
            LedgerError, CursorError, RequestError: this cannot be determined.
        """
        policies = await self._policies.of(name)
        path = naming.log_path(name)
        await self._pace(_READS_PER_LOOK)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None  # deleted meanwhile
        if not node.value:
            return None  # No log: cursors are left below the node of one that there was once.
        log = LogMetadata.from_json(node.value, path=path)
        cursors: dict[str, StoredCursor] = {}
        for cursor in await list_cursors(self._store, path):
            await self._pace(1)
            stored = await read_stored(self._store, path, cursor)
            if stored is not None:
                cursors[cursor] = stored
        self.looks += 1
        unused = self._unused(str(name), log, node.created_ms, cursors).not_before(since_s)
        now_s = self._clock.monotonic_s()
        found = StoredTopic(
            log,
            cursors,
            now_s - unused.topic_s,
            {each: now_s - each_s for each, each_s in unused.subscriptions_s.items()},
        )
        due = what_is_due(
            found,
            policies,
            self._clock.wall_ms(),
            self._upkeep.jobs,
            objects=self._objects,
        )
        return _Found(due, unused, log.properties.get(CREATED_PROPERTY)) if due else None

    def _unused(
        self,
        name: str,
        log: LogMetadata,
        stored_ms: int | None,
        cursors: Mapping[str, StoredCursor],
    ) -> UnusedSince:
        """Return when a walk first saw a topic and its subscriptions. A topic is as young as its
        youngest subscription: that was a use of it.

        `stored_ms`: when the log's node was created, by the store's clock; None if unknown. Then
        a restored log is told from the one that it replaces by the backup that it came from.
        """
        made = tuple(map(log.properties.get, (CREATED_PROPERTY, RESTORED_PROPERTY)))
        topic_s = self._births.since_s(name, f"{made} {stored_ms}")
        since_s = {
            cursor: max(
                topic_s,
                self._births.since_s(name, f"{made} {stored_ms} {each.created_ms} {cursor}"),
            )
            for cursor, each in cursors.items()
            if not naming.is_internal_cursor(cursor)
        }
        return UnusedSince(max([topic_s, *since_s.values()]), since_s)

    async def _work(self, name: TopicName, found: _Found) -> None:
        if not self._topics.has_room(self._settings.topics_at_rest_loaded_max):
            return
        try:
            topic = await self._topics.wake(name)
            if topic.use.is_asked_for:
                return  # A client requested it, too, and the ticker looks after it.
            self.loads += 1
            self._note_unused(topic, await self._unused_now(topic, found))
            _log.info("topic_at_rest_loaded", topic=str(name), due=found.due)
            await self._upkeep.look_after(topic)
        except TopicNotFoundError:
            pass  # It was being deleted, and is deleted now.
        except (LedgerError, CursorError, RequestError) as error:
            self.failures += 1
            _log.warning(
                "topic_at_rest_not_loaded", topic=str(name), due=found.due, error=str(error)
            )
        finally:
            served = self._topics.served(name)
            closing = self._topics.ends.put_to_rest(served) if served is not None else None
            if closing is not None:
                await asyncio.wait([closing])

    async def _unused_now(self, topic: Topic, found: _Found) -> UnusedSince:
        """Return since when a topic is unused that was loaded some time after the look at it.

        Meanwhile it may have been in use, here or at another broker, or deleted and made anew.

        Raises:
            RequestError
        """
        now_s = self._clock.monotonic_s()
        since_s = await self._ownership.alone_since_s(topic.name)
        is_same = topic.log.properties.get(CREATED_PROPERTY) == found.created
        if since_s is None or not is_same:
            since_s = now_s
        unused = found.unused.not_before(max(since_s, self._disuse.since_s(topic.name)))
        if topic.subscriptions.keys() <= unused.subscriptions_s.keys():
            return unused
        return UnusedSince(now_s, unused.subscriptions_s)  # A subscription was made meanwhile.

    def _closing(self, topic: Topic) -> None:
        """Note when a topic came to rest. One that only the walk has loaded keeps its earlier
        time."""
        if topic.use.is_asked_for:
            self._disuse.came_to_rest(topic.name, self._clock.monotonic_s())
