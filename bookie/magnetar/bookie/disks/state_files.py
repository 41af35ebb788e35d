"""Two marker files in the data directory: that a bookie runs here, and that it was read-only.

`running` is created at start and removed at the end of an orderly stop: if it exists at start, the
previous run did not stop in order (storage sheet, sections 12 and 13). `read-only` is kept if the
settings say so, and makes the next start read-only until the disks are below their low-water marks
again. Calls block.
"""

import posixpath

import structlog

from magnetar.ledger.ports import Disk

_log = structlog.get_logger(__name__)

_RUNNING = "running"
_READ_ONLY = "read-only"


class StateFiles:
    """The marker files of one data directory."""

    def __init__(self, disk: Disk, data_directory: str) -> None:
        self._disk = disk
        self._directory = data_directory

    def mark_running(self) -> bool:
        """Create the mark of a run; return True if the previous run did not stop in order.

        Raises:
            OSError: the mark could not be looked for, or written.
        """
        path = posixpath.join(self._directory, _RUNNING)
        if self._disk.exists(path):
            return True
        self._disk.replace_file(path, b"")
        return False

    def mark_stopped(self) -> None:
        """Remove the mark of the run after an orderly stop.

        Raises:
            OSError: the mark could not be removed.
        """
        self._remove(_RUNNING)

    def was_read_only(self) -> bool:
        """Return whether the last run was read-only when it ended.

        Raises:
            OSError: the mark could not be looked for.
        """
        return self._disk.exists(posixpath.join(self._directory, _READ_ONLY))

    def set_read_only(self, is_read_only: bool) -> None:
        """Save the mode for the next start. A full or failing disk is no reason to fail here."""
        try:
            if not is_read_only:
                self._remove(_READ_ONLY)
            elif not self.was_read_only():
                self._disk.replace_file(posixpath.join(self._directory, _READ_ONLY), b"")
        except OSError as error:
            _log.warning("bookie_mode_not_persisted", read_only=is_read_only, error=str(error))

    def _remove(self, name: str) -> None:
        path = posixpath.join(self._directory, name)
        if self._disk.exists(path):
            self._disk.remove(path)
            self._disk.sync_directory(self._directory)
