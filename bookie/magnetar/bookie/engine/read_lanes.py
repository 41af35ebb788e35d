"""Several read workers side by side, each with a reader of its own.

A read that is not in the page cache waits for the disk, and a disk serves several waiting reads in
little more time than one. Calls to a worker that are made together travel together: a single call
to a thread costs two thread switches, which is more than a read from the page cache. The event loop
owns all of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from magnetar.bookie.engine.run_reader import RunReader
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.ledger.ports import Worker

_BATCH_CALLS_MAX = 32
"""Maximum number of reads that go to a worker, and come back, together."""

T = TypeVar("T")

_Call = Callable[[], object]
_Outcome = tuple[object, BaseException | None]


class ReadLane(NamedTuple):
    """A read worker, and the objects that only it may use."""

    worker: Worker
    reader: RunReader
    logs: EntryLogReader


class ReadLanes:
    """The lanes of a storage; each read goes to the lane with the fewest pending reads."""

    def __init__(self, lanes: Sequence[ReadLane]) -> None:
        assert lanes
        self._lanes = lanes
        self._pending = [0] * len(lanes)
        self._batches = CallBatches(_BATCH_CALLS_MAX)

    async def run(self, call: Callable[[RunReader], T]) -> T:
        """Run a read.

        Raises:
            Any error of the call.
        """
        pending = self._pending
        number = pending.index(min(pending))
        lane = self._lanes[number]
        pending[number] += 1
        try:
            return await self._batches.run(lane.worker, partial(call, lane.reader))
        finally:
            pending[number] -= 1

    async def forget_log(self, log_id: int) -> None:
        """Close the file of a removed log in every lane."""
        for lane in self._lanes:
            await lane.worker.run(partial(lane.logs.forget, log_id))

    async def close(self) -> None:
        """End the workers, after everything that was submitted."""
        for lane in self._lanes:
            await lane.worker.run(lane.logs.close)
            lane.worker.close()


class CallBatches:
    """Collects calls to workers for one turn of the loop, so that they go and come back
    together."""

    def __init__(self, calls_max: int) -> None:
        """Up to `calls_max` calls go together, since the first one waits for the last."""
        assert calls_max > 0
        self._calls_max = calls_max
        self._waiting: dict[Worker, list[tuple[_Call, asyncio.Future[object]]]] = {}

    async def run(self, worker: Worker, call: Callable[[], T]) -> T:
        """Run the call on the worker.

        Raises:
            Any error of the call.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.setdefault(worker, []).append((call, future))
        try:
            return await future  # type: ignore[return-value]  # the call's own result
        finally:
            del future  # its error refers to this frame: they would keep each other

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for worker, each in waiting.items():
            calls = iter(each)
            while batch := list(islice(calls, self._calls_max)):
                worker.submit(
                    partial(_run_all, [call for call, _ in batch]),
                    partial(_tell_all, [future for _, future in batch]),
                )


def _run_all(calls: list[_Call]) -> list[_Outcome]:
    return [_outcome(call) for call in calls]


def _outcome(call: _Call) -> _Outcome:
    # A function of its own: an error refers to the frame that caught it, which must not refer to
    # all outcomes.
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  # it is handed to the caller
        return None, error


def _tell_all(
    futures: list[asyncio.Future[object]],
    outcomes: list[_Outcome] | None,
    failure: BaseException | None,
) -> None:
    if outcomes is None:
        outcomes = [(None, failure)] * len(futures)
    for future, (result, error) in zip(futures, outcomes, strict=True):
        if future.done():
            continue  # the waiter was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
