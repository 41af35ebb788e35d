"""Waiting that does not take a machine that stood still for a server that hangs."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_SLICE_S = 1.0


async def within(seconds: int, waiting: Coroutine[Any, Any, _T]) -> _T:
    """The result of `waiting`. A second counts once, however long it takes to pass.

    Raises:
        TimeoutError: there is none.
    """
    task = asyncio.ensure_future(waiting)
    try:
        for _ in range(seconds):
            done, _pending = await asyncio.wait({task}, timeout=_SLICE_S)
            if done:
                return task.result()
    finally:
        task.cancel()
    raise TimeoutError(f"nothing for {seconds} s")
