"""Writing journal files: one group at a time, appended and synced before the next.

All calls block and belong to the journal thread. Layout, and why: docs/formats/journal.md.

Failures, by rule 3.6 of the storage sheet and its exception for a full disk:

- No space while a group is appended: nothing of the group was synced, so nothing of it counts. The
  file is given up at its last synced length, which the next file's header records; the next group
  begins a new file, once there is room.
- Any other error of a write, and every error of a sync, is final. A sync is never retried: the
  kernel may have dropped the pages.

A new file is begun in this order: header and blocks, sync, name in the directory, sync of the
directory, then the record that names it as the newest (`NewestRecord`), and only then the first
group. So the record never names a file that a power failure may take back, and no file holds an
acknowledged entry before it is named.
"""

import errno
import posixpath
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import (
    JournalCorruptError,
    JournalFailedError,
    JournalFileMissingError,
    JournalFullError,
)
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NEWEST_NAME,
    NEWEST_SLOT_BYTES,
    FileHeader,
    LastMark,
    NewestFile,
    NewRecord,
    decode_newest,
    encode_file_header,
    encode_group,
    encode_newest,
    file_name,
    newest_slot,
    records_bytes,
    spare_names,
)
from magnetar.ledger.ports import Buffer, Disk, File

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

# Joining small buffers and writing one is faster than gathering them; for large ones it is the
# other way round (measured: docs of the platform; the break-even lies between 0.5 and 4 KB).
_JOIN_BELOW_BYTES = 1024

# After the disk was full, this many bytes beside the group itself must be free before a new file is
# tried. Otherwise a nearly full disk would create and remove a file per group.
_ROOM_BYTES_MIN = 1 << 20


