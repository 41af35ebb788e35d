"""Rebuilding of a storage directory's index from its entry logs alone.

For a lost or damaged index. The newest copy of an entry wins, by the rank of its log and the offset
in it: compaction's copies have the rank of the original. The logs do not hold the ledger states.
They are salvaged from the old index as far as it can be read: keys, LACs and, if nothing of it was
lost, fences. Every ledger ends up in limbo: a missing entry is not known to be absent until the
integrity check has asked the other bookies. If states were lost, every ledger found is fenced.

The mark of the loss says that the loss is not noted yet, even if states were salvaged: the next
start goes through the metadata first (storage sheet, section 13). Only the metadata knows which
ledgers were here without an entry, and which are open with this bookie in their last fragment. What
was acknowledged in those, only the writer knows, so they must be fenced and recovered before their
limbo ends: a log that lost its end, or is missing, leaves no trace of it.

A place that is damaged or unreadable is reported, and later runs are found.

A deleted ledger comes back as long as a log has entries of it; garbage collection then deletes it
again. The new index is built beside the old one; renames put it in its place. Between the first and
the last of them there is no index mark, and the bookie does not start: the rebuilding must be
called again, and continues there. The old index is kept as `<name>.damaged`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.log_scan import BrokenSectorsFile, read_log_header, scan_log
from magnetar.bookie.errors import StorageCorruptError, StorageError, StorageIOError
from magnetar.bookie.indexes.index_files import remove_file, remove_index
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.ledger_state import check_state, decode_state
from magnetar.bookie.indexes.location_index import IndexChanges, LocationIndex, NewRun
from magnetar.bookie.indexes.open_index import IndexOpener, index_path, mark_of, open_index_to_read
from magnetar.bookie.indexes.pages.page_files import PageFiles
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.indexes.run_stretches import stretches_of
from magnetar.bookie.integrity.loss_mark import LossMark, write_marks
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Clock, Disk

_RUNS_PER_COMMIT = 10_000
_STATES_PER_COMMIT = 10_000
_OPEN_LOGS_MAX = 64


class SalvagedStates(NamedTuple):
    """Encoded ledger states, by ledger."""

    states: dict[int, bytes]
    are_complete: bool
    """Whether no state is missing or older than the index promised."""


class LogProblem(NamedTuple):
    """A place of a log that could not be read, or that holds no run."""

    path: str
    begin: int
    end: int
    """The end of the place; the end of the file if no run follows."""
    reason: str


class Rebuilt(NamedTuple):
    """Result of a rebuilding."""

    engine: EngineKind
    logs: int
    runs: int
    ledgers: int
    """Number of ledgers in the new index."""
    salvaged: int
    """Number of ledgers whose state could be read from the old index."""
    are_states_complete: bool
    """Whether the old index was whole as far as states go."""
    problems: list[LogProblem]
    was_built_before: bool = False
    """Whether an interrupted run had built the index, and this one only put it in its place: what
    that run found is not known here, and all other fields say nothing."""


def rebuild_index(
    directory: str,
    engine: EngineKind,
    *,
    disk: Disk,
    clock: Clock,
    make_key_value: MakeKeyValue = RocksStore.open,
    open_key_value: MakeKeyValue = RocksStore.open_to_read,
    options: StorageOptions | None = None,
) -> Rebuilt:
    """Give the storage in `directory` a new index of the kind `engine`. The bookie must not run.

    Raises:
        StorageIOError, OSError: the rebuilding failed; call it again.
    """
    switch = _Switch(directory, engine, disk)
    rebuilt = Rebuilt(engine, 0, 0, 0, 0, False, [], was_built_before=True)
    if not switch.is_begun:
        opener = IndexOpener(directory, disk, make_key_value=make_key_value, options=options)
        salvaged = salvage_states(directory, disk=disk, open_key_value=open_key_value)
        switch.prepare()
        index = opener.open(engine, switch.building, has_logs=False, path=switch.new_path)
        try:
            rebuilt = _Rebuilding(directory, index, salvaged, disk).run(engine)
        finally:
            index.close()
        mark = LossMark(since_ms=clock.wall_ms(), lost=[], is_noted=False)
        write_marks(disk, [directory], mark)
        switch.begin()
    switch.finish()
    return rebuilt


class _Rebuilding:
    """Fills a new index from the entry logs."""

    def __init__(
        self, directory: str, index: LocationIndex, salvaged: SalvagedStates, disk: Disk
    ) -> None:
        self._logs_directory = f"{directory}/entry-logs"
        self._index = index
        self._salvaged = salvaged
        self._disk = disk
        self._last_log_id = 0
        self._problems: list[LogProblem] = []

    def run(self, engine: EngineKind) -> Rebuilt:
        logs = self._ranked_logs()
        ledgers: set[int] = set()
        runs = 0
        reader = EntryLogReader(
            self._logs_directory, open_files_max=_OPEN_LOGS_MAX, disk=self._disk
        )
        try:
            gathered: dict[int, list[NewRun]] = {}
            for run in self._runs(logs):
                runs += 1
                ledgers.add(run.ledger_id)
                gathered.setdefault(run.ledger_id, []).append(_new_run(run, reader))
                if runs % _RUNS_PER_COMMIT == 0:
                    self._index.commit(IndexChanges(self._last_log_id, runs=gathered))
                    gathered = {}
            self._index.commit(IndexChanges(self._last_log_id, runs=gathered))
        finally:
            reader.close()
        salvaged = self._salvaged
        ledgers.update(salvaged.states)
        self._commit_states(sorted(ledgers))
        return Rebuilt(
            engine,
            len(logs),
            runs,
            len(ledgers),
            len(salvaged.states),
            salvaged.are_complete,
            self._problems,
        )

    def _ranked_logs(self) -> list[int]:
        """Return the logs, oldest copies first."""
        ranked: list[tuple[int, int]] = []
        ids = log_ids(self._disk.list(self._logs_directory))
        for log_id in ids:
            path = f"{self._logs_directory}/{log_name(log_id)}"
            file = self._disk.open(path)
            try:
                header = read_log_header(BrokenSectorsFile(file), log_id)
                ranked.append((header.rank, log_id))
            except StorageCorruptError as error:
                # Neither its content nor its age can be known: limbo accounts for it.
                self._problems.append(LogProblem(path, 0, file.size, str(error)))
            finally:
                file.close()
        self._last_log_id = max(ids, default=0)
        return [log_id for _, log_id in sorted(ranked)]

    def _runs(self, logs: list[int]) -> Iterator[StoredRun]:
        for log_id in logs:
            path = f"{self._logs_directory}/{log_name(log_id)}"
            file = self._disk.open(path)
            try:
                sectors = BrokenSectorsFile(file)
                scan = scan_log(sectors, log_id, beyond_damage=True)
                for begin, end in scan.skipped:
                    self._problems.append(LogProblem(path, begin, end, "no run can be read here"))
                for begin, end in sectors.broken():
                    self._problems.append(LogProblem(path, begin, end, "the disk cannot read it"))
                yield from scan.runs
            except OSError as exc:
                raise StorageIOError(f"{path}: cannot be scanned: {exc}") from exc
            finally:
                file.close()

    def _commit_states(self, ledger_ids: list[int]) -> None:
        for at in range(0, len(ledger_ids), _STATES_PER_COMMIT):
            some = ledger_ids[at : at + _STATES_PER_COMMIT]
            states = {ledger_id: self._state(ledger_id) for ledger_id in some}
            self._index.commit(IndexChanges(self._last_log_id, states=states))

    def _state(self, ledger_id: int) -> LedgerState:
        salvaged = self._salvaged
        value = salvaged.states.get(ledger_id)
        if value is None:
            return LedgerState(b"", fenced=True, last_add_confirmed=-1, limbo=True)
        state = decode_state(value)
        return replace(state, fenced=state.fenced or not salvaged.are_complete, limbo=True)


def _new_run(run: StoredRun, reader: EntryLogReader) -> NewRun:
    stretches = stretches_of(run.ledger_id, run.first, run.last, run.location, reader)
    return NewRun(run.location, stretches, run.first, run.last)


class _Switch:
    """Puts the new index in the place of the old one, and continues after an interruption."""

    def __init__(self, directory: str, engine: EngineKind, disk: Disk) -> None:
        self._directory = directory
        self._engine = engine
        self._disk = disk
        self._path = index_path(directory, engine)
        self._mark = mark_of(directory, disk)
        self.new_path = f"{self._path}.rebuilt"
        self.building = IndexMark(f"{directory}/index-mark.building", disk)
        self._built = f"{directory}/index-mark.rebuilt"

    @property
    def is_begun(self) -> bool:
        """Whether a new index is complete, and only has to be put in place."""
        if not self._disk.exists(self._built):
            return False
        found = IndexMark(self._built, self._disk).read()
        return found is not None and found.engine == self._engine

    def prepare(self) -> None:
        """Remove the remains of an earlier rebuilding."""
        remove_file(self._built, self._disk)
        remove_file(self.building.path, self._disk)
        remove_index(self.new_path, self._engine, self._disk)
        self._disk.sync_directory(self._directory)

    def begin(self) -> None:
        """Note that the new index is complete."""
        self._rename(self.building.path, self._built)

    def finish(self) -> None:
        if self._disk.exists(self._mark.path):
            # From here to the last step, no bookie can start on these files.
            remove_file(f"{self._mark.path}.damaged", self._disk)
            self._rename(self._mark.path, f"{self._mark.path}.damaged")
        if self._disk.exists(self.new_path):
            if self._disk.exists(self._path):
                self._rename(self._path, self._free_name(f"{self._path}.damaged"))
            self._rename(self.new_path, self._path)
        self._rename(self._built, self._mark.path)

    def _free_name(self, path: str) -> str:
        number = 1
        name = path
        while self._disk.exists(name):
            number += 1
            name = f"{path}.{number}"
        return name

    def _rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._disk.sync_directory(self._directory)


def salvage_states(directory: str, *, disk: Disk, open_key_value: MakeKeyValue) -> SalvagedStates:
    """Read the states from the index in `directory`, as far as possible; write nothing.

    Raises:
        OSError: an existing directory cannot be listed.
    """
    try:
        index = open_index_to_read(directory, disk=disk, open_key_value=open_key_value)
        try:
            return SalvagedStates(dict(index.states()), True)
        finally:
            index.close()
    except (StorageError, OSError):
        return SalvagedStates(_page_states(directory, "interleaved", disk), False)


def _page_states(directory: str, engine: EngineKind, disk: Disk) -> dict[int, bytes]:
    """Read the states of all readable page files: damage to one leaves the others readable."""
    states: dict[int, bytes] = {}
    files = PageFiles(index_path(directory, engine), open_files_max=1, disk=disk)
    try:
        for ledger_id in files.list_ledgers():
            try:
                state = files.read_header(ledger_id).state
                if state:
                    check_state(state)
                    states[ledger_id] = state
            except StorageError:
                continue  # it is lost; the caller knows that the states are incomplete
    finally:
        files.close()
    return states
