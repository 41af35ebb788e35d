"""Rates of a broker, its topics and their clients, sampled once per interval, in slices.

A slice is some hundred topics; between two slices the event loop does its work. Sampling needs no
counters of its own: it reads those that topics, consumers and the tail cache keep anyway.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import structlog

from magnetar.broker.http.metrics.history import History
from magnetar.broker.http.metrics.topic_values import (
    CONSUMER_COUNTERS,
    SUBSCRIPTION_COUNTERS,
    TOPIC_COUNTERS,
    Numbers,
    counters_of_consumer,
    counters_of_subscription,
    counters_of_topic,
    in_subscriptions,
)
from magnetar.broker.topic import Topic
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.tail_cache import TailCachePool
from magnetar.broker.topics.services import Counters
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

STEPS_AT_ONCE = 500
"""Topics, subscriptions and consumers sampled before other work gets its turn."""

_ONLY = ""
Key = TypeVar("Key", bound=Hashable)


class Sampler:
    """Samples the rates of topics, subscriptions, consumers and the tail cache."""

    def __init__(
        self,
        topics: Callable[[], Sequence[Topic]],
        cache: TailCachePool,
        counters: Counters,
        *,
        clock: Clock,
        interval_s: float,
        with_consumers: bool,
        history_bytes_max: int = 0,
    ) -> None:
        """`history_bytes_max`: memory for plots of the last hour, in bytes; 0 for no history."""
        self._list = topics
        self._pool = cache
        self._counters = counters
        self._clock = clock
        self._interval_s = interval_s
        self._with_consumers = with_consumers
        self.topics: Rates[Topic] = Rates(TOPIC_COUNTERS)
        self.subscriptions: Rates[Subscription] = Rates(SUBSCRIPTION_COUNTERS)
        self.consumers: Rates[Consumer] = Rates(CONSUMER_COUNTERS)
        self._cache: Rates[str] = Rates(2)
        self.history: History[TopicName] = History(
            bytes_max=history_bytes_max, interval_s=interval_s
        )
        self.write_latency: Sequence[int] = counters.publish_latency.since(None)
        """Counts of the entries of the last interval by latency, see `LatencyHistogram`."""
        self.entry_sizes: Sequence[int] = counters.entry_sizes.since(None)
        self._latency_before = list(self.write_latency)
        self._sizes_before = list(self.entry_sizes)
        self._sampled_at_s: float | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def cache(self) -> Numbers:
        """Hits and misses of the tail cache per second."""
        return self._cache.of(_ONLY)

    def start(self) -> None:
        """Start to sample."""
        assert self._running is None, "it samples already"
        self._running = asyncio.get_running_loop().create_task(self._run(), name="metrics-sampler")

    async def stop(self) -> None:
        """Stop sampling."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:  # noqa: BLE001 - a defect must not end all further samples
                _log.exception("metrics_not_sampled")
            await asyncio.sleep(self._interval_s)

    async def sample(self) -> None:
        """Take a sample; its rates are over the time since the last one."""
        now_s = self._clock.monotonic_s()
        elapsed_s = 0.0 if self._sampled_at_s is None else now_s - self._sampled_at_s
        self._sampled_at_s = now_s
        every = (self.topics, self.subscriptions, self.consumers, self._cache)
        for rates in every:
            rates.begin(elapsed_s)
        self._cache.add(_ONLY, (self._pool.hits, self._pool.misses))
        latency, sizes = self._counters.publish_latency, self._counters.entry_sizes
        self.write_latency = latency.since(self._latency_before)
        self.entry_sizes = sizes.since(self._sizes_before)
        self._latency_before, self._sizes_before = list(latency.counts), list(sizes.counts)
        steps = 0
        for topic in self._list():
            steps += self._add(topic)
            if steps >= STEPS_AT_ONCE:
                steps = 0
                await asyncio.sleep(0)
        for rates in every:
            rates.finish()
        await self._keep()

    async def _keep(self) -> None:
        """Add the sample to the history for plots."""
        history, steps = self.history, 0
        if not history.is_on:
            return
        history.begin()
        for topic in self._list():
            messages_in, bytes_in, messages_out, bytes_out, _ = self.topics.of(topic)
            found = in_subscriptions(topic)
            values = (messages_in, messages_out, bytes_in, bytes_out, float(found.backlog))
            history.add(topic.name, values)
            steps += 1 + found.subscriptions
            if steps >= STEPS_AT_ONCE:
                steps = 0
                await asyncio.sleep(0)
        history.finish(self._clock.wall_ms())

    def _add(self, topic: Topic) -> int:
        self.topics.add(topic, counters_of_topic(topic))
        steps = 1
        for subscription in topic.subscriptions.values():
            self.subscriptions.add(subscription, counters_of_subscription(subscription))
            steps += 1 + len(subscription.consumers)
            if self._with_consumers:
                for consumer in subscription.consumers:
                    self.consumers.add(consumer, counters_of_consumer(consumer))
        return steps


class Rates(Generic[Key]):
    """Rates per second of several counters of each key, as of the last round: their growth between
    two rounds, divided by the time between.

    A key that was absent in the round before counts from zero. So does a key whose counters were
    reset, which shows as smaller values. A key with only zeros takes no memory.
    """

    def __init__(self, counters: int) -> None:
        """`counters`: number of counters per key."""
        self.nothing: Numbers = (0.0,) * counters
        self._before: dict[Key, Numbers] = {}
        self._now: dict[Key, Numbers] = {}
        self._rates: dict[Key, Numbers] = {}
        self._next_rates: dict[Key, Numbers] = {}
        self._per_s = 0.0

    def of(self, key: Key) -> Numbers:
        """Return the rates of a key; zeros if its counters did not grow."""
        return self._rates.get(key, self.nothing)

    def begin(self, elapsed_s: float) -> None:
        """Begin a round. `elapsed_s` is the time since the last one; 0 for the first, which has no
        rates."""
        self._per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        self._now, self._next_rates = {}, {}

    def add(self, key: Key, counters: Numbers) -> None:
        """Add the counters of one key to the round."""
        if counters == self.nothing:
            return
        self._now[key] = counters
        before = self._before.get(key)
        if counters == before or not self._per_s:
            return
        per_s = self._per_s
        if before is None or any(now < was for now, was in zip(counters, before, strict=True)):
            self._next_rates[key] = tuple(now * per_s for now in counters)
        else:
            self._next_rates[key] = tuple(
                (now - was) * per_s for now, was in zip(counters, before, strict=True)
            )

    def finish(self) -> None:
        """Complete the round and publish its rates."""
        self._before, self._rates = self._now, self._next_rates
