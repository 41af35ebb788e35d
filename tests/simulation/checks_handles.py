"""What the rules promise beyond I1 to I21: to the holder of a handle, and about missing copies.

W1 and W2 are the two sides of rule 2.3 and of the writer's watch, W3 is rule 9.1, W4 section 2.2,
W5 rule 4.5, W8 rule 2.5. What a recovery must have heard before it closes a ledger is in
`checks_recovery.py`.
"""

from collections.abc import Iterator

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.wire import Flag, Op
from tests.simulation.history import (
    AddFailed,
    Appended,
    Began,
    Ended,
    Fault,
    ReadFailed,
    Sent,
    Wrote,
)
from tests.simulation.record import Record, Seen, invariant, replicates, write_set_of

_NOTICED_S = 1.5
"""A writer hears within this time that its ledger was closed: watch, look, retries."""

_SUPERSEDED = ("LedgerFencedError", "another client")


@invariant("W1", "Who is told that another client acts on its ledger is told the truth")
def superseded_by_somebody(run: Record) -> Iterator[str]:
    acted: dict[int, list[tuple[int, str]]] = {}
    for seen in run.of(Sent):
        event = seen.event
        is_fence = not event.is_reply and event.op in (Op.READ, Op.READ_LAC)
        if is_fence and event.request_flags & Flag.FENCE:
            acted.setdefault(event.ledger_id, []).append((seen.place, seen.actor))
    for wrote in run.of(Wrote):
        if not replicates(wrote.actor):
            acted.setdefault(wrote.event.ledger_id, []).append((wrote.place, wrote.actor))
    began = {seen.event.number: seen.event for seen in run.of(Began)}
    heard = [
        (seen.place, seen.actor, began[seen.event.number].ledger_id, seen.event.error)
        for seen in run.of(Ended)
        if seen.event.number in began
    ]
    heard += [
        (seen.place, seen.actor, seen.event.ledger_id, seen.event.error)
        for seen in run.of(AddFailed)
    ]
    for place, actor, ledger_id, error in heard:
        if ledger_id < 0 or not any(word in error for word in _SUPERSEDED):
            continue
        if not any(who != actor and when < place for when, who in acted.get(ledger_id, [])):
            yield f"{actor} heard {error!r}, but nobody else had touched L{ledger_id}"


@invariant("W2", "A writer whose ledger another client has closed soon takes no more adds")
def closed_writers_take_nothing(run: Record) -> Iterator[str]:
    healed_s = next(
        (
            entry.time_s
            for entry in run.history.entries
            if entry.actor == "test" and str(entry.event) == "# everything is healed"
        ),
        None,
    )
    if healed_s is None:
        return
    for seen in run.of(Appended):
        for wrote in run.versions.get(seen.event.ledger_id, []):
            metadata = wrote.event.metadata
            is_over = metadata is None or metadata.state is LedgerState.CLOSED
            since_s = max(wrote.time_s, healed_s)
            if is_over and wrote.actor != seen.actor and seen.time_s > since_s + _NOTICED_S:
                yield (
                    f"{seen.actor} {seen.event}, {seen.time_s - since_s:.1f} s after {wrote.actor} "
                    "closed it"
                )
                break


@invariant("W3", "An entry that is confirmed is never reported as absent")
def no_absence(run: Record) -> Iterator[str]:
    for seen in run.of(ReadFailed):
        event = seen.event
        # Readers are never given a bound above what is confirmed (I5), and ask no further.
        if event.error.startswith("NoSuchEntryError") and not run.is_deleted(event.ledger_id):
            yield f"{event}"


@invariant("W4", "A writer closes what is OPEN, and a recovery what is IN_RECOVERY")
def closed_from_the_right_state(run: Record) -> Iterator[str]:
    began = {seen.event.number: seen for seen in run.of(Began)}
    ended = {seen.event.number: seen.place for seen in run.of(Ended)}
    for ledger_id, versions in run.versions.items():
        before: Seen[Wrote] | None = None
        for wrote in versions:
            state = _state_closed_from(before, wrote)
            if state is not None:
                under_way = {
                    seen.event.what
                    for number, seen in began.items()
                    if seen.actor == wrote.actor
                    and seen.event.ledger_id == ledger_id
                    and seen.place < wrote.place < ended.get(number, 1 << 60)
                } & {"close", "recover"}
                wanted = "close" if state is LedgerState.OPEN else "recover"
                if under_way and wanted not in under_way:
                    yield f"{wrote.actor} {wrote.event} by {sorted(under_way)}; it was {state.name}"
            before = wrote


def _state_closed_from(before: Seen[Wrote] | None, wrote: Seen[Wrote]) -> LedgerState | None:
    """The state before, if this is the write that closed the ledger."""
    old = before.event.metadata if before is not None else None
    new = wrote.event.metadata
    if old is None or new is None or new.state is not LedgerState.CLOSED:
        return None
    return old.state if old.state is not LedgerState.CLOSED else None


@invariant("W5", "A copy that a closed ledger lacks is made up for, or published as missing")
def missing_copies_are_on_record(run: Record) -> Iterator[str]:
    if not run.is_complete or run.final.missing is None:
        return
    if any(seen.event.what == "crashes" for seen in run.of(Fault) if seen.actor[0] != "b"):
        return  # what a client had noted and not published yet is gone with it
    for ledger_id, metadata in run.final.metadata.items():
        if metadata.state is not LedgerState.CLOSED:
            continue
        published = run.final.missing.get(ledger_id, {})
        for bookie_id, entry_id in _lacking(run, metadata):
            ranges = published.get(bookie_id, [])
            if not any(first <= entry_id <= last for first, last in ranges):
                yield f"{bookie_id} lacks L{ledger_id} e{entry_id}, and nobody knows"


@invariant("W8", "Nobody makes or meets metadata that cannot be")
def metadata_is_valid(run: Record) -> Iterator[str]:
    for seen in run.of(Ended):
        if "InvalidLedgerMetadataError" in seen.event.error:
            yield f"{seen.actor} {seen.event}"


def _lacking(run: Record, metadata: LedgerMetadata) -> Iterator[tuple[str, int]]:
    """Bookies of the write sets that hold no copy; those that were lost are a matter of audits."""
    for entry_id in range(metadata.last_entry_id + 1):
        for bookie_id in write_set_of(metadata, entry_id):
            if bookie_id in run.lost:
                continue
            held = run.final.packets.get(bookie_id, {}).get(metadata.ledger_id, {})
            if entry_id not in held:
                yield bookie_id, entry_id
