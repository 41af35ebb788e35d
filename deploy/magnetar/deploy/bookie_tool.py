"""Implementation of `magnetar bookie-tool`: prints, checks and repairs the files of a bookie.

Each line is one item: a JSON object with --json, else `name value` pairs. Keys of ledgers are never
printed.
"""

import asyncio
import posixpath
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from pyroaring import BitMap64

from magnetar.bookie.cookie import Cookie, read_cookie, read_directory_cookie
from magnetar.bookie.cookie_stamping import restamp_engine
from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.errors import CookieError, JournalError
from magnetar.bookie.gc.dead_ledgers import Brake
from magnetar.bookie.gc.gc_preview import (
    LedgersPreview,
    preview_ledgers,
    preview_logs,
    survey_all,
)
from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.indexes.convert import convert_index
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.location_index import LocationIndex
from magnetar.bookie.indexes.open_index import open_index_to_read
from magnetar.bookie.indexes.rebuild import Rebuilt, rebuild_index
from magnetar.bookie.journaling.journal_files import NewestRecord
from magnetar.bookie.journaling.journal_format import (
    NO_MARK,
    decode_mark,
    file_ids,
    file_name,
    mark_name,
)
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.tools.index_look import ledger_records, ledger_summaries
from magnetar.bookie.tools.journal_look import (
    JournalGap,
    JournalRecord,
    journal_files,
    journal_records,
)
from magnetar.bookie.tools.log_look import (
    LookedRun,
    log_runs,
    log_summaries,
    missing_footer,
    write_footer,
)
from magnetar.bookie.tools.verify import Verification
from magnetar.deploy.cluster_access import opened_store
from magnetar.deploy.config import command_defaults
from magnetar.deploy.errors import DamageFoundError, DataDirectoryLockedError, SettingsError
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Sources
from magnetar.deploy.printing import print_json, say, time_in_words
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ports import Lock
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemClock, SystemDisk

_LOGS = "entry-logs"
_ROOT = "/ledgers"
_BUILT_BEFORE = (
    "an interrupted run of this command had built the index; damaged places of the logs that it "
    "met are not known here: `magnetar bookie-tool verify` finds them"
)
_AFTER_REBUILDING = (
    "entries may be missing: the next start reads the metadata of all ledgers, and the bookie "
    "compares its entries with the other bookies while it serves"
)


