"""Room for more sends: the limits of a producer and of its client, and those who wait for room.

Who waits is woken in turn, and looks again: room may be gone when its turn comes. It keeps its
place then, and who comes later waits behind: messages leave in the order of the calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import TracebackType
from typing import Self

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

    def tell(self, news: asyncio.Future[None]) -> None:
        """End this wait when something has changed."""
        self._waiters.append(news)


class SendRoom:
    """The limits that one producer is under."""

    def __init__(self, settings: ProducerSettings, memory: MemoryLimit | None) -> None:
        self._messages_max = settings.pending_messages_max
        self._bytes_max = settings.pending_bytes_max
        self._memory = memory
        self._held_bytes = 0
        self._turns: deque[Turn] = deque()

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

    @property
    def is_waited_for(self) -> bool:
        """Whether who comes now comes behind others."""
        return bool(self._turns)

    def wake(self, messages: int) -> None:
        """Have as many look again as there may be room for beside `messages`."""
        for turn in islice(self._turns, max(0, self._messages_max - messages)):
            turn.wake()

    def wake_all(self) -> None:
        """The producer is over: nobody shall wait."""
        for turn in self._turns:
            turn.wake()
        if self._memory is not None:
            self._memory.wake()

    def turn(self) -> "Turn":
        """A place behind all who wait, for a `with`: until its end who comes later comes behind."""
        return Turn(self._turns, self._memory)

    async def wait_turn(self, is_full: Callable[[], bool]) -> None:
        """Wait until nobody is before us and it is not full; to be used before the next `await`."""
        with self.turn() as turn:
            await turn.wait(is_full)


class Turn:
    """The place of one who sends, among those who wait."""

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
        """Wait until nobody is before us and it is not full; to be used before the next `await`."""
        while self._turns[0] is not self or is_full():
            self._news = asyncio.get_running_loop().create_future()
            if self._memory is not None and self._turns[0] is self:
                self._memory.tell(self._news)
            await self._news

    def wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
