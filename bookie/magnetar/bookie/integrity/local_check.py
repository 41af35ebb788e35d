"""Check of stored entries: reads them by the index, past all caches, and reports their damage.

Runs on a worker of its own; the index may be read from any thread. No file stays open between two
steps: garbage collection may remove a log, and an open file keeps its disk space. Only data that
counts is judged: where newer entries overlaid a part of a run, damage in that part is harmless and
not reported.
"""

import errno
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.log_scan import read_footer, read_log_header
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageIOError, StorageLogMissingError
from magnetar.bookie.indexes.location_index import IndexRecord, LocationIndex
from magnetar.ledger.ports import Disk

_OPEN_FILES_MAX = 8

_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
"""Errors that concern this process, and not the file."""


class Checked(NamedTuple):
    """Result of one step over a ledger's records."""

    damages: list[Damage]
    records: int
    bytes: int
    next_entry_id: int
    """Where to continue in the ledger; -1 at its end."""


class CheckedLedgers(NamedTuple):
    """Result of one step over a list of ledgers."""

    damages: list[Damage]
    records: int
    bytes: int
    at: int
    """Position in the list of ledgers from which to continue."""
    next_entry_id: int
    """Entry from which to continue in that ledger."""


class LocalCheck:
    """Check of one storage's index records and of the entries that they cover."""

    def __init__(self, index: LocationIndex, logs_directory: str, disk: Disk) -> None:
        self._index = index
        self._directory = logs_directory
        self._disk = disk
        self._logs = EntryLogReader(logs_directory, open_files_max=_OPEN_FILES_MAX, disk=disk)

    def check(
        self, ledger_id: int, first: int, last: int, *, records_max: int, bytes_max: int
    ) -> Checked:
        """Check entries `first` to `last`, as far as they are stored: one step of bounded size.

        Damage of the index itself counts as damage, too, if it names the entries that it hides; the
        step ends after it.

        Raises:
            StorageIOError: a read fails now, for a reason that is not known to be damage.
        """
        try:
            return self._check(ledger_id, first, last, records_max, bytes_max)
        finally:
            self._logs.close()

    def _check(
        self, ledger_id: int, first: int, last: int, records_max: int, bytes_max: int
    ) -> Checked:
        try:
            records = self._index.records_from(ledger_id, first, records_max + 1)
        except StorageIOError:
            # One damaged page must not hide the others: go record by record up to it.
            return self._check_one(ledger_id, first, last)
        next_entry_id = records.pop().first if len(records) > records_max else -1
        damages: list[Damage] = []
        done, size = 0, 0
        for record in records:
            if record.first > last:
                return Checked(damages, done, size, -1)
            if size >= bytes_max:
                next_entry_id = record.first
                break
            damages += self._check_record(ledger_id, record, first, last)
            size += record.location.size_bytes
            done += 1
        return Checked(damages, done, size, next_entry_id if next_entry_id <= last else -1)

    def _check_one(self, ledger_id: int, first: int, last: int) -> Checked:
        try:
            records = self._index.records_from(ledger_id, first, 1)
        except StorageIOError as error:
            damage = _damage_of(error)
            behind = max(first, damage.last) + 1
            low, high = max(damage.first, first), min(damage.last, last)
            found = [damage._replace(first=low, last=high)] if low <= high else []
            return Checked(found, 0, 0, behind if behind <= last else -1)
        if not records or records[0].first > last:
            return Checked([], 0, 0, -1)
        record = records[0]
        damages = self._check_record(ledger_id, record, first, last)
        behind = record.last + 1
        size = record.location.size_bytes
        return Checked(damages, 1, size, behind if behind <= last else -1)

    def check_ledgers(
        self,
        ledger_ids: Sequence[int],
        at: int,
        first: int,
        *,
        records_max: int,
        bytes_max: int,
    ) -> CheckedLedgers:
        """Check whole ledgers, from entry `first` of the one at `at` on: one step of bounded size.

        Raises:
            StorageIOError: a read fails now, for a reason that is not known to be damage.
        """
        try:
            return self._check_ledgers(ledger_ids, at, first, records_max, bytes_max)
        finally:
            self._logs.close()

    def _check_ledgers(
        self, ledger_ids: Sequence[int], at: int, first: int, records_max: int, bytes_max: int
    ) -> CheckedLedgers:
        damages: list[Damage] = []
        records, size, looked = 0, 0, 0
        while at < len(ledger_ids) and size < bytes_max and looked < records_max:
            step = self._check(
                ledger_ids[at], first, ENTRY_ID_MAX, records_max - looked, bytes_max - size
            )
            damages += step.damages
            records += step.records
            size += step.bytes
            looked += step.records + 1  # a ledger without entries costs a lookup, too
            if step.next_entry_id >= 0:
                return CheckedLedgers(damages, records, size, at, step.next_entry_id)
            at, first = at + 1, 0
        return CheckedLedgers(damages, records, size, at, first)

    def check_log(self, log_id: int) -> Damage | None:
        """Check header and footer of a finished log. Damage to them hides no entries.

        Raises:
            StorageIOError: it cannot be read now, for a reason that is no damage.
        """
        path = posixpath.join(self._directory, log_name(log_id))
        offset = 0
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None  # collected meanwhile
        except OSError as error:
            return _log_damage(path, 0, error)
        try:
            read_log_header(file, log_id)
            offset = file.size
            read_footer(file, log_id)
        except (StorageIOError, OSError) as error:
            return _log_damage(path, offset, error)
        finally:
            file.close()
        return None

    def total_bytes(self) -> int:
        """Return the bytes of all entry logs.

        Raises:
            OSError: the directory cannot be read.
        """
        total = 0
        for log_id in log_ids(self._disk.list(self._directory)):
            try:
                file = self._disk.open(posixpath.join(self._directory, log_name(log_id)))
            except FileNotFoundError:
                continue
            total += file.size
            file.close()
        return total

    def _check_record(
        self, ledger_id: int, record: IndexRecord, first: int, last: int
    ) -> list[Damage]:
        low, high = max(first, record.first), min(last, record.last)
        try:
            found = self._read_record(ledger_id, record)
        except StorageLogMissingError as error:
            # Compaction may have moved the run meanwhile: use the index as it is now.
            moved = self._index.find(ledger_id, low)
            if moved is not None and moved.location != record.location:
                return self._check_record(ledger_id, moved, low, min(high, moved.last))
            found = [_damage_of(error)]
        except StorageIOError as error:
            found = [_damage_of(error)]
        return [
            damage._replace(first=max(damage.first, low), last=min(damage.last, high))
            for damage in found
            if damage.first <= high and damage.last >= low
        ]

    def _read_record(self, ledger_id: int, record: IndexRecord) -> list[Damage]:
        run = StoredRun(ledger_id, record.first, record.last, record.location)
        return self._logs.check_run(run)


def _log_damage(path: str, offset: int, error: StorageIOError | OSError) -> Damage:
    """Return the damage to a log's header or footer that an error reports.

    Raises:
        StorageIOError: a transient failure.
    """
    if isinstance(error, OSError) and error.errno in _TRANSIENT:
        raise StorageIOError(f"{path}: cannot be checked now: {error}") from error
    return Damage(path, offset, -1, -1, -1, str(error))


def _damage_of(error: StorageIOError) -> Damage:
    """Return the damage that an error reports.

    Raises:
        StorageIOError: the error reports no damage, or a transient failure.
    """
    cause = error.__cause__
    if error.damage is None or (isinstance(cause, OSError) and cause.errno in _TRANSIENT):
        raise error
    return error.damage
