"""Chooses the ledgers of a log to copy to an object store, and those that the bookies may delete.
Pure.

Chosen are closed ledgers that have entries, from the oldest on. A ledger is chosen if it and all
newer ones have more bytes than should stay on bookies, or if it was closed longer ago than it
should stay there. A small ledger waits: an object of its own costs as many requests as a large one.

Bookies delete ledgers in the order of the log. So of the ledgers that lie in an object only, at
most one is not deleted yet: the newest.

Source: tiered storage, sections 1, 2 and 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.position import Position

NEVER = -1


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """When ledgers of a log are copied to the object store, and deleted from the bookies."""

    bytes_on_bookies: int = NEVER
    """Number of the newest bytes of the log that stay on bookies; -1 if size does not matter."""
    time_on_bookies_s: float = NEVER
    """How long after its close a ledger stays on bookies; -1 if age does not matter."""
    deletion_lag_s: float = 4 * 60 * 60
    """How long a copied ledger stays on bookies as well; -1 for ever."""
    small_bytes: int = 1 << 20
    """Size in bytes below which a ledger is small."""
    small_wait_s: float = 24 * 60 * 60
    """How long after its close a small ledger is copied."""


def to_copy(
    ledgers: Sequence[LogLedger],
    rules: OffloadRules,
    *,
    now_ms: int,
    before: Position | None = None,
) -> list[LogLedger]:
    """Return the ledgers to copy now, the oldest first.

    Args:
        ledgers: the list, with the current counters of open ledgers.
        now_ms: wall clock, as in `closed_ms`.
        before: choose all ledgers that end before it, whatever the rules are.
    """
    chosen: list[LogLedger] = []
    newer_bytes = 0
    for ledger in reversed(ledgers):
        newer_bytes += ledger.bytes
        if not ledger.is_closed or ledger.entries == 0 or ledger.is_in_object:
            continue
        age_s = (now_ms - ledger.closed_ms) / 1000
        is_asked = before is not None and (ledger.ledger_id, ledger.entries - 1) < before
        is_over_size = NEVER < rules.bytes_on_bookies < newer_bytes
        is_old = NEVER < rules.time_on_bookies_s <= age_s
        is_small = ledger.bytes < rules.small_bytes and age_s < rules.small_wait_s
        if is_asked or ((is_over_size or is_old) and not is_small):
            chosen.append(ledger)
    return chosen[::-1]


def to_forget(ledgers: Sequence[LogLedger], rules: OffloadRules, *, now_ms: int) -> list[LogLedger]:
    """Return the ledgers that the bookies may delete once their objects were read back, the oldest
    first. The list ends before the first one that is not due, or not copied."""
    chosen: list[LogLedger] = []
    if rules.deletion_lag_s < 0:
        return chosen
    for ledger in ledgers:
        if ledger.is_in_object_only:
            continue
        found = ledger.object
        if not ledger.is_in_object or found is None or not _is_due(found, rules, now_ms):
            break
        chosen.append(ledger)
    return chosen


def newest_in_object_only(ledgers: Sequence[LogLedger]) -> LogLedger | None:
    """Return the one ledger that an owner may have marked without deleting it; None if there is
    none."""
    for ledger in reversed(ledgers):
        if ledger.is_in_object_only:
            return ledger
    return None


def _is_due(found: LedgerObject, rules: OffloadRules, now_ms: int) -> bool:
    return found.state is ObjectState.COPIED and found.at_ms + rules.deletion_lag_s * 1000 <= now_ms
