"""Invariants of re-replication: R1 to R7 of auto-recovery's section 10, and R8."""

from collections.abc import Iterator
from itertools import pairwise

from magnetar.ledger.errors import InvalidLedgerMetadataError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.under_replication import Missing, decode_item
from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.events import Confirmed, NodeWrote
from tests.simulation.history import Acked, Corrupted, Fault, LogAppended, Lost, Proposed, Sent
from tests.simulation.record import Record, Seen, invariant, is_swap, replicates, write_set_of

_ITEMS, _LOCKS = "/underreplication/ledgers/", "/underreplication/locks/"
_EXPIRED = "the session has expired"


class _Copies:
    """Copies that are intact at a place of the history."""

    def __init__(self, run: Record) -> None:
        self._run = run
        self._lost = {seen.event.bookie_id: seen.place for seen in run.of(Lost)}
        self._rotten: dict[tuple[str, int, int], list[int]] = {}
        """Where a copy began to rot, and where it was written again, in turns."""
        self._read: dict[tuple[str, int, int], int] = {}
        """Where a copy was first read, also one whose writer died before it heard of it."""
        for sent in run.of(Sent):
            reply = sent.event
            if reply.is_reply and reply.op == Op.READ and reply.status == Status.OK:
                for entry_id in reply.entries:
                    self._read.setdefault((reply.source, reply.ledger_id, entry_id), sent.place)
        for seen in run.of(Corrupted):
            bookie_id, ledger_id, entry_id = seen.event
            self._rotten.setdefault((bookie_id, ledger_id, entry_id), []).append(seen.place)
        if not self._rotten:
            return
        for sent in run.of(Sent):
            event = sent.event
            if event.is_reply and event.op == Op.ADD and event.status == Status.OK:
                for entry_id in event.entries:
                    turns = self._rotten.get((event.source, event.ledger_id, entry_id))
                    if turns and turns[0] < sent.place:
                        turns.append(sent.place)

    def count(self, metadata: LedgerMetadata, entry_id: int, place: int) -> int:
        return sum(
            self.is_intact(each, metadata.ledger_id, entry_id, place)
            for each in write_set_of(metadata, entry_id)
        )

    def is_intact(self, bookie_id: str, ledger_id: int, entry_id: int, place: int) -> bool:
        has_copy = self._run.has_copy(bookie_id, ledger_id, entry_id, place=place)
        return has_copy and self._is_sound(bookie_id, ledger_id, entry_id, place)

    def is_there(self, bookie_id: str, ledger_id: int, entry_id: int, place: int) -> bool:
        """Whether it is intact, or was read, which whoever looked for it may rely on."""
        was_read = self._read.get((bookie_id, ledger_id, entry_id), 1 << 60) <= place
        return self.is_intact(bookie_id, ledger_id, entry_id, place) or (
            was_read and self._is_sound(bookie_id, ledger_id, entry_id, place)
        )

    def _is_sound(self, bookie_id: str, ledger_id: int, entry_id: int, place: int) -> bool:
        is_lost = self._lost.get(bookie_id, 1 << 60) <= place
        return not is_lost and not self._is_rotten((bookie_id, ledger_id, entry_id), place)

    def is_absent(self, bookie_id: str, ledger_id: int, entry_id: int, place: int) -> bool:
        """Whether whoever asks the bookie hears that it never had the entry."""
        is_lost = self._lost.get(bookie_id, 1 << 60) <= place
        return not is_lost and not self._run.has_copy(bookie_id, ledger_id, entry_id, place=place)

    def _is_rotten(self, copy: tuple[str, int, int], place: int) -> bool:
        turns = [turn for turn in self._rotten.get(copy, []) if turn <= place]
        return len(turns) == 1  # it is never spoiled twice


def _named(path: str, value: bytes) -> Missing:
    try:
        return decode_item(value, path=path)[0]
    except InvalidLedgerMetadataError:
        return {}


