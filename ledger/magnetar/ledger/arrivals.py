"""The answers of several bookies in the order in which they arrive.

`asyncio.wait` reports them as sets, whose order changes from run to run. The simulator replays a
run from its seed, so it needs the same order every time.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Runs calls in parallel. Leaving the context cancels the calls that still run."""

    def __init__(self, calls: Sequence[Coroutine[None, None, T]]) -> None:
        self._ended: asyncio.Queue[int] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(call) for call in calls]
        self._left = len(self._tasks)
        for index, task in enumerate(self._tasks):
            task.add_done_callback(partial(self._on_ended, index))

    def _on_ended(self, index: int, task: asyncio.Task[T]) -> None:
        self._ended.put_nowait(index)

    async def next(self) -> tuple[int, asyncio.Task[T]] | None:
        """Return index and task of the next call that has ended; None after the last one."""
        if not self._left:
            return None
        self._left -= 1
        index = await self._ended.get()
        return index, self._tasks[index]

    async def __aenter__(self) -> "Arrivals[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # mark it as retrieved: the caller does not need it
