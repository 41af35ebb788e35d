"""Positions that clients name: message ids from the wire, and positions by publish time.

What a client names need not exist: it may be trimmed, beyond the end, or one of the constants
earliest and latest. `AckState.reset` settles that; here only the wire's form is read, and a time is
turned into a position.
"""

from collections.abc import Sequence
from typing import Protocol

from magnetar.broker.dispatch.range_reads import ReadableLog
from magnetar.broker.entry import publish_time_ms_of
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

_SIGN_BIT = 1 << 63
_BIT_64 = 1 << 64


class ListedLog(ReadableLog, Protocol):
    """A log that also tells its ledgers; `ManagedLog` is one."""

    @property
    def ledgers(self) -> Sequence[LogLedger]: ...


def signed(value: int) -> int:
    """An unsigned 64-bit field that holds a signed value: -1 travels as 2^64-1."""
    return value - _BIT_64 if value & _SIGN_BIT else value


def position_of(message_id: MessageIdData) -> Position:
    """Ledger and entry id of a message id."""
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


async def position_at_time(log: ListedLog, publish_time_ms: int) -> Position:
    """The first entry published at or after the time: what a seek to it delivers first.

    Binary search, by the publish times that producers set: with clocks that disagree the result is
    approximate, but never beyond the end (rule 4.3 of the managed ledger). If every entry is older,
    the one to be written next when this was called: what comes meanwhile is not older.

    An entry whose time cannot be read counts as not older: to begin too early delivers what the
    client can tell from what it asked for, and to begin too late would skip all that lies before.

    Raises:
        LedgerError: an entry could not be read.
    """
    ledgers, end = _confirmed(log), log.next_position(log.last_confirmed)
    low, high = 0, sum(entries for _, entries in ledgers)
    while low < high:
        middle = (low + high) // 2
        _, found = await log.read_range(_nth(ledgers, middle), entries_max=1, bytes_max=1)
        published_ms = publish_time_ms_of(found[0]) if found else None
        if published_ms is not None and published_ms < publish_time_ms:
            low = middle + 1
        else:
            high = middle
    return min(_nth(ledgers, low), end)


def entries_in(log: ListedLog) -> int:
    """Confirmed entries that are not trimmed."""
    return sum(entries for _, entries in _confirmed(log))


def nth_position(log: ListedLog, index: int) -> Position:
    """Entry number `index` of what is not trimmed, from 0; `LATEST` beyond the end."""
    return _nth(_confirmed(log), index)


def _confirmed(log: ListedLog) -> list[tuple[int, int]]:
    """Ledgers with their confirmed entries, without those that have none."""
    last = log.last_confirmed
    counted = (
        (
            each.ledger_id,
            min(each.entries, last.entry_id + 1)
            if each.ledger_id == last.ledger_id
            else each.entries,
        )
        for each in log.ledgers
    )
    return [(ledger_id, entries) for ledger_id, entries in counted if entries]


def _nth(ledgers: Sequence[tuple[int, int]], index: int) -> Position:
    """Entry number `index` of the log; `LATEST` beyond the end."""
    for ledger_id, entries in ledgers:
        if index < entries:
            return Position(ledger_id, index)
        index -= entries
    return LATEST
