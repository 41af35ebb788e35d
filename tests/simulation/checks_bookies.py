"""Invariants of what a bookie says: I13 to I15. A bookie is its id, across all its restarts."""

from collections.abc import Iterator

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import Delivered, Sent
from tests.simulation.record import Record, invariant

_NEGATIVE = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


@invariant("I13", "A fence that was visible in a reply is never gone again")
def fences_stay(run: Record) -> Iterator[str]:
    arrived: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for delivered in run.of(Delivered):
        request = delivered.event
        if request.op == Op.ADD and not request.is_reply:
            arrived[request.connection, request.ledger_id, request.entries] = delivered.place
    fenced: dict[tuple[str, int], int] = {}
    for seen in run.of(Sent):
        event = seen.event
        if not event.is_reply or event.connection < 0:
            continue
        since = fenced.get((event.source, event.ledger_id))
        if event.op in (Op.READ, Op.READ_LAC):
            if event.flags & Flag.FENCED:
                fenced.setdefault((event.source, event.ledger_id), seen.place)
            elif event.source in run.lost:
                continue  # an operator's doing, if it answers at all
            elif since is not None and event.status in (Status.OK, *_NEGATIVE):
                yield f"{event}, though it was fenced (line {since})"
        elif since is not None and event.op == Op.ADD and event.status == Status.OK:
            # An add that arrived before was on its way to the disk together with the fence.
            place = arrived.get((event.connection, event.ledger_id, event.entries), -1)
            if not event.request_flags & Flag.RECOVERY and place > since:
                yield f"{event} as an ordinary add, though it was fenced (line {since})"
    for bookie_id, ledger_id in fenced:
        states = run.final.states.get(bookie_id)
        if states is None or bookie_id in run.lost or run.is_deleted(ledger_id):
            continue
        state = states.get(ledger_id)
        if state is None or not state.fenced:
            yield f"{bookie_id} had fenced L{ledger_id}, and in the end it is not"


@invariant("I14", "A bookie never denies an entry that it once acknowledged")
def no_denial(run: Record) -> Iterator[str]:
    stored_ledgers: dict[tuple[str, int], int] = {}
    for (bookie_id, ledger_id, _), place in run.copies.items():
        key = bookie_id, ledger_id
        stored_ledgers[key] = min(place, stored_ledgers.get(key, place))
    deleted = {
        ledger_id: seen.place
        for ledger_id, versions in run.versions.items()
        for seen in versions
        if seen.event.metadata is None
    }
    for seen in run.of(Sent):
        event = seen.event
        if not event.is_reply or event.connection < 0 or event.status not in _NEGATIVE:
            continue
        if deleted.get(event.ledger_id, 1 << 60) < seen.place:
            continue
        if event.op == Op.READ:
            found = run.copies.get((event.source, event.ledger_id, event.entry_id))
        elif event.op == Op.READ_LAC and event.status == Status.NO_SUCH_LEDGER:
            found = stored_ledgers.get((event.source, event.ledger_id))
        else:
            continue
        if found is not None and found < seen.place:
            yield f"{event}, though it had acknowledged it (line {found})"


@invariant("I15", "An entry denied under a fence is never stored by an ordinary add")
def negatives_are_stable(run: Record) -> Iterator[str]:
    denied: dict[tuple[str, int, int], int] = {}
    for seen in run.of(Sent):
        event = seen.event
        if not event.is_reply or event.connection < 0:
            continue
        if event.op == Op.READ and event.status in _NEGATIVE and event.flags & Flag.FENCED:
            denied.setdefault((event.source, event.ledger_id, event.entry_id), seen.place)
        elif (
            event.op == Op.ADD
            and event.status == Status.OK
            and not event.request_flags & Flag.RECOVERY
        ):
            for entry_id in event.entries:
                place = denied.get((event.source, event.ledger_id, entry_id))
                if place is not None:
                    yield f"{event}, though it had denied e{entry_id} (line {place})"
