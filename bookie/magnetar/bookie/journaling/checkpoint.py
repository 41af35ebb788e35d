"""Checkpoints: when the journal may forget.

One checkpoint: (1) capture the journal's mark; (2) flush the storage completely, ledger states too;
(3) persist the captured mark; (4) delete the journal files before it, or keep them as spares.

Why nothing is lost. Every record before the mark was synced, and its effect was put into the
storage's memory before it was handed to the journal, so before step 1 (rule 2.1). The flush of step
2 begins after that and makes at least all of it durable. So when step 3 writes the mark, nothing
before it is needed from the journal. A crash before step 3 replays a superset, and replay is
idempotent. A failed flush leaves the mark where it is (rule 8.6); the data stays readable in memory
and goes with the next flush. Marks on disk never go back (rule 8.5). There is one journal and one
storage, so that one flush completes one checkpoint (rules 8.2, 8.3 come with more of them).

A fence or a key moves the journal's mark like an entry does, so a checkpoint that only has ledger
states to flush is not skipped (rule 8.4, defect B4); skipped is only one with nothing new in the
journal since the last.

Checkpoints run one at a time, every `interval_s` and when the storage asks. They bound the journal
that a restart replays by about the size of the write cache.
"""

import asyncio
import posixpath
from collections.abc import Callable

import structlog

from magnetar.bookie.errors import StorageError
from magnetar.bookie.journaling.journal_format import (
    LastMark,
    file_ids,
    file_name,
    spare_name,
    spare_names,
)
from magnetar.bookie.journaling.last_mark import LastMarkFile
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)


class Checkpointer:
    """Runs checkpoints in the background, until closed."""

    def __init__(
        self,
        storage: LedgerStorage,
        mark_file: LastMarkFile,
        *,
        disk: Disk,
        journal_directory: str,
        worker: Worker,
        clock: Clock,
        metrics: BookieMetrics,
        interval_s: float,
        retry_s: float,
        journal_backups: int,
        journal_spares: int,
        journal_mark: Callable[[], LastMark],
        before_flush: Callable[[], None],
        after_flush: Callable[[], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """`before_flush` puts what only memory knows; `after_flush` hears that there is room.

        `on_bug` hears of the end of the checkpoints by an error that nobody foresaw: without them
        the write cache fills, and every add is refused from then on.
        """
        self._storage = storage
        self._mark_file = mark_file
        self._disk = disk
        self._journal_directory = journal_directory
        self._worker = worker
        self._clock = clock
        self._metrics = metrics
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._journal_backups = journal_backups
        self._journal_spares = journal_spares
        self._journal_mark = journal_mark
        self._before_flush = before_flush
        self._after_flush = after_flush
        self._on_bug = on_bug
        self._wanted = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with the background checkpoints."""
        self._storage.on_wants_flush = self._wanted.set
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")
        self._task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Let a checkpoint that is under way end; start no more."""
        self._is_closing = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def checkpoint(self) -> None:
        """One checkpoint, as the module describes it.

        Raises:
            StorageError: the flush failed; the mark stays.
            OSError: the mark could not be persisted, or an old file not be deleted.
        """
        started_s = self._clock.monotonic_s()
        mark = self._journal_mark()
        self._before_flush()
        await self._storage.flush()
        self._after_flush()
        await self._worker.run(lambda: self._persist(mark))
        self._metrics.checkpoints += 1
        self._metrics.checkpoint_s.observe(self._clock.monotonic_s() - started_s)

    async def _run(self) -> None:
        while not self._is_closing:
            await self._wait()
            if self._is_closing:
                return
            if not self._storage.wants_flush and self._journal_mark() <= self._mark_file.mark:
                continue
            try:
                await self.checkpoint()
            except (StorageError, OSError) as error:
                self._metrics.checkpoint_failures += 1
                _log.error("checkpoint_failed", error=str(error), retry_s=self._retry_s)
                # Not sooner, whoever asks: a disk that is full now will be so in a millisecond.
                await self._wait_closing(self._retry_s)
                self._wanted.set()

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

    def _persist(self, mark: LastMark) -> None:
        if not self._mark_file.advance(mark):
            return
        names = self._disk.list(self._journal_directory)
        old = [file_id for file_id in file_ids(names) if file_id < mark.file_id]
        spares = len(spare_names(names))
        for file_id in old[: max(0, len(old) - self._journal_backups)]:
            path = posixpath.join(self._journal_directory, file_name(file_id))
            if spares < self._journal_spares:
                # Its blocks are allocated and written: the cheapest file to write to there is.
                spare = posixpath.join(self._journal_directory, spare_name(file_id))
                self._disk.rename(path, spare)
                spares += 1
            else:
                self._disk.remove(path)
