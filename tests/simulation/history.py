"""What happened in a run: every event with its time and its actor, readable as a transcript.

The history is what the invariants judge (`checks_*.py`), after the run and never inside it. Its
text is the same, byte for byte, whenever the same plan is run.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.cluster.events import ClusterEvent
from tests.simulation.geo.events import GeoEvent
from tests.simulation.scalable.events import ScalableEvent

E = TypeVar("E")


# Messages


class Sent(NamedTuple):
    """A frame left `source`; `request_flags` are those of the request, also on its reply."""

    connection: int
    """Negative if the simulation made the frame up."""
    source: str
    target: str
    op: int
    is_reply: bool
    status: int
    flags: int
    request_flags: int
    ledger_id: int
    entry_id: int
    entries: tuple[int, ...]
    """Of an ADD and its reply: the entries in it. Of an OK reply to READ: those returned."""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}  {describe_frame(self)}"


class Delivered(NamedTuple):
    """A frame arrived at `target`."""

    connection: int
    source: str
    target: str
    op: int
    is_reply: bool
    status: int
    flags: int
    request_flags: int
    ledger_id: int
    entry_id: int
    entries: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.target} <- {self.source}  {describe_frame(self)}"


def describe_frame(frame: Sent | Delivered) -> str:
    """As "ADD L1 e0-2 recovery" or "ADD L1 e0 OK"."""
    parts = [_name(Op, frame.op), f"L{frame.ledger_id}"]
    if frame.entries:
        first, last = frame.entries[0], frame.entries[-1]
        # The ids of damaged packets may be anything: no range as long as they say is made.
        is_run = len(frame.entries) == last - first + 1 and frame.entries == tuple(
            range(first, last + 1)
        )
        text = f"{first}-{last}" if is_run else ",".join(map(str, frame.entries))
        parts.append(f"e{first}" if first == last else f"e{text}")
    elif frame.entry_id >= 0:
        parts.append(f"e{frame.entry_id}")
    if frame.request_flags & Flag.RECOVERY:
        parts.append("recovery")
    if frame.request_flags & Flag.FENCE:
        parts.append("fence")
    if frame.is_reply:
        parts.append(_name(Status, frame.status))
        if frame.flags & Flag.FENCED:
            parts.append("[fenced]")
    return " ".join(parts)


def _name(kind: type[Op] | type[Status], value: int) -> str:
    return kind(value).name if value in kind._value2member_map_ else f"{kind.__name__}{value}"


# The writer


class Appended(NamedTuple):
    """The application gave an entry to the writer."""

    ledger_id: int
    entry_id: int
    payload: bytes

    def __str__(self) -> str:
        return f"appends L{self.ledger_id} e{self.entry_id}"


class Acked(NamedTuple):
    """The application heard that the entry is confirmed."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"ACKED L{self.ledger_id} e{self.entry_id}"


class AddFailed(NamedTuple):
    """The application heard that the entry may not be confirmed."""

    ledger_id: int
    entry_id: int
    error: str

    def __str__(self) -> str:
        return f"add failed L{self.ledger_id} e{self.entry_id}: {self.error}"


# Operations with one outcome (I19)


class Began(NamedTuple):
    """An operation was called; `number` tells operations of a run apart."""

    number: int
    what: str
    ledger_id: int

    def __str__(self) -> str:
        return f"begins {self.what} L{self.ledger_id} (#{self.number})"


class Ended(NamedTuple):
    """An operation ended; `error` is empty if it succeeded."""

    number: int
    what: str
    error: str

    def __str__(self) -> str:
        return f"ended {self.what} (#{self.number}){': ' + self.error if self.error else ''}"


class SawClosed(NamedTuple):
    """A client learned the end of a ledger: it closed or recovered it, or opened it CLOSED."""

    ledger_id: int
    last_entry_id: int
    length: int
    how: str

    def __str__(self) -> str:
        return (
            f"saw L{self.ledger_id} closed at e{self.last_entry_id}, "
            f"{self.length} bytes ({self.how})"
        )


# Readers


class SawBound(NamedTuple):
    """A reader learned up to where it may read."""

    reader: str
    ledger_id: int
    last_add_confirmed: int

    def __str__(self) -> str:
        return f"{self.reader} may read L{self.ledger_id} up to e{self.last_add_confirmed}"


