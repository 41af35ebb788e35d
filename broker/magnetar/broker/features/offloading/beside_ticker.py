"""Base of features with work that runs beside the broker's ticker, one task per topic at a time."""

import asyncio
from collections.abc import Coroutine

from magnetar.broker.topic import Feature


class BesideTicker(Feature):
    """A feature with at most one task, so that the ticker waits for no copy, scrub or manifest."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_working(self) -> bool:
        """Whether its task is running."""
        return self._task is not None and not self._task.done()

    def _begin(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Start `work` in place of a task that has ended or is about to end."""
        self._task = asyncio.get_running_loop().create_task(work, name=name)
        return self._task

    async def stopped(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Cancel the work because the topic is closed; the next owner begins again."""
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        self.close()
