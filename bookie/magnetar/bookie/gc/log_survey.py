"""Survey of the ledgers in entry logs, read from their files. Runs on the worker of garbage
collection.

It must not invent or hide a ledger (rule 4.1, defect B15): a log whose footer is missing or damaged
is scanned, and if the scan does not end exactly at the end of the file, the result is not certain.
A log is never removed because of an uncertain result.
"""

import posixpath
from collections.abc import Iterator, Set

from magnetar.bookie.entry_logs.entry_log import LOG_HEADER_BYTES, StoredRun
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import read_footer_tables, read_log_header, scan_run
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.bookie.gc.log_usage import LogUsage, usage_of
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.ledger.ports import Disk, File


class LogSurvey:
    """Surveys the entry logs of one directory."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def usage(self, log_id: int) -> LogUsage:
        """Return the ledgers of a log that nobody writes any more.

        Raises:
            StorageLogMissingError: there is no such file.
            StorageIOError: a read failed.
        """
        path = posixpath.join(self._directory, log_name(log_id))
        try:
            file = self._disk.open(path)
        except FileNotFoundError as error:
            raise StorageLogMissingError(f"{path} does not exist") from error
        except OSError as error:
            raise StorageIOError(f"{path} cannot be opened: {error}") from error
        try:
            return _usage(file, log_id)
        except OSError as error:
            raise StorageIOError(f"{path} cannot be read: {error}") from error
        finally:
            file.close()


def _usage(file: File, log_id: int) -> LogUsage:
    is_certain = True
    try:
        tables = read_footer_tables(file, log_id)
    except StorageCorruptError:
        tables, is_certain = None, False
    if tables is not None:
        return LogUsage(log_id, file.size, True, tables.ledger_ids, tables.ledger_bytes)
    ledger_bytes: dict[int, int] = {}
    end = 0
    for run in runs_of(file, log_id):
        size_bytes = run.location.size_bytes
        ledger_bytes[run.ledger_id] = ledger_bytes.get(run.ledger_id, 0) + size_bytes
        end = run.location.offset + size_bytes
    is_certain = is_certain and end == file.size
    return usage_of(log_id, ledger_bytes, file_bytes=file.size, is_certain=is_certain)


def runs_of(file: File, log_id: int) -> Iterator[StoredRun]:
    """Yield the runs from the start of a log up to the first bytes that are no run.

    Yields nothing if the file's header is damaged.

    Raises:
        OSError: a read failed.
    """
    try:
        read_log_header(file, log_id)
    except StorageCorruptError:
        return
    at = LOG_HEADER_BYTES
    while (run := scan_run(file, log_id, at)) is not None:
        yield run
        at += run.location.size_bytes


def referenced_logs(index: LocationIndex, log_ids: Set[int]) -> set[int]:
    """Return the logs to which the index points. Reads the whole index.

    Raises:
        StorageIOError: the index could not be read.
    """
    found: set[int] = set()
    for _, record in index.all_records():
        log_id = record.location.log_id
        if log_id in log_ids and log_id not in found:
            found.add(log_id)
            if len(found) == len(log_ids):
                break
    return found
