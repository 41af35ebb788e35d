"""Ids and names of entry logs. An id is never used twice."""

from collections.abc import Iterable
from threading import Lock

from magnetar.bookie.entry_logs.entry_log import LOG_ID_MAX
from magnetar.bookie.errors import StorageIOError

_ID_DIGITS = 8


def log_name(log_id: int) -> str:
    return f"{log_id:0{_ID_DIGITS}x}.log"


def log_ids(names: Iterable[str]) -> list[int]:
    """The ids of the entry logs among the names of a directory, ascending."""
    return sorted(log_id for name in names if (log_id := _id_of(name, ".log")) is not None)


def used_ids(names: Iterable[str]) -> list[int]:
    """The ids that any name begins with, those of unfinished files included, ascending."""
    return sorted(
        log_id for name in names if (log_id := _id_of(name[: _ID_DIGITS + 1], ".")) is not None
    )


def _id_of(name: str, suffix: str) -> int | None:
    if len(name) != _ID_DIGITS + len(suffix) or not name.endswith(suffix):
        return None
    digits = name[:_ID_DIGITS]
    # int() is generous (signs, blanks, underscores): only what log_name gives is ours.
    return int(digits, 16) if all(each in "0123456789abcdef" for each in digits) else None


class LogIds:
    """Gives out log ids, to flushes and compactions alike; safe from any thread.

    An id that was given out and of which no file is left when the process ends may be given out
    again by the next one: nothing durable can have pointed to it.
    """

    def __init__(self, last: int) -> None:
        """`last` is the highest of the ids of files and of what the index has ever pointed to."""
        self._last = last
        self._lock = Lock()

    @property
    def last(self) -> int:
        """The highest id given out."""
        return self._last

    def new(self) -> int:
        """An id that nothing has.

        Raises:
            StorageIOError: there are no more.
        """
        with self._lock:
            if self._last >= LOG_ID_MAX:
                raise StorageIOError(f"entry log ids are used up at {self._last}")
            self._last += 1
            return self._last
