"""Completion of interrupted compactions, before an opened storage does anything else.

Runs on the flush worker; nothing else uses the directory or the index meanwhile.
`compaction_phases.py` has the steps. After an interruption of its own, the next start continues.
"""

import posixpath

import structlog

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.gc.compaction_phases import (
    NEW_RECORD_SUFFIX,
    STEPS,
    Step,
    copy_name,
    record_name,
    unfinished,
)
from magnetar.bookie.gc.compaction_record import CompactionRecord, decode_record
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex
from magnetar.ledger.ports import Disk

_log = structlog.get_logger(__name__)

MOVES_PER_COMMIT = 1000


def finish_compactions(directory: str, disk: Disk, index: LocationIndex) -> None:
    """Finish compactions with a record, remove the files of those without one.

    `directory` is that of the entry logs. On a full disk, garbage collection does the rest before
    anything else: a bookie without room must still serve reads. Sources and copies both have their
    names then, so nothing is missing, wherever the index points.

    Raises:
        StorageCorruptError: a record is damaged. Without it the copy may be the only one that the
            index points to, or garbage.
        StorageIOError: a file or the index could not be read or written.
    """
    try:
        _finish_all(directory, disk, index)
    except (StorageIOError, OSError) as error:
        if is_out_of_room(error):
            _log.warning("compaction_not_finished", directory=directory, error=str(error))
            return
        if isinstance(error, StorageIOError):
            raise
        raise StorageIOError(f"{directory}: a compaction cannot be finished: {error}") from error


def _finish_all(directory: str, disk: Disk, index: LocationIndex) -> None:
    names = disk.list(directory)
    for name in names:
        if name.endswith(NEW_RECORD_SUFFIX):
            disk.remove(posixpath.join(directory, name))
    for log_id, files in unfinished(names).items():
        _log.info("compaction_resumed", log_id=log_id, steps=[s.name for s in STEPS[files]])
        record = read_record(directory, disk, log_id) if files.record else None
        for step in STEPS[files]:
            if step is Step.MOVE_RUNS:
                assert record is not None
                _move_runs(index, record)
            else:
                change_files(directory, disk, log_id, step, record)


def read_record(directory: str, disk: Disk, log_id: int) -> CompactionRecord:
    """Read the record of the compaction that made log `log_id`.

    Raises:
        StorageCorruptError, OSError
    """
    path = posixpath.join(directory, record_name(log_id))
    try:
        return decode_record(disk.read_file(path), log_id=log_id)
    except StorageCorruptError as error:
        raise StorageCorruptError(
            f"{path}: {error}. If `magnetar bookie-tool verify` finds no entry in a log that is "
            f"missing, remove the file; else rebuild the index"
        ) from error


def change_files(
    directory: str, disk: Disk, log_id: int, step: Step, record: CompactionRecord | None
) -> None:
    """Carry out a step that changes files, durably; it may be repeated.

    Raises:
        OSError
    """
    copy = posixpath.join(directory, copy_name(log_id))
    if step is Step.NAME_LOG:
        disk.rename(copy, posixpath.join(directory, log_name(log_id)))
    elif step is Step.REMOVE_COPY:
        _remove(disk, copy)
    elif step is Step.REMOVE_SOURCES:
        assert record is not None
        for source in record.replaced:
            _remove(disk, posixpath.join(directory, log_name(source)))
    elif step is Step.REMOVE_RECORD:
        _remove(disk, posixpath.join(directory, record_name(log_id)))
    disk.sync_directory(directory)


def _move_runs(index: LocationIndex, record: CompactionRecord) -> None:
    last_log_id = max(index.last_log_id, record.target_log_id)
    for moves in record.batches(MOVES_PER_COMMIT):
        index.commit(IndexChanges(last_log_id=last_log_id, moves=moves))


def _remove(disk: Disk, path: str) -> None:
    try:
        disk.remove(path)
    except FileNotFoundError:
        pass  # an earlier try removed it
