"""The entry ids that an index record covers, read from its run in the log where needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magnetar.bookie.entry_logs.entry_log import RunLocation, StoredRun
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.errors import StorageCorruptError, StorageLogMissingError


@dataclass(frozen=True, slots=True)
class _Looked:
    """Stretches that are read only when they are iterated, which is rare."""

    run: StoredRun
    logs: EntryLogReader

    def __iter__(self) -> Iterator[tuple[int, int]]:
        run = self.run
        try:
            ids: Sequence[int] = self.logs.load_head(run).ids
        except (StorageCorruptError, StorageLogMissingError):
            # Which of the ids it holds is unknown now. A read of any of them must find the damage,
            # and never report "not stored".
            yield run.first, run.last
            return
        first: int | None = None
        last = -1
        for entry_id in ids:
            if not run.first <= entry_id <= run.last:
                continue
            if first is not None and entry_id > last + 1:
                yield first, last
                first = None
            first = entry_id if first is None else first
            last = entry_id
        if first is not None:
            yield first, last


def stretches_of(
    ledger_id: int, first: int, last: int, location: RunLocation, logs: EntryLogReader
) -> "Sequence[tuple[int, int]] | _Looked":
    """Return the stretches of ids from `first` to `last` that the run holds, for a `NewRun`.

    Raises (while iterated):
        StorageIOError: the log could not be read.
    """
    if not location.has_ids:
        return [(first, last)]
    return _Looked(StoredRun(ledger_id, first, last, location), logs)
