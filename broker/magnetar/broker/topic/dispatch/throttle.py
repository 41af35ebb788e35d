"""Dispatch rate limits, of a whole topic and of each of its subscriptions.

They count messages and bytes per period; redeliveries count like new messages. A dispatcher asks
for room before it sends, and is woken when there are tokens again. Pure but for the clock.

A limit may be relative: the given rate plus the publish rate of the topic. The publish rate is
computed from the topic's counters when a dispatcher asks, at most once per second.
"""

from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.policies.model import DispatchRate, Policies

UNBOUNDED = 1 << 62

_LOOK_S = 1.0
"""Shortest time, in seconds, between two computations of the publish rate."""

Published = Callable[[], tuple[int, int]]
"""Returns the messages and bytes published so far."""


class RateLimiter:
    """One rate limit, of a topic or of a subscription."""

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_looked_s",
        "_messages",
        "_now_s",
        "_published",
        "_published_before",
        "byte_stops",
        "is_active",
        "message_stops",
        "rate",
    )

    def __init__(self, now_s: Callable[[], float], published: Published = lambda: (0, 0)) -> None:
        self._now_s = now_s
        self._published = published
        self._published_before = (0, 0)
        self._looked_s = 0.0
        self.rate = DispatchRate()
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.is_active = False
        """Whether there is a limit at all; read in each turn of a dispatcher."""
        self.message_stops = 0
        """How often a dispatcher had to stop for lack of message tokens, and of byte tokens."""
        self.byte_stops = 0

    def set_rate(self, rate: DispatchRate) -> None:
        """Set another rate. An unchanged rate does nothing, so it gives no tokens away."""
        if rate == self.rate:
            return
        self.rate = rate
        self._published_before, self._looked_s = self._published(), self._now_s()
        self._messages, self._bytes = (
            TokenBucket(self._now_s, per_period=each, period_s=rate.period_s) if each > 0 else None
            for each in (rate.messages, rate.bytes)
        )
        self.is_active = self._messages is not None or self._bytes is not None

    def room(self) -> tuple[int, int]:
        """Return the messages and bytes that may be sent now; the last entry may exceed that."""
        if self.rate.relative:
            self._follow_publishing()
        return (
            self._messages.available() if self._messages is not None else UNBOUNDED,
            self._bytes.available() if self._bytes is not None else UNBOUNDED,
        )

    def _follow_publishing(self) -> None:
        """Add the average publish rate since the last computation to the limits."""
        elapsed_s = self._now_s() - self._looked_s
        if elapsed_s < _LOOK_S:
            return
        published, rate = self._published(), self.rate
        grown = (now - was for now, was in zip(published, self._published_before, strict=True))
        for bucket, own, more in zip(
            (self._messages, self._bytes), (rate.messages, rate.bytes), grown, strict=True
        ):
            if bucket is not None:
                per_period = own + more / elapsed_s * rate.period_s
                bucket.change(per_period=per_period, period_s=rate.period_s)
        self._published_before = published
        self._looked_s += elapsed_s

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def wait_s(self) -> float:
        """Return the seconds until something may be sent; counts the stop."""
        wait_s = 0.0
        if self._messages is not None and (of_messages := self._messages.wait_s()) > 0:
            self.message_stops += 1
            wait_s = of_messages
        if self._bytes is not None and (of_bytes := self._bytes.wait_s()) > 0:
            self.byte_stops += 1
            wait_s = max(wait_s, of_bytes)
        return wait_s


class DispatchRates:
    """The rate limits of one topic and of its subscriptions, updated with the policies."""

    follows: Final = frozenset(
        {"dispatch_rate", "subscription_dispatch_rate", "subscription_dispatch_rates"}
    )
    """Policies that the limits depend on."""

    def __init__(
        self,
        policies: Callable[[], Policies],
        now_s: Callable[[], float],
        published: Published = lambda: (0, 0),
    ) -> None:
        """`now_s`: the clock of the event loop's timers, so that a wake finds the tokens it waited
        for. `published`: counters of the topic."""
        self._policies = policies
        self._now_s = now_s
        self._published = published
        self.topic = RateLimiter(now_s, published)
        self._subscriptions: WeakValueDictionary[str, RateLimiter] = WeakValueDictionary()
        self.update()

    def limiters_of(self, subscription: str) -> tuple[RateLimiter, RateLimiter]:
        """Return the limits that apply to a subscription: the topic's, and its own."""
        limiter = self._subscriptions.get(subscription)
        if limiter is None:
            limiter = self._subscriptions[subscription] = RateLimiter(self._now_s, self._published)
            limiter.set_rate(self._policies().dispatch_rate_of(subscription))
        return self.topic, limiter

    def update(self) -> None:
        """Apply changed policies."""
        policies = self._policies()
        self.topic.set_rate(policies.dispatch_rate)
        for subscription, limiter in self._subscriptions.items():
            limiter.set_rate(policies.dispatch_rate_of(subscription))
