"""Loads topics at their first use: once, however many requests wait.

Loading one topic does not delay others. Temporary failures are retried until
`topic_load_timeout_ms`: for the official client, a retryable error is worse than waiting (trap 10
of the protocol sheet's appendix C).

A topic may be opened ahead of its use, such as the children of a split. No client gets it before it
may be used. The first request after that brings it forward, with the subscriptions that were
created in the store meanwhile.

A load may wait for the lease, and the former owner may delete the topic meanwhile. A topic that
existed when the load began is not created by it, and a topic that need not have a log yet is
looked for again after a wait. Otherwise a deleted topic would come back.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

import structlog

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership import Ownership
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics.creation import TopicCreation
from magnetar.broker.topics.opening import TopicOpener
from magnetar.broker.topics.removal import TopicRemoval
from magnetar.broker.topics.table import TopicTable
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError, LogFencedError, NoSuchLogError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


_CHECK_S_MAX = 1.0
"""Age of a check for existence, in seconds, after which it is repeated."""


class _StaleLoadError(ServiceNotReadyError):
    """A check that was made before the load no longer holds; the request checks again."""


@dataclass(frozen=True, slots=True)
class _Load:
    """The request that begins a load, and the result of its check."""

    must_exist: bool
    """Whether the topic had a log when the load began."""
    may_create: bool
    checked_s: float
    is_ahead: bool = False


class TopicLoader:
    """Returns topics, loading them if need be."""

    def __init__(
        self,
        settings: BrokerSettings,
        table: TopicTable,
        opener: TopicOpener,
        removal: TopicRemoval,
        creation: TopicCreation,
        policies: PolicyRegistry,
        ownership: Ownership,
        *,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._table = table
        self._opener = opener
        self._removal = removal
        self._creation = creation
        self._policies = policies
        self._ownership = ownership
        self._clock = clock
        # Thousands of loads at once would fill the queue before the guard's own request to the
        # metadata store, until the session counts as lost.
        self._at_once = asyncio.Semaphore(settings.topic_loads_at_once)
        self.loads = 0
        self.failed_loads = 0

    async def get(self, name: TopicName, *, may_create: bool) -> Topic:
        """Return the topic within the load timeout, loading it if need be; create it if
        `may_create`."""
        deadline_s = self._deadline_s()
        while True:
            try:
                return await self._get(name, deadline_s, may_create=may_create)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                if self._is_over(deadline_s):
                    raise ServiceNotReadyError(f"{name} cannot be loaded now: {error}") from error
            await asyncio.sleep(self._settings.topic_load_retry_ms / 1000)

    async def open_ahead(self, name: TopicName) -> None:
        """Load a persistent topic that is about to come into use; do nothing if it is here.

        Call this right after finding that the topic is coming, without an await in between: a topic
        that was deleted meanwhile must not come back.

        Raises:
            ServiceNotReadyError, BrokerPersistenceError, NotAllowedError: it is not loaded.
            BrokerMetadataError
        """
        table = self._table
        if table.is_stopping:
            raise ServiceNotReadyError("the broker is stopping")
        is_here = name in table.served or name in table.loading or name in table.closing
        if not is_here and self._removal.held(name) is None:
            ahead = _Load(False, False, self._clock.monotonic_s(), is_ahead=True)
            await asyncio.shield(self._start(name, ahead))

    def _deadline_s(self) -> float:
        return self._clock.monotonic_s() + self._settings.topic_load_timeout_ms / 1000

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - self._clock.monotonic_s())

    def _is_over(self, deadline_s: float) -> bool:
        return self._clock.monotonic_s() >= deadline_s or self._table.is_stopping

    async def _get(self, name: TopicName, deadline_s: float, *, may_create: bool) -> Topic:
        table = self._table
        load = _Load(False, may_create, self._clock.monotonic_s())
        await self._policies.check_namespace(name.namespace_name)
        while True:
            topic = table.usable(name)
            if topic is not None:
                return topic
            if table.is_stopping:
                raise ServiceNotReadyError("the broker is stopping")
            if (closing := table.closing.get(name)) is not None:
                await asyncio.wait([closing.task])
                continue
            if (held := self._removal.held(name)) is not None:
                await asyncio.wait([held])
                continue
            if name not in table.loading:
                if not self._ownership.is_serving:
                    # Without the store, this broker cannot tell what exists, only which broker owns
                    # the topic.
                    await self._ownership.acquire(name, timeout_s=self._left_s(deadline_s))
                checked_s = self._clock.monotonic_s()
                must_exist = await self._creation.check(name, may_create=may_create)
                load = _Load(must_exist, may_create, checked_s)
                if name in table.closing or table.usable(name) is not None:
                    continue  # A task that was notified sooner has loaded it meanwhile.
                if self._removal.held(name) is not None:
                    continue  # Or is deleting it.
            loading = self._start(name, load)
            # Not `shield`, which does not suspend if the task is done. A load is forgotten a turn
            # after its end, and until then a topic opened ahead can be neither used nor loaded.
            await asyncio.wait([loading])
            try:
                loading.result()
            except _StaleLoadError:
                if self._is_over(deadline_s):
                    raise

    def _start(self, name: TopicName, load: _Load) -> "asyncio.Task[Topic]":
        table = self._table
        loading = table.loading.get(name)
        if loading is None:
            count = len(table.served) + len(table.loading)
            if name not in table.served and count >= self._settings.topics_max:
                raise NotAllowedError(
                    f"the broker serves {len(table.served)} topics, which is its limit"
                )
            loading = asyncio.get_running_loop().create_task(
                self._load(name, load), name=f"load-{name}"
            )
            table.loading[name] = loading
            loading.add_done_callback(partial(self._ended, name))
        return loading

    def _ended(self, name: TopicName, loading: "asyncio.Task[Topic]") -> None:
        del self._table.loading[name]
        if loading.cancelled():
            return
        error = loading.exception()  # retrieved, even if no request waits any more
        if error is None:
            self.loads += loading.result() not in self._table.ahead
        else:
            self.failed_loads += 1
            _log.warning("topic_not_loaded", topic=str(name), error=str(error))

    async def _load(self, name: TopicName, load: _Load) -> Topic:
        started_s = self._clock.monotonic_s()
        deadline_s = self._deadline_s()
        while True:
            try:
                topic = await self._try_load(name, deadline_s, load)
            except (LedgerError, CursorError, BrokerPersistenceError) as error:
                # Losing a race for the log is no reason to give up: the winner may be gone by now.
                may_pass = getattr(error, "retryable", False) or isinstance(error, LogFencedError)
                if not may_pass:
                    raise BrokerPersistenceError(f"{name} cannot be loaded: {error}") from error
                if self._is_over(deadline_s):
                    raise ServiceNotReadyError(f"{name} cannot be loaded now: {error}") from error
                await asyncio.sleep(self._settings.topic_load_retry_ms / 1000)
            else:
                _log.info(
                    "topic_opened_ahead" if load.is_ahead else "topic_loaded",
                    topic=str(name),
                    subscriptions=len(topic.subscriptions),
                    milliseconds=round((self._clock.monotonic_s() - started_s) * 1000),
                )
                return topic

    async def _try_load(self, name: TopicName, deadline_s: float, load: _Load) -> Topic:
        ahead = self._table.served.get(name)
        if ahead is not None and not ahead.is_closed:
            await self._bring_forward(ahead)
            return ahead
        self._table.unwanted.discard(name)
        tenure = await self._ownership.acquire(name, timeout_s=self._left_s(deadline_s))
        async with self._at_once:
            if not tenure.holds():
                raise LogFencedError(f"the lease of {name} was lost while it waited to be loaded")
            must_exist = await self._must_exist(name, load)
            policies = await self._policies.of(name)
            try:
                topic, log = await self._opener.open(name, tenure, policies, must_exist=must_exist)
            except NoSuchLogError as error:
                raise _StaleLoadError(f"{name} was deleted while it was loaded") from error
            self._table.serve(topic, log, is_ahead=load.is_ahead)
        topic.apply_policies(self._policies.known(name))  # They may have changed meanwhile.
        if load.is_ahead:
            log.prepare()
        return topic

    async def _must_exist(self, name: TopicName, load: _Load) -> bool:
        """Return whether the topic must have a log; look again if the last look is long ago.

        Raises:
            _StaleLoadError: it was to be opened ahead, and may not be coming any more.
            As `TopicCreation.check`.
        """
        if load.must_exist or self._clock.monotonic_s() - load.checked_s < _CHECK_S_MAX:
            return load.must_exist
        if load.is_ahead:
            raise _StaleLoadError(f"{name} was not opened ahead in time")
        return await self._creation.check(name, may_create=load.may_create)

    async def _bring_forward(self, topic: Topic) -> None:
        """Make a topic usable that was opened ahead.

        Raises:
            LogFencedError: it was dropped or closed meanwhile.
            As `TopicOpener.open`.
        """
        table = self._table
        await self._opener.catch_up(topic, table.logs[topic])
        if not table.is_served(topic):
            raise LogFencedError(f"{topic.name} was lost before it came into use")
        table.ahead.discard(topic)
