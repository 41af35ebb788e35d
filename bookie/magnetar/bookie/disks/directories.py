"""The directories of a bookie: its own, those of its journals, those of its ledgers.

Each may lie on a disk of its own, and each has a lock of its own: a directory that two bookies are
told to use is refused, whatever else they are told.
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
"""Names that are also in a directory without data: what a crash leaves of a first start, and what
is in every new file system."""


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """Absolute paths. The order of journals and of ledgers is part of the data: ledgers are spread
    over them by their position."""

    data: str
    """Of the bookie itself: it holds the others unless they are told to lie elsewhere."""
    journals: tuple[str, ...]
    ledgers: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        """All of them; the bookie's own comes first."""
        yield self.data
        yield from self.journals
        yield from self.ledgers


def directories_of(settings: BookieSettings) -> BookieDirectories:
    """The directories that the settings name."""
    data = str(settings.data_directory.absolute())
    return BookieDirectories(
        data,
        tuple(str(each.absolute()) for each in settings.journal_directories)
        or (posixpath.join(data, "journal"),),
        tuple(str(each.absolute()) for each in settings.ledger_directories)
        or (posixpath.join(data, "ledgers"),),
    )


def lock_directories(disk: Disk, directories: BookieDirectories) -> ExitStack:
    """Make the directories that are not there, and lock them all; to close is to release.

    Raises:
        DirectoryLockedError: another process uses one of them. None stays locked.
        DirectoryUnusableError: one of them cannot be made or written.
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
    """Whether there is anything in a directory beside its lock and its cookie."""
    return any(name not in _NO_DATA for name in disk.list(directory))
