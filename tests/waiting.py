"""Waiting for conditions: the one place where tests look, wait a little, and look again.

Where something tells of the change (an event, a watch, a condition variable), wait for that
instead. On a busy machine a test waits longer and passes; one whose condition never holds says
which it was. The first looks come quickly, later ones leave the machine to what is waited for.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

WAIT_S = 30.0
"""Nothing that a test waits for takes this long, unless it never comes."""
LOOK_S_MIN = 0.001
LOOK_S_MAX = 0.05


def wait_until(is_so: Callable[[], bool], what: str = "", *, within_s: float = WAIT_S) -> None:
    """Look until it is so.

    Raises:
        AssertionError: it was not, `within_s` long.
    """
    deadline_s = time.monotonic() + within_s
    pauses_s = _pauses_s()
    while not is_so():
        assert time.monotonic() < deadline_s, _never(what, within_s)
        time.sleep(next(pauses_s))


async def until(
    is_so: Callable[[], bool | Awaitable[bool]], what: str = "", *, within_s: float = WAIT_S
) -> None:
    """Wait on an event loop, which goes on meanwhile, until a condition holds; it may be a
    coroutine.

    Raises:
        AssertionError: it was not so, `within_s` long.
    """
    pauses_s = _pauses_s()
    try:
        async with asyncio.timeout(within_s):
            while not await _answer(is_so):  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(next(pauses_s))
    except TimeoutError:
        raise AssertionError(_never(what, within_s)) from None


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run: callbacks, and tasks that wait for nothing.

    These are turns of the event loop, and no wait: nothing depends on how long they take.
    """
    for _ in range(turns):
        await asyncio.sleep(0)


async def _answer(is_so: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = is_so()
    return await found if inspect.isawaitable(found) else found


def _pauses_s() -> Iterator[float]:
    pause_s = LOOK_S_MIN
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LOOK_S_MAX)


def _never(what: str, within_s: float) -> str:
    return f"not within {within_s:g} s: {what or 'what the test waits for'}"
