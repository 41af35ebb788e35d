"""Several read workers side by side, each with a reader of its own.

A read that the page cache does not have waits for the disk, and a disk serves several that wait at
once in little more time than one. The event loop owns it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from magnetar.bookie.engine.call_batches import CallBatches
from magnetar.bookie.engine.run_reader import RunReader
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.ledger.ports import Worker

_BATCH_CALLS_MAX = 32
"""Reads that go to a worker, and come back, together."""

T = TypeVar("T")


class ReadLane(NamedTuple):
    """A read worker, and what only it may use."""

    worker: Worker
    reader: RunReader
    logs: EntryLogReader


class ReadLanes:
    """Gives each read to the lane that has the least to do."""

    def __init__(self, lanes: Sequence[ReadLane]) -> None:
        assert lanes
        self._lanes = lanes
        self._pending = [0] * len(lanes)
        self._batches = CallBatches(_BATCH_CALLS_MAX)

    async def run(self, call: Callable[[RunReader], T]) -> T:
        """Run a read.

        Raises:
            whatever the call raises.
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
        """Close the file of a log that was removed, wherever it is open."""
        for lane in self._lanes:
            await lane.worker.run(partial(lane.logs.forget, log_id))

    async def close(self) -> None:
        """End the workers, behind everything that was submitted."""
        for lane in self._lanes:
            await lane.worker.run(lane.logs.close)
            lane.worker.close()
