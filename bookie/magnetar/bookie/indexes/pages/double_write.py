"""Writes in place without torn pages: everything is first written, and synced, to another file.

A round has three steps, and is safe against a crash between any two:

1. The round (pages, headers, removals, the next index mark) is written to the double-write file,
   and synced. A crash before: the file has no whole round, the page files are untouched.
2. It is carried out: files removed, pages written in place, every file and directory synced. A
   crash meanwhile: the start finds a whole round that is one ahead of the mark, and carries it out
   again. Doing that twice, or to a half-done one, ends in the same bytes.
3. The mark is replaced: the round is done. A crash after: the round is not ahead of the mark, and
   no longer counts. The next one overwrites it.

So a page with a wrong checksum is always damage, and never the torn write of a crash. The file is
not overwritten before the mark is replaced: after an error, the next commit has to finish the old
round first.

Runs on the thread that commits.
"""

from itertools import groupby

from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.bookie.indexes.index_mark import IndexMark, Promise
from magnetar.bookie.indexes.pages.page_files import directory_of, file_name
from magnetar.bookie.indexes.pages.round_format import (
    ROUND_HEAD_BYTES,
    Round,
    Write,
    body_bytes_of,
    decode_round,
    encode_round,
)
from magnetar.ledger.ports import Disk

FIRST_SEQUENCE = 1
"""Sequence of the mark of a new index, which had no round yet."""

_WRITE_BYTES = 1 << 20
"""The round is written in pieces of about this many bytes."""


class DoubleWrite:
    """Carries out rounds of writes to the page files of a directory."""

    def __init__(self, directory: str, mark: IndexMark, disk: Disk) -> None:
        self._directory = directory
        self._path = f"{directory}/double-write"
        self._mark = mark
        self._disk = disk
        self.promise = Promise("interleaved", 0)
        """The mark that was written last."""
        self._unfinished: Round | None = None
        self._is_repeated = False
        """Whether an earlier attempt may have made files of the round without syncing them."""
        self._is_beside = True
        """Whether the unfinished round is known to be durable in the double-write file.

        A round that a dead process left is not: the system may count as clean what it could not
        sync.
        """
        self._is_named = False
        """Whether the name of the double-write file is known to be durable."""

    def pending(self, promise: Promise) -> Round | None:
        """Return the round that a crash left; it must be carried out before anything is read.

        The file also shows how current the page files are: its round is the last one, or the next
        one. Files restored from an older copy come with an older round.

        Raises:
            StorageCorruptError: mark and page files do not belong to the same time.
            StorageIOError: it could not be read.
        """
        try:
            found = self._read()
        except FileNotFoundError:
            if promise.sequence > FIRST_SEQUENCE:
                raise StorageCorruptError(f"{self._path} is lost, and page files with it") from None
            return None
        except StorageCorruptError:
            return None  # not whole: no page was written in place yet
        except OSError as exc:
            raise StorageIOError(f"{self._path}: cannot be read: {exc}") from exc
        if found.promise.sequence not in (promise.sequence, promise.sequence + 1):
            raise StorageCorruptError(
                f"index {self._directory} has lost records: it ends at {found.promise.sequence} of "
                f"{promise.sequence}"
                if found.promise.sequence < promise.sequence
                else f"{self._path} is at {found.promise.sequence}, but the index mark, which is "
                f"older, at {promise.sequence}"
            )
        if found.promise.sequence == promise.sequence:
            return None
        return found

    def write(self, todo: Round) -> None:
        """Carry out a round; durable on return.

        Raises:
            StorageIOError: it may be partly carried out. `finish` does the rest.
        """
        assert self._unfinished is None
        try:
            self._write_beside(todo)
        except OSError as exc:
            raise StorageIOError(f"{self._path}: cannot be written: {exc}") from exc
        self._unfinished, self._is_repeated = todo, False
        self.finish()

    def finish(self) -> None:
        """Carry out the rest of a round after an error or a crash.

        Raises:
            StorageIOError: it is still not done.
        """
        if self._unfinished is None:
            return
        is_repeated, self._is_repeated = self._is_repeated, True
        try:
            if not self._is_beside:
                # Another sync alone would promise nothing.
                self._write_beside(self._unfinished)
                self._is_beside = True
            self._carry_out(self._unfinished, is_repeated=is_repeated)
            self._mark.write(self._unfinished.promise)
        except OSError as exc:
            raise StorageIOError(f"{self._directory}: pages cannot be written: {exc}") from exc
        self.promise, self._unfinished = self._unfinished.promise, None

    def resume(self, pending: Round) -> None:
        """Carry out the round that a crash left.

        Raises:
            StorageIOError: it is not done. `finish` does the rest.
        """
        # A dead process may have written it without a sync, or with one that failed: it is written
        # once more. It must not be lost once pages are written in place.
        self._unfinished, self._is_repeated, self._is_beside = pending, True, False
        self.finish()

    def _read(self) -> Round:
        file = self._disk.open(self._path)
        try:
            head = file.pread(ROUND_HEAD_BYTES, 0)
            return decode_round(head + file.pread(body_bytes_of(head), ROUND_HEAD_BYTES))
        finally:
            file.close()

    def _write_beside(self, todo: Round) -> None:
        file = self._disk.update(self._path)
        try:
            at = size = 0
            buffers: list[bytes] = []
            for buffer in encode_round(todo):
                buffers.append(buffer)
                size += len(buffer)
                if size >= _WRITE_BYTES:
                    file.write_at(b"".join(buffers), at)
                    at, size, buffers = at + size, 0, []
            file.write_at(b"".join(buffers), at)
            file.datasync()
        finally:
            file.close()
        self._make_name_durable()

    def _make_name_durable(self) -> None:
        if not self._is_named:
            self._disk.sync_directory(self._directory)
            self._is_named = True

    def _carry_out(self, todo: Round, *, is_repeated: bool) -> None:
        changed: set[str] = set()
        for ledger_id in todo.removed:
            directory = f"{self._directory}/{directory_of(ledger_id)}"
            path = f"{directory}/{file_name(ledger_id)}"
            if self._disk.exists(path):
                self._disk.remove(path)
            if self._disk.exists(directory):
                changed.add(directory)
        for ledger_id, writes in groupby(todo.writes, key=lambda write: write.ledger_id):
            directory = f"{self._directory}/{directory_of(ledger_id)}"
            path = f"{directory}/{file_name(ledger_id)}"
            if is_repeated or not self._disk.exists(path):
                # Durable by itself; the file in it is not, before the sync below.
                self._disk.make_directory(directory)
                changed.add(directory)
            self._write_file(path, list(writes))
        if is_repeated:
            changed |= {directory.rpartition("/")[0] for directory in changed}
            changed.add(self._directory)
        for directory in sorted(changed):
            self._disk.sync_directory(directory)

    def _write_file(self, path: str, writes: list[Write]) -> None:
        file = self._disk.update(path)
        try:
            for write in writes:
                file.write_at(write.data, write.offset)
            file.datasync()
        finally:
            file.close()
