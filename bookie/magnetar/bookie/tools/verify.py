"""Verification of everything that a bookie has on its disks.

Cookies: every directory has one, and they agree. Journals: every file follows the previous one, the
newest exists, and every record that was synced is valid. Entry logs: every byte of every run
matches its checksum, and there is nothing but runs, a footer and at most a torn end. Index: every
record points to a run that holds its entries, and every state can be read.

A file that cannot be read, as on a disk with bad sectors, is reported like any other damage, and
the rest is checked all the same. Nothing is changed. Next to a running bookie, the end of the
journal and the newest log may be read in the middle of a write: verify reported problems once more
after the bookie has stopped.
"""

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from magnetar.bookie.cookie import read_directory_cookie
from magnetar.bookie.cookie_rules import roles
from magnetar.bookie.disks.directories import COOKIE_NAME, BookieDirectories
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_ids
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.errors import CookieError, JournalError, StorageCorruptError, StorageError
from magnetar.bookie.indexes.ledger_state import decode_state
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.bookie.journaling.journal_files import NewestRecord
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    NO_MARK,
    LastMark,
    decode_mark,
    mark_name,
)
from magnetar.bookie.tools.journal_look import JournalGap, journal_files, journal_records
from magnetar.bookie.tools.log_look import LookedRun, log_runs, log_summaries
from magnetar.ledger.ports import Disk

