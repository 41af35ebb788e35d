"""Shares of a turn of the event loop: what all connections together may bring in one.

To receive, to check and to put away takes about a millisecond per `turn_bytes_max`. Each connection
that is read costs a copy and a wait for the interpreter's lock besides, so the bound is one for all
of them: thirty busy clients must not hold the loop thirty times as long as one does. Beyond it a
connection waits, and is not read, until later turns have come round to it; who waits longest is
first. A client that is alone and slower than that never waits: nothing is scheduled before the
share is used up, and what was used in earlier turns only means that a rest comes a little early.
"""

import asyncio
from typing import Protocol

REQUEST_COST_BYTES = 2 << 10
"""What a request counts beside its bytes: it costs a few microseconds however small it is."""


class Sharer(Protocol):
    """A connection."""

    def go_on(self) -> None:
        """Obey what waits, use the share for it, and be read again; it may wait once more."""
        ...


class TurnShares:
    """The share of the current turn, and the connections that wait for a later one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        # A dict for a set that keeps its order.
        self._waiting: dict[Sharer, None] = {}
        self._is_scheduled = False

    @property
    def is_used_up(self) -> bool:
        """Nothing more is to be done in this turn."""
        return self._used_bytes >= self._bytes_max

    @property
    def requests_left(self) -> int:
        """How many requests may be obeyed yet; one at least, so that it goes on in any case."""
        return max(1, (self._bytes_max - self._used_bytes) // REQUEST_COST_BYTES)

    def use_bytes(self, count: int) -> None:
        """Bytes were received, or obeyed that had been received in an earlier turn."""
        self._used_bytes += count

    def use_requests(self, count: int) -> None:
        """Requests were obeyed."""
        self._used_bytes += count * REQUEST_COST_BYTES

    def wait(self, connection: Sharer) -> None:
        """Let it go on in a later turn."""
        self._waiting[connection] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._used_bytes = 0
        try:
            for connection in list(self._waiting):
                if self.is_used_up:
                    break
                del self._waiting[connection]  # it may wait again, behind all others
                connection.go_on()
        finally:
            if self._waiting:
                self._schedule()
