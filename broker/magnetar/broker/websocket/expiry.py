"""The end of a client's credentials, which is the end of its session.

WebSocket clients cannot be asked for new credentials: the protocol has no frame for that. They
connect again with new ones.
"""

import asyncio
from collections.abc import Callable

from magnetar.ledger.ports import Clock

_TIMER_S_MAX = 3_600.0
"""A timer may be late by as much as clocks drift meanwhile: look again once an hour."""


class Expiry:
    """Calls `on_end` once, when the wall clock says so; `cancel` before that."""

    def __init__(self, clock: Clock, expires_at_ms: int, on_end: Callable[[], None]) -> None:
        self._clock = clock
        self._expires_at_ms = expires_at_ms
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        left_s = (self._expires_at_ms - self._clock.wall_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, min(left_s, _TIMER_S_MAX)), self._look
        )

    def _look(self) -> None:
        if self._clock.wall_ms() < self._expires_at_ms:
            self._wait()
            return
        self._timer = None
        self._on_end()