def _end_of(metadata: LedgerMetadata) -> int:
    """The last entry of the fragments that are finished."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return metadata.last_fragment.first_entry_id - 1


@invariant("R1", "Re-replication never lowers the number of intact copies of an entry")
def copies_never_decrease(run: Record) -> Iterator[str]:
    copies = _Copies(run)
    for ledger_id, versions in run.versions.items():
        for before, seen in pairwise(versions):
            old, new = before.event.metadata, seen.event.metadata
            if old is None or new is None or not is_swap(seen.actor, old, new):
                continue
            for entry_id in range(_end_of(new) + 1):
                had = copies.count(old, entry_id, seen.place)
                has = copies.count(new, entry_id, seen.place)
                if has < had:
                    yield f"{seen.actor}: L{ledger_id} e{entry_id} had {had} copies, now {has}"


@invariant("R2", "What a closed ledger's bookies lack is made up for, or there is an item")
def complete_or_recorded(run: Record) -> Iterator[str]:
    if not run.is_complete or run.final.items is None:
        return
    # A copy that rots unread is the scrubbers' to find, not this one's.
    for ledger_id, metadata in run.final.metadata.items():
        if metadata.state is not LedgerState.CLOSED or ledger_id in run.final.items:
            continue
        for entry_id in range(metadata.last_entry_id + 1):
            for bookie_id in write_set_of(metadata, entry_id):
                held = run.final.packets.get(bookie_id, {}).get(ledger_id, {})
                if bookie_id in run.lost or entry_id not in held:
                    yield f"{bookie_id} lacks L{ledger_id} e{entry_id}, and there is no item"


@invariant("R3", "Content, keys and end of a closed ledger never change")
def closed_is_final(run: Record) -> Iterator[str]:
    for ledger_id, versions in run.versions.items():
        for before, seen in pairwise(versions):
            old, new = before.event.metadata, seen.event.metadata
            if old is None or new is None or old.state is not LedgerState.CLOSED:
                continue
            for what, one, other in (
                ("state", old.state, new.state),
                ("end", (old.last_entry_id, old.length), (new.last_entry_id, new.length)),
                ("keys", [k for k, _ in old.ensembles], [k for k, _ in new.ensembles]),
            ):
                if one != other:
                    yield f"{seen.actor}: the {what} of L{ledger_id} was {one}, is {other}"


@invariant("R4", "An item goes only when its ledger is gone or nothing is missing")
def items_go_when_done(run: Record) -> Iterator[str]:
    copies = _Copies(run)
    named: dict[str, Missing] = {}
    """What each item said last."""
    for seen in run.of(NodeWrote):
        path, _, value = seen.event
        if _ITEMS not in path or "/urL" not in path:
            continue
        if value is not None:
            named[path] = _named(path, value)
            continue
        ledger_id = int(path.rpartition("/urL")[2])
        metadata = run.metadata_at(ledger_id, seen.place)
        if metadata is None:
            continue
        for entry_id in range(_end_of(metadata) + 1):
            for bookie_id in write_set_of(metadata, entry_id):
                is_named = any(
                    first <= entry_id <= last
                    for first, last in named.get(path, {}).get(bookie_id, [])
                )
                is_known = is_named or copies.is_absent(bookie_id, ledger_id, entry_id, seen.place)
                if is_known and not copies.is_there(bookie_id, ledger_id, entry_id, seen.place):
                    yield f"{seen.actor} deleted {path}; {bookie_id} lacks e{entry_id}"


@invariant("R5", "A lock has one holder, and is lost with the session")
def one_holder(run: Record) -> Iterator[str]:
    holders: dict[int, str] = {}
    expired: dict[str, int] = {}
    events: list[Seen[NodeWrote] | Seen[Proposed] | Seen[Fault]] = sorted(
        [*run.of(NodeWrote), *run.of(Proposed), *run.of(Fault)], key=lambda seen: seen.place
    )
    for seen in events:
        event = seen.event
        if isinstance(event, Fault):
            if event.what == _EXPIRED:
                expired[seen.actor] = seen.place
                held = [each for each, holder in holders.items() if holder == seen.actor]
                for ledger_id in held:
                    # The end of a session and of its nodes is one step; see `store.py`.
                    holders.pop(ledger_id)
        elif isinstance(event, NodeWrote):
            if _LOCKS not in event.path:
                continue
            ledger_id = int(event.path.rpartition("/urL")[2])
            if event.value is None:
                holders.pop(ledger_id, None)
            else:
                before = holders.get(ledger_id)
                if before is not None:
                    yield f"{seen.actor} took the lock of L{ledger_id} while {before} had it"
                holders[ledger_id] = seen.actor
        elif replicates(seen.actor) and event.metadata is not None:
            is_swap = event.metadata.state is not LedgerState.IN_RECOVERY
            known = run.metadata_at(event.ledger_id, seen.place)
            is_swap = is_swap and known is not None and known.state is event.metadata.state
            holder = holders.get(event.ledger_id)
            if is_swap and holder not in (seen.actor, None):
                yield f"{seen.actor} {event} while {holder} has the lock"


@invariant("R6", "With enough bookies every ledger reaches its write quorum in bounded time")
def everything_is_repaired(run: Record) -> Iterator[str]:
    if not run.is_complete or run.final.items is None:
        return
    for ledger_id in sorted(run.final.items):
        metadata = run.final.metadata.get(ledger_id)
        if metadata is not None and metadata.state is LedgerState.CLOSED:
            yield f"the item of L{ledger_id} is still there: {run.final.items[ledger_id]}"
    for ledger_id, metadata in run.final.metadata.items():
        named = {bookie for _, bookies in metadata.ensembles for bookie in bookies}
        if metadata.state is LedgerState.CLOSED and named & run.lost:
            yield f"L{ledger_id} still names {sorted(named & run.lost)}, which are lost"


@invariant("R7", "What the writer of an open ledger was told survives re-replication")
def confirmed_survives(run: Record) -> Iterator[str]:
    heard = [(seen.actor, seen.event.ledger_id, seen.event.entry_id) for seen in run.of(Acked)]
    heard += [(seen.actor, seen.event.ledger_id, seen.event.entry_id) for seen in run.of(Confirmed)]
    heard += [
        (seen.actor, seen.event.ledger_id, seen.event.entry_id)
        for seen in run.of(LogAppended)
        if not seen.event.error
    ]
    for actor, ledger_id, entry_id in heard:
        metadata = run.final.metadata.get(ledger_id)
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            continue
        if entry_id > metadata.last_entry_id:
            end = metadata.last_entry_id
            yield f"{actor} was told of L{ledger_id} e{entry_id}; it ends at e{end}"


@invariant("R8", "A bookie takes another one's place only when it has said that it has the copies")
def members_have_their_copies(run: Record) -> Iterator[str]:
    for ledger_id, versions in run.versions.items():
        for before, seen in pairwise(versions):
            old, new = before.event.metadata, seen.event.metadata
            if old is None or new is None or not is_swap(seen.actor, old, new):
                continue
            for entry_id in range(_end_of(new) + 1):
                had = write_set_of(old, entry_id)
                for bookie_id in write_set_of(new, entry_id):
                    has_copy = run.has_copy(bookie_id, ledger_id, entry_id, place=seen.place)
                    if bookie_id not in had and not has_copy:
                        yield f"{seen.actor} named {bookie_id}: it lacks L{ledger_id} e{entry_id}"
