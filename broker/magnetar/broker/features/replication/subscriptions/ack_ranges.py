"""Sorted ranges of entries: difference, union, and other operations. Pure.

A range has entries of one ledger. Lists are ascending, and their ranges do not overlap.
"""

from collections.abc import Iterable, Iterator, Sequence

from magnetar.cursors import AckRange
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import Position


def without(ranges: Iterable[AckRange], taken: Sequence[AckRange]) -> list[AckRange]:
    """Return the entries of `ranges` that are not in `taken`."""
    found: list[AckRange] = []
    at = 0
    for ledger_id, first, last in ranges:
        while at < len(taken) and (taken[at].ledger_id, taken[at].last_entry_id) < (
            ledger_id,
            first,
        ):
            at += 1
        start, behind = first, at
        while behind < len(taken) and (taken[behind].ledger_id, taken[behind].first_entry_id) <= (
            ledger_id,
            last,
        ):
            if taken[behind].first_entry_id > start:
                found.append(AckRange(ledger_id, start, taken[behind].first_entry_id - 1))
            start = max(start, taken[behind].last_entry_id + 1)
            behind += 1
        if start <= last:
            found.append(AckRange(ledger_id, start, last))
    return found


def union(one: Iterable[AckRange], other: Iterable[AckRange]) -> list[AckRange]:
    """Return the entries that are in either of two lists."""
    found: list[AckRange] = []
    for ledger_id, first, last in sorted([*one, *other]):
        before = found[-1] if found else None
        if before and before.ledger_id == ledger_id and first <= before.last_entry_id + 1:
            found[-1] = before._replace(last_entry_id=max(before.last_entry_id, last))
        else:
            found.append(AckRange(ledger_id, first, last))
    return found


def behind(ranges: Iterable[AckRange], after: Position) -> list[AckRange]:
    """Return the entries after a position."""
    found: list[AckRange] = []
    for ledger_id, first, last in ranges:
        if ledger_id == after.ledger_id:
            first = max(first, after.entry_id + 1)
        if ledger_id >= after.ledger_id and first <= last:
            found.append(AckRange(ledger_id, first, last))
    return found


def in_turns(ranges: Iterable[AckRange], entries_max: int) -> Iterator[list[AckRange]]:
    """Yield the ranges in parts of at most `entries_max` entries."""
    part: list[AckRange] = []
    room = entries_max
    for ledger_id, first, last in ranges:
        while first <= last:
            stop = min(last, first + room - 1)
            part.append(AckRange(ledger_id, first, stop))
            room -= stop - first + 1
            first = stop + 1
            if not room:
                yield part
                part, room = [], entries_max
    if part:
        yield part


def all_between(ledgers: Sequence[LogLedger], after: Position, through: Position) -> list[AckRange]:
    """Return all entries of a log in (after, through]."""
    found: list[AckRange] = []
    for ledger in ledgers:
        if not after.ledger_id <= ledger.ledger_id <= through.ledger_id:
            continue
        first = after.entry_id + 1 if ledger.ledger_id == after.ledger_id else 0
        last = ledger.entries - 1
        if ledger.ledger_id == through.ledger_id:
            last = through.entry_id
        if first <= last:
            found.append(AckRange(ledger.ledger_id, first, last))
    return found


def within(
    ranges: Iterable[AckRange], ledgers: Sequence[LogLedger], last: Position
) -> list[AckRange]:
    """Return those of the entries that a log has which ends at `last`."""
    sizes = {each.ledger_id: each.entries for each in ledgers if each.ledger_id < last.ledger_id}
    sizes[last.ledger_id] = last.entry_id + 1
    found: list[AckRange] = []
    for ledger_id, first, final in ranges:
        final = min(final, sizes.get(ledger_id, 0) - 1)
        if first <= final:
            found.append(AckRange(ledger_id, first, final))
    return found