class BookieTool:
    """The bookie-tool commands, on the directories of one bookie."""

    def __init__(
        self, data: Path, journals: Sequence[Path], ledgers: Sequence[Path], *, as_json: bool
    ) -> None:
        """Directories that are not given lie in `data`, as for a bookie."""
        self._data = data.absolute()
        self._directories = BookieDirectories(
            str(self._data),
            tuple(str(each.absolute()) for each in journals) or (str(self._data / "journal"),),
            tuple(str(each.absolute()) for each in ledgers) or (str(self._data / "ledgers"),),
        )
        self._as_json = as_json
        self._disk = SystemDisk()

    def cookies(self) -> None:
        """Print the cookie of each directory."""
        with explained(data=self._data):
            for directory in dict.fromkeys(self._directories):
                try:
                    found = read_directory_cookie(self._disk, directory)
                except CookieError as error:
                    self._say({"directory": directory, "problem": str(error)})
                    continue
                if found is None:
                    self._say({"directory": directory, "problem": "no cookie"})
                    continue
                self._say(
                    {"directory": directory, "role": found.directory, **found.cookie.model_dump()}
                )

    def marks(self) -> None:
        """Print every copy of every last mark."""
        with explained(data=self._data):
            for directory in self._directories.ledgers:
                for number in range(len(self._directories.journals)):
                    path = posixpath.join(directory, mark_name(number))
                    if not self._disk.exists(path):
                        continue
                    mark = decode_mark(self._disk.read_file(path))
                    fields: dict[str, object] = {"file": path, "journal": number}
                    if mark is None:
                        fields["problem"] = "damaged"
                    else:
                        fields["journal_file"] = file_name(mark.file_id)
                        fields["offset"] = mark.offset
                    self._say(fields)

    def journals(self) -> None:
        """Print a line for each journal file, and one if the newest file is missing."""
        with explained(data=self._data):
            for directory in self._directories.journals:
                newest = self._named_newest(directory)
                for each in journal_files(self._disk, directory):
                    fields: dict[str, object] = {
                        "file": each.path,
                        "file_id": each.file_id,
                        "size_bytes": each.size_bytes,
                        "is_named_newest": each.file_id == newest,
                    }
                    if each.header is None:
                        fields["problem"] = "the header is torn or damaged"
                    else:
                        fields["previous_file_id"] = each.header.previous_file_id
                        fields["previous_length"] = each.header.previous_length
                    self._say(fields)

    def _named_newest(self, directory: str) -> int | None:
        """Return the file id that the record of a journal names. Print what is wrong with the
        record."""
        record = NewestRecord(self._disk, directory)
        try:
            newest = record.check(NO_MARK)
        except JournalError as error:
            self._say({"file": record.path, "problem": str(error)})
            return None
        return None if newest is None else newest.file_id

    def journal(self, file: Path, *, ledger_id: int | None) -> None:
        """Print the records of a journal file.

        Raises:
            SettingsError: the name is not that of a journal file.
        """
        file_id = _id_of(file, file_ids([file.name]), "a journal file (<id>.journal)")
        with explained(data=file.parent):
            stop = self._length_by_next(file.parent, file_id)
            for each in journal_records(self._disk, str(file), file_id, stop=stop):
                if isinstance(each, JournalGap):
                    self._say({"offset": each.offset, "end": each.end, "problem": _gap_text(each)})
                elif ledger_id in (None, each.ledger_id):
                    self._say(_record_fields(each))

    def logs(self) -> None:
        """Print a line for each entry log."""
        with explained(data=self._data):
            for directory in self._log_directories():
                for each in log_summaries(self._disk, directory):
                    fields: dict[str, object] = {
                        "file": each.path,
                        "log_id": each.log_id,
                        "size_bytes": each.size_bytes,
                    }
                    if each.header is not None:
                        fields["created"] = time_in_words(each.header.created_ms)
                        fields["rank"] = each.header.rank
                    if each.ledger_bytes is None:
                        fields["footer"] = "none"
                    else:
                        fields["ledgers"] = len(each.ledger_bytes)
                        fields["run_bytes"] = sum(each.ledger_bytes.values())
                    self._say(fields | ({"problem": each.problem} if each.problem else {}))

    def log(self, file: Path, *, ledger_id: int | None) -> None:
        """Print the runs of an entry log.

        Raises:
            SettingsError: the name is not that of an entry log.
            DamageFoundError: part of the log is damaged.
        """
        log_id = _id_of(file, log_ids([file.name]), "an entry log (<id>.log)")
        damages = 0
        with explained(data=file.parent):
            for each in log_runs(self._disk, str(file.parent), log_id):
                if not isinstance(each, LookedRun):
                    damages += not each.is_torn_end
                    text = "torn end of a flush" if each.is_torn_end else "DAMAGED: no valid run"
                    self._say({"offset": each.offset, "end": each.end, "problem": text})
                    continue
                damages += bool(each.damages)
                if ledger_id in (None, each.run.ledger_id):
                    self._say(_run_fields(each))
        if damages:
            raise DamageFoundError(f"{file} is damaged in {damages} places")

    def ledgers(self) -> None:
        """Print a line for each ledger of the index."""
        for directory, index in self._indexes():
            for each in ledger_summaries(index):
                self._say({"directory": directory, **asdict(each)})

    def ledger(self, ledger_id: int) -> None:
        """Print where the entries of one ledger lie."""
        for directory, index in self._indexes():
            logs = posixpath.join(directory, _LOGS)
            for each in ledger_records(index, ledger_id):
                self._say(
                    {
                        "first": each.first,
                        "last": each.last,
                        "file": posixpath.join(logs, log_name(each.location.log_id)),
                        "offset": each.location.offset,
                        "size_bytes": each.location.size_bytes,
                        "run_entries": each.location.entries,
                    }
                )

    def verify(self) -> None:
        """Check all files of the bookie.

        Raises:
            DamageFoundError: a check failed.
        """
        verification = Verification(self._disk, self._directories, self._open_index)
        with explained(data=self._data):
            for problem in verification.run():
                self._say({"problem": problem.text, **_without(asdict(problem), "text")})
            self._say(asdict(verification.counts))
        if verification.counts.problems:
            raise DamageFoundError(f"{verification.counts.problems} problems in {self._data}")

    def gc(self, metadata_url: str, sources: Sources) -> None:
        """Print what garbage collection would free.

        Raises:
            SettingsError: a setting of the bookie cannot be used.
        """
        with explained(data=self._data, metadata_url=metadata_url):
            asyncio.run(self._preview_gc(metadata_url, sources))

    async def _preview_gc(self, metadata_url: str, sources: Sources) -> None:
        clock, cookie = SystemClock(), self._cookie()
        settings = self._settings(sources, cookie)
        async with opened_store(metadata_url, sources) as store:
            chance = random.Random()
            calls = MetadataCalls(
                BookieRegistry(store, random=chance),
                instance_id=cookie.instance_id,
                clock=clock,
                calls_per_s=settings.gc_metadata_calls_per_s,
            )
            manager = await LedgerManager.of_root(store, random=chance, clock=clock, root=_ROOT)
            brake = Brake(
                settings.gc_vanish_share_max,
                settings.gc_brake_ledgers_min,
                settings.gc_vanish_patience_s,
            )
            local = BitMap64(each for _, index in self._indexes() for each in index.states())
            found = await preview_ledgers(local, manager, calls, brake)
        self._say_ledgers(found, len(local))
        alive = local - BitMap64(found.ledger_ids)
        for directory in self._log_directories():
            usages = survey_all(directory, self._disk)
            for each in preview_logs(usages, alive, settings):
                path = posixpath.join(directory, log_name(each.log_id))
                self._say({"file": path, **asdict(each)})

    def _settings(self, sources: Sources, cookie: Cookie) -> BookieSettings:
        """Return the settings of the bookie, from its sources."""
        # The table of the file may have options of `magnetar bookie`, too.
        table = command_defaults(sources.tables, "bookie")
        fields = {key: table[key] for key in table.keys() & BookieSettings.model_fields.keys()}
        options = {"data_directory": str(self._data), "bookie_id": cookie.bookie_id}
        own = replace(sources, tables={**sources.tables, "bookie": fields})
        return own.component(BookieSettings, "bookie", options)

    def _say_ledgers(self, found: LedgersPreview, local: int) -> None:
        fields: dict[str, object] = {
            "ledgers": local,
            "ledgers_to_delete": len(found.ledger_ids),
            "unconfirmed": len(found.unconfirmed),
            "listed_in_error": len(found.listed_in_error),
            "unrecorded": len(found.unrecorded),
            "waiting": len(found.waiting),
        }
        self._say(fields | ({"refused": found.refused} if found.refused else {}))
        for ledger_id in found.ledger_ids:
            self._say({"ledger_id": ledger_id, "action": "delete"})

    def rebuild_footer(self, file: Path, *, do: bool) -> None:
        """Write the footer of an entry log that has none."""
        log_id = _id_of(file, log_ids([file.name]), "an entry log (<id>.log)")
        with explained(data=file.parent), self._locked(str(file.parent.parent)):
            ledger_bytes = missing_footer(self._disk, str(file), log_id)
            if ledger_bytes is None:
                self._say({"file": str(file), "footer": "good"})
                return
            if do:
                write_footer(self._disk, str(file), log_id, ledger_bytes)
            self._say(
                {
                    "file": str(file),
                    "footer": "written" if do else "missing; --yes writes it",
                    "ledgers": len(ledger_bytes),
                    "run_bytes": sum(ledger_bytes.values()),
                }
            )

    def rebuild_index(self, *, do: bool) -> None:
        """Rebuild the indexes of all ledger directories from their entry logs."""
        with explained(data=self._data), self._locked(*dict.fromkeys(self._directories)):
            cookie = self._cookie()
            for directory in self._directories.ledgers:
                if not do:
                    logs = posixpath.join(directory, _LOGS)
                    count = len(log_ids(self._disk.list(logs))) if self._disk.exists(logs) else 0
                    self._say(
                        {
                            "directory": directory,
                            "index": "unchanged; --yes rebuilds it",
                            "engine": cookie.storage_engine,
                            "logs": count,
                        }
                    )
                    continue
                rebuilt = rebuild_index(
                    directory, cookie.storage_engine, disk=self._disk, clock=SystemClock()
                )
                self._say_rebuilt(directory, rebuilt)
                self._say({"directory": directory, "next": _AFTER_REBUILDING})

    def _say_rebuilt(self, directory: str, rebuilt: Rebuilt) -> None:
        fields = rebuilt._asdict()
        if fields.pop("was_built_before"):
            self._say({"directory": directory, "index": "put in place", "note": _BUILT_BEFORE})
            return
        for problem in fields.pop("problems"):
            self._say({"problem": problem.reason, **problem._asdict()})
        self._say({"directory": directory, "index": "rebuilt", **fields})

    def convert(self, engine: EngineKind, metadata_url: str, *, do: bool) -> None:
        """Convert the storage to the other engine."""
        with (
            explained(data=self._data, metadata_url=metadata_url),
            self._locked(*dict.fromkeys(self._directories)),
        ):
            cookie = self._cookie()
            if not do:
                self._say(
                    {"from": cookie.storage_engine, "to": engine, "note": "--yes converts it"}
                )
                return
            for directory in self._directories.ledgers:
                done = convert_index(directory, engine, disk=self._disk)
                self._say({"directory": directory, **done._asdict()})
            asyncio.run(
                self._restamp(cookie.model_copy(update={"storage_engine": engine}), metadata_url)
            )
            self._say({"engine": engine, "next": f"start the bookie with storage_engine={engine}"})

    async def _restamp(self, cookie: Cookie, metadata_url: str) -> None:
        async with opened_store(metadata_url, Sources()) as store:
            registry = BookieRegistry(store, random=random.Random())
            await restamp_engine(registry, self._disk, self._directories, cookie)

    # Helpers

    def _cookie(self) -> Cookie:
        """Return the cookie of the data directory.

        Raises:
            CookieError: the directory is not a bookie's data directory.
        """
        cookie = read_cookie(self._disk, self._directories.data)
        if cookie is None:
            raise CookieError(
                f"{self._data} has no cookie: "
                "it is not the data directory of a bookie; check --data"
            )
        return cookie

    def _open_index(self, directory: str) -> LocationIndex:
        return open_index_to_read(directory, disk=self._disk)

    def _indexes(self) -> Iterator[tuple[str, LocationIndex]]:
        with explained(data=self._data):
            for directory in self._directories.ledgers:
                index = self._open_index(directory)
                try:
                    yield directory, index
                finally:
                    index.close()

    def _log_directories(self) -> Iterator[str]:
        for directory in self._directories.ledgers:
            path = posixpath.join(directory, _LOGS)
            if self._disk.exists(path):
                yield path

    def _length_by_next(self, directory: Path, file_id: int) -> int | None:
        """Return how much of a journal file was synced, from the header of the next file."""
        for each in journal_files(self._disk, str(directory)):
            if each.header is not None and each.header.previous_file_id == file_id:
                return each.header.previous_length
        return None

    @contextmanager
    def _locked(self, *directories: str) -> Iterator[None]:
        """Hold the locks that a running bookie holds.

        Raises:
            DataDirectoryLockedError: the bookie runs.
        """
        held: list[Lock] = []
        try:
            for directory in directories:
                held.append(self._disk.lock(posixpath.join(directory, "lock")))
            yield
        except BlockingIOError as error:
            raise DataDirectoryLockedError(
                f"{', '.join(directories)} is in use by a running bookie: stop it first"
            ) from error
        finally:
            for lock in held:
                lock.release()

    def _say(self, fields: Mapping[str, object]) -> None:
        if self._as_json:
            print_json(fields)
            return
        shown = [f"{name} {value}" for name, value in fields.items() if value is not None]
        say("  ".join(shown))


def _id_of(file: Path, ids: list[int], what: str) -> int:
    if not ids:
        raise SettingsError(f"{file.name} is not the name of {what}")
    return ids[0]


def _gap_text(gap: JournalGap) -> str:
    if gap.is_damage:
        return "DAMAGED: no valid record, although it was synced"
    return "torn end of a group that was never acknowledged"


def _record_fields(record: JournalRecord) -> dict[str, object]:
    fields = {name: value for name, value in asdict(record).items() if value is not None}
    if not record.entries:
        del fields["entries"]
    return fields


def _run_fields(looked: LookedRun) -> dict[str, object]:
    run = looked.run
    fields: dict[str, object] = {
        "offset": run.location.offset,
        "size_bytes": run.location.size_bytes,
        "ledger_id": run.ledger_id,
        "first": run.first,
        "last": run.last,
        "entries": run.location.entries,
    }
    if looked.damages:
        fields["problem"] = "; ".join(
            f"DAMAGED at {each.offset}, entries {each.first} to {each.last}: {each.reason}"
            for each in looked.damages
        )
    return fields


def _without(fields: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in fields.items() if key != name and value is not None}
