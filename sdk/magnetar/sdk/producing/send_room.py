"""Room for more sends: the limits of a producer and of its client, and those who wait for room.

Who waits is woken in turn, and looks again: room may be gone when its turn comes.
"""

import asyncio
from collections import deque

from magnetar.sdk.settings import ProducerSettings


class MemoryLimit:
    """Bytes that all producers of a client may have under way together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def is_full(self, size: int) -> bool:
        """Whether a message of `size` bytes must wait. With nothing under way any may go."""
        return self.used_bytes > 0 and self.used_bytes + size > self.bytes_max

    def adjust(self, delta_bytes: int) -> None:
        """A producer has so many bytes more, or fewer, under way."""
        self.used_bytes += delta_bytes
        if delta_bytes < 0:
            self.wake()

    def wake(self) -> None:
        """Have all who wait look again: those for whom there is no room come back."""
        waiters, self._waiters = self._waiters, deque()
        for future in waiters:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Wait until something has changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        await future


class SendRoom:
    """The limits that one producer is under."""

    def __init__(self, settings: ProducerSettings, memory: MemoryLimit | None) -> None:
        self._messages_max = settings.pending_messages_max
        self._bytes_max = settings.pending_bytes_max
        self._memory = memory
        self._held_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def is_full(self, messages: int, payload_bytes: int, size: int) -> bool:
        """Whether one more of `size` bytes has no room; a single one may be of any size."""
        if messages >= self._messages_max:
            return True
        if payload_bytes > 0 and payload_bytes + size > self._bytes_max:
            return True
        return self._memory is not None and self._memory.is_full(size)

    def left(self, messages: int, payload_bytes: int) -> tuple[int, int]:
        """How many messages, and bytes, may be added to these; not below 0."""
        left_bytes = self._bytes_max - payload_bytes
        if self._memory is not None:
            left_bytes = min(left_bytes, self._memory.bytes_max - self._memory.used_bytes)
        return max(0, self._messages_max - messages), max(0, left_bytes)

    def hold(self, payload_bytes: int) -> None:
        """So many bytes are under way now: the client's sum is kept up to date."""
        if self._memory is not None and payload_bytes != self._held_bytes:
            delta, self._held_bytes = payload_bytes - self._held_bytes, payload_bytes
            self._memory.adjust(delta)

    def wake(self, messages: int) -> None:
        """Wake as many as there is room for beside `messages`."""
        room = self._messages_max - messages
        while self._waiters and room > 0:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1

    def wake_all(self) -> None:
        """The producer is over: nobody shall wait."""
        self.wake(self._messages_max - len(self._waiters) - 1)
        if self._memory is not None:
            self._memory.wake()

    async def wait(self, messages: int, size: int) -> None:
        """Wait for room for `size` bytes, of the producer if it has none for one more message."""
        memory = self._memory
        if memory is not None and messages < self._messages_max and memory.is_full(size):
            await memory.wait()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the turn goes to the next one.
            if future.done() and not future.cancelled():
                self.wake(messages)
            raise
