"""Invariants of the managed log: L1 to L4. What is in it in the end is what "y" read."""

from collections.abc import Iterator

from tests.simulation.history import LogAppended, LogRead
from tests.simulation.record import Record, invariant

INSPECTOR = "y"
"""Reads the whole log after everything was healed."""


@invariant("L1", "What a log confirmed is in it in the end, at its position")
def confirmed_is_kept(run: Record) -> Iterator[str]:
    if not run.is_complete:
        return
    final = {
        (seen.event.ledger_id, seen.event.entry_id): seen.event.payload
        for seen in run.of(LogRead)
        if seen.actor == INSPECTOR
    }
    for seen in run.of(LogAppended):
        event = seen.event
        if not event.error and final.get((event.ledger_id, event.entry_id)) != event.payload:
            found = final.get((event.ledger_id, event.entry_id))
            yield f"{seen.actor} {event}; in the end there is {found!r}"


@invariant("L2", "A log is read in the order of its positions, and holds nothing twice")
def order_and_uniqueness(run: Record) -> Iterator[str]:
    last: dict[str, tuple[int, int]] = {}
    places: dict[tuple[str, bytes], tuple[int, int]] = {}
    for seen in run.of(LogRead):
        event = seen.event
        position = event.ledger_id, event.entry_id
        if position <= last.get(event.reader, (-1, -1)):
            yield f"{event}, after {last[event.reader]}"
        last[event.reader] = position
        before = places.setdefault((event.reader, event.payload), position)
        if before != position:
            yield f"{event}, and it was at {before} too"


@invariant("L3", "Every position of a log has one payload, for its owner and for all readers")
def one_payload(run: Record) -> Iterator[str]:
    payloads: dict[tuple[int, int], bytes] = {}
    for seen in run.of(LogAppended):
        event = seen.event
        if not event.error:
            payloads[event.ledger_id, event.entry_id] = event.payload
    for read in run.of(LogRead):
        position = read.event.ledger_id, read.event.entry_id
        known = payloads.setdefault(position, read.event.payload)
        if known != read.event.payload:
            yield f"{read.event}, but it is {known!r}"
    if not run.is_complete:
        return
    final = {
        (seen.event.ledger_id, seen.event.entry_id)
        for seen in run.of(LogRead)
        if seen.actor == INSPECTOR
    }
    for read in run.of(LogRead):
        if (read.event.ledger_id, read.event.entry_id) not in final:
            yield f"{read.event}, and in the end it is gone"


@invariant("L4", "An owner's confirmations come in the order of its appends")
def confirmations_are_in_order(run: Record) -> Iterator[str]:
    last: dict[str, tuple[int, int]] = {}
    for seen in run.of(LogAppended):
        event = seen.event
        if event.error:
            continue
        position = event.ledger_id, event.entry_id
        if position <= last.get(seen.actor, (-1, -1)):
            yield f"{seen.actor} {event}, after {last[seen.actor]}"
        last[seen.actor] = position
