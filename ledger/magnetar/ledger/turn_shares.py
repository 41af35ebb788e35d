"""Shares of a turn of the event loop: what all connections together may bring in one.

An event loop reads a socket again and again in one turn while data keeps coming, and does so for
each of them. The bound is one for all: thirty busy clients must not hold the loop thirty times as
long as one does. Beyond it a connection waits, and is not read, until later turns have come round
to it; who waits longest is first. A client that is alone and slower than that never waits: nothing
is scheduled before the share is used up, and what was used in earlier turns only means that a rest
comes a little early.
"""

import asyncio
from typing import Protocol


class Sharer(Protocol):
    """A connection."""

    def go_on(self) -> None:
        """Obey what waits, use the share for it, and be read again; it may wait once more."""
        ...


class TurnShares:
    """The share of the current turn, and the connections that wait for a later one."""

    def __init__(self, bytes_max: int, *, request_cost_bytes: int) -> None:
        """`request_cost_bytes`: what a request counts beside its bytes; it takes some time however
        small it is."""
        self._bytes_max = bytes_max
        self._request_cost_bytes = request_cost_bytes
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
        return max(1, (self._bytes_max - self._used_bytes) // self._request_cost_bytes)

    def use_bytes(self, count: int) -> None:
        """Bytes were received, or obeyed that had been received in an earlier turn."""
        self._used_bytes += count

    def use_requests(self, count: int) -> None:
        """Requests were obeyed."""
        self._used_bytes += count * self._request_cost_bytes

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
