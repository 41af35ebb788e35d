"""The entries that a record of an index stands for; where it cannot say, its run in the log can."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magnetar.bookie.entry_logs.entry_log import RunLocation, StoredRun
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.errors import StorageCorruptError, StorageLogMissingError


@dataclass(frozen=True, slots=True)
class _Looked:
    """Stretches that are looked up when somebody wants them: few do."""

    run: StoredRun
    logs: EntryLogReader

    def __iter__(self) -> Iterator[tuple[int, int]]:
        run = self.run
        try:
            ids: Sequence[int] = self.logs.load_head(run).ids
        except (StorageCorruptError, StorageLogMissingError):
            # Which of them it holds is not known any more. To ask for any of them must lead to the
            # damage, and never to "not stored".
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
    """The stretches of ids from `first` to `last` that the run holds, for a `NewRun`.

    Raises (while iterated):
        StorageIOError: the log could not be read.
    """
    if not location.has_ids:
        return [(first, last)]
    return _Looked(StoredRun(ledger_id, first, last, location), logs)
