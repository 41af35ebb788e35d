"""Room for large answers of one connection, so that they wait unbuilt for a client that reads.

A request of 70 bytes may have an answer of megabytes, and thousands of requests run at once. Each
of them holds room for its answer from before it is built until it is written. Room is given in the
order of the requests, only while the connection takes more bytes, and only as much as may wait for
the client. An answer that is larger than all of the room gets it alone.

What an answer is built from is read before: then its size is known, and no answer waits for what
another one reads.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AnswerRoom:
    """Room for the large answers of one connection."""

    __slots__ = ("_bytes_max", "_held_bytes", "_is_writable", "_waiting")

    def __init__(self, bytes_max: int, *, is_writable: bool) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._is_writable = is_writable
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Sizes of the answers that wait, in order, with what tells them of their turn."""

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for room for an answer of up to that size, and hold it."""
        if self._waiting or not self._has_room(size_bytes):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it got the room, and was cancelled before it ran
                    self._release(size_bytes)
                raise
        else:
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            self._release(size_bytes)

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the connection takes more bytes."""
        self._is_writable = is_writable
        self._give()

    def _has_room(self, size_bytes: int) -> bool:
        held = self._held_bytes
        return self._is_writable and (not held or held + size_bytes <= self._bytes_max)

    def _release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._give()

    def _give(self) -> None:
        waiting = self._waiting
        while waiting:
            size_bytes, turn = waiting[0]
            if not turn.done():
                if not self._has_room(size_bytes):
                    return
                self._held_bytes += size_bytes
                turn.set_result(None)
            waiting.popleft()
