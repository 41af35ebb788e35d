"""What the entry logs of a directory hold, checked to the last byte; and footers written anew.

Reading changes nothing. A log without a footer is one of a process that was killed, or the one that
is being written: it is scanned. What is no run is told with its place; at the end of a log without
a footer it is the torn rest of a flush, to which nothing points.
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
    """What is damaged, or cannot be read: the header, or the footer."""


@dataclass(frozen=True, slots=True)
class LookedRun:
    """One run, and what of it is damaged."""

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
    """The entry logs of a directory, ascending; one that is removed meanwhile is left out.

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
    """Everything in a log, in order, each run read and checked to its last byte. A run that cannot
    be read is damaged.

    Raises:
        StorageCorruptError: the file header is damaged: nothing can be trusted to be of this log.
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
    """What the footer of a log would say; None if it has a good one.

    Raises:
        StorageCorruptError: the log has damage in it: a footer would hide it.
        OSError: a read failed.
    """
    file = disk.open(path)
    try:
        try:
            if read_footer(file, log_id) is not None:
                return None
        except StorageCorruptError:
            pass  # it has one, and that is damaged
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
    """Append the footer to a log that nobody writes to; durable on return.

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
