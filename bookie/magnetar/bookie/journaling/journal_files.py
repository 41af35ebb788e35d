"""Writing journal files: one group at a time, appended and synced before the next.

All calls block and belong to the journal thread. Layout, and why: docs/formats/journal.md.

Failures, by rule 3.6 of the storage sheet and its exception for a full disk:

- No space while a group is appended: nothing of the group was synced, so nothing of it counts. The
  file is given up at its last synced length, which the next file's header records; the next group
  begins a new file, once there is room.
- Any other error of a write, and every error of a sync, is final. A sync is never tried again: the
  kernel may have dropped the pages.
"""

import errno
import posixpath
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import JournalFailedError, JournalFullError
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    LastMark,
    NewRecord,
    encode_file_header,
    encode_group,
    file_name,
    records_bytes,
    spare_names,
)
from magnetar.ledger.ports import Buffer, Disk, File

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

# Joining small buffers and writing one is faster than gathering them; for large ones it is the
# other way round (measured: docs of the platform; the break-even lies between 0.5 and 4 KB).
_JOIN_BELOW_BYTES = 1024

# After the disk was full, room for this much beside the group itself must be free again before a
# new file is tried, so that a nearly full disk does not see a file made and removed per group.
_ROOM_BYTES_MIN = 1 << 20


class JournalFiles:
    """The files of one journal, as their writer sees them. The first is made when it is needed."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        owner: bytes,
        last_mark: LastMark,
        first_file_id: int,
        file_bytes_max: int,
        preallocate_bytes: int,
    ) -> None:
        """`last_mark` is the end of what replay found; `first_file_id` is for an empty journal."""
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._file: File | None = None
        self._file_id = last_mark.file_id
        self._length = last_mark.offset
        self._first_file_id = first_file_id
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._allocated = 0
        self._appended = 0
        """Bytes of the group that is not synced yet."""
        self._was_full = False
        self.after_append: Callable[[], None] = _nothing
        """Called between append and sync; a seam for tests of crashes."""

    def commit(self, records: Sequence[NewRecord]) -> LastMark:
        """Append the records as one group and sync; returns the mark behind them.

        The same as `make_room`, `append` and `sync`, one after the other.

        Raises:
            JournalFullError: no room; nothing of the group counts, a later call may succeed.
            JournalFailedError: final.
        """
        self.make_room(records_bytes(records))
        self.append(records)
        return self.sync()

    def make_room(self, size: int) -> bool:
        """Have a file open for a group of that size; whether one was begun for it.

        Raises: as `commit`.
        """
        try:
            return self._have_file(size)
        except OSError as error:
            raise self._refusal(error) from error

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append the records as one group, for which there is room.

        Raises: as `commit`.
        """
        assert self._file is not None, "make_room() comes first"
        buffers: list[bytes] = encode_group(records, file_id=self._file_id, start=self._length)
        self._appended = size = records_bytes(records)
        try:
            self._append(self._file, buffers, size)
        except OSError as error:
            raise self._refusal(error) from error
        self.after_append()

    def sync(self) -> LastMark:
        """Sync the group that was appended; returns the mark behind it.

        Raises:
            JournalFailedError: final, whatever the reason: the kernel may have dropped the pages.
        """
        assert self._file is not None
        try:
            self._file.datasync()
        except OSError as error:
            raise JournalFailedError(
                f"sync of journal file {file_name(self._file_id)} in {self._directory} failed: "
                f"{error}; what it holds is not known, so the bookie must end and replay it"
            ) from error
        self._length += self._appended
        return LastMark(self._file_id, self._length)

    def close(self) -> None:
        """Close the file. Everything that was committed is synced already."""
        self._give_up_file()

    def _refusal(self, error: OSError) -> JournalFullError | JournalFailedError:
        """What an error before the sync means. The file takes no more groups."""
        self._give_up_file()
        if error.errno not in _FULL:
            return JournalFailedError(
                f"journal file {file_name(self._file_id)} in {self._directory} could not be "
                f"written: {error}"
            )
        self._was_full = True
        return JournalFullError(
            f"no space left on the journal disk ({self._directory}): the add was not stored; "
            f"free some space, and adds go on"
        )

    def _have_file(self, size: int) -> bool:
        if (
            self._file is not None
            and self._length + size > self._file_bytes_max
            and self._length > FILE_HEADER_BYTES
        ):
            self._give_up_file()
        is_new = self._file is None
        if self._file is None:
            self._check_room(size)
            self._file = self._create_next()
        self._preallocate(self._file, self._length + size)
        return is_new

    def _check_room(self, size: int) -> None:
        if not self._was_full:
            return
        if not spare_names(self._disk.list(self._directory)):  # a spare has its blocks already
            wanted = size + _ROOM_BYTES_MIN
            free = self._disk.free_bytes(self._directory)
            if free < wanted:
                raise OSError(errno.ENOSPC, f"{free} bytes free, {wanted} wanted")
        self._was_full = False

    def _create_next(self) -> File:
        file_id = self._file_id + 1 if self._file_id else self._first_file_id
        path = posixpath.join(self._directory, file_name(file_id))
        header = FileHeader(file_id, self._file_id, self._length, self._owner)
        spares = spare_names(self._disk.list(self._directory))
        if spares:
            file = self._reuse(posixpath.join(self._directory, spares[0]), path, header)
        else:
            file = self._create(path, header)
        self._file_id = file_id
        self._length = FILE_HEADER_BYTES
        self._allocated = FILE_HEADER_BYTES
        return file

    def _reuse(self, spare: str, path: str, header: FileHeader) -> File:
        """Write a spare file anew. Under its new name it has a valid header from the start.

        Its old records are invalid under the new id, which their CRCs are bound to.
        """
        file = self._disk.reuse(spare)
        try:
            file.append([encode_file_header(header)])
            file.datasync()
            self._disk.rename(spare, path)
        except OSError:
            file.close()
            raise
        self._sync_new_name(file, path)
        return file

    def _create(self, path: str, header: FileHeader) -> File:
        file = self._disk.create(path)
        try:
            file.append([encode_file_header(header)])
            file.datasync()
        except OSError:
            self._drop(file, path)
            raise
        self._sync_new_name(file, path)
        return file

    def _sync_new_name(self, file: File, path: str) -> None:
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._drop(file, path)
            raise

    def _drop(self, file: File, path: str) -> None:
        """Take back a file that could not be begun: the next attempt would find the name taken.

        If that fails too, its error is the one to report, and it is final.
        """
        file.close()
        self._disk.remove(path)

    def _preallocate(self, file: File, end: int) -> None:
        if end <= self._allocated or not self._preallocate_bytes:
            return
        step = self._preallocate_bytes
        target = max(end, min(-(-end // step) * step, self._file_bytes_max))
        try:
            file.preallocate(target)
            self._allocated = target
        except OSError:
            pass  # a hint only: whether there is room is for the append to find out

    @staticmethod
    def _append(file: File, buffers: Sequence[Buffer], size: int) -> None:
        if size < _JOIN_BELOW_BYTES * len(buffers):
            buffers = [b"".join(buffers)]
        file.append(buffers)

    def _give_up_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _nothing() -> None:
    return None
