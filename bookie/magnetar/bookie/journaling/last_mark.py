"""The last mark on disk: up to where the journal is no longer needed.

Replaced as a whole, and never moved backwards (rules 3.4 and 3.5; defect B6: a slow checkpoint that
ends after a faster, later one must not bring back a mark whose journal file is gone).
Layout: docs/formats/journal.md. Calls block.
"""

import posixpath

from magnetar.bookie.errors import JournalCorruptError
from magnetar.bookie.journaling.journal_format import NO_MARK, LastMark, decode_mark, encode_mark
from magnetar.ledger.ports import Disk

_NAME = "last-mark"


class LastMarkFile:
    """Keeps the mark in a ledger directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = posixpath.join(directory, _NAME)
        self.mark = NO_MARK
        """As it is on disk."""

    def load(self) -> LastMark:
        """The mark on disk; `NO_MARK` if none was ever written.

        Raises:
            JournalCorruptError: the file is damaged. It is replaced as a whole, so no crash
                explains that.
        """
        try:
            data = self._disk.read_file(self._path)
        except FileNotFoundError:
            return self.mark
        mark = decode_mark(data)
        if mark is None:
            raise JournalCorruptError(
                f"{self._path} is damaged; remove it to replay every journal file there is"
            )
        self.mark = mark
        return mark

    def advance(self, mark: LastMark) -> bool:
        """Persist the mark if it is ahead of the one on disk; False if it is not."""
        if mark <= self.mark:
            return False
        self._disk.replace_file(self._path, encode_mark(mark))
        self.mark = mark
        return True
