"""What `Client.producer` and its like give: to be awaited, or to be entered.

    producer = await client.producer("orders")

    async with client.producer("orders") as producer:
        ...

It is a coroutine to everything that takes one (tasks, groups of them, timeouts).
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

WARNING_AFTER_S = 2.0
"""After so long without a broker, one warning says so."""


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
    """Something that is being made."""

    __slots__ = ("_made", "_work")

    def __init__(self, work: Coroutine[Any, Any, OpenedT]) -> None:
        """`work` makes it."""
        self._work = work
        self._made: OpenedT | None = None

    def __await__(self) -> Generator[Any, Any, OpenedT]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Go on, as of any coroutine."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise something inside, as of any coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """End it, as any coroutine."""
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
    """Do the work; call `warn` once if it takes longer than `WARNING_AFTER_S`. The work is a
    function: what is cancelled before it begins leaves no coroutine behind that nobody awaits."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await work()  # The child of a fork has none: the work says so.
    timer = loop.call_later(WARNING_AFTER_S, warn)
    try:
        return await work()
    finally:
        timer.cancel()


class Done:
    """Nothing to wait for: may be awaited, or left alone."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE = Done()
