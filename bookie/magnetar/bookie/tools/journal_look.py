"""Inspection of journal files: for people, and for a check without a start.

Nothing is changed, and the last mark decides nothing here: every file is read from its header to
its end, and all bytes that are no valid record are reported. They count as damage or as the torn
tail of a crash by the rule of a start: they are damage if a record that was written later is valid
(`journal_replay.py`).
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.bookie.entry_logs.packet_run import check_add
from magnetar.bookie.errors import BadAddError
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    RecordType,
    StoredRecord,
    decode_file_header,
    decode_record,
    file_ids,
    file_name,
    find_record_starts,
    is_head_valid,
    wanted_bytes,
)
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.ports import Disk, File
from magnetar.ledger.wire import PACKET_HEADER, decode_block

_WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JournalFileSummary:
    """One journal file, without its records."""

    path: str
    file_id: int
    size_bytes: int
    """Size in the file system, preallocated space included."""
    header: FileHeader | None
    """None if it is torn or damaged."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One valid record."""

    offset: int
    end: int
    group_start: int
    type: str
    ledger_id: int
    body_bytes: int
    first: int | None = None
    """The first entry of an entry block."""
    last: int | None = None
    entries: int = 0
    problem: str | None = None
    """Error in the content of a valid record, which its writer made."""


@dataclass(frozen=True, slots=True)
class JournalGap:
    """Bytes that are no valid record, up to the next record or the end."""

    offset: int
    end: int
    is_damage: bool
    """Whether a record that was written later is valid, so that these bytes had been synced."""


def journal_files(disk: Disk, directory: str) -> list[JournalFileSummary]:
    """Return the files of a journal directory, oldest first.

    Raises:
        OSError: the directory or a file cannot be read.
    """
    found: list[JournalFileSummary] = []
    for file_id in file_ids(disk.list(directory)):
        path = posixpath.join(directory, file_name(file_id))
        file = disk.open(path)
        try:
            header = decode_file_header(file.pread(FILE_HEADER_BYTES, 0))
            found.append(JournalFileSummary(path, file_id, file.size, header))
        finally:
            file.close()
    return found


def journal_records(
    disk: Disk, path: str, file_id: int, *, stop: int | None = None, synced: int = 0
) -> Iterator[JournalRecord | JournalGap]:
    """Yield everything up to `stop` (default: the end of the file), in order.

    `stop` is the length that the next file's header names: bytes after it never counted. Bytes
    before `synced`, the last mark, are known to have been synced, too. Zeros up to the end are
    preallocated space, and are not reported.

    Raises:
        OSError: the file cannot be read.
    """
    file = disk.open(path)
    try:
        end = file.size if stop is None else min(stop, file.size)
        at = FILE_HEADER_BYTES
        while at < end:
            record = _record_at(file, file_id, at)
            if record is not None and record.end <= end:
                yield _described(record, at)
                at = record.end
                continue
            following = _next_record(file, file_id, at + 1, end)
            if following is None:
                if at < synced or not _is_zero(file, at, end):
                    yield JournalGap(at, end, is_damage=stop is not None or at < synced)
                return
            later_at, later = following
            is_damage = stop is not None or at < synced or later.group_start > at
            yield JournalGap(at, later_at, is_damage)
            at = later_at
    finally:
        file.close()


def _record_at(file: File, file_id: int, offset: int) -> StoredRecord | None:
    head = file.pread(64, offset)
    wanted = wanted_bytes(head, 0)
    if not wanted or not is_head_valid(head, 0, file_id=file_id, offset=offset):
        return None
    data = head if wanted <= len(head) else file.pread(wanted, offset)
    return decode_record(data, 0, file_id=file_id, offset=offset)


def _next_record(file: File, file_id: int, start: int, end: int) -> tuple[int, StoredRecord] | None:
    """Return the first valid record at or after `start`, with its offset; None if there is none."""
    base = start
    while base < end and (data := file.pread(_WINDOW_BYTES, base)):
        # A magic that straddles two windows is complete in the next one: they overlap by 3 bytes.
        step = len(data) - 3 if len(data) == _WINDOW_BYTES else len(data)
        for index in find_record_starts(data, 0, step):
            record = _record_at(file, file_id, base + index)
            if record is not None and record.end <= end:
                return base + index, record
        base += step
    return None


def _is_zero(file: File, start: int, end: int) -> bool:
    while start < end:
        data = file.pread(min(_WINDOW_BYTES, end - start), start)
        if data.strip(b"\0"):
            return False
        if not data:
            return True
        start += len(data)
    return True


def _described(record: StoredRecord, offset: int) -> JournalRecord:
    try:
        kind = RecordType(record.type).name.lower()
    except ValueError:
        kind = f"unknown {record.type}"
    first = last = None
    entries = 0
    problem = None
    if record.type == RecordType.ENTRY_BLOCK:
        try:
            block = decode_block(record.body)
            first = PACKET_HEADER.unpack_from(block.data, block.packets_offset)[1]
            ids, _ = check_add(record.ledger_id, first, block)
            last, entries = ids[-1], len(ids)
        except (BookieProtocolError, BadAddError) as error:
            problem = str(error)
    return JournalRecord(
        offset,
        record.end,
        record.group_start,
        kind,
        record.ledger_id,
        len(record.body),
        first,
        last,
        entries,
        problem,
    )
