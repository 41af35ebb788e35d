"""Conversion of a storage directory's index to the other kind. The entry logs stay.

The new index is built beside the old one, under a mark of its own. One rename replaces the index
mark by that mark. A crash before the rename leaves the old index in use, a crash after it the new
one. An interrupted conversion continues ledger by ledger, unless the old index has changed
meanwhile: then it starts over. The bookie must not run; the old index is held open until the new
one is in use, so that no bookie can start on it.
"""

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.index_files import remove_file, remove_index
from magnetar.bookie.indexes.index_mark import EngineKind, IndexMark, Promise
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.ledger_state import decode_state
from magnetar.bookie.indexes.location_index import (
    IndexChanges,
    IndexRecord,
    LocationIndex,
    NewRun,
)
from magnetar.bookie.indexes.open_index import IndexOpener, index_path, mark_of
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.bookie.indexes.run_stretches import stretches_of
from magnetar.bookie.storage import LedgerState
from magnetar.bookie.storage_options import StorageOptions
from magnetar.ledger.ports import Disk

_RECORDS_PER_COMMIT = 10_000
_OPEN_LOGS_MAX = 64


class Conversion(NamedTuple):
    """Result of a conversion."""

    source: EngineKind
    target: EngineKind
    ledgers: int
    records: int
    """Records carried over from the old index; 0 if the index had this kind already."""


def convert_index(
    directory: str,
    target: EngineKind,
    *,
    disk: Disk,
    make_key_value: MakeKeyValue = RocksStore.open,
    options: StorageOptions | None = None,
) -> Conversion:
    """Give the storage in `directory` an index of the kind `target`; do nothing if it has one.

    Raises:
        StorageIOError, OSError: the conversion failed; the storage keeps its index.
    """
    opener = IndexOpener(directory, disk, make_key_value=make_key_value, options=options)
    mark = mark_of(directory, disk)
    promise = mark.read()
    if promise is None:
        raise StorageCorruptError(f"{directory} has no index mark: there is nothing to convert")
    source: EngineKind = "interleaved" if target == "db" else "db"
    if promise.engine == target:
        _remove_old(directory, source, disk)
        return Conversion(source, target, 0, 0)
    old = opener.open(source, mark, has_logs=True)
    try:
        done = _build(directory, old, source, target, opener, disk)
        disk.rename(_new_mark(directory, disk).path, mark.path)
        disk.sync_directory(directory)
    finally:
        old.close()
    _remove_old(directory, source, disk)
    return done


def _build(
    directory: str,
    old: LocationIndex,
    source: EngineKind,
    target: EngineKind,
    opener: IndexOpener,
    disk: Disk,
) -> Conversion:
    new_mark = _new_mark(directory, disk)
    begun_path = f"{directory}/conversion"
    begun = IndexMark(begun_path, disk)
    # The format of a mark holds all that is needed: which index, at which sequence.
    wanted = Promise(source, old.sequence())
    if _read(new_mark) is None or _read(begun) != wanted:
        remove_index(index_path(directory, target), target, disk)
        remove_file(new_mark.path, disk)
        disk.sync_directory(directory)
        begun.write(wanted)
    new = opener.open(target, new_mark, has_logs=False)
    try:
        logs = EntryLogReader(f"{directory}/entry-logs", open_files_max=_OPEN_LOGS_MAX, disk=disk)
        try:
            records = _copy(old, new, logs)
        finally:
            logs.close()
        _compare(old, new)
        return Conversion(source, target, len(old.states()), records)
    finally:
        new.close()


def _copy(old: LocationIndex, new: LocationIndex, logs: EntryLogReader) -> int:
    states = {each: decode_state(value) for each, value in old.states().items()}
    said = new.states()
    # The last ledger that was carried over may be incomplete: it is copied again. States may be
    # missing before it, too: a commit that was cut may have written the ledgers with records first.
    done_until = max(said, default=-1)
    runs: dict[int, list[NewRun]] = {}
    unsaid = deque(sorted(each for each in states if each >= done_until or each not in said))
    count = gathered = 0
    for ledger_id, records in _ledgers(old):
        for record in records:
            count += 1
            if ledger_id < done_until:
                continue
            runs.setdefault(ledger_id, []).append(_as_run(ledger_id, record, logs))
            gathered += 1
            if gathered >= _RECORDS_PER_COMMIT:
                # A ledger's state is written with the last of its records: a state in the new index
                # means that the records of all ledgers before it are there.
                complete = _take_below(unsaid, ledger_id)
                _commit(old, new, runs, {each: states[each] for each in complete})
                runs, gathered = {}, 0
    _commit(old, new, runs, {each: states[each] for each in unsaid})
    return count


def _ledgers(index: LocationIndex) -> Iterator[tuple[int, Iterator[IndexRecord]]]:
    for ledger_id, group in groupby(index.all_records(), key=lambda each: each[0]):
        yield ledger_id, (record for _, record in group)


def _take_below(ledger_ids: deque[int], end: int) -> list[int]:
    taken: list[int] = []
    while ledger_ids and ledger_ids[0] < end:
        taken.append(ledger_ids.popleft())
    return taken


def _commit(
    old: LocationIndex,
    new: LocationIndex,
    runs: dict[int, list[NewRun]],
    states: dict[int, LedgerState],
) -> None:
    new.commit(IndexChanges(old.last_log_id, runs=runs, states=states))


def _as_run(ledger_id: int, record: IndexRecord, logs: EntryLogReader) -> NewRun:
    return NewRun(
        record.location,
        stretches_of(ledger_id, record.first, record.last, record.location, logs),
        record.first,
        record.last,
    )


def _compare(old: LocationIndex, new: LocationIndex) -> None:
    """Check that both indexes agree, before the old one is removed."""
    if dict(old.states()) != dict(new.states()):
        raise StorageCorruptError("conversion: the ledger states of both indexes differ")
    for ledger_id, record in old.all_records():
        if record.location.has_ids:
            continue  # the first id of the record may lie in a gap
        for entry_id in (record.first, record.last):
            found = new.find(ledger_id, entry_id)
            if found is None or found.location != record.location:
                raise StorageCorruptError(
                    f"conversion: ledger {ledger_id} entry {entry_id} should be at "
                    f"{record.location}, the new index says {found}"
                )


def _read(mark: IndexMark) -> Promise | None:
    try:
        return mark.read()
    except StorageCorruptError:
        return None  # the index it belongs to is built again


def _new_mark(directory: str, disk: Disk) -> IndexMark:
    return IndexMark(f"{directory}/index-mark.converted", disk)


def _remove_old(directory: str, engine: EngineKind, disk: Disk) -> None:
    remove_index(index_path(directory, engine), engine, disk)
    remove_file(_new_mark(directory, disk).path, disk)
    remove_file(f"{directory}/conversion", disk)
    disk.sync_directory(directory)
