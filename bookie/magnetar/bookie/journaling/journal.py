"""Group commit: batches of records from the event loop, one append and one sync per group.

The event loop hands over one batch per network read; the journal thread takes whatever waits when
the disk becomes free, commits it as one group, and hands all its batches back in one call. So the
group grows by itself with the latency of the disk and with the load (adaptive grouping); the
settings only bound it. A batch is never split over two groups.

Invariants:

- `on_committed` runs on the event loop, once per batch, in the order of `append`, and reports
  success only after the sync that covers the batch (rule 3.2).
- `mark` moves only then, so everything before it was synced, and had been put into the storage
  before it was handed over (rule 2.1).
- After a group failed because the disk was full, all batches that were appended before the event
  loop heard of it fail as well. Otherwise an entry could be acknowledged whose ledger's master key
  was in the failed group, and replay would drop it as the entry of a deleted ledger.
- After a `JournalFailedError` nothing is committed or answered any more.

The thread is the only thing that touches the files. It shares a queue of waiting batches with the
loop: one wake-up per batch that finds it idle, none while it is busy.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import RECORD_HEAD_BYTES, LastMark, NewRecord
from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.ports import Clock

T = TypeVar("T")
T2 = TypeVar("T2")


class JournalBatch(Generic[T]):
    """Records that are committed together, and what the owner wants back then."""

    __slots__ = ("context", "entries", "epoch", "records", "size_bytes")

    def __init__(self, context: T) -> None:
        self.context = context
        self.records: list[NewRecord] = []
        self.size_bytes = 0
        self.entries = 0
        self.epoch = 0

    def add(self, record: NewRecord, entries: int = 0) -> None:
        self.records.append(record)
        self.size_bytes += RECORD_HEAD_BYTES + len(record.body)
        self.entries += entries


OnCommitted = Callable[[Sequence[JournalBatch[T]], JournalFullError | None], None]


class Journal(Generic[T]):
    """The loop's side of the journal, and its thread."""

    def __init__(
        self,
        files: JournalFiles,
        *,
        mark: LastMark,
        clock: Clock,
        metrics: BookieMetrics,
        group_wait_ms_max: float,
        group_bytes_max: int,
        group_entries_max: int,
        on_committed: OnCommitted[T],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._files = files
        self.mark = mark
        self._clock = clock
        self._metrics = metrics
        self._group_wait_s_max = group_wait_ms_max / 1000
        self._group_bytes_max = group_bytes_max
        self._group_entries_max = group_entries_max
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._epoch = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self.queued_bytes = 0
        """Handed over and not yet answered. The loop stops reading when it is too much."""

        self._waiting: queue.SimpleQueue[JournalBatch[T] | None] = queue.SimpleQueue()
        self._left_over: JournalBatch[T] | None = None
        """Taken from the queue, but not into the last group. The thread's own."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def append(self, batch: JournalBatch[T]) -> None:
        """Hand over a batch; never blocks. The caller bounds what it hands over."""
        batch.epoch = self._epoch
        self.queued_bytes += batch.size_bytes
        self._metrics.journal_queue_bytes += batch.size_bytes
        self._drained.clear()
        assert not self._is_closing, "append to a closed journal"
        self._waiting.put(batch)

    async def wait_drained(self) -> None:
        """Wait until every batch was answered, or the journal failed."""
        await self._drained.wait()

    def close(self) -> None:
        """Commit what waits, then end the thread. Blocks; answers arrive on the loop later."""
        self._is_closing = True
        self._waiting.put(None)
        self._thread.join()

    # --- event loop ---

    def _committed(self, group: "_Group[T]") -> None:
        size = sum([batch.size_bytes for batch in group.batches])
        metrics = self._metrics
        self.queued_bytes -= size
        metrics.journal_queue_bytes -= size
        if group.error is None:
            self.mark = group.mark
            metrics.journal_groups += 1
            metrics.journal_bytes += size
            metrics.journal_records += sum([len(batch.records) for batch in group.batches])
            metrics.journal_commit_s.observe(group.seconds)
        else:
            metrics.journal_full_groups += 1
            # What is appended from now on knows of the failure.
            self._epoch = group.epoch
        self._on_committed(group.batches, group.error)
        if not self.queued_bytes:
            self._drained.set()

    def _failed(self, error: Exception) -> None:
        self._drained.set()  # nothing more will be answered: who waits would wait for ever
        self._on_failed(error)

    # --- journal thread ---

    def _work(self) -> None:
        epoch = 0
        mark = self.mark
        error: JournalFullError | None = None
        try:
            while batches := self._take_group():
                # Epochs only grow, so the batches that must fail with an older one come first.
                stale = sum([batch.epoch != epoch for batch in batches])
                if stale:
                    self._tell_loop(
                        self._committed, _Group(batches[:stale], mark, error, epoch, 0.0)
                    )
                    batches = batches[stale:]
                    if not batches:
                        continue
                started_s = self._clock.monotonic_s()
                try:
                    mark = self._files.commit([r for batch in batches for r in batch.records])
                    error = None
                except JournalFullError as failure:
                    error = failure
                    epoch += 1
                seconds = self._clock.monotonic_s() - started_s
                self._tell_loop(self._committed, _Group(batches, mark, error, epoch, seconds))
            self._files.close()
        except Exception as failure:  # noqa: BLE001  # whatever it is, the process must hear of it
            self._tell_loop(self._failed, failure)

    def _take_group(self) -> list[JournalBatch[T]]:
        """Wait for batches and take as many as fit into a group; empty when closing."""
        first = self._left_over if self._left_over is not None else self._waiting.get()
        self._left_over = None
        if first is None:
            return []
        # The oldest batch waits at most this long, even if more keep coming.
        until_s = self._clock.monotonic_s() + self._group_wait_s_max
        group, size, entries = [first], first.size_bytes, first.entries
        while size < self._group_bytes_max and entries < self._group_entries_max:
            batch = self._next_waiting(until_s)
            if batch is None:
                break
            size += batch.size_bytes
            entries += batch.entries
            if size > self._group_bytes_max or entries > self._group_entries_max:
                self._left_over = batch
                break
            group.append(batch)
        return group

    def _next_waiting(self, until_s: float) -> JournalBatch[T] | None:
        """The next batch, waiting for it if groups wait; None if there is none in time."""
        try:
            if not self._group_wait_s_max or self._is_closing:
                batch = self._waiting.get_nowait()
            else:
                left_s = until_s - self._clock.monotonic_s()
                batch = self._waiting.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return None
        if batch is None:
            self._waiting.put(None)  # closing: after this group
        return batch

    def _tell_loop(self, call: Callable[[T2], None], argument: T2) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to tell


class _Group(NamedTuple, Generic[T]):
    """What the thread reports: these batches are synced, or failed for want of room."""

    batches: list[JournalBatch[T]]
    mark: LastMark
    error: JournalFullError | None
    epoch: int
    seconds: float
