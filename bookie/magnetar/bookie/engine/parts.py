"""The parts of an open storage: its files, and the workers that touch them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.bookie.engine.flush_pace import FlushPace
from magnetar.bookie.engine.flusher import Flusher, PlanRuns
from magnetar.bookie.engine.maintenance import LogMaintenance
from magnetar.bookie.engine.read_lanes import ReadLane, ReadLanes
from magnetar.bookie.engine.run_reader import RunReader
from magnetar.bookie.engine.stored_reads import StoredReads
from magnetar.bookie.entry_logs.log_names import LogIds, used_ids
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.entry_logs.run_plan import plan_in_order, plan_sorted
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.bookie.indexes.open_index import open_index
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Clock, Disk, Worker

FinishCompactions = Callable[[str, Disk, LocationIndex], None]
"""Finishes or undoes compactions that a previous process left unfinished.

Arguments: the directory of the entry logs, its disk, the index. Raises StorageIOError or OSError if
it cannot.
"""


@dataclass(frozen=True, slots=True)
class StorageParts:
    """The parts of an open storage."""

    index: LocationIndex
    flusher: Flusher
    lanes: ReadLanes
    maintenance: LogMaintenance
    flush_worker: Worker


@dataclass(frozen=True, slots=True)
class PartsMaker:
    """Opens the files of a storage. `open` runs on the flush worker."""

    directory: str
    disk: Disk
    clock: Clock
    options: StorageOptions
    pace: FlushPace
    make_key_value: MakeKeyValue
    finish_compactions: FinishCompactions

    def open(
        self,
        flush_worker: Worker,
        read_workers: Sequence[Worker],
        reads: StoredReads,
    ) -> StorageParts:
        """Open or create everything.

        The order matters: interrupted compactions are finished before any read, and log ids are
        determined after that.

        Raises:
            StorageIOError: the files cannot be opened, or are damaged.
            WrongEngineError: the index is of another kind.
        """
        try:
            return self._open(flush_worker, read_workers, reads)
        except OSError as exc:
            raise StorageIOError(f"storage {self.directory}: cannot be opened: {exc}") from exc

    def _open(
        self,
        flush_worker: Worker,
        read_workers: Sequence[Worker],
        reads: StoredReads,
    ) -> StorageParts:
        options, disk = self.options, self.disk
        logs_directory = f"{self.directory}/entry-logs"
        disk.make_directory(logs_directory)
        index = open_index(
            self.directory,
            engine=options.engine,
            disk=disk,
            has_logs=bool(used_ids(disk.list(logs_directory))),
            make_key_value=self.make_key_value,
            options=options,
        )
        try:
            self.finish_compactions(logs_directory, disk, index)
            ids = LogIds(max([index.last_log_id, *used_ids(disk.list(logs_directory))]))
        except BaseException:
            index.close()
            raise
        writer = EntryLogWriter(
            logs_directory,
            ids=ids,
            log_bytes_max=options.entry_log_bytes_max,
            log_ledgers_max=options.entry_log_ledgers_max,
            disk=disk,
            clock=self.clock,
        )
        open_files_max = max(1, options.open_files_max // len(read_workers))
        lanes: list[ReadLane] = []
        for worker in read_workers:
            logs = EntryLogReader(logs_directory, open_files_max=open_files_max, disk=disk)
            lanes.append(ReadLane(worker, RunReader(index, logs), logs))
        read_lanes = ReadLanes(lanes)
        return StorageParts(
            index=index,
            flusher=Flusher(writer, index, self._plan(), self.pace, self.clock),
            lanes=read_lanes,
            maintenance=LogMaintenance(
                logs_directory,
                disk=disk,
                index=index,
                ids=ids,
                writer=writer,
                lanes=read_lanes,
                flush_worker=flush_worker,
                reads=reads,
            ),
            flush_worker=flush_worker,
        )

    def _plan(self) -> PlanRuns:
        plan = plan_sorted if self.options.engine == "db" else plan_in_order
        options = self.options
        return partial(plan, entries_max=options.run_entries_max, bytes_max=options.run_bytes_max)
