"""Group commit: batches of records from the event loop, one append and one sync per group.

The event loop hands over one batch per network read. Whenever the disk is free, the journal thread
takes the waiting batches (`GroupQueue`), commits them as one group, and hands them all back in one
call. A batch is never split over two groups.

Invariants:

- `on_committed` runs on the event loop, once per batch, in the order of `append`, and reports
  success only after the sync that covers the batch (rule 3.2).
- `mark` moves only then, so everything before it was synced, and had been put into the storage
  before it was handed over (rule 2.1).
- After a group failed because the disk was full, all batches that were appended before the event
  loop heard of it fail as well. Otherwise an entry could be acknowledged whose ledger's master key
  was in the failed group, and replay would drop it as the entry of a deleted ledger.
- After a `JournalFailedError` nothing is committed or answered any more.

Only the thread touches the files. It shares a queue of waiting batches with the loop: one wake-up
per batch if the thread is idle, none while it is busy. Its measurements travel back with its
report, since the metrics belong to the loop.

Which waiting batches are synced together: a group is taken when the disk becomes free, so all
batches handed over during one sync share the next one. Groups grow by themselves with the latency
of the disk and with the load (adaptive grouping). A group is closed for one of these reasons:

    idle     no batch waits, and groups are not configured to wait
    wait     the oldest batch has waited as long as it may
    bytes    the group has its full size, or one more batch would exceed it
    entries  the group has its full number of entries, or one more batch would exceed it
    close    the journal ends

The time that a batch may wait counts from its hand-over, not from the moment when the thread gets
to it. So after a slow sync the waiting batches are over the limit already: they are all taken, as
far as the group's size allows, before the group is closed. Closing it with the first of them would
make many tiny groups of exactly the batches that waited longest.

A ledger's journal is chosen by the ledger id, so that all its records of one process are in one
journal, in the order in which they were handed over (rule 2.3). The number of journals may grow
between two processes (`replay.py` says why that is safe). Each journal has a thread, files and a
mark of its own. A full disk under one of them refuses only the ledgers it serves; a failed sync
under one of them ends the bookie.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import RECORD_HEAD_BYTES, LastMark, Marks, NewRecord
from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.flight_recorder import COMMIT, RECORDER, THRESHOLDS_S
from magnetar.ledger.ports import Clock

T = TypeVar("T")
T2 = TypeVar("T2")

_SLOW_COMMIT_S = THRESHOLDS_S[COMMIT]


class JournalBatch(Generic[T]):
    """Records that are committed together, and a context that the owner gets back then."""

    __slots__ = ("context", "entries", "epoch", "queued_s", "records", "size_bytes")

    def __init__(self, context: T) -> None:
        self.context = context
        self.records: list[NewRecord] = []
        self.size_bytes = 0
        self.entries = 0
        self.epoch = 0
        self.queued_s = 0.0
        """When the batch was handed over, in seconds of the monotonic clock."""

    def add(self, record: NewRecord, entries: int = 0) -> None:
        self.records.append(record)
        self.size_bytes += RECORD_HEAD_BYTES + len(record.body)
        self.entries += entries


class CloseReason(StrEnum):
    """Why a group takes no more batches; the module docstring explains each reason."""

    IDLE = "idle"
    WAIT = "wait"
    BYTES = "bytes"
    ENTRIES = "entries"
    CLOSE = "close"


class Taken(NamedTuple, Generic[T]):
    """A group to commit; without batches, the journal ends."""

    batches: list[JournalBatch[T]]
    reason: CloseReason


class GroupQueue(Generic[T]):
    """The waiting batches, and the rules by which they become groups."""

    def __init__(
        self, clock: Clock, *, wait_s_max: float, bytes_max: int, entries_max: int
    ) -> None:
        """Sizes limit a group; a batch that is larger makes a group of its own."""
        self._clock = clock
        self._wait_s_max = wait_s_max
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        self._waiting: queue.SimpleQueue[JournalBatch[T] | None] = queue.SimpleQueue()
        self._left_over: JournalBatch[T] | None = None
        """A batch taken from the queue that did not fit into the last group. Used by the thread
        alone."""
        self._is_closing = False

    def put(self, batch: JournalBatch[T]) -> None:
        """Add a batch. Called on the event loop."""
        assert not self._is_closing, "append to a closed journal"
        batch.queued_s = self._clock.monotonic_s()
        self._waiting.put(batch)

    def close(self) -> None:
        """Take no more batches; waiting ones are still committed. Called on the event loop."""
        self._is_closing = True
        self._waiting.put(None)

    def take(self) -> Taken[T]:
        """Wait for a batch, and take as many as make a group. Called on the thread."""
        first = self._left_over if self._left_over is not None else self._waiting.get()
        self._left_over = None
        if first is None:
            return Taken([], CloseReason.CLOSE)
        until_s = first.queued_s + self._wait_s_max
        group, size, entries = [first], first.size_bytes, first.entries
        while True:
            # The group is full already: no need to look for another batch.
            if size >= self._bytes_max:
                return Taken(group, CloseReason.BYTES)
            if entries >= self._entries_max:
                return Taken(group, CloseReason.ENTRIES)
            batch = self._next(until_s)
            if not isinstance(batch, JournalBatch):
                return Taken(group, batch)
            size += batch.size_bytes
            entries += batch.entries
            if size > self._bytes_max or entries > self._entries_max:
                self._left_over = batch
                is_size = size > self._bytes_max
                return Taken(group, CloseReason.BYTES if is_size else CloseReason.ENTRIES)
            group.append(batch)

    def _next(self, until_s: float) -> JournalBatch[T] | CloseReason:
        """Return the next batch, after a wait if groups wait; else the reason why there is none."""
        try:
            if not self._wait_s_max or self._is_closing:
                batch = self._waiting.get_nowait()
            else:
                # When the time is up, this still takes a batch that waits already.
                left_s = until_s - self._clock.monotonic_s()
                batch = self._waiting.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return CloseReason.WAIT if self._wait_s_max else CloseReason.IDLE
        if batch is None:
            self._waiting.put(None)  # after this group
            return CloseReason.CLOSE
        return batch


OnCommitted = Callable[[Sequence[JournalBatch[T]], JournalFullError | None], None]


class Journal(Generic[T]):
    """The journal: its event loop side, and its thread."""

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
        self._waiting: GroupQueue[T] = GroupQueue(
            clock,
            wait_s_max=group_wait_ms_max / 1000,
            bytes_max=group_bytes_max,
            entries_max=group_entries_max,
        )
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._epoch = 0
        self._is_full = False
        """Whether the last group failed because the disk was full."""
        self._drained = asyncio.Event()
        self._drained.set()
        self.queued_bytes = 0
        """Bytes handed over and not yet answered. Above its limit, the loop stops reading."""

        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def append(self, batch: JournalBatch[T]) -> None:
        """Hand over a batch; never blocks. The caller limits the bytes handed over."""
        batch.epoch = self._epoch
        self.queued_bytes += batch.size_bytes
        self._metrics.journal_queue_bytes += batch.size_bytes
        self._drained.clear()
        self._waiting.put(batch)

    async def wait_drained(self) -> None:
        """Wait until every batch was answered, or the journal failed."""
        await self._drained.wait()

    def close(self) -> None:
        """Commit the waiting batches, then end the thread. Blocks; answers arrive on the loop
        later."""
        self._waiting.close()
        self._thread.join()

    # --- event loop ---

    def _committed(self, group: "_Group[T]") -> None:
        size = sum([batch.size_bytes for batch in group.batches])
        self.queued_bytes -= size
        self._metrics.journal_queue_bytes -= size
        if group.error is None:
            self.mark = group.mark
        else:
            # Batches appended from now on come after the failure is known.
            self._epoch = group.epoch
        self._measure(group, size)
        self._on_committed(group.batches, group.error)
        if not self.queued_bytes:
            self._drained.set()

    def _measure(self, group: "_Group[T]", size: int) -> None:
        metrics, times = self._metrics, group.times
        is_full = group.error is not None
        metrics.journals_full += is_full - self._is_full
        self._is_full = is_full
        if is_full:
            metrics.journal_full_groups += 1
            return
        assert times is not None
        metrics.journal_groups += 1
        metrics.journal_bytes += size
        metrics.journal_records += sum([len(batch.records) for batch in group.batches])
        metrics.journal_group_bytes.observe(size)
        metrics.journal_group_entries.observe(sum([batch.entries for batch in group.batches]))
        reasons = metrics.journal_group_reasons
        reasons[group.reason] = reasons.get(group.reason, 0) + 1
        queued_s = group.batches[0].queued_s
        metrics.journal_queue_wait_s.observe(times.started_s - queued_s)
        if times.has_new_file:
            metrics.journal_files_begun += 1
            metrics.journal_file_begin_s.observe(times.begun_s - times.started_s)
        metrics.journal_append_s.observe(times.appended_s - times.begun_s)
        metrics.journal_sync_s.observe(times.synced_s - times.appended_s)
        commit_s = times.synced_s - times.started_s
        metrics.journal_commit_s.observe(commit_s)
        if commit_s >= _SLOW_COMMIT_S:
            sync_s = times.synced_s - times.appended_s
            RECORDER.note(COMMIT, commit_s, f"{size} bytes, sync {sync_s:.3f} s")
        metrics.journal_add_s.observe(self._clock.monotonic_s() - queued_s)

    def _failed(self, error: Exception) -> None:
        self._drained.set()  # no further answers come: waiters would wait for ever
        self._on_failed(error)

    # --- journal thread ---

    def _work(self) -> None:
        epoch = 0
        mark = self.mark
        error: JournalFullError | None = None
        try:
            while True:
                batches, reason = self._waiting.take()
                if not batches:
                    break
                # Epochs only grow, so batches with an older one, which must fail, come first.
                stale = sum([batch.epoch != epoch for batch in batches])
                if stale:
                    self._tell_loop(
                        self._committed, _Group(batches[:stale], mark, error, epoch, reason, None)
                    )
                    batches = batches[stale:]
                    if not batches:
                        continue
                times: _Times | None = None
                try:
                    mark, times = self._commit(batches)
                    error = None
                except JournalFullError as failure:
                    error = failure
                    epoch += 1
                self._tell_loop(self._committed, _Group(batches, mark, error, epoch, reason, times))
            self._files.close()
        except Exception as failure:  # noqa: BLE001  # whatever it is, the process must hear of it
            self._tell_loop(self._failed, failure)

    def _commit(self, batches: list[JournalBatch[T]]) -> tuple[LastMark, "_Times"]:
        """Commit a group in three steps, and take the time of each."""
        now_s, files = self._clock.monotonic_s, self._files
        started_s = now_s()
        has_new_file = files.make_room(sum([batch.size_bytes for batch in batches]))
        begun_s = now_s()
        files.append([record for batch in batches for record in batch.records])
        appended_s = now_s()
        mark = files.sync()
        return mark, _Times(started_s, begun_s, appended_s, now_s(), has_new_file)

    def _tell_loop(self, call: Callable[[T2], None], argument: T2) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            pass  # the loop is closed, and needs no report


class RunningJournal(Protocol[T]):
    """One journal, as its users see it."""

    @property
    def mark(self) -> LastMark:
        """The end of the records that were synced and reported."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes handed over and not yet reported."""
        ...

    def append(self, batch: JournalBatch[T]) -> None:
        """Hand over a batch; never blocks. Each batch is reported once, in the order of the
        calls."""
        ...

    async def wait_drained(self) -> None:
        """Wait until every batch was reported, or the journal failed."""
        ...

    def close(self) -> None:
        """Commit the waiting batches, then end. Blocks."""
        ...


