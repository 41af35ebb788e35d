"""Refreshes what a client follows: the topics that match a pattern, or the number of partitions.

A follower looks when it is notified of a change, and periodically. Any failure of a look is logged,
and the look is repeated after a pause or a notification. Pauses grow up to the interval between two
looks. Otherwise a client would silently keep using an outdated list of topics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.errors import SdkError

_log = logging.getLogger("magnetar.sdk")


class Follower:
    """Repeats a look in a task of its own: `start` makes the task, `close` ends it."""

    def __init__(
        self,
        look: Callable[[], Awaitable[None]],
        *,
        interval_s: float,
        pause_min_s: float,
        random: Random,
        name: str,
    ) -> None:
        """Take the look and its intervals.

        `look` brings what the client uses up to date. `name` tells in log lines what is followed.
        """
        self._look = look
        self._interval_s = interval_s
        self._pause_min_s = min(pause_min_s, interval_s)
        self._backoff = Backoff(min_s=self._pause_min_s, max_s=interval_s, random=random)
        self._name = name
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"magnetar {self._name}")

    def look_soon(self) -> None:
        """Look soon, because something has changed."""
        self._news.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        await self._wait_news(self._interval_s)
        while True:
            if await self._looked():
                self._backoff.reset()
                await self._wait_news(self._interval_s)
            else:
                # A notification ends a pause, so that one failing topic does not hide others. It
                # does not end the shortest pause: the failing look may itself cause notifications.
                await asyncio.sleep(self._pause_min_s)
                await self._wait_news(self._backoff.next_s())

    async def _wait_news(self, most_s: float) -> None:
        try:
            async with asyncio.timeout(most_s):
                await self._news.wait()
        except TimeoutError:
            pass  # time for the periodic look

    async def _looked(self) -> bool:
        self._news.clear()
        try:
            await self._look()
        except SdkError as error:
            _log.info("look_failed %s: %s", self._name, error)
        except Exception as error:  # noqa: BLE001  # A defect must not end it: see the module's text.
            _log.warning("look_failed %s: %r", self._name, error, exc_info=error)
        else:
            return True
        return False
