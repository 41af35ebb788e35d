"""Bounds on the rate of dispatch: of a whole topic, and of each of its subscriptions.

Messages and bytes per period; what is sent again counts like what is new. A dispatcher asks for
room before it sends, and is woken when tokens are there again. Pure but for the clock.
"""

from collections.abc import Callable

from magnetar.broker.policies.effective import UNLIMITED, RateLimit
from magnetar.broker.token_bucket import TokenBucket

UNBOUNDED = 1 << 62


class RateLimiter:
    """One bound, of a topic or of a subscription."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.rate = UNLIMITED
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.message_stops = 0
        """How often a dispatcher had to stop for want of messages, and of bytes."""
        self.byte_stops = 0

    @property
    def is_active(self) -> bool:
        return self._messages is not None or self._bytes is not None

    def set_rate(self, rate: RateLimit) -> None:
        """Another bound from now on. The same one changes nothing: no tokens are given away."""
        if rate == self.rate:
            return
        self.rate = rate
        self._messages, self._bytes = (
            TokenBucket(self._now_s, per_period=each, period_s=rate.period_s) if each > 0 else None
            for each in (rate.messages, rate.bytes)
        )

    def room(self) -> tuple[int, int]:
        """Messages and bytes that may be sent now; the last entry may be more than that."""
        return (
            self._messages.available() if self._messages is not None else UNBOUNDED,
            self._bytes.available() if self._bytes is not None else UNBOUNDED,
        )

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def wait_s(self) -> float:
        """Seconds until something may be sent; counts the stop."""
        wait_s = 0.0
        if self._messages is not None and (of_messages := self._messages.wait_s()) > 0:
            self.message_stops += 1
            wait_s = of_messages
        if self._bytes is not None and (of_bytes := self._bytes.wait_s()) > 0:
            self.byte_stops += 1
            wait_s = max(wait_s, of_bytes)
        return wait_s
