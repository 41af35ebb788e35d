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

The thread is the only thing that touches the files. It shares the list of waiting batches with the
loop, under one lock.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journal_files import JournalFiles
from magnetar.bookie.journal_format import RECORD_HEAD_BYTES, LastMark, NewRecord
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

        self._condition = threading.Condition()
        self._waiting: list[JournalBatch[T]] = []
        self._waiting_bytes = 0
        self._waiting_entries = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def append(self, batch: JournalBatch[T]) -> None:
        """Hand over a batch; never blocks. The caller bounds what it hands over."""
        batch.epoch = self._epoch
        self.queued_bytes += batch.size_bytes
        self._metrics.journal_queue_bytes = self.queued_bytes
        self._drained.clear()
        with self._condition:
            assert not self._closing, "append to a closed journal"
            self._waiting.append(batch)
            self._waiting_bytes += batch.size_bytes
            self._waiting_entries += batch.entries
            self._condition.notify()

    async def wait_drained(self) -> None:
        """Wait until every batch was answered, or the journal failed."""
        await self._drained.wait()

    def close(self) -> None:
        """Commit what waits, then end the thread. Blocks; answers arrive on the loop later."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    # --- event loop ---

    def _committed(self, group: "_Group[T]") -> None:
        size = sum([batch.size_bytes for batch in group.batches])
        metrics = self._metrics
        self.queued_bytes -= size
        metrics.journal_queue_bytes = self.queued_bytes
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
        with self._condition:
            while not self._waiting and not self._closing:
                self._condition.wait()
            if self._group_wait_s_max and not self._closing:
                # The oldest batch waits at most this long, even if more keep coming.
                self._condition.wait_for(self._is_group_full, self._group_wait_s_max)
            batches, self._waiting = self._waiting, []
            if (
                self._waiting_bytes > self._group_bytes_max
                or self._waiting_entries > self._group_entries_max
            ):
                count = self._count_that_fits(batches)
                batches, self._waiting = batches[:count], batches[count:]
            self._waiting_bytes = sum([batch.size_bytes for batch in self._waiting])
            self._waiting_entries = sum([batch.entries for batch in self._waiting])
            return batches

    def _is_group_full(self) -> bool:
        return (
            self._closing
            or self._waiting_bytes >= self._group_bytes_max
            or self._waiting_entries >= self._group_entries_max
        )

    def _count_that_fits(self, batches: list[JournalBatch[T]]) -> int:
        """How many of the batches make a group within the bounds; at least one."""
        size = entries = 0
        for count, batch in enumerate(batches):
            size += batch.size_bytes
            entries += batch.entries
            if count and (size > self._group_bytes_max or entries > self._group_entries_max):
                return count
        return len(batches)

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
