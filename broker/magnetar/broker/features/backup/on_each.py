"""Work on many items, a few in parallel; the first failure ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def on_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int
) -> None:
    """Do the work on every item, `at_once` in parallel.

    Raises:
        Exception: the first error of `work`, after all running work has ended.
    """
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    tasks = [asyncio.ensure_future(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
