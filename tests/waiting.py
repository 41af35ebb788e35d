"""Waiting for conditions: the one place where tests poll.

If something signals the change (an event, a watch, a condition variable), wait for that instead. On
a busy machine a test waits longer and passes; a failed wait names the condition that never held.
Polls are frequent at first, then rarer, to leave the machine to the awaited work.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

WAIT_S = 30.0
"""Default time limit in seconds: longer than any awaited change takes, unless it never comes."""
LOOK_S_MIN = 0.001
LOOK_S_MAX = 0.05


def wait_until(is_so: Callable[[], bool], what: str = "", *, within_s: float = WAIT_S) -> None:
    """Poll until a condition holds.

    Raises:
        AssertionError: the condition did not hold within `within_s`.
    """
    deadline_s = time.monotonic() + within_s
    pauses_s = _pauses_s()
    while not is_so():
        assert time.monotonic() < deadline_s, _never(what, within_s)
        time.sleep(next(pauses_s))


async def until(
    is_so: Callable[[], bool | Awaitable[bool]], what: str = "", *, within_s: float = WAIT_S
) -> None:
    """Wait until a condition holds, which may be a coroutine; the event loop runs meanwhile.

    Raises:
        AssertionError: the condition did not hold within `within_s`.
    """
    pauses_s = _pauses_s()
    try:
        async with asyncio.timeout(within_s):
            while not await _answer(is_so):  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(next(pauses_s))
    except TimeoutError:
        raise AssertionError(_never(what, within_s)) from None


async def settle(turns: int = 20) -> None:
    """Run everything that is ready: callbacks, and tasks that wait for nothing.

    It takes turns of the event loop instead of sleeping: nothing depends on how long they take.
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
