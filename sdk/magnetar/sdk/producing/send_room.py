"""Room for more sends: the limits of a producer and of its client, and the calls that wait for
room.

Waiting calls are woken in turn and check again, because the room may be gone when their turn comes.
Such a call keeps its place, and later calls wait behind it: messages are sent in the order of the
calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import TracebackType
from typing import Self

from magnetar.sdk.settings import ProducerSettings


class MemoryLimit:
    """Limit on the pending bytes of all producers of a client together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        # In the order of waiting: the order of waking must not depend on memory addresses.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def is_full(self, size: int) -> bool:
        """Whether a message of `size` bytes must wait. With nothing pending, any message may be
        sent."""
        return self.used_bytes > 0 and self.used_bytes + size > self.bytes_max

    def adjust(self, delta_bytes: int) -> None:
        """Change the pending bytes, by those that a producer added or freed."""
        self.used_bytes += delta_bytes
        if delta_bytes < 0:
            self.wake()

    def wake(self) -> None:
        """Wake all waiting calls to check again; those without room wait anew."""
        waiters, self._waiters = self._waiters, {}
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def tell(self, news: asyncio.Future[None]) -> None:
        """Settle a waiting call's future at the next change."""
        self._waiters[news] = None

    def forget(self, news: asyncio.Future[None]) -> None:
        """Settle a future no more, because its call waits no longer."""
        self._waiters.pop(news, None)


class SendRoom:
    """Pending limits of one producer."""

    def __init__(self, settings: ProducerSettings, memory: MemoryLimit | None) -> None:
        self._messages_max = settings.pending_messages_max
        self._bytes_max = settings.pending_bytes_max
        self._memory = memory
        self._held_bytes = 0
        self._turns: deque[Turn] = deque()

    def is_full(self, messages: int, payload_bytes: int, size: int) -> bool:
        """Whether there is no room for a message of `size` bytes; a single one may be of any
        size."""
        if messages >= self._messages_max:
            return True
        if payload_bytes > 0 and payload_bytes + size > self._bytes_max:
            return True
        return self._memory is not None and self._memory.is_full(size)

    def left(self, messages: int, payload_bytes: int) -> tuple[int, int]:
        """Return how many messages, and bytes, may be added to these; not below 0."""
        left_bytes = self._bytes_max - payload_bytes
        if self._memory is not None:
            left_bytes = min(left_bytes, self._memory.bytes_max - self._memory.used_bytes)
        return max(0, self._messages_max - messages), max(0, left_bytes)

    def hold(self, payload_bytes: int) -> None:
        """Set the producer's pending bytes, which keeps the client's sum up to date."""
        if self._memory is not None and payload_bytes != self._held_bytes:
            delta, self._held_bytes = payload_bytes - self._held_bytes, payload_bytes
            self._memory.adjust(delta)

    @property
    def is_waited_for(self) -> bool:
        """Whether a new call has to wait behind others."""
        return bool(self._turns)

    def wake(self, messages: int) -> None:
        """Wake as many waiting calls as there may be room for beside `messages`."""
        for turn in islice(self._turns, max(0, self._messages_max - messages)):
            turn.wake()

    def wake_all(self) -> None:
        """Wake all waiting calls, because the producer has ended."""
        for turn in self._turns:
            turn.wake()
        if self._memory is not None:
            self._memory.wake()

    def turn(self) -> "Turn":
        """Return a place behind all waiting calls, for a `with`. Until its end later calls wait
        behind it."""
        return Turn(self._turns, self._memory)

    async def wait_turn(self, is_full: Callable[[], bool]) -> None:
        """Wait for this call's turn and for room. The caller must use the room before its next
        `await`."""
        with self.turn() as turn:
            await turn.wait(is_full)


class Turn:
    """Place of one sending call among those that wait."""

    __slots__ = ("_memory", "_news", "_turns")

    def __init__(self, turns: "deque[Turn]", memory: MemoryLimit | None) -> None:
        self._turns, self._memory = turns, memory
        self._news: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._turns.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Give up the place, and wake the next in line. A second call does nothing."""
        if self in self._turns:
            self._turns.remove(self)
            if self._turns:
                self._turns[0].wake()

    async def wait(self, is_full: Callable[[], bool]) -> None:
        """Wait for this turn and for room. The caller must use the room before its next `await`."""
        while self._turns[0] is not self or is_full():
            self._news = news = asyncio.get_running_loop().create_future()
            memory = self._memory if self._turns[0] is self else None
            if memory is not None:
                memory.tell(news)
            try:
                await news
            finally:
                if memory is not None:
                    memory.forget(news)

    def wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