class WasRead(NamedTuple):
    """A reader returned an entry; `bound` is the one that the reader had."""

    reader: str
    ledger_id: int
    entry_id: int
    payload: bytes
    bound: int

    def __str__(self) -> str:
        return f"{self.reader} read L{self.ledger_id} e{self.entry_id}: {self.payload!r}"


class ReadFailed(NamedTuple):
    """A read ended with an error."""

    reader: str
    ledger_id: int
    entry_id: int
    error: str
    is_final: bool
    """Read after everything was healed: an error then needs a reason."""

    def __str__(self) -> str:
        return f"{self.reader} could not read L{self.ledger_id} e{self.entry_id}: {self.error}"


# Metadata


class Proposed(NamedTuple):
    """A client called for a write of a ledger's metadata; None deletes it."""

    number: int
    ledger_id: int
    version: int
    metadata: LedgerMetadata | None

    def __str__(self) -> str:
        return f"proposes {describe_metadata(self.ledger_id, self.metadata)} on v{self.version}"


class Answered(NamedTuple):
    """The client heard of the proposal of that number."""

    number: int
    ledger_id: int
    outcome: str

    def __str__(self) -> str:
        return f"hears L{self.ledger_id} metadata: {self.outcome}"


class Wrote(NamedTuple):
    """The metadata store did it, for the actor of the event."""

    ledger_id: int
    version: int
    metadata: LedgerMetadata | None

    def __str__(self) -> str:
        return f"WROTE v{self.version} {describe_metadata(self.ledger_id, self.metadata)}"


def describe_metadata(ledger_id: int, metadata: LedgerMetadata | None) -> str:
    if metadata is None:
        return f"L{ledger_id} deleted"
    fragments = " ".join(
        f"{first}:{{{','.join(bookies)}}}" for first, bookies in metadata.ensembles
    )
    end = ""
    if metadata.state.name == "CLOSED":
        end = f" at e{metadata.last_entry_id}, {metadata.length} bytes"
    return f"L{ledger_id} {metadata.state.name}{end} {fragments}"


# Everything else


class Fault(NamedTuple):
    """The simulation did something to the actor."""

    what: str

    def __str__(self) -> str:
        return f"*** {self.what}"


class Lost(NamedTuple):
    """A bookie's data is gone for good."""

    bookie_id: str

    def __str__(self) -> str:
        return f"*** the disks of {self.bookie_id} are gone for good"


class Corrupted(NamedTuple):
    """A stored replica was changed behind the bookie's back."""

    bookie_id: str
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"*** L{self.ledger_id} e{self.entry_id} rots on {self.bookie_id}"


class Said(NamedTuple):
    """A line of the program's log, or of a test."""

    text: str

    def __str__(self) -> str:
        return f"# {self.text}"


class LogAppended(NamedTuple):
    """A managed log confirmed a batch: its position, or -1, -1 and the error."""

    payload: bytes
    ledger_id: int
    entry_id: int
    error: str

    def __str__(self) -> str:
        where = f"L{self.ledger_id} e{self.entry_id}" if not self.error else f"({self.error})"
        return f"log append {self.payload!r}: {where}"


class LogRead(NamedTuple):
    """An entry of the managed log as read in one pass from its beginning."""

    reader: str
    ledger_id: int
    entry_id: int
    payload: bytes

    def __str__(self) -> str:
        return f"{self.reader} read log L{self.ledger_id} e{self.entry_id}: {self.payload!r}"


Event = (
    Sent
    | Delivered
    | Appended
    | Acked
    | AddFailed
    | Began
    | Ended
    | SawClosed
    | SawBound
    | WasRead
    | ReadFailed
    | Proposed
    | Answered
    | Wrote
    | Fault
    | Lost
    | Corrupted
    | Said
    | LogAppended
    | LogRead
    | ClusterEvent
    | GeoEvent
    | ScalableEvent
)


class Entry(NamedTuple):
    """One line of the history."""

    time_s: float
    actor: str
    event: Event

    def __str__(self) -> str:
        return f"{self.time_s:11.6f}  {self.actor:<5} {self.event}"


@dataclass(slots=True)
class History:
    """All that happened, in order."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, time_s: float, actor: str, event: Event) -> None:
        self.entries.append(Entry(time_s, actor, event))

    def of(self, kind: type[E]) -> Iterator[tuple[int, str, E]]:
        """Place in the history, actor and event, for each event of one kind."""
        for place, entry in enumerate(self.entries):
            if type(entry.event) is kind:
                yield place, entry.actor, entry.event

    def text(self) -> str:
        return "".join(f"{entry}\n" for entry in self.entries)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()
