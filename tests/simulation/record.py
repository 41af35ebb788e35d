"""What the invariants are judged by: the history of a run, and what was left in the end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, cast

from magnetar.bookie.storage import LedgerState as StoredState
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.under_replication import Missing
from magnetar.ledger.wire import Op, Status
from tests.simulation.history import History, Lost, Sent, Wrote

E = TypeVar("E")


class Violation(NamedTuple):
    """An invariant that does not hold, and why."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Seen(NamedTuple, Generic[E]):
    """An event with its place in the history."""

    place: int
    time_s: float
    actor: str
    event: E


@dataclass(slots=True)
class FinalState:
    """What is left at the end: in the metadata store, and on each bookie that is not lost."""

    metadata: dict[int, LedgerMetadata] = field(default_factory=dict)
    packets: dict[str, dict[int, dict[int, bytes]]] = field(default_factory=dict)
    """Bookie, ledger, entry: as stored, without what was made to rot."""
    states: dict[str, dict[int, StoredState]] = field(default_factory=dict)
    missing: dict[int, Missing] | None = None
    """Per ledger what is published as missing; None if nobody waited for that."""
    items: dict[int, Missing] | None = None
    """Per ledger what is published as missing where auto-recovery runs, and had its time; else
    None."""


class Record:
    """One run. Everything that several invariants ask is found once."""

    def __init__(self, history: History, final: FinalState, *, is_complete: bool = True) -> None:
        """`is_complete`: everything was healed and left to end, so that nothing may hang."""
        self.history = history
        self.final = final
        self.is_complete = is_complete
        self._by_kind: dict[type, list[Seen[object]]] = {}
        for place, (time_s, actor, event) in enumerate(history.entries):
            seen: Seen[object] = Seen(place, time_s, actor, event)
            self._by_kind.setdefault(type(event), []).append(seen)
        self.lost = {seen.event.bookie_id for seen in self.of(Lost)}
        self.versions: dict[int, list[Seen[Wrote]]] = {}
        """Every write of a ledger's metadata, in order."""
        for wrote in self.of(Wrote):
            self.versions.setdefault(wrote.event.ledger_id, []).append(wrote)
        self.copies: dict[tuple[str, int, int], int] = {}
        """Bookie, ledger, entry: the place where the bookie first said that it has the entry."""
        for sent in self.of(Sent):
            event = sent.event
            is_ok = event.is_reply and event.op == Op.ADD and event.status == Status.OK
            if is_ok and event.connection >= 0:
                for entry_id in event.entries:
                    key = (event.source, event.ledger_id, entry_id)
                    self.copies.setdefault(key, sent.place)

    def of(self, kind: type[E]) -> list[Seen[E]]:
        return cast(list[Seen[E]], self._by_kind.get(kind, []))

    def has_copy(self, bookie_id: str, ledger_id: int, entry_id: int, *, place: int) -> bool:
        """Whether the bookie had said by then that it has the entry."""
        return self.copies.get((bookie_id, ledger_id, entry_id), 1 << 60) <= place

    def metadata_at(self, ledger_id: int, place: int) -> LedgerMetadata | None:
        """The ledger's metadata at that place of the history."""
        found = None
        for wrote in self.versions.get(ledger_id, []):
            if wrote.place > place:
                break
            found = wrote.event.metadata
        return found

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether the ledger's metadata was removed, which takes its promises with it."""
        versions = self.versions.get(ledger_id)
        return versions is not None and versions[-1].event.metadata is None

    def stored_payload(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes | None:
        """The payload of a replica that is there in the end and passes its digest."""
        packet = self.final.packets.get(bookie_id, {}).get(ledger_id, {}).get(entry_id)
        metadata = self.final.metadata.get(ledger_id)
        if packet is None or metadata is None:
            return None
        try:
            return codec_for(metadata).open_packet(packet, entry_id).payload
        except DigestMismatchError:
            return None


def write_set_of(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies that should hold an entry, by the definition and not by the program's code."""
    ensemble = metadata.ensembles[0].bookies
    for fragment in metadata.ensembles:
        if fragment.first_entry_id <= entry_id:
            ensemble = fragment.bookies
    size = len(ensemble)
    return [ensemble[(entry_id + k) % size] for k in range(metadata.write_quorum)]


REPLICATOR = "m"
"""The actor of single clusters that moves replicas."""
_REPLICATORS = "ar"
"""What the names of auto-recovery's processes begin with."""


def replicates(actor: str) -> bool:
    """Whether the actor moves replicas."""
    return actor == REPLICATOR or actor.startswith(_REPLICATORS)


def is_swap(actor: str, old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether the write moves replicas: judged by I21 and R1.

    Auto-recovery recovers ledgers as well, which changes their state.
    """
    return actor == REPLICATOR or (replicates(actor) and old.state is new.state)


Check = Callable[[Record], Iterator[str]]

INVARIANTS: dict[str, tuple[str, Check]] = {}
"""Number, statement, predicate: yields what contradicts it."""


def invariant(number: str, statement: str) -> Callable[[Check], Check]:
    """Register a predicate."""

    def register(check: Check) -> Check:
        assert number not in INVARIANTS, number
        INVARIANTS[number] = statement, check
        return check

    return register
