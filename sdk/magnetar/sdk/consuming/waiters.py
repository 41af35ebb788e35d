"""Who waits for messages: woken one by one, in turn.

Whoever takes a message and leaves others wakes the next; so one message wakes one, not all.
"""

import asyncio
from collections import deque


class Waiters:
    """Of one consumer."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    async def wait(self) -> None:
        """Wait to be woken; who was looks again whether there is something."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the message is for the next one who waits.
            if future.done() and not future.cancelled():
                self.wake()
            raise

    def wake(self) -> None:
        """Wake one."""
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiters:
            self.wake()
