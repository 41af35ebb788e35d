"""The last marks on disk: up to where the journals are no longer needed.

There is one mark per journal, and a copy of each in every ledger directory, so that no single disk
takes them along. Copies are replaced as a whole, and never moved backwards (rules 3.4 and 3.5;
defect B6: a slow checkpoint that ends after a faster, later one must not bring back a mark whose
journal file is gone). At the start the largest readable copy of each mark wins; a damaged copy is
no copy, as long as there is another one. Layout: docs/formats/journal.md. Calls block.
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
        """As they are on disk; `NO_MARK` for one that is missing or damaged."""

    @property
    def marks(self) -> Marks:
        """What a start would find: of each journal the largest copy."""
        return tuple(max(copies) for copies in self._copies)

    @property
    def safe_marks(self) -> Marks:
        """What a start would find if it found the smallest copy of each: nothing before these marks
        is needed, whichever ledger directory is lost."""
        return tuple(min(copies) for copies in self._copies)

    def load(self) -> Marks:
        """The marks on disk; `NO_MARK` for a journal of which none was ever written.

        Raises:
            JournalCorruptError: there are copies of a mark, and all are damaged. They are replaced
                as a whole, so no crash explains that.
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
        """Persist each mark that is ahead of a copy on disk; False if there was none to write.

        Marks are compared journal by journal, never as a whole: of two checkpoints each may be
        ahead in another journal (defect B7). A copy that is behind is brought up to the others. One
        that cannot be written for want of room stays behind, as long as another one can.

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
