"""Reading the journal at start: which records count, and whether the journal can be trusted.

docs/formats/journal.md has the rules, in the section "Reading". The reader yields records in the
order in which they were written, and knows afterwards where the journal ends. It changes nothing,
except that it removes a last file that was being created when the process died. Calls block.

No later file names the newest one; the record beside the files does (`NewestRecord`).

A synced record is never skipped in silence: it may have been acknowledged, and a bookie that has
lost it would deny an entry that it once confirmed (defects B20, D14).
"""

import posixpath
from collections.abc import Iterator

from magnetar.bookie.errors import (
    JournalCorruptError,
    JournalFailedError,
    JournalFileMissingError,
)
from magnetar.bookie.journaling.journal_files import NewestRecord
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NO_MARK,
    RECORD_HEAD_BYTES,
    FileHeader,
    LastMark,
    NewestFile,
    StoredRecord,
    decode_file_header,
    decode_record,
    file_ids,
    file_name,
    find_record_starts,
    is_head_valid,
    wanted_bytes,
)
from magnetar.ledger.ports import Disk, File

_WINDOW_BYTES = 4 << 20


class JournalReplay:
    """One pass over a journal. Iterate `records()` to the end, then read `end`."""

    def __init__(self, disk: Disk, directory: str, *, mark: LastMark, owner: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._mark = mark
        self._owner = owner
        self._record = NewestRecord(disk, directory)
        self._newest: NewestFile | None = None
        """The content of the newest-file record."""
        self.end = mark
        """The end of the last valid record; set when `records()` has ended."""

    def records(self) -> Iterator[StoredRecord]:
        """Yield every record from the mark on.

        Raises:
            JournalFileMissingError: a file that is needed is not there.
            JournalCorruptError: a record that had been synced is damaged, a file is shorter than
                it was, or the record of the newest file is damaged.
            JournalFailedError: a file could not be read.
        """
        try:
            yield from self._records()
        except OSError as error:
            raise JournalFailedError(
                f"journal in {self._directory} could not be read: {error}"
            ) from error

    def _records(self) -> Iterator[StoredRecord]:
        headers = self._headers()
        for index, header in enumerate(headers):
            start = FILE_HEADER_BYTES
            if header.file_id == self._mark.file_id:
                start = max(start, self._mark.offset)
            follower = headers[index + 1] if index + 1 < len(headers) else None
            file = self._disk.open(self._path(header.file_id))
            try:
                yield from self._file_records(file, header.file_id, start, follower)
            finally:
                file.close()

    def name_newest(self) -> None:
        """Update the newest-file record if it does not name the newest file. Call it after
        `records()`.

        A directory of an older release has no record, and a crash may come between a new file and
        its record. The named file is durable: `records()` has synced it up to the end.

        Raises:
            OSError: the record could not be written; it stays as it was.
        """
        file_id, length = self.end
        if file_id and (self._newest is None or self._newest.file_id < file_id):
            self._record.name(NewestFile(file_id, length))

    def _headers(self) -> list[FileHeader]:
        """Return the headers of the files to read, oldest first, after a check that none is
        missing."""
        ids = file_ids(self._disk.list(self._directory))
        if self._mark != NO_MARK:
            ids = [file_id for file_id in ids if file_id >= self._mark.file_id]
            if not ids or ids[0] != self._mark.file_id:
                raise JournalFileMissingError(
                    f"journal file {self._path(self._mark.file_id)} is missing; replay must begin "
                    f"in it, so acknowledged entries would be lost: put it back"
                )
        self._newest = self._record.check(self._mark)
        headers: list[FileHeader] = []
        for file_id in ids:
            header = self._header(file_id, is_last=file_id == ids[-1])
            if header is None:
                break
            if headers and header.previous_file_id != headers[-1].file_id:
                raise JournalFileMissingError(
                    f"journal file {self._path(header.previous_file_id)} is missing; "
                    f"{file_name(file_id)} continues it, and acknowledged entries would be lost: "
                    f"put it back"
                )
            headers.append(header)
        return headers

    def _header(self, file_id: int, *, is_last: bool) -> FileHeader | None:
        """Return the header of a file; None, and the file is removed, if its creation was
        unfinished."""
        path = self._path(file_id)
        file = self._disk.open(path)
        try:
            header = decode_file_header(file.pread(FILE_HEADER_BYTES, 0))
            named = self._newest.file_id if self._newest is not None else 0
            if header is None and is_last and file_id not in (self._mark.file_id, named):
                # The header is synced before the first record is written: without a header, no
                # record.
                is_empty = self._later_group(file, file_id, -1) is None
            else:
                is_empty = False
        finally:
            file.close()
        if is_empty:
            self._disk.remove(path)
            self._disk.sync_directory(self._directory)
            return None
        if header is None or header.file_id != file_id:
            raise JournalCorruptError(f"journal file {path}: the header is damaged")
        if header.owner != self._owner:
            raise JournalCorruptError(
                f"journal file {path} belongs to another cluster, bookie or journal directory: "
                f"put it back where it belongs"
            )
        return header

    def _file_records(
        self, file: File, file_id: int, start: int, follower: FileHeader | None
    ) -> Iterator[StoredRecord]:
        stop = file.size if follower is None else follower.previous_length
        if start > stop:
            raise JournalCorruptError(
                f"journal file {self._path(file_id)} ends at {stop}, before the mark at {start}"
            )
        at = start
        for record in self._valid_records(file, file_id, start, stop):
            at = record.end
            yield record
        self.end = LastMark(file_id, at)
        if follower is not None:
            if at != stop:
                raise JournalCorruptError(
                    f"journal file {self._path(file_id)}: the record at {at} is damaged; "
                    f"everything up to {stop} had been synced"
                )
            return
        later = self._later_group(file, file_id, at)
        if later is not None:
            raise JournalCorruptError(
                f"journal file {self._path(file_id)}: the record at {at} is damaged; it had been "
                f"synced, since the valid record at {later} was written after it"
            )
        if self.end > self._mark:
            # The tail, or the whole file and its name, may exist only in the page cache, where a
            # dead process left it. The mark moves there now: no power failure may take it back.
            file.datasync()
            self._disk.sync_directory(self._directory)

    @staticmethod
    def _valid_records(file: File, file_id: int, start: int, stop: int) -> Iterator[StoredRecord]:
        """Yield consecutive valid records that end at or before `stop`."""
        base, data, at = start, b"", 0
        while base + at < stop:
            wanted = wanted_bytes(data, at)
            if wanted > len(data) - at:
                base, at = base + at, 0
                data = file.pread(max(_WINDOW_BYTES, wanted), base)
                wanted = wanted_bytes(data, at)
                if wanted > _WINDOW_BYTES and len(data) < wanted:
                    data = file.pread(wanted, base)
            record = decode_record(data, at, file_id=file_id, offset=base + at)
            if record is None or record.end > stop:
                return
            at = record.end - base
            yield record

    @staticmethod
    def _later_group(file: File, file_id: int, end: int) -> int | None:
        """Return the offset of a valid record after `end` whose group also began after `end`."""
        base = end + 1
        while data := file.pread(_WINDOW_BYTES, base):
            # A magic that straddles two windows is complete in the next one: they overlap by 3
            # bytes.
            step = len(data) - 3 if len(data) == _WINDOW_BYTES else len(data)
            for index in find_record_starts(data, 0, step):
                offset = base + index
                head = data[index : index + RECORD_HEAD_BYTES]
                if len(head) < RECORD_HEAD_BYTES:
                    head = file.pread(RECORD_HEAD_BYTES, offset)
                if not is_head_valid(head, 0, file_id=file_id, offset=offset):
                    continue
                candidate = file.pread(wanted_bytes(head, 0), offset)
                record = decode_record(candidate, 0, file_id=file_id, offset=offset)
                if record is not None and record.group_start > end:
                    return offset
            base += step
        return None

    def _path(self, file_id: int) -> str:
        return posixpath.join(self._directory, file_name(file_id))
