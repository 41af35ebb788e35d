"""The last marks on disk: the points before which the journals are no longer needed.

There is one mark per journal, and a copy of each in every ledger directory, so that the loss of one
disk does not lose them. Copies are replaced as a whole, and never moved backwards (rules 3.4 and
3.5; defect B6: a slow checkpoint that ends after a faster, later one must not bring back a mark
whose journal file is gone). At the start, the largest readable copy of each mark wins; a damaged
copy is ignored if another one exists. Layout: docs/formats/journal.md. Calls block.
"""

import errno
import posixpath
from collections.abc import Sequence

import structlog

from magnetar.bookie.errors import JournalCorruptError
from magnetar.bookie.journaling.journal_format import (
    NO_MARK,
    LastMark,
    Marks,
    decode_mark,
    encode_mark,
    mark_name,
)
from magnetar.ledger.ports import Disk

_log = structlog.get_logger(__name__)

_NOT_WRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class LastMarks:
    """Keeps the marks of all journals in all ledger directories."""

    def __init__(self, disk: Disk, directories: Sequence[str], *, journals: int = 1) -> None:
        self._disk = disk
        self._paths = [
            [posixpath.join(directory, mark_name(number)) for directory in directories]
            for number in range(journals)
        ]
        self._copies = [[NO_MARK] * len(directories) for _ in range(journals)]
        """The copies on disk, by journal and ledger directory; `NO_MARK` if missing or damaged."""

    @property
    def marks(self) -> Marks:
        """The marks that a start would find: the largest copy of each journal's mark."""
        return tuple(max(copies) for copies in self._copies)

    @property
    def safe_marks(self) -> Marks:
        """The smallest copy of each mark: whichever ledger directory is lost, no start needs
        earlier records."""
        return tuple(min(copies) for copies in self._copies)

    def load(self) -> Marks:
        """Read the marks from disk; `NO_MARK` for a journal without one.

        Raises:
            JournalCorruptError: all copies of a mark are damaged. They are replaced as a whole, so
                no crash explains that.
        """
        for number, paths in enumerate(self._paths):
            damaged: list[str] = []
            for at, path in enumerate(paths):
                try:
                    mark = decode_mark(self._disk.read_file(path))
                except FileNotFoundError:
                    continue
                if mark is None:
                    damaged.append(path)
                else:
                    self._copies[number][at] = mark
            if not damaged:
                continue
            if max(self._copies[number]) == NO_MARK:
                raise JournalCorruptError(
                    f"last mark damaged, and there is no other copy: {', '.join(damaged)}; "
                    f"remove the file to replay every journal file there is"
                )
            for path in damaged:
                _log.warning("last_mark_damaged", path=path, journal=number)
        return self.marks

    def advance(self, marks: Marks) -> bool:
        """Persist each mark that is ahead of a copy on disk; return whether any was written.

        Marks are compared journal by journal, never as a whole: of two checkpoints, each may be
        ahead in another journal (defect B7). A copy that is behind is brought up to the others. A
        copy that cannot be written because its disk is full stays behind, as long as another one
        can be written.

        Raises:
            OSError: a mark could not be written.
        """
        is_any_written = False
        for number, mark in enumerate(marks):
            is_any_written |= self._advance_one(number, max(mark, *self._copies[number]))
        return is_any_written

    def _advance_one(self, number: int, mark: LastMark) -> bool:
        copies = self._copies[number]
        data = encode_mark(mark)
        refusal: OSError | None = None
        is_any_written = False
        for at, path in enumerate(self._paths[number]):
            if copies[at] == mark:
                continue
            try:
                self._disk.replace_file(path, data)
            except OSError as error:
                if error.errno not in _NOT_WRITABLE:
                    raise
                refusal = error
                _log.warning("last_mark_not_written", path=path, error=str(error))
            else:
                copies[at] = mark
                is_any_written = True
        if refusal is not None and max(copies) != mark:
            raise refusal
        return is_any_written
