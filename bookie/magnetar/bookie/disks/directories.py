"""The directories of a bookie: its data directory, its journal directories, its ledger directories.

Each may be on a disk of its own, and each has a lock of its own: a directory that is configured for
two bookies is refused, whatever else is configured.
"""

import posixpath
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from magnetar.bookie.errors import DirectoryLockedError, DirectoryUnusableError
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.ports import Disk

LOCK_NAME = "lock"
COOKIE_NAME = "cookie"
STAMPING_NAME = "cookie.stamping"

_NO_DATA = {
    *(LOCK_NAME, COOKIE_NAME, STAMPING_NAME),
    *(f"{COOKIE_NAME}.new", f"{STAMPING_NAME}.new"),
    "lost+found",
}
"""Names that a directory without data may contain: remains of a crash in a first start, and a
folder of every new file system."""


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """Absolute paths of a bookie's directories.

    The order of journals and of ledgers is part of the data: ledgers are spread over them by their
    position.
    """

    data: str
    """The data directory; contains the others unless they are configured elsewhere."""
    journals: tuple[str, ...]
    ledgers: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        """Iterate over all directories; the data directory comes first."""
        yield self.data
        yield from self.journals
        yield from self.ledgers


def directories_of(settings: BookieSettings) -> BookieDirectories:
    """Return the directories that the settings name."""
    data = str(settings.data_directory.absolute())
    return BookieDirectories(
        data,
        tuple(str(each.absolute()) for each in settings.journal_directories)
        or (posixpath.join(data, "journal"),),
        tuple(str(each.absolute()) for each in settings.ledger_directories)
        or (posixpath.join(data, "ledgers"),),
    )


def lock_directories(disk: Disk, directories: BookieDirectories) -> ExitStack:
    """Create missing directories, and lock them all; closing the result releases the locks.

    Raises:
        DirectoryLockedError: another process uses one of them. None stays locked.
        DirectoryUnusableError: one of them cannot be created or written.
    """
    with ExitStack() as locks:
        for directory in directories:
            try:
                disk.make_directory(directory)
                lock = disk.lock(posixpath.join(directory, LOCK_NAME))
            except BlockingIOError as error:
                raise DirectoryLockedError(
                    f"{directory} is in use by another bookie process; "
                    f"stop that one, or choose another directory"
                ) from error
            except OSError as error:
                raise DirectoryUnusableError(
                    f"{directory} cannot be used ({error.strerror}): check the disk and its "
                    "permissions, or choose another directory"
                ) from error
            locks.callback(lock.release)
        return locks.pop_all()


def has_data(disk: Disk, directory: str) -> bool:
    """Return whether a directory contains anything beside its lock and its cookie."""
    return any(name not in _NO_DATA for name in disk.list(directory))
