"""A gate that lets a few tasks continue in each turn of the event loop.

Requests that wait for one event, such as the load of a topic, would all continue in the turn in
which it happens. With ten thousand subscribers that turn takes a second, in which no other client
is served and the broker's lease is not renewed. Behind the gate they continue a few per turn, in
their order.
"""

import asyncio
from collections import deque

TASKS_PER_TURN = 12
"""Tasks that may continue per turn; each has some tenths of a millisecond of work."""


class TurnGate:
    """A gate for the tasks of one event loop."""

    def __init__(self, tasks_per_turn: int = TASKS_PER_TURN) -> None:
        self._tasks_per_turn = tasks_per_turn
        self._left = tasks_per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def enter(self) -> None:
        """Return in a turn that has room: at once, if this one has room and no other task waits."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._begin_turn, loop)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._tasks_per_turn
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its task was cancelled
                turn.set_result(None)
                self._left -= 1
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._begin_turn, loop)