class JournalFiles:
    """The files of one journal, for its writer. The first file is created when it is needed."""

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
        """`last_mark` is the end that replay found; `first_file_id` is used for an empty
        journal."""
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._file: File | None = None
        self._file_id = last_mark.file_id
        self._length = last_mark.offset
        self._first_file_id = first_file_id
        self._newest = NewestRecord(disk, directory)
        self._is_named = False
        """Whether the newest-file record names the open file."""
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._allocated = 0
        self._appended = 0
        """Bytes of the group that is not synced yet."""
        self._was_full = False
        self.after_append: Callable[[], None] = _nothing
        """Called between append and sync; a seam for tests of crashes."""

    def commit(self, records: Sequence[NewRecord]) -> LastMark:
        """Append the records as one group and sync; return the mark at their end.

        Does the work of `make_room`, `append` and `sync`, one after the other.

        Raises:
            JournalFullError: no room; nothing of the group counts, a later call may succeed.
            JournalFailedError: final.
        """
        self.make_room(records_bytes(records))
        self.append(records)
        return self.sync()

    def make_room(self, size: int) -> bool:
        """Have a file open for a group of `size` bytes; return whether one was begun for it.

        A file that could not be named because the disk is full stays open, and is named the next
        time.

        Raises:
            JournalFullError: no room; a later call may succeed.
            JournalFailedError: final.
        """
        try:
            return self._have_file(size)
        except OSError as error:
            raise self._refusal(error) from error

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append the records as one group; `make_room` was called for it.

        Raises:
            JournalFullError: no room; nothing of the group counts, a later call may succeed.
            JournalFailedError: final.
        """
        assert self._file is not None, "make_room() comes first"
        buffers: list[bytes] = encode_group(records, file_id=self._file_id, start=self._length)
        self._appended = size = records_bytes(records)
        try:
            self._append(self._file, buffers, size)
        except OSError as error:
            self._give_up_file()
            raise self._refusal(error) from error
        self.after_append()

    def sync(self) -> LastMark:
        """Sync the appended group; return the mark at its end.

        Raises:
            JournalFailedError: final, whatever the reason: the kernel may have dropped the pages.
        """
        assert self._file is not None
        try:
            self._file.datasync()
        except OSError as error:
            raise JournalFailedError(
                f"sync of journal file {file_name(self._file_id)} in {self._directory} failed: "
                f"{error}; its content is unknown, so the bookie stops and replays it at the next "
                "start"
            ) from error
        self._length += self._appended
        return LastMark(self._file_id, self._length)

    def close(self) -> None:
        """Close the file. All committed groups are synced already."""
        self._give_up_file()

    def _refusal(self, error: OSError) -> JournalFullError | JournalFailedError:
        """Return the error to raise for an OSError before the sync."""
        if error.errno not in _FULL:
            return JournalFailedError(
                f"journal file {file_name(self._file_id)} in {self._directory} could not be "
                f"written: {error}"
            )
        self._was_full = True
        return JournalFullError(
            f"no space left on the journal disk ({self._directory}): the add was not stored; adds "
            "resume when there is free space"
        )

    def _have_file(self, size: int) -> bool:
        if (
            self._file is not None
            and self._length + size > self._file_bytes_max
            and self._length > FILE_HEADER_BYTES
        ):
            self._give_up_file()
        if self._file is not None and self._is_named:
            self._preallocate(self._file, self._length + size)
            return False
        self._check_room(size)
        if self._file is None:
            self._file = self._create_next(size)
        self._newest.name(NewestFile(self._file_id, self._allocated))
        self._is_named = True
        return True

    def _check_room(self, size: int) -> None:
        if not self._was_full:
            return
        if not spare_names(self._disk.list(self._directory)):  # a spare has its blocks already
            wanted = size + _ROOM_BYTES_MIN
            free = self._disk.free_bytes(self._directory)
            if free < wanted:
                raise OSError(errno.ENOSPC, f"{free} bytes free, {wanted} wanted")
        self._was_full = False

    def _create_next(self, size: int) -> File:
        file_id = self._file_id + 1 if self._file_id else self._first_file_id
        path = posixpath.join(self._directory, file_name(file_id))
        header = FileHeader(file_id, self._file_id, self._length, self._owner)
        spares = spare_names(self._disk.list(self._directory))
        if spares:
            file = self._reuse(posixpath.join(self._directory, spares[0]), path, header, size)
        else:
            file = self._create(path, header, size)
        self._file_id = file_id
        self._length = FILE_HEADER_BYTES
        self._is_named = False
        return file

    def _reuse(self, spare: str, path: str, header: FileHeader, size: int) -> File:
        """Write a spare file anew. Under its new name it has a valid header from the start.

        Its old records are invalid under the new id, which their CRCs are bound to.
        """
        file = self._disk.reuse(spare)
        try:
            self._write_header(file, header, size)
            self._disk.rename(spare, path)
        except OSError:
            file.close()
            raise
        self._sync_new_name(file, path)
        return file

    def _create(self, path: str, header: FileHeader, size: int) -> File:
        file = self._disk.create(path)
        try:
            self._write_header(file, header, size)
        except OSError:
            self._drop(file, path)
            raise
        self._sync_new_name(file, path)
        return file

    def _write_header(self, file: File, header: FileHeader, size: int) -> None:
        """Write the header, with blocks for a group of `size` bytes; durable on return."""
        file.append([encode_file_header(header)])
        self._allocated = FILE_HEADER_BYTES
        self._preallocate(file, FILE_HEADER_BYTES + size)
        file.datasync()

    def _sync_new_name(self, file: File, path: str) -> None:
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._drop(file, path)
            raise

    def _drop(self, file: File, path: str) -> None:
        """Remove a file that could not be begun: the next attempt needs its name.

        If that fails, too, its error is raised instead, and it is final.
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
            pass  # only a hint: the append finds out if there is no room

    @staticmethod
    def _append(file: File, buffers: Sequence[Buffer], size: int) -> None:
        if size < _JOIN_BELOW_BYTES * len(buffers):
            buffers = [b"".join(buffers)]
        file.append(buffers)

    def _give_up_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class NewestRecord:
    """The file that names a journal's newest file, so that a start notices if that is missing.

    Until the next checkpoint, nothing else on disk names the newest file. The record has two slots,
    which are written in turn and in place. So a torn write leaves the previous name, and on a full
    disk with a spare journal file the record needs no room.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.path = posixpath.join(directory, NEWEST_NAME)

    def read(self) -> NewestFile | None:
        """Return the recorded newest file; None without a record, as in an older release's
        directory.

        Raises:
            JournalCorruptError: neither slot is valid, which no crash explains.
            OSError: it cannot be read.
        """
        data = self._content()
        if data is None:
            return None
        newest = decode_newest(data)
        if newest is None:
            raise JournalCorruptError(
                f"{self.path} is damaged: it names the newest journal file, so nobody knows "
                f"whether that is missing. Bring it back from a copy; or, if 'magnetar bookie-tool "
                f"journals' shows every file that was there, remove {self.path} and start again"
            )
        return newest

    def check(self, mark: LastMark) -> NewestFile | None:
        """Check that the newest file is there, with the size it had when it was named; return the
        record.

        Files before the last mark are not needed: a release that keeps no record may have deleted
        the recorded file.

        Raises:
            JournalFileMissingError: the file is not there.
            JournalCorruptError: the file is shorter than it was, or the record is damaged.
            OSError: the record or the file cannot be read.
        """
        newest = self.read()
        if newest is None or newest.file_id < mark.file_id:
            return newest
        path = posixpath.join(self._directory, file_name(newest.file_id))
        lost = "entries acknowledged since the last checkpoint may be lost: put it back"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            raise JournalFileMissingError(
                f"journal file {path} is missing; {self.path} names it as the newest, so {lost}. "
                f"To start without them, where no other bookie has copies, remove {self.path}"
            ) from None
        try:
            size = file.size
        finally:
            file.close()
        if size < newest.length:
            raise JournalCorruptError(
                f"journal file {path} ends at {size}, and had at least {newest.length} bytes when "
                f"{self.path} named it, so {lost}. To start with what is left of it, where no "
                f"other bookie has copies, remove {self.path}"
            )
        return newest

    def name(self, newest: NewestFile) -> None:
        """Record this file as the newest, durably. The file and its name must be durable already.

        Raises:
            OSError: the record names this file or the previous one; a later call may succeed.
        """
        data = self._content()
        slot = None if data is None else newest_slot(data)
        if slot is None:
            self._disk.replace_file(self.path, encode_newest(newest) * 2)
            return
        file = self._disk.update(self.path)
        try:
            file.write_at(encode_newest(newest), NEWEST_SLOT_BYTES * (1 - slot))
            file.datasync()
        finally:
            file.close()

    def _content(self) -> bytes | None:
        try:
            return self._disk.read_file(self.path)
        except FileNotFoundError:
            return None


def _nothing() -> None:
    return None
