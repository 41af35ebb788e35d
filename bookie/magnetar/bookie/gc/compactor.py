"""Compaction of the entry logs of one storage, one group at a time, as a transaction.

The event loop drives it. Short jobs on the worker of garbage collection copy, with pauses in
between; the storage moves the index on its flush worker, never during a flush (rule 10.5). Steps
and recovery are those of `compaction_phases.py`, at a start and while running. A failure before the
record is written undoes the compaction. After a later failure, the next try finishes it before it
begins another.
"""

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from magnetar.bookie.engine.maintenance import LogMaintenance
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.gc.compaction_phases import STEPS, Files, Step, record_name, unfinished
from magnetar.bookie.gc.compaction_record import CompactionRecord, encode_record
from magnetar.bookie.gc.finish_compactions import MOVES_PER_COMMIT, change_files, read_record
from magnetar.bookie.gc.log_copier import Copied, LogCopier
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)

_JOB_BYTES = 512 << 10
"""Bytes copied in one job, before the worker and the event loop may do other work."""

MOVES_MAX = 200_000
"""Maximum number of runs copied at once: 61 bytes each in memory and in the record."""

T = TypeVar("T")


class Compactor:
    """Compacts the logs of one storage."""

    def __init__(
        self,
        maintenance: LogMaintenance,
        worker: Worker,
        *,
        disk: Disk,
        clock: Clock,
        copied_bytes_per_s: float = 0,
        moves_max: int = MOVES_MAX,
        on_damage: Callable[[Damage], None],
    ) -> None:
        """No other code may use `worker` during a call; `on_damage` is called on the loop.

        `copied_bytes_per_s` 0: no limit.
        """
        self._maintenance = maintenance
        self._worker = worker
        self._disk = disk
        self._clock = clock
        self._moves_max = moves_max
        self._pace = Pace(copied_bytes_per_s)
        self._on_damage = on_damage

    async def compact(self, sources: Sequence[int]) -> Copied:
        """Copy the live packets of the logs to a new one, point the index there, remove the logs.

        Logs that could not be copied completely stay. So does the rest of a log if there was too
        much for one copy: it is then neither `complete` nor `incomplete`.

        Raises:
            StorageIOError: undone, or to be finished by the next call.
            StorageClosedError: undone, or to be finished by the next call.
        """
        await self.finish_left_over()
        copier = LogCopier(
            self._maintenance.directory,
            self._maintenance.new_log_id(),
            sources,
            index=self._maintenance.index,
            disk=self._disk,
            clock=self._clock,
            moves_max=self._moves_max,
        )
        try:
            record = await self._copy(copier)
        except BaseException:
            await self._abandon(copier)
            raise
        for damage in copier.copied.damages:
            _log.error("compaction_met_damage", damage=str(damage))
            self._on_damage(damage)
        if record is not None:
            await self._replace(record)
        elif copier.copied.complete:
            for log_id in copier.copied.complete:
                await self._maintenance.remove_log(log_id)
        return copier.copied

    async def finish_left_over(self) -> None:
        """Finish or undo the remains of an earlier call.

        Raises:
            StorageIOError: it is still not done; nothing may be compacted or removed.
        """
        directory = self._maintenance.directory
        left = await self._run(lambda: unfinished(self._disk.list(directory)))
        for log_id, files in left.items():
            _log.info("compaction_resumed", log_id=log_id)
            record = None
            if files.record:
                record = await self._run(partial(read_record, directory, self._disk, log_id))
            await self._take_steps(log_id, STEPS[files], record)

    async def _copy(self, copier: LogCopier) -> CompactionRecord | None:
        await self._run(copier.begin)
        written = 0
        is_more = True
        while is_more:
            is_more = await self._run(partial(copier.copy_some, _JOB_BYTES))
            done, written = copier.copied.written_bytes - written, copier.copied.written_bytes
            wait_s = self._pace.take(done, self._clock.monotonic_s())
            # The last piece counts, too: often it is the only one.
            if is_more or wait_s:
                await asyncio.sleep(wait_s)
        if copier.copied.complete:
            # The copier left out what the index no longer had there, perhaps only in memory: a
            # crash would bring it back after these logs are gone.
            await self._maintenance.sync_index()
        return await self._run(copier.finish)

    async def _replace(self, record: CompactionRecord) -> None:
        directory, log_id = self._maintenance.directory, record.target_log_id
        path = posixpath.join(directory, record_name(log_id))
        try:
            await self._run(lambda: self._disk.replace_file(path, encode_record(record)))
        except StorageIOError:
            # The record may or may not exist, now and after a crash. Without it the copy is
            # garbage, so the record is removed first.
            for step in (Step.REMOVE_RECORD, Step.REMOVE_COPY):
                await self._take_steps(log_id, (step,), record)
            raise
        files = Files(copy=True, record=True, log=False)
        await self._take_steps(log_id, STEPS[files], record)

    async def _take_steps(
        self, log_id: int, steps: Sequence[Step], record: CompactionRecord | None
    ) -> None:
        maintenance = self._maintenance
        for step in steps:
            if step is Step.MOVE_RUNS:
                assert record is not None
                for moves in record.batches(MOVES_PER_COMMIT):
                    await maintenance.move_runs(moves)
            elif step is Step.REMOVE_SOURCES:
                assert record is not None
                for source in record.replaced:
                    await maintenance.remove_log(source)
            else:
                directory = maintenance.directory
                await self._run(partial(change_files, directory, self._disk, log_id, step, record))

    async def _abandon(self, copier: LogCopier) -> None:
        try:
            await self._run(copier.abandon)
        except StorageIOError as error:
            # Without a record it is garbage, which the next try or the next start removes.
            _log.warning("compaction_not_undone", error=str(error))

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await self._worker.run(call)
        except OSError as error:
            raise StorageIOError(
                f"{self._maintenance.directory}: compaction failed: {error}"
            ) from error
