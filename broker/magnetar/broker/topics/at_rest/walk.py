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
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import RequestError, TopicNotFoundError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Ownership
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics import Topics
from magnetar.broker.topics.at_rest.due import ObjectUpkeep, StoredTopic, what_is_due
from magnetar.cursors import CursorError, StoredCursor, list_cursors, read_stored
from magnetar.ledger.errors import LedgerError, MetadataError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_READS_PER_LOOK = 2
"""Reads of the metadata store per look: the ledger list, and the names of the cursors."""


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
        note_unused: Callable[[Topic, float], None],
        clock: Clock,
        objects: ObjectUpkeep,
    ) -> None:
        """Set up the walk; `start` begins it.

        Args:
            note_unused: takes a topic that was just loaded, and the time since which it is unused.
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
        for tenant in await self._children(naming.ROOT):
            for namespace in await self._children(f"{naming.ROOT}/{tenant}"):
                path = naming.topics_path(f"{tenant}/{namespace}")
                for node in await self._children(path):
                    await self._visit(naming.topic_at(f"{tenant}/{namespace}", node))
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
            due = await self._what_is_due(name, since_s)
        except (LedgerError, CursorError, RequestError) as error:
            self.failures += 1
            _log.warning("topic_at_rest_not_read", topic=full_name, error=str(error))
            return
        if due is None or name in self._working:
            return
        await self._places.acquire()
        task = asyncio.get_running_loop().create_task(
            self._work(name, since_s, due), name=f"at-rest-{name}"
        )
        self._working[name] = task
        task.add_done_callback(lambda _: self._done(name))

    def _done(self, name: TopicName) -> None:
        del self._working[name]
        self._places.release()

    async def _what_is_due(self, name: TopicName, since_s: float) -> str | None:
        """Return the upkeep that is due for a topic; None if there is none.

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
        log = LogMetadata.from_json(node.value, path=path)
        cursors: dict[str, StoredCursor] = {}
        for cursor in await list_cursors(self._store, path):
            await self._pace(1)
            stored = await read_stored(self._store, path, cursor)
            if stored is not None:
                cursors[cursor] = stored
        self.looks += 1
        rested_s = self._clock.monotonic_s() - since_s
        found = StoredTopic(log, cursors, rested_s)
        return what_is_due(
            found,
            policies,
            self._clock.wall_ms(),
            self._upkeep.jobs,
            objects=self._objects,
        )

    async def _work(self, name: TopicName, since_s: float, due: str) -> None:
        if not self._topics.has_room(self._settings.topics_at_rest_loaded_max):
            return
        try:
            topic = await self._topics.wake(name)
            if topic.use.is_asked_for:
                return  # A client requested it, too, and the ticker looks after it.
            self.loads += 1
            self._note_unused(topic, since_s)
            _log.info("topic_at_rest_loaded", topic=str(name), due=due)
            await self._upkeep.look_after(topic)
        except TopicNotFoundError:
            pass  # It was being deleted, and is deleted now.
        except (LedgerError, CursorError, RequestError) as error:
            self.failures += 1
            _log.warning("topic_at_rest_not_loaded", topic=str(name), due=due, error=str(error))
        finally:
            served = self._topics.served(name)
            closing = self._topics.ends.put_to_rest(served) if served is not None else None
            if closing is not None:
                await asyncio.wait([closing])

    def _closing(self, topic: Topic) -> None:
        """Note when a topic came to rest. One that only the walk has loaded keeps its earlier
        time."""
        if topic.use.is_asked_for:
            self._disuse.came_to_rest(topic.name, self._clock.monotonic_s())


class Disuse:
    """When topics came to rest on this broker, as far as it can know; monotonic seconds.

    A topic that was never loaded here counts as unused since the broker began to look. For the
    others, the time at which each came to rest is remembered, up to a bound. If one is forgotten,
    all topics that are not remembered count from its time. So a topic never counts as unused for
    longer than it is.
    """

    def __init__(self, began_s: float, *, remembered_max: int) -> None:
        self._floor_s = began_s
        self._remembered_max = remembered_max
        self._since_s: dict[TopicName, float] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._since_s)

    def came_to_rest(self, name: TopicName, now_s: float) -> None:
        """Note that the topic was loaded and used until now."""
        self._since_s.pop(name, None)
        self._since_s[name] = now_s
        while len(self._since_s) > self._remembered_max:
            oldest = next(iter(self._since_s))
            self._floor_s = max(self._floor_s, self._since_s.pop(oldest))

    def forget(self, name: TopicName) -> None:
        """Forget a topic that was deleted, to free its place."""
        self._since_s.pop(name, None)

    def since_s(self, name: TopicName) -> float:
        """Return a time since which the topic is certainly unused here."""
        return self._since_s.get(name, self._floor_s)
