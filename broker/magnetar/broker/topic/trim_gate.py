"""Mutual exclusion between trimming and the placing of cursors (rule 5.2 of the managed ledger).

Trimming computes from the positions of the durable cursors which ledgers may go. Until the list is
changed, no cursor may be moved back and no new one registered before that point (defect M6). Tasks
that place cursors may hold the gate together. A trimming holds it alone, and waits until they are
done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TrimGate:
    """The gate of one topic."""

    def __init__(self) -> None:
        self._placing = 0
        self._is_trimming = False
        self._waiting: list[asyncio.Future[None]] = []
        """Waiting tasks. A list: every topic has one, it is short, and an empty deque takes 760
        bytes."""

    @asynccontextmanager
    async def placing(self) -> AsyncIterator[None]:
        """Hold the gate while a durable cursor is created or moved back."""
        while self._is_trimming:
            await self._wait()
        self._placing += 1
        try:
            yield
        finally:
            self._placing -= 1
            self._wake()

    @asynccontextmanager
    async def trimming(self) -> AsyncIterator[None]:
        """Hold the gate from the choice of the ledgers to trim until they have left the list."""
        while self._is_trimming or self._placing:
            await self._wait()
        self._is_trimming = True
        try:
            yield
        finally:
            self._is_trimming = False
            self._wake()

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _wake(self) -> None:
        """Wake all waiting tasks to check again: gates are rarely crowded."""
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
