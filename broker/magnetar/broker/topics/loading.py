"""Loading topics when they are first used: once, however many requests wait for it.

Loading one does not hold up others. Failures that may pass are tried again until
`topic_load_timeout_ms`: to the official client, an error it may retry is worse than waiting
(trap 10 of the protocol sheet's appendix C).
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
            topic = table.served.get(name)
            if topic is not None and not topic.is_closed:
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
                topic = table.served.get(name)
                if name in table.closing or (topic is not None and not topic.is_closed):
                    continue  # Somebody who heard it sooner has loaded it meanwhile.
                if self._removal.held(name) is not None:
                    continue  # Or deletes it.
            await asyncio.shield(self._start(name))

    def _start(self, name: TopicName) -> "asyncio.Task[Topic]":
        table = self._table
        loading = table.loading.get(name)
        if loading is None:
            if len(table.served) + len(table.loading) >= self._settings.topics_max:
                raise NotAllowedError(
                    f"the broker serves {len(table.served)} topics, which is its limit"
                )
            loading = asyncio.get_running_loop().create_task(self._load(name), name=f"load-{name}")
            table.loading[name] = loading
            loading.add_done_callback(partial(self._ended, name))
        return loading

    def _ended(self, name: TopicName, loading: "asyncio.Task[Topic]") -> None:
        del self._table.loading[name]
        if loading.cancelled():
            return
        error = loading.exception()  # retrieved, even if nobody waits any more
        if error is None:
            self.loads += 1
        else:
            self.failed_loads += 1
            _log.warning("topic_not_loaded", topic=str(name), error=str(error))

    async def _load(self, name: TopicName) -> Topic:
        started_s = self._clock.monotonic_s()
        deadline_s = self._deadline_s()
        while True:
            try:
                topic = await self._try_load(name, deadline_s)
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
                    "topic_loaded",
                    topic=str(name),
                    subscriptions=len(topic.subscriptions),
                    milliseconds=round((self._clock.monotonic_s() - started_s) * 1000),
                )
                return topic

    async def _try_load(self, name: TopicName, deadline_s: float) -> Topic:
        self._table.unwanted.discard(name)
        tenure = await self._ownership.acquire(name, timeout_s=self._left_s(deadline_s))
        async with self._at_once:
            if not tenure.holds():
                raise LogFencedError(f"the lease of {name} was lost while it waited to be loaded")
            policies = await self._policies.of(name)
            topic, log = await self._opener.open(name, tenure, policies)
            self._table.serve(topic, log)
        topic.apply_policies(self._policies.known(name))  # They may have changed meanwhile.
        return topic
