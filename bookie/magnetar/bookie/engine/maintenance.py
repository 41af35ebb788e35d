"""Operations of garbage collection, scrubbing and tools on the entry logs of an open storage.

These users have threads of their own, read files by themselves, and do not keep them open: a
removed log that is open still takes disk space. All changes go through here. Index records are
moved on the flush worker, hence never during a flush (rules 6.2 and 10.5), and only while they
still point to the run that was copied (rule 10.4).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from magnetar.bookie.engine.read_lanes import ReadLanes
from magnetar.bookie.engine.stored_reads import StoredReads
from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.entry_logs.log_names import LogIds, log_ids, log_name
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.errors import StorageClosedError, StorageIOError
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex, RunMove
from magnetar.ledger.errors import InvariantError
from magnetar.ledger.ports import Disk, Worker

_RECORDS_AT_ONCE = 256

T = TypeVar("T")


class LogMaintenance:
    """Maintenance of the entry logs of one directory. Exists while its storage is open."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        index: LocationIndex,
        ids: LogIds,
        writer: EntryLogWriter,
        lanes: ReadLanes,
        flush_worker: Worker,
        reads: StoredReads,
    ) -> None:
        """`writer` belongs to the flush worker, `lanes` and `reads` to the event loop."""
        self.directory = directory
        """Directory of the entry logs."""
        self.index = index
        """The index, for reads only, from any thread."""
        self._disk = disk
        self._ids = ids
        self._writer = writer
        self._lanes = lanes
        self._flush_worker = flush_worker
        self._reads = reads
        self._is_closed = False

    def new_log_id(self) -> int:
        """Return an id for a log that no flush writes; safe from any thread.

        Raises:
            StorageIOError: no ids are left.
        """
        return self._ids.new()

    async def finished_logs(self) -> list[int]:
        """Return the logs that nobody writes any more, ascending.

        Excludes the active log of the flushes, and files without a log's name (the output of a
        running compaction). Checked between flushes: the index has everything that flushes wrote
        into these logs, or never will.

        Raises:
            StorageIOError: the directory cannot be listed.
            StorageClosedError: the storage is closed.
        """
        return await self._run(self._flush_worker, self._finished_logs)

    def is_live(self, ledger_id: int, first: int, last: int, location: RunLocation) -> bool:
        """Return whether an index record points to the run; safe from any thread.

        `first` and `last` are the first and last id of the run.

        Raises:
            StorageIOError: the index cannot be read.
        """
        at = first
        while True:
            records = self.index.records_from(ledger_id, at, _RECORDS_AT_ONCE)
            for record in records:
                if record.first > last:
                    return False
                if record.location == location:
                    return True
            if len(records) < _RECORDS_AT_ONCE:
                return False
            at = records[-1].last + 1

    async def move_runs(self, moves: Sequence[RunMove]) -> None:
        """Point the index to the copies of runs, wherever it still points to the originals.

        The copies must be synced. Durable on return; a cancelled call is carried out all the same.

        Raises:
            StorageIOError: none, some or all of the runs are moved; the call may be repeated.
            StorageClosedError: the storage is closed.
        """
        changes = IndexChanges(last_log_id=self._ids.last, moves=moves)
        moved = await self._run(self._flush_worker, partial(self.index.commit, changes))
        self._reads.forget_places(moved)

    async def sync_index(self) -> None:
        """Make durable what readers of the index have seen until now.

        A flush that fails may leave its changes readable, and only in memory: a log that looks
        unused because of them is needed again after a crash.

        Raises:
            StorageIOError: it is not durable; the call may be repeated.
            StorageClosedError: the storage is closed.
        """
        await self.move_runs(())

    async def remove_log(self, log_id: int) -> None:
        """Remove a log to which nothing durable points any more; gone for good on return.

        Raises:
            StorageIOError: the log may still be there; try again.
            StorageClosedError: the storage is closed.
        """
        await self._run(self._flush_worker, partial(self._remove, log_id))
        # Reads may have opened it meanwhile; from here on, none can.
        self._check_open()
        await self._lanes.forget_log(log_id)
        self._reads.forget_log(log_id)

    def close(self) -> None:
        """Begin nothing any more."""
        self._is_closed = True

    def _finished_logs(self) -> list[int]:
        try:
            names = self._disk.list(self.directory)
        except OSError as error:
            raise StorageIOError(f"{self.directory} cannot be listed: {error}") from error
        active = self._writer.active_log_id
        return [log_id for log_id in log_ids(names) if log_id != active]

    def _remove(self, log_id: int) -> None:
        path = f"{self.directory}/{log_name(log_id)}"
        if log_id == self._writer.active_log_id:
            raise InvariantError(f"{path} is being written: it cannot be removed")
        try:
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                pass  # an earlier try removed it
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise StorageIOError(f"{path} cannot be removed: {error}") from error

    async def _run(self, worker: Worker, call: Callable[[], T]) -> T:
        self._check_open()
        return await worker.run(call)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageClosedError(f"the storage of {self.directory} is closed")
