"""Limits on publishers: the bound on unpersisted publishes, and the publish rates of topics.

Producers have no credit in this protocol, so the broker must store all that has arrived. Its only
brake is to stop reading their sockets:

- Each connection has limits of its own (`protocol/publishing.py`). `PublishBudget` bounds what all
  connections together may hold in memory.
- A topic that was published to faster than its rate is in debt. The broker does not read the
  connections that publish to it until time has paid off the debt (`PublishRate`). Others are not
  affected.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.policies import model


class Pausable(Protocol):
    """A connection that stops reading publishes, and can be resumed."""

    def resume_publishing(self) -> None: ...


class PublishBudget:
    """Counts unpersisted bytes, and resumes waiting connections when half of the budget is free."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.pending_bytes = 0
        # A dict keeps the order of arrival; a set's order would differ from run to run.
        self._waiting: dict[Pausable, None] = {}

    @property
    def is_exhausted(self) -> bool:
        return self.pending_bytes >= self.bytes_max

    def take(self, size_bytes: int) -> None:
        self.pending_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Return bytes to the budget; when half of it is free, resume all waiting connections."""
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0
        if self._waiting and self.pending_bytes * 2 <= self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.resume_publishing()

    def wait(self, connection: Pausable) -> None:
        """Resume the connection when there is room."""
        self._waiting[connection] = None

    def forget(self, connection: Pausable) -> None:
        self._waiting.pop(connection, None)


class PublishRate:
    """The publish rate of one topic, and the connections that wait for it."""

    def __init__(self, rate: model.PublishRate, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds."""
        self.limited_times = 0
        """How often a connection was paused because of this rate."""
        self._now_s = now_s
        self.is_limited = False
        """Whether there is a rate at all; read for every batch."""
        self._rate = model.PublishRate()
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waiting: dict[Pausable, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.set(rate)

    def set(self, rate: model.PublishRate) -> None:
        """Set another rate; debts are forgotten."""
        if rate == self._rate:
            return
        self._rate = rate
        self.is_limited = rate.is_limited
        self._messages = self._bucket(rate.messages)
        self._bytes = self._bucket(rate.bytes)
        self._go_on()

    def _bucket(self, per_second: int) -> TokenBucket | None:
        if per_second <= 0:
            return None
        return TokenBucket(self._now_s, per_period=per_second, period_s=1)

    def spend(self, messages: int, size_bytes: int) -> None:
        """Charge what was published."""
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def wait_s(self) -> float:
        """Return the seconds until more may be published; 0: now."""
        return max(
            (each.wait_s() for each in (self._messages, self._bytes) if each is not None),
            default=0.0,
        )

    def wait(self, connection: Pausable) -> None:
        """Resume the connection when more may be published."""
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
        """Drop the rate and resume all waiting connections: the topic is closed."""
        self._messages = self._bytes = None
        self._go_on()

    def _on_timer(self) -> None:
        self._timer = None
        if self.wait_s() > 0:
            self._start_timer()  # a timer may be early by a clock's tick
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Resume all waiting connections; each checks again, and waits again if it must."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.resume_publishing()
