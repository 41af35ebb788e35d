"""Inspection of an index: its ledgers and their records."""

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.ledger_state import decode_state
from magnetar.bookie.indexes.location_index import IndexRecord, LocationIndex

_RECORDS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """One ledger of an index."""

    ledger_id: int
    fenced: bool | None
    """None, like the next three fields, if the state cannot be read: see `problem`."""
    limbo: bool | None
    last_add_confirmed: int | None
    has_key: bool | None
    runs: int
    last_entry_id: int
    """-1 if no entry is stored."""
    problem: str | None = None


def ledger_summaries(index: LocationIndex) -> Iterator[LedgerSummary]:
    """Yield every ledger, ascending, including those with entries but no state.

    Raises:
        StorageIOError: the index cannot be read.
    """
    states = dict(index.states())
    stored: dict[int, tuple[int, int]] = {}
    for ledger_id, record in index.all_records():
        runs, last = stored.get(ledger_id, (0, -1))
        stored[ledger_id] = (runs + 1, max(last, record.last))
    for ledger_id in sorted(states.keys() | stored.keys()):
        runs, last = stored.get(ledger_id, (0, -1))
        yield _summary(ledger_id, states.get(ledger_id), runs, last)


def _summary(ledger_id: int, value: bytes | None, runs: int, last: int) -> LedgerSummary:
    problem = "entries, and no state"
    if value is not None:
        try:
            state = decode_state(value)
        except StorageCorruptError as error:
            problem = str(error)
        else:
            return LedgerSummary(
                ledger_id,
                state.fenced,
                state.limbo,
                state.last_add_confirmed,
                bool(state.master_key),
                runs,
                last,
            )
    return LedgerSummary(ledger_id, None, None, None, None, runs, last, problem)


def ledger_records(index: LocationIndex, ledger_id: int) -> Iterator[IndexRecord]:
    """Yield the records of a ledger, ascending.

    Raises:
        StorageIOError: the index cannot be read.
    """
    first = 0
    while records := index.records_from(ledger_id, first, _RECORDS_AT_ONCE):
        yield from records
        first = records[-1].last + 1
