"""Loading topics when they are first used: once, however many requests wait for it.

Loading one does not hold up others. Failures that may pass are tried again until
`topic_load_timeout_ms`: to the official client, an error it may retry is worse than waiting
(trap 10 of the protocol sheet's appendix C).

A topic may be opened ahead of its use, while nobody may use it yet: the children of a split are.
Nobody is given it before it may be used: the first request for which that is so brings it forward,
with the subscriptions that were made in the store meanwhile.
"""

import asyncio
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
from magnetar.ledger.errors import LedgerError, LogFencedError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class TopicLoader:
    """Gives topics to those who use them."""

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
        # Thousands of loads at once would stand before the guard's own question to the metadata
        # store, in one queue, until the session counts as lost.
        self._at_once = asyncio.Semaphore(settings.topic_loads_at_once)
        self.loads = 0
        self.failed_loads = 0

    async def get(self, name: TopicName, *, may_create: bool) -> Topic:
        """Return the topic, loading it if need be; create it if `may_create`. Bounded by the load
        timeout."""
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
        """Load a persistent topic that is about to come into use. Nothing is done if it is here.

        Call it right after it was found to be coming, without a wait in between: a topic that was
        deleted meanwhile must not come back.

        Raises:
            ServiceNotReadyError, BrokerPersistenceError, NotAllowedError: it is not loaded.
            BrokerMetadataError
        """
        table = self._table
        if table.is_stopping:
            raise ServiceNotReadyError("the broker is stopping")
        is_here = name in table.served or name in table.loading or name in table.closing
        if not is_here and self._removal.held(name) is None:
            await asyncio.shield(self._start(name, is_ahead=True))

    def _deadline_s(self) -> float:
        return self._clock.monotonic_s() + self._settings.topic_load_timeout_ms / 1000

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, deadline_s - self._clock.monotonic_s())

    def _is_over(self, deadline_s: float) -> bool:
        return self._clock.monotonic_s() >= deadline_s or self._table.is_stopping

    async def _get(self, name: TopicName, deadline_s: float, *, may_create: bool) -> Topic:
        table = self._table
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
                    # Cut off from the store it cannot tell what exists, but where others are.
                    await self._ownership.acquire(name, timeout_s=self._left_s(deadline_s))
                await self._creation.check(name, may_create=may_create)
                if name in table.closing or table.usable(name) is not None:
                    continue  # Somebody who heard it sooner has loaded it meanwhile.
                if self._removal.held(name) is not None:
                    continue  # Or deletes it.
            await asyncio.shield(self._start(name))

    def _start(self, name: TopicName, *, is_ahead: bool = False) -> "asyncio.Task[Topic]":
        table = self._table
        loading = table.loading.get(name)
        if loading is None:
            count = len(table.served) + len(table.loading)
            if name not in table.served and count >= self._settings.topics_max:
                raise NotAllowedError(
                    f"the broker serves {len(table.served)} topics, which is its limit"
                )
            loading = asyncio.get_running_loop().create_task(
                self._load(name, is_ahead=is_ahead), name=f"load-{name}"
            )
            table.loading[name] = loading
            loading.add_done_callback(partial(self._ended, name))
        return loading

    def _ended(self, name: TopicName, loading: "asyncio.Task[Topic]") -> None:
        del self._table.loading[name]
        if loading.cancelled():
            return
        error = loading.exception()  # retrieved, even if nobody waits any more
        if error is None:
            self.loads += loading.result() not in self._table.ahead
        else:
            self.failed_loads += 1
            _log.warning("topic_not_loaded", topic=str(name), error=str(error))

    async def _load(self, name: TopicName, *, is_ahead: bool) -> Topic:
        started_s = self._clock.monotonic_s()
        deadline_s = self._deadline_s()
        while True:
            try:
                topic = await self._try_load(name, deadline_s, is_ahead=is_ahead)
            except (LedgerError, CursorError, BrokerPersistenceError) as error:
                # Losing a race for the log is no reason to give up: whoever won may be gone.
                may_pass = getattr(error, "retryable", False) or isinstance(error, LogFencedError)
                if not may_pass:
                    raise BrokerPersistenceError(f"{name} cannot be loaded: {error}") from error
                if self._is_over(deadline_s):
                    raise ServiceNotReadyError(f"{name} cannot be loaded now: {error}") from error
                await asyncio.sleep(self._settings.topic_load_retry_ms / 1000)
            else:
                _log.info(
                    "topic_opened_ahead" if is_ahead else "topic_loaded",
                    topic=str(name),
                    subscriptions=len(topic.subscriptions),
                    milliseconds=round((self._clock.monotonic_s() - started_s) * 1000),
                )
                return topic

    async def _try_load(self, name: TopicName, deadline_s: float, *, is_ahead: bool) -> Topic:
        ahead = self._table.served.get(name)
        if ahead is not None and not ahead.is_closed:
            await self._bring_forward(ahead)
            return ahead
        self._table.unwanted.discard(name)
        tenure = await self._ownership.acquire(name, timeout_s=self._left_s(deadline_s))
        async with self._at_once:
            if not tenure.holds():
                raise LogFencedError(f"the lease of {name} was lost while it waited to be loaded")
            policies = await self._policies.of(name)
            topic, log = await self._opener.open(name, tenure, policies)
            self._table.serve(topic, log, is_ahead=is_ahead)
        topic.apply_policies(self._policies.known(name))  # They may have changed meanwhile.
        if is_ahead:
            log.prepare()
        return topic

    async def _bring_forward(self, topic: Topic) -> None:
        """Have a topic used that was opened ahead.

        Raises:
            LogFencedError: it was dropped or closed meanwhile.
            As `TopicOpener.open`.
        """
        table = self._table
        await self._opener.catch_up(topic, table.logs[topic])
        if not table.is_served(topic):
            raise LogFencedError(f"{topic.name} was lost before it came into use")
        table.ahead.discard(topic)
