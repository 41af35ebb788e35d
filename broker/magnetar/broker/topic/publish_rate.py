"""How fast a topic may be published to: connections that publish faster are not read for a while.

Producers have no credit in this protocol, so what has arrived is stored, however much it is; the
topic is in debt then, and none of the connections that publish to it is read until time has paid
for that. Others are not affected.
"""

import asyncio
from collections.abc import Callable

from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.policies.effective import UNLIMITED, RateLimit
from magnetar.broker.topic.publish_budget import Pausable


class PublishRate:
    """The publish rate of one topic, and the connections that wait for it."""

    def __init__(self, rate: RateLimit, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds."""
        self.limited_times = 0
        """How often a connection was not read because of it."""
        self._now_s = now_s
        self._rate = UNLIMITED
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waiting: dict[Pausable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.set(rate)

    @property
    def is_limited(self) -> bool:
        return self._rate.is_limited

    def set(self, rate: RateLimit) -> None:
        """Another rate counts from now on; debts are forgotten."""
        if rate == self._rate:
            return
        self._rate = rate
        self._messages = self._bucket(rate.messages, rate.period_s)
        self._bytes = self._bucket(rate.bytes, rate.period_s)
        self._go_on()

    def _bucket(self, per_period: int, period_s: int) -> TokenBucket | None:
        if per_period <= 0:
            return None
        return TokenBucket(self._now_s, per_period=per_period, period_s=period_s)

    def spend(self, messages: int, size_bytes: int) -> None:
        """So much was published."""
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def wait_s(self) -> float:
        """Time until more may be published; 0: now."""
        return max(
            (each.wait_s() for each in (self._messages, self._bytes) if each is not None),
            default=0.0,
        )

    def wait(self, connection: Pausable) -> None:
        """Have the connection resumed when more may be published."""
        if connection not in self._waiting:
            self._waiting[connection] = None
            self.limited_times += 1
        if self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.wait_s(), self._on_timer)

    def forget(self, connection: Pausable) -> None:
        self._waiting.pop(connection, None)

    def close(self) -> None:
        """The topic is gone: nobody waits for it."""
        self._messages = self._bytes = None
        self._go_on()

    def _on_timer(self) -> None:
        self._timer = None
        if self.wait_s() > 0:
            self._start_timer()  # a timer may be early by a clock's tick
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Each looks again for itself, and waits again if it must."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.resume_publishing()
