"""Clock and worker of a simulated process: virtual time, and no thread."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from tests.simulation.loop import SimLoop

T = TypeVar("T")


class SimClock:
    """`Clock` on virtual time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.suspended_s = 0.0
        """How long the machine was suspended: the monotonic clock stood still meanwhile."""
        self.wall_skew_ms = 0
        """How wrong the wall clock is."""

    def monotonic_s(self) -> float:
        return self._loop.time() - self.suspended_s

    def boot_s(self) -> float:
        """Runs on while the machine is suspended."""
        return self._loop.time()

    def wall_ms(self) -> int:
        return self._loop.wall_ms + self.wall_skew_ms


class SimWorker:
    """`Worker` without a thread: calls run one after another, each after some virtual time."""

    def __init__(self, loop: SimLoop, latency_s: Callable[[], float]) -> None:
        self._loop = loop
        self._latency_s = latency_s
        self._free_at_s = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(
        self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        def work() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = call()
            except Exception as error:  # noqa: BLE001  # it is handed to the caller
                failure = error
            self._loop.call_soon(done, result, failure)

        self._waiting.append(work)
        self._free_at_s = max(self._free_at_s, self._loop.time()) + self._latency_s()
        self._loop.call_at(self._free_at_s, self._work_next)

    def _work_next(self) -> None:
        if self._waiting:
            self._waiting.popleft()()

    async def run(self, call: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast(T, result))

        self.submit(call, done)
        return await future

    def close(self) -> None:
        while self._waiting:
            self._work_next()