_OPEN_FILES_MAX = 16
_LOGS = "entry-logs"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that was found."""

    path: str
    text: str
    offset: int | None = None
    ledger_id: int | None = None
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class Counts:
    """Numbers of checked items."""

    journal_files: int = 0
    journal_records: int = 0
    entry_logs: int = 0
    entry_log_bytes: int = 0
    runs: int = 0
    torn_ends: int = 0
    """Ends of entry logs that a killed process left; nothing points there."""
    ledgers: int = 0
    index_records: int = 0
    problems: int = 0


@dataclass(slots=True)
class Verification:
    """One pass over a bookie's directories."""

    disk: Disk
    directories: BookieDirectories
    open_index: Callable[[str], LocationIndex]
    """Opens the index of a ledger directory read-only."""
    counts: Counts = field(default_factory=Counts)
    _known_marks: dict[int, LastMark] = field(default_factory=dict)

    def run(self) -> Iterator[Problem]:
        """Yield every problem as it is found; `counts` is complete at the end.

        Raises:
            OSError: a directory cannot be listed.
        """
        for part in (
            self._cookies,
            self._marks,
            self._journals,
            self._entry_logs,
            self._indexes,
        ):
            for problem in part():
                self.counts.problems += 1
                yield problem

    def _cookies(self) -> Iterator[Problem]:
        known, known_in = None, ""
        expected = roles(len(self.directories.journals), len(self.directories.ledgers))
        role_of = dict(zip(self.directories, expected, strict=True))
        for directory in dict.fromkeys(self.directories):
            path = posixpath.join(directory, COOKIE_NAME)
            try:
                found = read_directory_cookie(self.disk, directory)
            except (CookieError, OSError) as error:
                yield Problem(path, str(error))
                continue
            if found is None:
                yield Problem(path, "there is no cookie")
                continue
            if found.directory != role_of[directory]:
                text = f"the cookie says {found.directory}, it is {role_of[directory]}"
                yield Problem(path, text)
            if known is None:
                known, known_in = found.cookie, directory
            elif found.cookie != known:
                yield Problem(path, f"the cookie differs from that of {known_in}")

    def _marks(self) -> Iterator[Problem]:
        for directory in self.directories.ledgers:
            for number, _ in enumerate(self.directories.journals):
                path = posixpath.join(directory, mark_name(number))
                try:
                    if not self.disk.exists(path):
                        continue
                    mark = decode_mark(self.disk.read_file(path))
                except OSError as error:
                    yield _unread(path, error)
                    continue
                if mark is None:
                    yield Problem(path, "the mark is damaged", offset=0)
                else:
                    self._known_marks[number] = max(mark, self._known_marks.get(number, mark))

    def _journals(self) -> Iterator[Problem]:
        for number, directory in enumerate(self.directories.journals):
            mark = self._known_marks.get(number, NO_MARK)
            yield from _all_told(directory, self._journal(directory, mark))

    def _journal(self, directory: str, mark: LastMark) -> Iterator[Problem]:
        record = NewestRecord(self.disk, directory)
        newest = None
        try:
            newest = record.check(mark)
        except JournalError as error:
            yield Problem(record.path, str(error))
        except OSError as error:
            yield _unread(record.path, error)
        files = journal_files(self.disk, directory)
        for index, each in enumerate(files):
            self.counts.journal_files += 1
            follower = files[index + 1] if index + 1 < len(files) else None
            if each.header is None:
                # The last file may have been about to be created, unless it was named.
                if follower is not None or (newest and newest.file_id == each.file_id):
                    yield Problem(each.path, "the header is damaged", offset=0)
                continue
            stop = None
            if follower is not None and follower.header is not None:
                stop = follower.header.previous_length
                if follower.header.previous_file_id != each.file_id:
                    yield Problem(
                        follower.path,
                        f"it follows file {follower.header.previous_file_id:016x}, which is "
                        f"not there",
                    )
                    stop = None
            synced = mark.offset if mark.file_id == each.file_id else 0
            found = self._journal_file(each.path, each.file_id, stop, synced)
            yield from _all_told(each.path, found)

    def _journal_file(
        self, path: str, file_id: int, stop: int | None, synced: int
    ) -> Iterator[Problem]:
        end = FILE_HEADER_BYTES
        for each in journal_records(self.disk, path, file_id, stop=stop, synced=synced):
            end = each.end
            if isinstance(each, JournalGap):
                if each.is_damage:
                    text = f"bytes up to {each.end} are no record, and were once synced"
                    yield Problem(path, text, offset=each.offset)
                continue
            self.counts.journal_records += 1
            if each.problem is not None:
                yield Problem(path, each.problem, each.offset, each.ledger_id)
        if stop is not None and end < stop:
            yield Problem(path, f"ends at {end}; {stop} bytes of it were synced", offset=end)

    def _entry_logs(self) -> Iterator[Problem]:
        for directory in self._log_directories():
            for summary in log_summaries(self.disk, directory):
                self.counts.entry_logs += 1
                self.counts.entry_log_bytes += summary.size_bytes
                if summary.problem is not None:
                    yield Problem(summary.path, summary.problem)
                if summary.header is not None:
                    found = self._entry_log(directory, summary.log_id)
                    yield from _all_told(summary.path, found)

    def _entry_log(self, directory: str, log_id: int) -> Iterator[Problem]:
        for each in log_runs(self.disk, directory, log_id):
            if isinstance(each, LookedRun):
                self.counts.runs += 1
                for damage in each.damages:
                    yield _problem(damage)
            elif each.is_torn_end:
                self.counts.torn_ends += 1
            else:
                yield Problem(each.path, f"bytes up to {each.end} are no run", each.offset)

    def _indexes(self) -> Iterator[Problem]:
        for directory in self.directories.ledgers:
            try:
                index = self.open_index(directory)
            except (StorageError, OSError) as error:
                yield Problem(directory, f"the index cannot be opened: {error}")
                continue
            try:
                yield from self._index(directory, index)
            except StorageError as error:
                yield _problem_of(directory, error)
            finally:
                index.close()

    def _index(self, directory: str, index: LocationIndex) -> Iterator[Problem]:
        states = index.states()
        for ledger_id, value in states.items():
            self.counts.ledgers += 1
            try:
                decode_state(value)
            except StorageCorruptError as error:
                yield Problem(directory, str(error), ledger_id=ledger_id)
        logs = posixpath.join(directory, _LOGS)
        reader = EntryLogReader(logs, open_files_max=_OPEN_FILES_MAX, disk=self.disk)
        orphan = None
        try:
            for ledger_id, record in index.all_records():
                self.counts.index_records += 1
                if ledger_id not in states and ledger_id != orphan:
                    orphan = ledger_id  # reported once
                    yield Problem(
                        directory, "the index has entries and no state", ledger_id=ledger_id
                    )
                run = StoredRun(ledger_id, record.first, record.last, record.location)
                try:
                    reader.load_head(run)
                except StorageError as error:
                    yield _problem_of(directory, error)
        finally:
            reader.close()

    def _log_directories(self) -> Iterator[str]:
        for directory in self.directories.ledgers:
            path = posixpath.join(directory, _LOGS)
            if self.disk.exists(path) and log_ids(self.disk.list(path)):
                yield path


def _all_told(path: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Yield the problems of a file, and one more if it cannot be read."""
    try:
        yield from problems
    except (StorageError, OSError) as error:
        yield _unread(path, error)


def _unread(path: str, error: Exception) -> Problem:
    return Problem(path, f"it cannot be read to its end: {error}")


def _problem(damage: Damage) -> Problem:
    return Problem(
        damage.path, damage.reason, damage.offset, damage.ledger_id, damage.first, damage.last
    )


def _problem_of(directory: str, error: StorageError) -> Problem:
    damage = getattr(error, "damage", None)
    return Problem(directory, str(error)) if damage is None else _problem(damage)
