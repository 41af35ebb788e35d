"""Ids and names of entry logs. An id is never reused while anything may refer to it."""

from collections.abc import Iterable
from threading import Lock

from magnetar.bookie.entry_logs.entry_log import LOG_ID_MAX
from magnetar.bookie.errors import StorageIOError

_ID_DIGITS = 8


def log_name(log_id: int) -> str:
    return f"{log_id:0{_ID_DIGITS}x}.log"


def log_ids(names: Iterable[str]) -> list[int]:
    """Return the ids of the entry logs among the names of a directory, ascending."""
    return sorted(log_id for name in names if (log_id := _id_of(name, ".log")) is not None)


def used_ids(names: Iterable[str]) -> list[int]:
    """Return the ids that any name begins with, including unfinished files, ascending."""
    return sorted(
        log_id for name in names if (log_id := _id_of(name[: _ID_DIGITS + 1], ".")) is not None
    )


def _id_of(name: str, suffix: str) -> int | None:
    if len(name) != _ID_DIGITS + len(suffix) or not name.endswith(suffix):
        return None
    digits = name[:_ID_DIGITS]
    # int() also accepts signs, blanks and underscores: only names from log_name are ours.
    return int(digits, 16) if all(each in "0123456789abcdef" for each in digits) else None


class LogIds:
    """Allocates log ids for flushes and compactions; safe from any thread.

    The next process may allocate an id again if no file of it is left: nothing durable can have
    pointed to it.
    """

    def __init__(self, last: int) -> None:
        """`last` is the highest id of any file, or of any log that the index has ever pointed
        to."""
        self._last = last
        self._lock = Lock()

    @property
    def last(self) -> int:
        """The highest id allocated."""
        return self._last

    def new(self) -> int:
        """Allocate an id.

        Raises:
            StorageIOError: no ids are left.
        """
        with self._lock:
            if self._last >= LOG_ID_MAX:
                raise StorageIOError(f"entry log ids are used up at {self._last}")
            self._last += 1
            return self._last
