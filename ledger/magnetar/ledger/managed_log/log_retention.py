"""Chooses the ledgers of a log to delete: consumed by every cursor, and past the retention. Pure.

Consumed are the entries that every durable cursor has *persistently* passed (rule 5.1); (L, last)
counts as passed with the whole of L (rule 4.1). Consumed ledgers are checked oldest first. A ledger
is deleted if it was closed longer ago than the retention time, or if the log without it is still as
large as the retention size. The first ledger for which neither holds ends the deletion.

The last ledger stays, and so does the last one with entries: a log that lost all its entries would
forget where it ended. Only a truncation deletes that one, too.

Source: managed ledger, section 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position

INFINITE = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed entries are kept: until either limit is exceeded. -1: no limit."""

    time_s: float = 0.0
    size_bytes: int = 0


def trim_point(
    ledgers: Sequence[LogLedger],
    consumed: Position | None,
    retention: Retention,
    *,
    now_ms: int,
    truncates: bool = False,
) -> Position | None:
    """Return where the log may begin: earlier ledgers may be deleted. None if all of them stay.

    Args:
        ledgers: the list, with the current counters of open ledgers.
        consumed: no durable cursor needs the entries up to and including it; None if there is no
            cursor.
        now_ms: wall clock, as in `closed_ms`.
        truncates: delete all consumed ledgers, whatever the retention.
    """
    left_bytes = sum(ledger.bytes for ledger in ledgers)
    has_later_entries = _has_later_entries(ledgers)
    count = 0
    for ledger, is_followed in zip(ledgers[:-1], has_later_entries, strict=False):
        if not ledger.is_closed:
            break
        if consumed is not None and (ledger.ledger_id, ledger.entries - 1) > consumed:
            break
        left_bytes -= ledger.bytes
        if not truncates:
            age_s = (now_ms - ledger.closed_ms) / 1000
            is_expired = INFINITE < retention.time_s < age_s
            is_over_size = INFINITE < retention.size_bytes <= left_bytes
            if not is_followed or not (is_expired or is_over_size):
                break
        count += 1
    return Position(ledgers[count].ledger_id, 0) if count else None


def _has_later_entries(ledgers: Sequence[LogLedger]) -> list[bool]:
    """Return for each ledger whether a later one holds entries."""
    found: list[bool] = []
    later = False
    for ledger in reversed(ledgers):
        found.append(later)
        later = later or ledger.entries > 0
    return found[::-1]


def bytes_behind(ledgers: Sequence[LogLedger], position: Position) -> int:
    """Return about how many bytes of the log are behind a position; no I/O.

    Whole ledgers count in full, a part of one by its share of the entries.
    """
    total = 0
    for ledger in ledgers:
        if ledger.entries <= 0 or ledger.ledger_id < position.ledger_id:
            continue
        behind = ledger.entries
        if ledger.ledger_id == position.ledger_id:
            behind = max(0, ledger.entries - 1 - position.entry_id)
        total += ledger.bytes * min(behind, ledger.entries) // ledger.entries
    return total


def position_with_bytes_behind(ledgers: Sequence[LogLedger], size_bytes: int) -> Position | None:
    """Return the first position with at most `size_bytes` behind it, as `bytes_behind` counts.

    None if the whole log is no larger.
    """
    left = size_bytes
    for ledger in reversed(ledgers):
        if ledger.entries <= 0:
            continue
        if ledger.bytes > left:
            # The most entries whose share, rounded down as in `bytes_behind`, is no larger.
            fits = (ledger.entries * (left + 1) - 1) // ledger.bytes
            return Position(ledger.ledger_id, ledger.entries - 1 - fits)
        left -= ledger.bytes
    return None
