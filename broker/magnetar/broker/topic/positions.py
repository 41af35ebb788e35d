"""Positions that clients name: message ids from the wire, and positions by publish time.

A position that a client names need not exist: it may be trimmed, beyond the end, or one of the
constants earliest and latest. `AckState.reset` resolves that. This module only decodes message ids,
and turns times into positions.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.broker.base.entry import publish_time_ms_of
from magnetar.broker.topic.dispatch.range_reads import ReadableLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

_SIGN_BIT = 1 << 63
_BIT_64 = 1 << 64

CLOCKS_DIFFER_MS = 60_000
"""Largest difference, in ms, that is tolerated between clocks of producers and of a broker."""
_LOOKED_AT = 8
"""Entries whose publish times decide one step of a search."""
_LOOKED_AT_BYTES = 1 << 18


class ListedLog(ReadableLog, Protocol):
    """A log that also lists its ledgers; `ManagedLog` is one."""

    @property
    def ledgers(self) -> Sequence[LogLedger]: ...

    def stored_since_ms(self, position: Position, /) -> int:
        """Return a time, by brokers' clocks, before which the entry was not stored; 0: unknown."""
        ...

    async def entries_after(self, ledger_id: int, publish_ms: int, /) -> range | None:
        """Return where in a ledger the first entry is that was published at or after a time.

        It reads no entries. None: unknown. See `ManagedLog.entries_after`.
        """
        ...


def signed(value: int) -> int:
    """Return an unsigned 64-bit field as the signed value it holds: -1 is sent as 2^64-1."""
    return value - _BIT_64 if value & _SIGN_BIT else value


def position_of(message_id: MessageIdData) -> Position:
    """Return ledger and entry id of a message id."""
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


async def position_at_time(log: ListedLog, publish_time_ms: int) -> Position:
    """Return the position of the first entry published at or after the time, where a seek begins.

    A binary search by the publish times that producers set. Each step looks at several entries,
    because publish times need not grow. In a ledger that is read from an object store, the object's
    index leads to one run of entries, and the search continues there. A publish time long before
    its entry can have been stored comes from a wrong clock, and the earliest possible time counts
    instead. With clocks that disagree the result is approximate, but never beyond the end (rule 4.3
    of the managed ledger). If every entry is older, the result is the next entry to be written at
    the time of the call: later entries are not older.

    An entry without a readable time counts as not older. Starting too early delivers messages that
    the client can filter out; starting too late would skip all messages before.

    Raises:
        LedgerError: an entry could not be read.
    """
    ledgers, end = _confirmed(log), log.next_position(log.last_confirmed)
    low, high = 0, sum(entries for _, entries in ledgers)
    asked: set[int] = set()
    while low < high:
        middle = (low + high) // 2
        position = _nth(ledgers, middle)
        if position.ledger_id not in asked:
            asked.add(position.ledger_id)
            found = await _by_index(log, position.ledger_id, publish_time_ms)
            if found is not None:
                begin = middle - position.entry_id
                if found.start:  # else the first one may be in an earlier ledger
                    low = min(high, max(low, begin + found.start))
                if found:
                    high = min(high, begin + found.stop - 1)
                continue
        published_ms = await newest_published_ms(log, position, clocks_differ_ms=CLOCKS_DIFFER_MS)
        if published_ms is not None and published_ms < publish_time_ms:
            low = middle + 1
        else:
            high = middle
    return min(_nth(ledgers, low), end)


async def _by_index(log: ListedLog, ledger_id: int, publish_time_ms: int) -> range | None:
    """Return what `entries_after` says, or None if clocks may be wrong.

    An entry that was stored at or after the time may count as not older, even if its publish time
    is older.
    """
    found = await log.entries_after(ledger_id, publish_time_ms)
    if found is None or found.start == 0:
        return found
    last_older = Position(ledger_id, found.start - 1)
    return found if log.stored_since_ms(last_older) < publish_time_ms else None


async def newest_published_ms(
    log: ListedLog,
    position: Position,
    *,
    now_ms: int | None = None,
    clocks_differ_ms: int = 0,
    time_of: Callable[[bytes], int | None] = publish_time_ms_of,
) -> int | None:
    """Return the newest publish time among the entry and a few before it in its ledger.

    Usually one read. Where several producers take turns and the clock of one is behind, the others'
    times tell how late it is. No time counts as earlier than what `stored_since_ms` returns for its
    entry.

    Args:
        now_ms: publish times of earlier entries after this are false, and left out.
        time_of: returns the time of an entry, ms since the epoch; None: it cannot be read.
        clocks_differ_ms: a time that is earlier than the entry was stored by no more than this is
            accepted.

    Returns:
        None: the entry's own time cannot be read. 0: the entry was trimmed meanwhile.

    Raises:
        LedgerError: an entry could not be read.
    """
    start = Position(position.ledger_id, max(0, position.entry_id - (_LOOKED_AT - 1)))
    count = position.entry_id - start.entry_id + 1
    first, found = await log.read_range(start, entries_max=count, bytes_max=_LOOKED_AT_BYTES)
    if first != start:
        return 0
    if len(found) < count:  # large ones
        first, found = await log.read_range(position, entries_max=1, bytes_max=1)
        if first != position:
            return 0
    last_ms = time_of(found[-1]) if found else None
    if last_ms is None:
        return None
    for payload in found[:-1]:
        published_ms = time_of(payload)
        if published_ms is not None and (now_ms is None or published_ms <= now_ms):
            last_ms = max(last_ms, published_ms)
    since_ms = log.stored_since_ms(position)
    return since_ms if last_ms < since_ms - clocks_differ_ms else last_ms


def entries_in(log: ListedLog) -> int:
    """Return the number of confirmed entries that are not trimmed."""
    return sum(entries for _, entries in _confirmed(log))


def nth_position(log: ListedLog, index: int) -> Position:
    """Return the position of entry number `index` of what is not trimmed, from 0; `LATEST` beyond
    the end."""
    return _nth(_confirmed(log), index)


def _confirmed(log: ListedLog) -> list[tuple[int, int]]:
    """Return the ledgers with their confirmed entries, without empty ones."""
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
    """Return the position of entry number `index` of the log; `LATEST` beyond the end."""
    for ledger_id, entries in ledgers:
        if index < entries:
            return Position(ledger_id, index)
        index -= entries
    return LATEST
