"""Invariants of what clients are told: I5, I6, I8, I9, I16 to I20."""

from collections.abc import Iterator

from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import (
    Acked,
    AddFailed,
    Answered,
    Appended,
    Began,
    Corrupted,
    Delivered,
    Ended,
    Fault,
    Proposed,
    ReadFailed,
    SawBound,
    WasRead,
)
from tests.simulation.record import Record, Seen, invariant, write_set_of


def _final_end(run: Record, ledger_id: int) -> int | None:
    metadata = run.final.metadata.get(ledger_id)
    if metadata is None or metadata.state is not LedgerState.CLOSED:
        return None
    return metadata.last_entry_id


@invariant("I5", "No reader returns an entry above its bound or above the ledger's end")
def reads_stay_below_the_bound(run: Record) -> Iterator[str]:
    for seen in run.of(WasRead):
        event = seen.event
        if event.entry_id > event.bound:
            yield f"{event}, its bound is {event.bound}"
        end = _final_end(run, event.ledger_id)
        if end is not None and event.entry_id > end:
            yield f"{event}, the ledger ends at e{end}"
    for bound in run.of(SawBound):
        end = _final_end(run, bound.event.ledger_id)
        if end is not None and bound.event.last_add_confirmed > end:
            yield f"{bound.event}, the ledger ends at e{end}"


@invariant("I6", "A reader's bound never goes back, nor does the end that metadata implies")
def bounds_are_monotonic(run: Record) -> Iterator[str]:
    bounds: dict[str, int] = {}
    for seen in run.of(SawBound):
        event = seen.event
        before = bounds.get(event.reader, -1)
        if event.last_add_confirmed < before:
            yield f"{event}, before it was {before}"
        bounds[event.reader] = event.last_add_confirmed
    for ledger_id, versions in run.versions.items():
        confirmed = -1
        for wrote in versions:
            metadata = wrote.event.metadata
            if metadata is None:
                break
            now = metadata.last_fragment.first_entry_id - 1
            if metadata.state is LedgerState.CLOSED:
                now = metadata.last_entry_id
            if now < confirmed:
                yield f"L{ledger_id} v{wrote.event.version} confirms e{now}, before it e{confirmed}"
            confirmed = max(confirmed, now)


@invariant("I8", "Acknowledgements come in the order of the entries, without a gap")
def acks_are_in_order(run: Record) -> Iterator[str]:
    last: dict[tuple[str, int], int] = {}
    for seen in run.of(Acked):
        key = seen.actor, seen.event.ledger_id
        wanted = last.get(key, -1) + 1
        if seen.event.entry_id != wanted:
            yield f"{seen.actor} {seen.event}, next was e{wanted}"
        last[key] = seen.event.entry_id


@invariant("I9", "After the ledger is closed, nothing above its end is acknowledged")
def no_acks_after_the_end(run: Record) -> Iterator[str]:
    for ledger_id, versions in run.versions.items():
        closed = next(
            (
                (seen.place, seen.event.metadata.last_entry_id)
                for seen in versions
                if seen.event.metadata is not None
                and seen.event.metadata.state is LedgerState.CLOSED
            ),
            None,
        )
        if closed is None:
            continue
        for acked in run.of(Acked):
            if acked.event.ledger_id != ledger_id or acked.place < closed[0]:
                continue
            if acked.event.entry_id > closed[1]:
                yield f"{acked.actor} {acked.event}, it was closed at e{closed[1]} before"


@invariant("I16", "An ack is counted only from members of the committed ensemble")
def acks_are_by_committed_members(run: Record) -> Iterator[str]:
    heard: dict[tuple[str, int, int], set[str]] = {}
    deliveries = iter(run.of(Delivered))
    delivered = next(deliveries, None)
    for seen in run.of(Acked):
        while delivered is not None and delivered.place < seen.place:
            event = delivered.event
            if (
                event.is_reply
                and event.op == Op.ADD
                and event.status == Status.OK
                and not event.request_flags & Flag.RECOVERY
            ):
                for entry_id in event.entries:
                    key = (event.target, event.ledger_id, entry_id)
                    heard.setdefault(key, set()).add(event.source)
            delivered = next(deliveries, None)
        ledger_id, entry_id = seen.event
        committed = None
        for wrote in run.versions.get(ledger_id, []):
            if wrote.place > seen.place:
                break
            # What others write (re-replication) does not touch the fragment that is written to.
            if wrote.actor == seen.actor and wrote.event.metadata is not None:
                committed = wrote.event.metadata
        if committed is None:
            continue
        members = write_set_of(committed, entry_id)
        counted = heard.get((seen.actor, ledger_id, entry_id), set()) & set(members)
        if len(counted) < committed.ack_quorum:
            yield (
                f"{seen.actor} {seen.event}: of its committed members {members} only "
                f"{sorted(counted)} had stored it"
            )


