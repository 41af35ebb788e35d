"""Inspection of entry logs, checked to the last byte; and rewriting of footers.

Inspection changes nothing. A log without a footer is from a process that was killed, or is being
written: it is scanned. Bytes that are no run are reported with their place; at the end of a log
without a footer they are the torn rest of a flush, to which nothing points.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import LogHeader, StoredRun, encode_footer
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.log_scan import read_footer, read_log_header, scan_log
from magnetar.bookie.errors import StorageCorruptError, StorageIOError
from magnetar.ledger.ports import Disk

_OPEN_FILES_MAX = 4


@dataclass(frozen=True, slots=True)
class LogSummary:
    """One entry log, without its runs."""

    path: str
    log_id: int
    size_bytes: int
    header: LogHeader | None
    """None if it is damaged."""
    ledger_bytes: dict[int, int] | None
    """Bytes of each ledger, by the footer; None without one."""
    problem: str | None
    """Damage to, or a read error of, the header or the footer; None if both are good."""


@dataclass(frozen=True, slots=True)
class LookedRun:
    """One run and its damage."""

    run: StoredRun
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class NoRun:
    """Bytes of a log that are no run: damage, unless they are the torn end."""

    path: str
    offset: int
    end: int
    is_torn_end: bool


def log_summaries(disk: Disk, directory: str) -> Iterator[LogSummary]:
    """Yield the entry logs of a directory, ascending; logs that are removed meanwhile are skipped.

    Raises:
        OSError: the directory cannot be read, or a file not be opened.
    """
    for log_id in log_ids(disk.list(directory)):
        path = posixpath.join(directory, log_name(log_id))
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            header: LogHeader | None = None
            footer: dict[int, int] | None = None
            problem = None
            try:
                header = read_log_header(file, log_id)
                footer = read_footer(file, log_id)
            except (StorageCorruptError, OSError) as error:
                problem = str(error)
            yield LogSummary(path, log_id, file.size, header, footer, problem)
        finally:
            file.close()


def log_runs(disk: Disk, directory: str, log_id: int) -> Iterator[LookedRun | NoRun]:
    """Yield the content of a log in order, each run checked to its last byte.

    An unreadable run counts as damaged.

    Raises:
        StorageCorruptError: the file header is damaged: the content may belong to another log.
        OSError: headers and tables cannot be read.
    """
    path = posixpath.join(directory, log_name(log_id))
    file = disk.open(path)
    try:
        scan = scan_log(file, log_id, beyond_damage=True)
        try:
            is_closed = read_footer(file, log_id) is not None
        except (StorageCorruptError, OSError):
            is_closed = True
        size = file.size
    finally:
        file.close()
    begins = {end: begin for begin, end in scan.skipped}
    reader = EntryLogReader(directory, open_files_max=_OPEN_FILES_MAX, disk=disk)
    try:
        for run in scan.runs:
            begin = begins.get(run.location.offset)
            if begin is not None:
                yield NoRun(path, begin, run.location.offset, is_torn_end=False)
            yield LookedRun(run, tuple(_damages(reader, run)))
    finally:
        reader.close()
    if not is_closed and scan.end < size:
        yield NoRun(path, scan.end, size, is_torn_end=True)


def _damages(reader: EntryLogReader, run: StoredRun) -> list[Damage]:
    try:
        return reader.check_run(run)
    except StorageIOError as error:
        if error.damage is None:
            raise
        return [error.damage]


def missing_footer(disk: Disk, path: str, log_id: int) -> dict[int, int] | None:
    """Return the content for the footer of a log; None if the log has a good one.

    Raises:
        StorageCorruptError: the log is damaged: a footer would hide that.
        OSError: a read failed.
    """
    file = disk.open(path)
    try:
        try:
            if read_footer(file, log_id) is not None:
                return None
        except StorageCorruptError:
            pass  # it has one that is damaged
        scan = scan_log(file, log_id, beyond_damage=True)
    finally:
        file.close()
    if scan.skipped:
        begin, end = scan.skipped[0]
        raise StorageCorruptError(
            f"{path}: bytes {begin} to {end} are damaged, with runs behind them; run verify, and "
            f"let the bookie heal them before it gets a footer"
        )
    return scan.ledger_bytes()


def write_footer(disk: Disk, path: str, log_id: int, ledger_bytes: dict[int, int]) -> None:
    """Append the footer to a log that no process writes to; durable on return.

    A crash in between leaves a torn end, as before.

    Raises:
        OSError: it may be partly written.
    """
    file = disk.update(path)
    try:
        offset = file.size
        file.write_at(encode_footer(log_id, offset, ledger_bytes), offset)
        file.datasync()
    finally:
        file.close()
