"""Invariants of a ledger as a whole: I1 to I4, I7, I10 to I12, I21."""

from collections.abc import Iterator
from itertools import pairwise

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from tests.simulation.history import Acked, Appended, Lost, SawClosed, WasRead, Wrote
from tests.simulation.record import Record, Seen, invariant, is_swap, write_set_of


def _payloads(run: Record) -> dict[tuple[int, int], bytes]:
    return {
        (seen.event.ledger_id, seen.event.entry_id): seen.event.payload for seen in run.of(Appended)
    }


@invariant("I1", "No loss: what was acknowledged is in the closed ledger, and readable")
def no_loss(run: Record) -> Iterator[str]:
    payloads = _payloads(run)
    for seen in run.of(Acked):
        ledger_id, entry_id = seen.event
        metadata = run.final.metadata.get(ledger_id)
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            continue
        if entry_id > metadata.last_entry_id:
            yield f"L{ledger_id} e{entry_id} was acknowledged, the end is {metadata.last_entry_id}"
            continue
        replicas = write_set_of(metadata, entry_id)
        wanted = payloads.get((ledger_id, entry_id))
        if all(run.stored_payload(each, ledger_id, entry_id) != wanted for each in replicas):
            yield f"L{ledger_id} e{entry_id} was acknowledged and is on none of {replicas}"


@invariant("I2", "Until the end is fixed, what was acknowledged is on Qa of its write set")
def acked_is_replicated(run: Record) -> Iterator[str]:
    acked: dict[int, list[int]] = {}
    events: list[Seen[Acked] | Seen[Wrote]] = sorted(
        [*run.of(Acked), *run.of(Wrote)], key=lambda seen: seen.place
    )
    current: dict[int, LedgerMetadata] = {}
    for seen in events:
        event = seen.event
        ledger_id = event.ledger_id
        if isinstance(event, Acked):
            acked.setdefault(ledger_id, []).append(event.entry_id)
            to_check = [event.entry_id]
        else:
            if event.metadata is None:
                current.pop(ledger_id, None)
                continue
            current[ledger_id] = event.metadata
            to_check = acked.get(ledger_id, [])
        metadata = current.get(ledger_id)
        if metadata is None or metadata.state is LedgerState.CLOSED:
            continue
        for entry_id in to_check:
            yield from _too_few_copies(run, metadata, entry_id, seen.place)


def _too_few_copies(
    run: Record, metadata: LedgerMetadata, entry_id: int, place: int
) -> Iterator[str]:
    replicas = write_set_of(metadata, entry_id)
    having = [
        each for each in replicas if run.has_copy(each, metadata.ledger_id, entry_id, place=place)
    ]
    if len(having) < metadata.ack_quorum:
        yield (
            f"L{metadata.ledger_id} e{entry_id} is acknowledged and, of {replicas}, only on "
            f"{having} (line {place})"
        )


@invariant("I3", "Agreement: whoever sees the ledger closed sees the same end and entries")
def agreement(run: Record) -> Iterator[str]:
    ends: dict[int, Seen[SawClosed]] = {}
    for seen in run.of(SawClosed):
        event = seen.event
        first = ends.setdefault(event.ledger_id, seen)
        if first.event[1:3] != event[1:3]:
            yield f"{first.actor} {first.event}, but {seen.actor} {event}"
    contents: dict[tuple[int, int], Seen[WasRead]] = {}
    for read in run.of(WasRead):
        entry = read.event
        before = contents.setdefault((entry.ledger_id, entry.entry_id), read)
        if before.event.payload != entry.payload:
            yield f"{before.event}, but {entry}"


@invariant("I4", "All recoveries and the writer's close report the end that the metadata has")
def one_end(run: Record) -> Iterator[str]:
    for seen in run.of(SawClosed):
        event = seen.event
        if event.ledger_id in run.versions and not _is_written(run, seen):
            yield f"{seen.actor} {event}, and that was not in the metadata by then"
        metadata = run.final.metadata.get(event.ledger_id)
        if metadata is None:
            continue
        if metadata.state is not LedgerState.CLOSED:
            yield f"{seen.actor} {event}, and the ledger is {metadata.state.name}"
        elif (metadata.last_entry_id, metadata.length) != (event.last_entry_id, event.length):
            yield (
                f"{seen.actor} {event}, but its metadata says e{metadata.last_entry_id}, "
                f"{metadata.length} bytes"
            )


def _is_written(run: Record, seen: Seen[SawClosed]) -> bool:
    """Whether the end that a client reports had been written when it did."""
    _, last_entry_id, length, _ = seen.event
    for wrote in run.versions[seen.event.ledger_id]:
        metadata = wrote.event.metadata
        if wrote.place > seen.place:
            break
        if metadata is not None and metadata.state is LedgerState.CLOSED:
            return (metadata.last_entry_id, metadata.length) == (last_entry_id, length)
    return False


@invariant("I7", "Integrity: an entry is read as it was added, under its own id")
def integrity(run: Record) -> Iterator[str]:
    payloads = _payloads(run)
    added = {ledger_id for ledger_id, _ in payloads}  # the ledgers of logs are judged by L3
    for seen in run.of(WasRead):
        event = seen.event
        wanted = payloads.get((event.ledger_id, event.entry_id))
        if wanted != event.payload and event.ledger_id in added:
            yield f"{event}, but added was {wanted!r}"
    for ledger_id, metadata in run.final.metadata.items():
        if metadata.state is not LedgerState.CLOSED:
            continue
        size = sum(
            len(payloads.get((ledger_id, each), b"")) for each in range(metadata.last_entry_id + 1)
        )
        if size != metadata.length and (ledger_id, 0) in payloads:
            yield f"L{ledger_id} has a length of {metadata.length}, its entries have {size}"