class JournalSet(Generic[T]):
    """All journals, in the order of their directories; at least one."""

    def __init__(self, journals: Sequence[RunningJournal[T]]) -> None:
        assert journals
        self._journals = tuple(journals)

    @property
    def each(self) -> tuple[RunningJournal[T], ...]:
        return self._journals

    @property
    def marks(self) -> Marks:
        """The present mark of each journal."""
        return tuple([journal.mark for journal in self._journals])

    @property
    def queued_bytes(self) -> int:
        """Bytes handed over to all journals and not yet reported."""
        return sum([journal.queued_bytes for journal in self._journals])

    def of(self, ledger_id: int) -> RunningJournal[T]:
        """Return the journal that takes the records of this ledger."""
        return self._journals[journal_number(ledger_id, len(self._journals))]

    async def wait_drained(self) -> None:
        """Wait until every batch was reported, or its journal failed."""
        await asyncio.gather(*[journal.wait_drained() for journal in self._journals])

    def close(self) -> None:
        """Commit the waiting batches, then end the threads. Blocks; reports reach the loop
        later."""
        for journal in self._journals:
            journal.close()


def journal_number(ledger_id: int, journals: int) -> int:
    """Return the number of a ledger's journal, out of `journals`."""
    return ledger_id % journals


class _Times(NamedTuple):
    """When the steps of a commit ended, in seconds of the monotonic clock."""

    started_s: float
    begun_s: float
    appended_s: float
    synced_s: float
    has_new_file: bool


class _Group(NamedTuple, Generic[T]):
    """A report of the thread: these batches are synced, or failed because the disk is full."""

    batches: list[JournalBatch[T]]
    mark: LastMark
    error: JournalFullError | None
    epoch: int
    reason: CloseReason
    times: _Times | None
    """Times of a group that was synced; None after a failure."""
