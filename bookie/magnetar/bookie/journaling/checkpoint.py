"""Checkpoints: they decide which journal files can be deleted.

One checkpoint: (1) capture the marks of all journals; (2) flush the storage completely, all shards
and their ledger states; (3) persist the captured marks; (4) delete the journal files before them,
or keep them as spares.

Why nothing is lost. A journal's mark moves only when a sync has covered everything before it. The
effect of every record was put into the storage's memory before the record was handed to its journal
(rule 2.1). So for every journal, everything that its captured mark covers was in the memory of the
storage before step 1 ended. The marks of several journals need not be taken at one instant of their
threads: each mark counts alone, since a ledger has all its records in one journal. The flush of
step 2 begins after step 1 (rule 8.1) and returns when *every* shard has ended a flush that began
after step 1 (rule 8.2); it makes at least all of that durable. So when step 3 writes the marks,
nothing before them is needed from the journals. A crash before or during step 3 makes the next
start replay a superset, and replay is idempotent.

Three things move no mark: a flush of one shard whose buffer is full (`ShardedStorage` does that by
itself; defect B5); a flush that failed (rule 8.6: the data stays readable in memory and joins the
next flush); a checkpoint that ends after a later one (rule 8.5, defect B6: `LastMarks` only moves
forward, each mark by itself). Vectors are compared journal by journal: if neither of two covers the
other, the work of both is needed, and each moves the marks in which it is ahead (rule 8.3, defect
B7). So checkpoints may overlap, though in fact only the last one at a stop does.

A fence or a key moves its journal's mark as an entry does, so a checkpoint that has only ledger
states to flush is not skipped (rule 8.4, defect B4). A checkpoint is skipped only if no journal has
anything new since the last one.

LACs move in memory alone; between steps 1 and 2 those that moved are put into the storage, a slice
at a time. Nothing that an earlier mark covers is missed: a LAC that moved before step 1 waits in
the table's queue until it is put, and step 2 begins when all of them are, whichever call put them.

Files are deleted by the smallest copy of each mark, so that a start finds its journal whichever
ledger directory is lost. Checkpoints run every `interval_s` and when the storage requests one. They
bound the journal that a restart replays by about the size of the write cache.
"""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence

import structlog

from magnetar.bookie.errors import StorageError
from magnetar.bookie.journaling.journal_format import (
    Marks,
    covers,
    file_ids,
    file_name,
    spare_name,
    spare_names,
)
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.flight_recorder import CHECKPOINT, RECORDER
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)


def _nothing(error: BaseException) -> None:
    return None


