"""What a recovery must have heard before it closes a ledger: W6 (section 7) and W7 (section 8.1).

Each of the two alone would keep most entries safe, so that losing one of them costs no entry in
most runs. They are judged by themselves for that reason.
"""

from collections.abc import Iterator

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import Delivered, Wrote
from tests.simulation.record import Record, Seen, invariant

_NEGATIVE = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


def _recovered(run: Record) -> Iterator[tuple[LedgerMetadata, Seen[Wrote], int]]:
    """The metadata that a recovery went by, the write that closed it, and the last entry."""
    for versions in run.versions.values():
        before: LedgerMetadata | None = None
        for wrote in versions:
            metadata = wrote.event.metadata
            if (
                before is not None
                and metadata is not None
                and before.state is LedgerState.IN_RECOVERY
                and metadata.state is LedgerState.CLOSED
            ):
                yield before, wrote, metadata.last_entry_id
            before = metadata


def _heard(run: Record, wrote: Seen[Wrote], op: Op) -> Iterator[Delivered]:
    """Answers of fenced bookies that the actor of a write had heard by then."""
    for seen in run.of(Delivered):
        event = seen.event
        if seen.place > wrote.place:
            break
        if (
            event.is_reply
            and event.target == wrote.actor
            and event.op == op
            and event.ledger_id == wrote.event.ledger_id
            and event.flags & Flag.FENCED
        ):
            yield event


@invariant("W6", "A recovery closes a ledger only when enough of every write set has said: fenced")
def fenced_before_closed(run: Record) -> Iterator[str]:
    for metadata, wrote, _ in _recovered(run):
        bookies = metadata.last_fragment.bookies
        fenced = {event.source for event in _heard(run, wrote, Op.READ_LAC)}
        for first in range(len(bookies)):
            members = {bookies[(first + k) % len(bookies)] for k in range(metadata.write_quorum)}
            if len(members & fenced) < metadata.write_quorum - metadata.ack_quorum + 1:
                yield f"{wrote.actor} {wrote.event}; of {sorted(members)} only {sorted(fenced)}"
                break


@invariant("W7", "A recovery ends a ledger only before an entry that enough fenced bookies denied")
def denied_before_closed(run: Record) -> Iterator[str]:
    for metadata, wrote, last_entry_id in _recovered(run):
        bookies, wanted = metadata.last_fragment.bookies, last_entry_id + 1
        members = {bookies[(wanted + k) % len(bookies)] for k in range(metadata.write_quorum)}
        denied = {
            event.source
            for event in _heard(run, wrote, Op.READ)
            if event.entry_id == wanted and event.status in _NEGATIVE
        }
        if len(members & denied) < metadata.write_quorum - metadata.ack_quorum + 1:
            yield f"{wrote.actor} {wrote.event}; e{wanted} was denied only by {sorted(denied)}"
