"""W10 and W11: a LAC is the highest that enough members told (sections 8.1 and 9.5; defect D5).

Who believes a member that lags behind loses no entry: a reader sees less than it may, a recovery
reads what it need not. So both are judged by what the members had stored by then: an entry carries
at least what its writer had confirmed when it was appended.
"""

from collections.abc import Iterator

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import (
    Acked,
    Appended,
    Began,
    Corrupted,
    Delivered,
    Ended,
    SawBound,
    Sent,
)
from tests.simulation.record import Record, Seen, invariant

_SURELY_HEARD_S = 0.4
"""Less than the request timeout: an answer within this time was not given up before it came."""


@invariant("W10", "A reader that asks for the LAC hears what an ack quorum had stored by then")
def readers_hear_the_lac(run: Record) -> Iterator[str]:
    ended = {seen.event.number: seen for seen in run.of(Ended) if not seen.event.error}
    asks = [seen for seen in run.of(Began) if seen.event.what == "read_lac"]
    if not asks:
        return
    told = _told(run)
    for began in asks:
        end, ledger_id = ended.get(began.event.number), began.event.ledger_id
        if end is None:
            continue
        metadata = run.metadata_at(ledger_id, end.place)
        if metadata is None or metadata.state is not LedgerState.OPEN:
            continue  # what a recovery writes back tells an earlier LAC (rule 8.3)
        asked = {
            seen.event.target
            for seen in run.of(Sent)
            if began.place < seen.place < end.place
            and seen.actor == began.actor
            and seen.event.op == Op.READ_LAC
            and not seen.event.is_reply
        }
        if asked != set(metadata.last_fragment.bookies):
            continue  # it does not know the last change yet
        bound = next(
            (
                seen.event.last_add_confirmed
                for seen in run.of(SawBound)
                if seen.actor == began.actor and seen.place > end.place
            ),
            None,
        )
        wanted = max(
            (
                lac
                for (of_ledger, entry_id), lac in told.items()
                if of_ledger == ledger_id
                and _has_quorum(run, metadata, entry_id, place=began.place)
            ),
            default=-1,
        )
        if bound is not None and bound < wanted:
            yield f"{began.actor} {began.event} and hears e{bound}; an ack quorum knew of e{wanted}"


def _told(run: Record) -> dict[tuple[int, int], int]:
    """Per ledger and entry: the LAC that it carries, at least."""
    events: list[Seen[Appended] | Seen[Acked]] = [*run.of(Appended), *run.of(Acked)]
    confirmed: dict[int, int] = {}
    told: dict[tuple[int, int], int] = {}
    for seen in sorted(events, key=lambda each: each.place):
        event = seen.event
        if isinstance(event, Acked):
            confirmed[event.ledger_id] = event.entry_id
        else:
            told[event.ledger_id, event.entry_id] = confirmed.get(event.ledger_id, -1)
    return told


def _has_quorum(run: Record, metadata: LedgerMetadata, entry_id: int, *, place: int) -> bool:
    bookies, ledger_id = metadata.last_fragment.bookies, metadata.ledger_id
    members = [bookies[(entry_id + k) % len(bookies)] for k in range(metadata.write_quorum)]
    copies = sum(run.has_copy(each, ledger_id, entry_id, place=place) for each in members)
    return copies >= metadata.ack_quorum


@invariant("W11", "A recovery reads on behind the highest LAC that a member told when it fenced")
def recoveries_begin_at_the_lac(run: Record) -> Iterator[str]:
    recoveries = [seen for seen in run.of(Began) if seen.event.what == "recover"]
    if not recoveries:
        return
    told = _told(run)
    ended = {seen.event.number: seen.place for seen in run.of(Ended)}
    rotten = {seen.event.ledger_id for seen in run.of(Corrupted)}
    for began in recoveries:
        ledger_id = began.event.ledger_id
        until = ended.get(began.event.number, 1 << 60)
        reads = [
            (seen.place, seen.event.entry_id)
            for seen in run.of(Sent)
            if began.place < seen.place < until
            and seen.actor == began.actor
            and seen.event.op == Op.READ
            and seen.event.ledger_id == ledger_id
            and not seen.event.is_reply
            and seen.event.request_flags & Flag.FENCE
        ]
        is_alone = not any(
            other.actor == began.actor
            and other.place != began.place
            and other.place < until
            and ended.get(other.event.number, 1 << 60) > began.place
            for other in recoveries
        )  # else nobody can tell which of the two was answered
        if (
            not is_alone
            or not reads
            or ledger_id in rotten
            or _is_written_back(run, ledger_id, reads[0][0])
        ):
            continue
        first = min(entry_id for _, entry_id in reads)
        heard = _heard_lac(run, began, until, told)
        if first <= heard:
            yield f"{began.actor} {began.event} and reads e{first}, but had heard of LAC e{heard}"


def _is_written_back(run: Record, ledger_id: int, place: int) -> bool:
    """Whether recovery adds were sent by then, which may tell an earlier LAC."""
    return any(
        seen.event.ledger_id == ledger_id
        and seen.event.op == Op.ADD
        and seen.event.request_flags & Flag.RECOVERY
        and seen.place < place
        for seen in run.of(Sent)
    )


def _heard_lac(
    run: Record, began: Seen[Began], until: int, told: dict[tuple[int, int], int]
) -> int:
    """What the members told that were heard before enough of them had."""
    ledger_id = began.event.ledger_id
    metadata: LedgerMetadata | None = None
    confirmed: set[str] = set()
    heard = -1
    for seen in run.of(Delivered):
        event = seen.event
        if (
            not began.place < seen.place < until
            or seen.actor != began.actor
            or event.ledger_id != ledger_id
            or event.op != Op.READ_LAC
            or not event.is_reply
            or not event.flags & Flag.FENCED
        ):
            continue
        if seen.time_s > began.time_s + _SURELY_HEARD_S:
            return -1
        metadata = metadata or run.metadata_at(ledger_id, seen.place)
        if metadata is None or event.source not in metadata.last_fragment.bookies:
            return -1
        if event.status == Status.OK:
            for (of_ledger, entry_id), lac in told.items():
                # A frame is on its way for a while; what was stored by the begin is told for sure.
                if of_ledger == ledger_id and run.has_copy(
                    event.source, ledger_id, entry_id, place=began.place
                ):
                    heard = max(heard, lac)
        confirmed.add(event.source)
        if _is_covered(metadata, confirmed):
            break
    return heard


def _is_covered(metadata: LedgerMetadata, confirmed: set[str]) -> bool:
    bookies = metadata.last_fragment.bookies
    needed = metadata.write_quorum - metadata.ack_quorum + 1
    return all(
        sum(bookies[(at + k) % len(bookies)] in confirmed for k in range(metadata.write_quorum))
        >= needed
        for at in range(len(bookies))
    )