class Checkpointer:
    """Runs checkpoints in the background, until closed."""

    def __init__(
        self,
        storage: LedgerStorage,
        last_marks: LastMarks,
        *,
        disk: Disk,
        journal_directories: Sequence[str],
        worker: Worker,
        clock: Clock,
        metrics: BookieMetrics,
        interval_s: float,
        retry_s: float,
        journal_backups: int,
        journal_spares: int,
        journal_marks: Callable[[], Marks],
        before_flush: Callable[[], Awaitable[None]],
        after_flush: Callable[[], None],
        on_bug: Callable[[BaseException], None],
        on_failure: Callable[[BaseException], None] = _nothing,
        unflushed_bytes: int = 0,
    ) -> None:
        """Set up; `start` begins.

        `before_flush` puts state that only memory has, every change from before the call, into the
        storage; `after_flush` is called when the flush has made room.

        `on_failure` gets the error of every failed background checkpoint, which is then retried.

        `on_bug` gets an unforeseen error, which ends the checkpoints: without them the write cache
        fills, and every add is refused from then on.

        `unflushed_bytes` is the size of the records that the start replayed and could not flush.
        """
        self._storage = storage
        self._last_marks = last_marks
        self._disk = disk
        self._journal_directories = journal_directories
        self._worker = worker
        self._clock = clock
        self._metrics = metrics
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._journal_backups = journal_backups
        self._journal_spares = journal_spares
        self._journal_marks = journal_marks
        self._before_flush = before_flush
        self._after_flush = after_flush
        self._on_bug = on_bug
        self._on_failure = on_failure
        self._marked_s = clock.monotonic_s()
        """When the marks on disk were captured, in monotonic seconds. `_marked_bytes`: bytes
        journalled by then."""
        self._marked_bytes = metrics.journal_bytes - unflushed_bytes
        metrics.before_export.append(self._measure)
        self._wanted = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background checkpoints."""
        self._storage.on_wants_flush = self._wanted.set
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")
        self._task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Let a running checkpoint end; start no more."""
        self._is_closing = True
        self._wanted.set()
        self._storage.hurry()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def checkpoint(self, *, is_gentle: bool = False) -> None:
        """Run one checkpoint; the module docstring lists the steps. `is_gentle`: see
        `LedgerStorage.flush`.

        Raises:
            StorageError: the flush failed; the marks stay.
            OSError: a mark could not be persisted, or an old file not be deleted.
        """
        started_s = self._clock.monotonic_s()
        started_bytes = self._metrics.journal_bytes
        marks = self._journal_marks()
        await self._before_flush()
        await self._storage.flush(is_gentle=is_gentle and not self._is_closing)
        self._after_flush()
        await self._worker.run(lambda: self._persist(marks))
        self._marked_s = max(self._marked_s, started_s)
        self._marked_bytes = max(self._marked_bytes, started_bytes)
        self._metrics.checkpoints += 1
        took_s = self._clock.monotonic_s() - started_s
        self._metrics.checkpoint_s.observe(took_s)
        RECORDER.note(CHECKPOINT, took_s)

    async def _run(self) -> None:
        # After a failed flush the memory may hold data that no journal has, if the journals are
        # full, too. So the flush is retried even if no journal has news.
        failures = 0
        while not self._is_closing:
            await self._wait()
            if self._is_closing:
                return
            if not (failures or self._storage.wants_flush or self._has_news()):
                continue
            try:
                await self.checkpoint(is_gentle=True)
            except (StorageError, OSError) as error:
                failures += 1
                self._metrics.checkpoint_failures += 1
                # A disk may be full for days: only failures 1, 2, 4, 8, ... in a row are logged.
                if failures & (failures - 1) == 0:
                    _log.error(
                        "checkpoint_failed",
                        error=str(error),
                        failures=failures,
                        retry_s=self._retry_s,
                    )
                self._on_failure(error)
                # Never sooner, even on request: a disk that is full now will be full in a
                # millisecond, too.
                await self._wait_closing(self._retry_s)
                self._wanted.set()
            else:
                if failures:
                    _log.info("checkpoints_go_on", failures=failures)
                failures = 0

    def _measure(self) -> None:
        metrics = self._metrics
        metrics.journal_replay_bytes = metrics.journal_bytes - self._marked_bytes
        age_s = self._clock.monotonic_s() - self._marked_s
        metrics.checkpoint_age_s = age_s if metrics.journal_replay_bytes else 0.0

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def _wait(self) -> None:
        """Wait until a checkpoint is due."""
        try:
            async with asyncio.timeout(self._interval_s):
                await self._wanted.wait()
        except TimeoutError:
            pass  # the interval is over: due
        if not self._is_closing:
            self._wanted.clear()

    async def _wait_closing(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while not self._is_closing and (left_s := end_s - loop.time()) > 0:
            self._wanted.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._wanted.wait()
            except TimeoutError:
                return

    def _has_news(self) -> bool:
        return not covers(self._last_marks.marks, self._journal_marks())

    def _persist(self, marks: Marks) -> None:
        """Persist the marks, then delete or spare the old files. Runs on the worker."""
        if not self._last_marks.advance(marks):
            return
        safe_marks = self._last_marks.safe_marks
        for directory, mark in zip(self._journal_directories, safe_marks, strict=True):
            self._forget(directory, mark.file_id)

    def _forget(self, directory: str, first_needed: int) -> None:
        """Delete the files with ids below `first_needed`, or keep them as spares."""
        names = self._disk.list(directory)
        old = [file_id for file_id in file_ids(names) if file_id < first_needed]
        spares = len(spare_names(names))
        for file_id in old[: max(0, len(old) - self._journal_backups)]:
            path = posixpath.join(directory, file_name(file_id))
            if spares < self._journal_spares:
                # Its blocks are allocated and written: no file is cheaper to write to.
                self._disk.rename(path, posixpath.join(directory, spare_name(file_id)))
                spares += 1
            else:
                self._disk.remove(path)
