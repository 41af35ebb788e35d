"""Waiting for the right to load topics: one look at the lease for all topics of a bundle.

A bundle that moves here brings all its topics at once, and each has to know, by a look that was
begun after it asked, that the lease is ours. One look serves everybody who asked before it was
begun; who asks meanwhile gets the next one. While the answer is "not yet", one task waits for all.
Thousands of topics that looked and waited each by itself would keep from its work the very store
that has to hand the lease over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar.broker.base.errors import BrokerMetadataError, RequestError
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.changes import Changes

T = TypeVar("T")


class NotYet(str):
    """Why nothing can be said now; that may pass."""

    __slots__ = ()


class _Asked(Generic[T]):
    """Somebody who asked."""

    __slots__ = ("answer", "is_late", "reason")

    def __init__(self) -> None:
        self.answer: asyncio.Future[T | NotYet] = asyncio.get_running_loop().create_future()
        self.reason: NotYet | None = None
        """What the last look said that was begun after the question."""
        self.is_late = False
        """The time is over, and the first of those looks is waited for."""

    def hear(self, reason: NotYet) -> None:
        self.reason = reason
        if self.is_late:
            self.tell(reason)

    def tell(self, found: T | NotYet) -> None:
        if not self.answer.done():
            self.answer.set_result(found)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self) -> None:
        """Nobody waits any more: what a look says later is for others, an error too."""
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # retrieved, though the waiter was cancelled just then


class Acquisitions(Generic[T]):
    """Callers that wait for the owner of a bundle, by bundle. On the event loop."""

    def __init__(
        self,
        look: Callable[[BundleId], Awaitable[T | NotYet]],
        *,
        changes: Changes,
        retry_s: float,
    ) -> None:
        """`look` raises RequestError; what is retryable of the store counts as "not yet".
        `retry_s`: a look is repeated after this, if nothing tells of a change before."""
        self._look = look
        self._changes = changes
        self._retry_s = retry_s
        self._waiting: dict[BundleId, dict[_Asked[T], None]] = {}
        """In the order in which they came, and are answered; a set would have none."""
        self._tasks: dict[BundleId, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Look no more; who still waits is cancelled."""
        for task in self._tasks.values():
            task.cancel()

    async def get(self, bundle: BundleId, *, timeout_s: float) -> T | NotYet:
        """What a look says that was begun after this call, waiting for it while it is "not yet".

        One look is waited for, however short the time.

        Raises:
            RequestError: what the look raised.
        """
        asked = _Asked[T]()
        waiting = self._waiting.setdefault(bundle, {})
        waiting[asked] = None
        if bundle not in self._tasks:
            self._tasks[bundle] = asyncio.create_task(self._run(bundle), name=f"acquire-{bundle}")
        try:
            await asyncio.wait([asked.answer], timeout=max(0.0, timeout_s))
            if asked.answer.done():
                return asked.answer.result()
            if asked.reason is not None:
                return asked.reason
            asked.is_late = True
            return await asked.answer
        finally:
            waiting.pop(asked, None)
            asked.give_up()

    async def _run(self, bundle: BundleId) -> None:
        """Look as long as somebody waits."""
        waiting = self._waiting[bundle]
        try:
            while waiting:
                await self._look_once(bundle, waiting)
        except Exception as bug:  # noqa: BLE001 - they would wait for nothing
            for each in waiting:
                each.fail(bug)
        finally:
            del self._tasks[bundle], self._waiting[bundle]
            for each in waiting:
                each.answer.cancel()

    async def _look_once(self, bundle: BundleId, waiting: dict[_Asked[T], None]) -> None:
        ticket = self._changes.ticket()
        asked = list(waiting)
        found: T | NotYet
        try:
            found = await self._look(bundle)
        except RequestError as error:
            if not (isinstance(error, BrokerMetadataError) and error.retryable):
                for each in asked:
                    each.fail(error)
                    waiting.pop(each, None)
                return
            found = NotYet(error)
        if isinstance(found, NotYet):
            for each in asked:
                each.hear(found)
            await self._changes.wait(ticket, self._retry_s)
            return
        for each in asked:
            each.tell(found)
            waiting.pop(each, None)
