"""Waiting for the right to load topics: one check of the lease for all topics of a bundle.

A bundle that moves here brings all its topics at once. Each has to know, by a check that began
after its request, that this broker has the lease. One check serves all requests made before it
began; later requests get the next one. While the answer is "not yet", one task waits for all. If
thousands of topics each checked and waited on their own, they would overload the very store that
has to hand the lease over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar.broker.base.errors import BrokerMetadataError, RequestError
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.changes import Changes

T = TypeVar("T")


class NotYet(str):
    """Why there is no answer now; that may pass."""

    __slots__ = ()


class _Asked(Generic[T]):
    """One waiting request."""

    __slots__ = ("answer", "is_late", "reason")

    def __init__(self) -> None:
        self.answer: asyncio.Future[T | NotYet] = asyncio.get_running_loop().create_future()
        self.reason: NotYet | None = None
        """Result of the last check that began after the request."""
        self.is_late = False
        """Whether the time is over, and the request waits only for its first check."""

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
        """Stop waiting. A later result of a check, even an error, is for others."""
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # retrieved, though the waiter was cancelled just then


class Acquisitions(Generic[T]):
    """Requests that wait for the owner of a bundle, by bundle. On the event loop."""

    def __init__(
        self,
        look: Callable[[BundleId], Awaitable[T | NotYet]],
        *,
        changes: Changes,
        retry_s: float,
    ) -> None:
        """`look` raises RequestError; retryable errors of the store count as "not yet". `retry_s`:
        time after which a check is repeated, if no change is reported before."""
        self._look = look
        self._changes = changes
        self._retry_s = retry_s
        self._waiting: dict[BundleId, dict[_Asked[T], None]] = {}
        """Requests in the order of arrival, in which they are answered; a set would have no
        order."""
        self._tasks: dict[BundleId, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Stop checking; requests that still wait are cancelled."""
        for task in self._tasks.values():
            task.cancel()

    async def get(self, bundle: BundleId, *, timeout_s: float) -> T | NotYet:
        """Return the result of a check that began after this call, waiting while it is "not yet".

        One check is waited for, however short the time.

        Raises:
            RequestError: what the check raised.
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
        """Check as long as requests wait."""
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
