"""Content of a whole entry log: its runs by a scan, its ledgers by its footer.

After a kill, a log has no footer, and may end in a torn flush that nothing points to. The scan ends
there (rule 4.1): no size or ledger id is used before the checksum that covers it was compared, so
garbage never becomes a ledger (defect B15).
"""

import errno
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    RUN_HEADER_BYTES,
    RUN_MAGIC,
    TRAILER_BYTES,
    FooterTables,
    LogHeader,
    StoredRun,
    decode_footer,
    decode_log_header,
    decode_run_head,
    decode_trailer,
    run_tables_bytes,
)
from magnetar.bookie.errors import StorageCorruptError
from magnetar.ledger.ports import File

_SEARCH_BYTES = 1 << 20
"""Bytes read at once in the search for the next run after a damaged place."""


class ScannedFile(Protocol):
    """The part of a `File` that a scan needs."""

    def pread(self, size: int, offset: int) -> bytes: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LogScan:
    """Result of a scan of a log."""

    header: LogHeader
    runs: list[StoredRun]
    end: int
    """The end of the last whole run: a footer or a torn run follows."""
    skipped: list[tuple[int, int]]
    """Start and end of the places that were skipped because no run could be read there."""

    def ledger_bytes(self) -> dict[int, int]:
        """Sum up the bytes per ledger, as the footer has them."""
        total: dict[int, int] = {}
        for run in self.runs:
            total[run.ledger_id] = total.get(run.ledger_id, 0) + run.location.size_bytes
        return total


def read_log_header(file: ScannedFile, log_id: int) -> LogHeader:
    """Read the file header of the log.

    Raises:
        StorageCorruptError: it is damaged, or that of another log.
        OSError: a read failed.
    """
    header = decode_log_header(file.pread(LOG_HEADER_BYTES, 0))
    if header.log_id != log_id:
        raise StorageCorruptError(f"entry log {log_id}: its header says {header.log_id}")
    return header


def scan_log(file: ScannedFile, log_id: int, *, beyond_damage: bool = False) -> LogScan:
    """Return all whole runs from the start of a log up to the first bytes that are no run.

    With `beyond_damage`, the scan skips such bytes and searches the next valid run: for repair and
    inspection of logs that were once whole. Reads headers and tables only, not packets.

    Raises:
        StorageCorruptError: the file header is damaged.
        OSError: a read failed.
    """
    header = read_log_header(file, log_id)
    runs: list[StoredRun] = []
    skipped: list[tuple[int, int]] = []
    at = end = LOG_HEADER_BYTES
    while True:
        run = scan_run(file, log_id, at)
        if run is None and beyond_damage:
            run = _next_run(file, log_id, at + 1)
            if run is not None:
                skipped.append((at, run.location.offset))
        if run is None:
            return LogScan(header, runs, end, skipped)
        runs.append(run)
        at = end = run.location.offset + run.location.size_bytes


def scan_run(file: ScannedFile, log_id: int, at: int) -> StoredRun | None:
    """Return the run that begins at `at` and lies within the file; None if there is none.

    Raises:
        OSError: a read failed.
    """
    tables_bytes = run_tables_bytes(file.pread(RUN_HEADER_BYTES, at))
    # The size is not checked yet: a torn header may claim any size, but none beyond the file.
    if tables_bytes is None or at + tables_bytes > file.size:
        return None
    try:
        head = decode_run_head(file.pread(tables_bytes, at), log_id=log_id, offset=at)
    except StorageCorruptError:
        return None
    if at + head.size_bytes > file.size:
        return None
    return StoredRun(head.ledger_id, head.first, head.last, head.location(log_id, at))


def _next_run(file: ScannedFile, log_id: int, at: int) -> StoredRun | None:
    """Return the first run that begins at or after `at`.

    A run's checksum is bound to its place, so bytes of a packet that look like a run do not count.
    """
    while True:
        data = file.pread(_SEARCH_BYTES, at)
        found = data.find(RUN_MAGIC)
        while found >= 0:
            run = scan_run(file, log_id, at + found)
            if run is not None:
                return run
            found = data.find(RUN_MAGIC, found + 1)
        if len(data) < _SEARCH_BYTES:
            return None
        at += len(data) - len(RUN_MAGIC) + 1


def read_footer(file: File, log_id: int) -> dict[int, int] | None:
    """Read the bytes per ledger from the footer of a log; None if it has none and must be scanned.

    Raises:
        StorageCorruptError: a trailer is there, but its footer is damaged.
        OSError: a read failed.
    """
    tables = read_footer_tables(file, log_id)
    return None if tables is None else tables.by_ledger()


def read_footer_tables(file: File, log_id: int) -> FooterTables | None:
    """Read the footer's tables, for logs of very many ledgers; None if there is no footer.

    Raises:
        StorageCorruptError: a trailer is there, but its footer is damaged.
        OSError: a read failed.
    """
    end = file.size - TRAILER_BYTES
    if end < LOG_HEADER_BYTES:
        return None
    try:
        offset = decode_trailer(file.pread(TRAILER_BYTES, end), log_id=log_id)
    except StorageCorruptError:
        return None
    if not LOG_HEADER_BYTES <= offset < end:
        raise StorageCorruptError(f"entry log {log_id}: its footer cannot be at {offset}")
    return decode_footer(file.pread(end - offset, offset), log_id=log_id, offset=offset)


_SECTOR_BYTES = 4096


class BrokenSectorsFile:
    """A file with sectors that the disk cannot read: they read as zeros, and are recorded.

    A scan believes only data with a valid checksum, so zeros are damage like any other. Runs that
    touch them are skipped, and later runs are found. Not for packets, nor for any data that is
    served.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._broken: set[int] = set()

    @property
    def size(self) -> int:
        return self._file.size

    def pread(self, size: int, offset: int) -> bytes:
        """Return bytes of the file, with zeros for unreadable sectors.

        Raises:
            OSError: another error than an unreadable sector.
        """
        try:
            return self._file.pread(size, offset)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
        end, at, parts = min(offset + size, self._file.size), offset, list[bytes]()
        while at < end:
            sector = at // _SECTOR_BYTES
            stop = min(end, (sector + 1) * _SECTOR_BYTES)
            parts.append(self._read_within(sector, at, stop))
            at = stop
        return b"".join(parts)

    def broken(self) -> list[tuple[int, int]]:
        """Return start and end of each unreadable place, ascending."""
        places: list[tuple[int, int]] = []
        for sector in sorted(self._broken):
            begin = sector * _SECTOR_BYTES
            end = min(begin + _SECTOR_BYTES, self._file.size)
            if places and places[-1][1] == begin:
                begin = places.pop()[0]
            places.append((begin, end))
        return places

    def _read_within(self, sector: int, at: int, stop: int) -> bytes:
        if sector not in self._broken:
            try:
                return self._file.pread(stop - at, at)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
            self._broken.add(sector)
        return bytes(stop - at)
