"""Choose the ledgers of a log to delete: consumed by every cursor, and past the retention. Pure.

Consumed is what every durable cursor has *persistently* passed (rule 5.1); (L, last) counts as
passed with the whole of L (rule 4.1). Of the consumed ledgers, oldest first, each one goes that was
closed longer ago than the retention time, or without which the log is still as large as the
retention size; the first that is neither ends it.

The last ledger stays, and so does the last one that holds anything: a log that loses all its
entries would forget where it ended. Only a truncation takes that one, too.

Source: managed ledger, section 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position

INFINITE = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is consumed is kept: until either limit is exceeded. -1: no limit."""

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
    """Where the log may begin: the ledgers before it may go. None: all of them stay.

    Args:
        ledgers: the list, with the counters of open ledgers as they are now.
        consumed: everything at or before it is needed by no durable cursor; None: there is none.
        now_ms: wall clock, as in `closed_ms`.
        truncates: whatever is consumed goes, retention or not.
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
    """For each ledger whether a later one holds entries."""
    found: list[bool] = []
    later = False
    for ledger in reversed(ledgers):
        found.append(later)
        later = later or ledger.entries > 0
    return found[::-1]


def bytes_behind(ledgers: Sequence[LogLedger], position: Position) -> int:
    """About how many bytes of the log lie behind a position; reads nothing.

    Whole ledgers count as they are, a part of one by its share of the entries.
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
    """The first position behind which no more than `size_bytes` lie, as `bytes_behind` counts.

    None: the whole log is no larger.
    """
    left = size_bytes
    for ledger in reversed(ledgers):
        if ledger.entries <= 0:
            continue
        if ledger.bytes > left:
            # The most entries whose share, rounded down as above, is no larger.
            fits = (ledger.entries * (left + 1) - 1) // ledger.bytes
            return Position(ledger.ledger_id, ledger.entries - 1 - fits)
        left -= ledger.bytes
    return None
