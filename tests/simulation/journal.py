"""The journal of a simulated bookie: the real files, written by a stand-in for the journal thread.

The promises are those of `magnetar.bookie.journaling.journal`, whose thread a simulation cannot
have: groups one after another, each batch reported once and in order, a failure for want of room
fails all that was handed over before the loop heard of it, nothing after a final failure. A commit
takes virtual time, half of it before the files are written and half of it before the loop hears of
it, so that a crash finds every moment: handed over, written, synced, reported.
"""

import asyncio
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import LastMark
from magnetar.bookie.requests.replies import Batch
from tests.simulation.disk import PowerLossError
from tests.simulation.loop import SimLoop


class SimJournal:
    """A simulated `Journal`, with the parts that a bookie uses."""

    def __init__(
        self,
        loop: SimLoop,
        files: JournalFiles,
        *,
        mark: LastMark,
        latency_s: Callable[[], float],
        group_bytes_max: int,
        on_committed: Callable[[Sequence[Batch], JournalFullError | None], None],
        on_failed: Callable[[Exception], None],
        on_power_loss: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._files = files
        self.mark = mark
        self._latency_s = latency_s
        self._group_bytes_max = group_bytes_max
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._on_power_loss = on_power_loss
        self.queued_bytes = 0
        self._waiting: list[Batch] = []
        self._is_working = False
        self._has_failed = False
        self._is_closing = False
        self._loop_epoch = 0
        """As the loop knows it; `_thread_epoch` as the thread would."""
        self._thread_epoch = 0
        self._error: JournalFullError | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    def append(self, batch: Batch) -> None:
        assert not self._is_closing, "append to a closed journal"
        batch.epoch = self._loop_epoch
        self.queued_bytes += batch.size_bytes
        self._drained.clear()
        self._waiting.append(batch)
        self._start()

    async def wait_drained(self) -> None:
        await self._drained.wait()

    def close(self) -> None:
        self._is_closing = True
        self._files.close()

    def _start(self) -> None:
        if not self._is_working and self._waiting and not self._has_failed:
            self._is_working = True
            self._loop.call_later(self._latency_s() / 2, self._work)

    def _work(self) -> None:
        group = self._take_group()
        error: JournalFullError | None = None
        if group[0].epoch != self._thread_epoch:
            error = self._error  # handed over before the loop heard of the failure
        else:
            try:
                self.mark_written = self._files.commit(
                    [r for batch in group for r in batch.records]
                )
            except JournalFullError as failure:
                error = self._error = failure
                self._thread_epoch += 1
            except PowerLossError:
                self._on_power_loss()
                return
            except Exception as failure:  # noqa: BLE001  # as the journal thread does
                self._has_failed = True
                self._loop.call_soon(self._fail, failure)
                return
        mark = self.mark if error is not None else self.mark_written
        self._loop.call_later(
            self._latency_s() / 2, self._report, group, mark, error, self._thread_epoch
        )

    def _take_group(self) -> list[Batch]:
        """Batches of one epoch, up to the size of a group."""
        group = [self._waiting.pop(0)]
        size = group[0].size_bytes
        while self._waiting and self._waiting[0].epoch == group[0].epoch:
            size += self._waiting[0].size_bytes
            if size > self._group_bytes_max:
                break
            group.append(self._waiting.pop(0))
        return group

    def _report(
        self, group: list[Batch], mark: LastMark, error: JournalFullError | None, epoch: int
    ) -> None:
        self._is_working = False
        self.queued_bytes -= sum([batch.size_bytes for batch in group])
        if error is None:
            self.mark = mark
        else:
            self._loop_epoch = epoch
        self._on_committed(group, error)
        if not self.queued_bytes:
            self._drained.set()
        self._start()

    def _fail(self, error: Exception) -> None:
        self._drained.set()
        self._on_failed(error)
