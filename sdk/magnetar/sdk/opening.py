"""Results of `Client.producer` and similar calls, to be awaited or entered.

    producer = await client.producer("orders")

    async with client.producer("orders") as producer:
        ...

An `Opening` is a coroutine, so it works with tasks, task groups and timeouts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

WARNING_AFTER_S = 2.0
"""Seconds without a broker until one warning is logged."""


class Opened(Protocol):
    """A producer, consumer, reader or view."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


OpenedT = TypeVar("OpenedT", bound=Opened)
R = TypeVar("R")


class Opening(Coroutine[Any, Any, OpenedT]):
    """A producer, consumer or the like that is being made: await it, or enter it."""

    __slots__ = ("_made", "_work")

    def __init__(self, work: Coroutine[Any, Any, OpenedT]) -> None:
        """Take the coroutine that makes the object."""
        self._work = work
        self._made: OpenedT | None = None

    def __await__(self) -> Generator[Any, Any, OpenedT]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Resume the work, as for any coroutine."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the work, as for any coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """End the work, as for any coroutine."""
        self._work.close()

    async def __aenter__(self) -> OpenedT:
        self._made = made = await self._work
        return await made.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._made is not None, "entered before it is left"
        await self._made.__aexit__(kind, error, trace)


async def warned(work: Callable[[], Coroutine[Any, Any, R]], warn: Callable[[], None]) -> R:
    """Do the work, and call `warn` once if it takes longer than `WARNING_AFTER_S`.

    The work is a function, so that cancelling before it begins leaves no coroutine that was never
    awaited.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await work()  # A forked child has no loop: the work reports that.
    timer = loop.call_later(WARNING_AFTER_S, warn)
    try:
        return await work()
    finally:
        timer.cancel()


class Done:
    """A result that is ready: awaiting it is optional."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE = Done()