@invariant("I10", "Every entry of a closed ledger has at least Qa copies")
def closed_is_replicated(run: Record) -> Iterator[str]:
    for ledger_id, metadata in run.final.metadata.items():
        if metadata.state is not LedgerState.CLOSED:
            continue
        for entry_id in range(metadata.last_entry_id + 1):
            replicas = write_set_of(metadata, entry_id)
            having = [
                each
                for each in replicas
                if each in run.lost or run.stored_payload(each, ledger_id, entry_id) is not None
            ]
            if len(having) < metadata.ack_quorum:
                yield f"L{ledger_id} e{entry_id} is, of {replicas}, only on {having}"


@invariant("I11", "Fragments start at 0, increase, have distinct members; closed keys are frozen")
def fragments(run: Record) -> Iterator[str]:
    for ledger_id, versions in run.versions.items():
        before: LedgerMetadata | None = None
        for seen in versions:
            metadata = seen.event.metadata
            if metadata is None:
                before = None
                continue
            keys = [fragment.first_entry_id for fragment in metadata.ensembles]
            if keys[0] != 0 or any(a >= b for a, b in pairwise(keys)):
                yield f"L{ledger_id} v{seen.event.version}: fragments start at {keys}"
            for first, bookies in metadata.ensembles:
                if len(bookies) != metadata.ensemble_size or len(set(bookies)) != len(bookies):
                    yield f"L{ledger_id} v{seen.event.version}: fragment {first} is {bookies}"
            if before is not None:
                yield from _fragment_change(before, metadata, seen)
            before = metadata


def _fragment_change(
    before: LedgerMetadata, after: LedgerMetadata, seen: Seen[Wrote]
) -> Iterator[str]:
    name = f"L{after.ledger_id} v{seen.event.version} by {seen.actor}"
    old = [fragment.first_entry_id for fragment in before.ensembles]
    new = [fragment.first_entry_id for fragment in after.ensembles]
    if before.state is LedgerState.CLOSED or is_swap(seen.actor, before, after):
        if old != new:
            yield f"{name}: fragments started at {old}, now at {new}"
        return
    # Appended, or the last replaced; the closing write of a recovery may do both at once.
    kept = len(old) - 1
    if before.ensembles[:kept] != after.ensembles[:kept] or new[kept : kept + 1] != old[kept:]:
        yield f"{name}: an earlier fragment changed from {before.ensembles} to {after.ensembles}"
    if before.state is LedgerState.IN_RECOVERY and after.state is not LedgerState.CLOSED:
        if before.ensembles != after.ensembles:
            yield f"{name}: a recovery wrote its ensembles before its end"
    elif len(new) > len(old) + 1 and before.state is LedgerState.OPEN:
        yield f"{name}: two fragments in one change"


_STATES = {
    LedgerState.OPEN: (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.IN_RECOVERY: (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.CLOSED: (LedgerState.CLOSED,),
}


@invariant("I12", "States follow the diagram; each version is written once; closed ends are final")
def versions_follow_the_diagram(run: Record) -> Iterator[str]:
    for ledger_id, versions in run.versions.items():
        before: Wrote | None = None
        for seen in versions:
            event = seen.event
            if event.metadata is None:
                before = None
                continue
            name = f"L{ledger_id} v{event.version} by {seen.actor}"
            if before is None or before.metadata is None:
                if event.version != 0 or event.metadata.state is not LedgerState.OPEN:
                    yield f"{name}: begins as {event.metadata.state.name}"
            else:
                old, new = before.metadata, event.metadata
                if event.version != before.version + 1:
                    yield f"{name}: follows v{before.version}"
                if new.state not in _STATES[old.state]:
                    yield f"{name}: {old.state.name} became {new.state.name}"
                end = (new.last_entry_id, new.length)
                if old.state is LedgerState.CLOSED and end != (old.last_entry_id, old.length):
                    yield f"{name}: the end moved from e{old.last_entry_id} to e{end[0]}"
                if (old.creation_token, old.password) != (new.creation_token, new.password):
                    yield f"{name}: the identity changed"
            before = event


@invariant("I21", "Re-replication loses no copies and moves no fragment or end")
def re_replication(run: Record) -> Iterator[str]:
    lost_at = {seen.event.bookie_id: seen.place for seen in run.of(Lost)}
    for ledger_id, versions in run.versions.items():
        for old_seen, seen in pairwise(versions):
            old, new = old_seen.event.metadata, seen.event.metadata
            if old is None or new is None or not is_swap(seen.actor, old, new):
                continue
            name = f"L{ledger_id} v{seen.event.version}"
            if (old.state, old.last_entry_id, old.length) != (
                new.state,
                new.last_entry_id,
                new.length,
            ):
                yield f"{name}: re-replication changed state or end"
            if old.state is not LedgerState.CLOSED and old.last_fragment != new.last_fragment:
                yield f"{name}: re-replication touched the fragment that is written to"
            end = new.last_entry_id
            if new.state is not LedgerState.CLOSED:
                end = new.last_fragment.first_entry_id - 1
            for entry_id in range(end + 1):
                counts = [
                    sum(
                        run.has_copy(each, ledger_id, entry_id, place=seen.place)
                        and lost_at.get(each, 1 << 60) > seen.place
                        for each in write_set_of(metadata, entry_id)
                    )
                    for metadata in (old, new)
                ]
                if counts[1] < counts[0]:
                    yield f"{name}: e{entry_id} had {counts[0]} copies, now {counts[1]}"