@invariant("I17", "One ensemble change at a time, and nothing is acknowledged meanwhile")
def one_change_at_a_time(run: Record) -> Iterator[str]:
    events: list[Seen[Proposed] | Seen[Answered] | Seen[Acked]] = sorted(
        [*run.of(Proposed), *run.of(Answered), *run.of(Acked)], key=lambda seen: seen.place
    )
    creators = {
        ledger_id: versions[0].actor for ledger_id, versions in run.versions.items() if versions
    }
    open_changes: dict[tuple[str, int], Proposed] = {}
    for seen in events:
        event = seen.event
        if isinstance(event, Proposed):
            key = seen.actor, event.ledger_id
            is_change = event.metadata is not None and event.metadata.state is LedgerState.OPEN
            if not is_change or creators.get(event.ledger_id) != seen.actor:
                continue
            if key in open_changes:
                yield f"{seen.actor} {event} while #{open_changes[key].number} is open"
            open_changes[key] = event
        elif isinstance(event, Answered):
            change = open_changes.get((seen.actor, event.ledger_id))
            if change is not None and change.number == event.number:
                del open_changes[seen.actor, event.ledger_id]
        elif isinstance(event, Acked):
            change = open_changes.get((seen.actor, event.ledger_id))
            if change is not None:
                yield f"{seen.actor} {event} during the change #{change.number}"


@invariant("I18", "When everything is healed, the ledger is soon closed and its entries readable")
def liveness(run: Record) -> Iterator[str]:
    if not run.is_complete:
        return
    for ledger_id, versions in run.versions.items():
        metadata = versions[-1].event.metadata
        if metadata is None or metadata.state is LedgerState.CLOSED:
            continue
        if any(seen.event.ledger_id == ledger_id for seen in run.of(Appended)):
            yield f"L{ledger_id} is still {metadata.state.name} in the end"


@invariant("I19", "Every operation ends exactly once, with a result or an error")
def one_outcome(run: Record) -> Iterator[str]:
    ended: dict[int, int] = {}
    for seen in run.of(Ended):
        ended[seen.event.number] = ended.get(seen.event.number, 0) + 1
        if ended[seen.event.number] > 1:
            yield f"{seen.actor} {seen.event} for the second time"
    gone = {seen.actor for seen in run.of(Fault) if seen.event.what == "crashes"}
    outcomes: dict[tuple[str, int, int], int] = {}
    heard: list[Seen[Acked] | Seen[AddFailed]] = [*run.of(Acked), *run.of(AddFailed)]
    for outcome in heard:
        key = outcome.actor, outcome.event.ledger_id, outcome.event.entry_id
        outcomes[key] = outcomes.get(key, 0) + 1
        if outcomes[key] > 1:
            yield f"{outcome.actor} {outcome.event}, and heard of it before"
    if not run.is_complete:
        return
    for began in run.of(Began):
        if began.event.number not in ended and began.actor not in gone:
            yield f"{began.actor} {began.event} and never hears of it"
    for appended in run.of(Appended):
        key = appended.actor, appended.event.ledger_id, appended.event.entry_id
        if key not in outcomes and appended.actor not in gone:
            yield f"{appended.actor} {appended.event} and never hears of it"


@invariant("I20", "A replica that rots changes nothing but which replica is read")
def rot_is_not_returned(run: Record) -> Iterator[str]:
    rotten: dict[tuple[int, int], set[str]] = {}
    for seen in run.of(Corrupted):
        key = seen.event.ledger_id, seen.event.entry_id
        rotten.setdefault(key, set()).add(seen.event.bookie_id)
    added = {
        (seen.event.ledger_id, seen.event.entry_id): seen.event.payload for seen in run.of(Appended)
    }
    for read in run.of(WasRead):
        key = read.event.ledger_id, read.event.entry_id
        if key in rotten and key in added and added[key] != read.event.payload:
            yield f"{read.event}, and a replica of it was rotten"
    for failed in run.of(ReadFailed):
        event = failed.event
        metadata = run.final.metadata.get(event.ledger_id)
        if not event.is_final or metadata is None:
            continue
        sound = [
            each
            for each in write_set_of(metadata, event.entry_id)
            if each not in rotten.get((event.ledger_id, event.entry_id), set())
            and run.stored_payload(each, event.ledger_id, event.entry_id) is not None
        ]
        if sound:
            yield f"{event}, though {sound} hold sound replicas"
