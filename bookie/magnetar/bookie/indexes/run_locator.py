"""Finds out what run lies at a place of an entry log, for the index that knows places alone."""

import posixpath

from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_scan import scan_run
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.ledger.ports import Disk


class RunLocator:
    """Reads heads of runs. Opens the log each time: the index remembers what it was told, and a log
    that is removed must not be kept alive here."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def __call__(self, log_id: int, offset: int) -> StoredRun:
        """The run that begins there.

        Raises:
            StorageLogMissingError: there is no such log.
            StorageCorruptError: no whole run is there.
            StorageIOError: it could not be read.
        """
        path = posixpath.join(self._directory, log_name(log_id))
        try:
            file = self._disk.open(path)
            try:
                run = scan_run(file, log_id, offset)
            finally:
                file.close()
        except FileNotFoundError as exc:
            raise StorageLogMissingError(f"{path} does not exist") from exc
        except OSError as exc:
            raise StorageIOError(f"{path}: cannot be read at {offset}: {exc}") from exc
        if run is None:
            raise StorageCorruptError(f"{path} at {offset}: no whole run begins here")
        return run
