"""Keeps trimming and the places of cursors apart (rule 5.2 of the managed ledger).

Trimming computes what may go from where the durable cursors stand; until the list is changed none
of them may be placed further back, and no new one be registered there (defect M6). Those who place
cursors go through the gate together; a trimming goes through alone, and waits until they are done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TrimGate:
    """One topic's gate."""

    def __init__(self) -> None:
        self._placing = 0
        self._is_trimming = False
        self._waiting: list[asyncio.Future[None]] = []
        """A list: every topic has it, it is short, and an empty deque takes 760 bytes."""

    @asynccontextmanager
    async def placing(self) -> AsyncIterator[None]:
        """While a durable cursor is made, or moved back."""
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
        """While it is decided which ledgers go, until they have left the list."""
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
        """Let everybody look again: gates are rarely crowded."""
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
