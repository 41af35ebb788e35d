"""What a bookie must and may hold, by what it was asked and what it answered: dictionaries.

The journal of a client is a list of events. `expectation` makes of its first part what holds for a
process that begins after a crash at that moment:

- an entry that was confirmed, or seen by a reader after a start, is there: in the version that was
  confirmed or in one that was sent later;
- an entry that was sent and not confirmed may be there, with the bytes that were sent;
- nothing else is there, and a denial is exact;
- a fence that was confirmed is there; one that nobody asked for is not;
- a ledger that was deleted may come back with a start, with some of its entries, until a checkpoint
  has ended that began after the deletion; then it is gone for good.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple


class Sent(NamedTuple):
    """An add went out."""

    request_id: int
    ledger_id: int
    packets: Mapping[int, bytes]
    lac: int


class FenceSent(NamedTuple):
    request_id: int
    ledger_id: int


class LacSent(NamedTuple):
    request_id: int
    ledger_id: int
    lac: int
    packet: bytes


class Confirmed(NamedTuple):
    """The answer to a request was OK, or for a fence anything that says it is fenced."""

    request_id: int


class Refused(NamedTuple):
    """The answer to an add says that it was not stored: nothing of it is there."""

    request_id: int


class Deleted(NamedTuple):
    ledger_id: int


class Checkpointed(NamedTuple):
    """A checkpoint has ended; what had been deleted before the event number `began` is gone."""

    began: int


class Restarted(NamedTuple):
    """A start has ended, and this is what the bookie held then."""

    found: Mapping[int, "Found"]
    was_troubled: bool = False
    """Calls of the disk have failed: the mark may be where it was, and the next start replays the
    same again."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a bookie holds of a ledger."""

    packets: Mapping[int, bytes]
    fenced: bool
    lac: int
    explicit_lac: bytes


Event = Sent | FenceSent | LacSent | Confirmed | Refused | Deleted | Checkpointed | Restarted


class Fence(Enum):
    """What is known of a fence."""

    NO = auto()
    MAYBE = auto()
    YES = auto()


@dataclass(slots=True)
class Expected:
    """What must and may be there of a ledger."""

    versions: dict[int, list[bytes]] = field(default_factory=dict)
    """All packets that may be read, by entry, in the order in which they were sent."""
    sure: dict[int, int] = field(default_factory=dict)
    """Entries that must be there: in this version or a later one."""
    is_known: bool = False
    """The bookie must know the ledger."""
    fence: Fence = Fence.NO
    lac_sent: int = -1
    lac_sure: int = -1
    explicit_sent: set[bytes] = field(default_factory=set)
    explicit_sure: int = -1
    deleted_at: int | None = None
    """Number of the event that deleted it: nothing of it must be there."""
    is_gone: bool = False
    """Nothing of it may be there."""

    def must_hold(self, entry_id: int) -> bool:
        return entry_id in self.sure

    def may_be(self, entry_id: int, packet: bytes) -> bool:
        """Whether these bytes may be read as the entry."""
        return packet in self.versions.get(entry_id, [])[self.sure.get(entry_id, 0) :]

    def forget_certainty(self) -> None:
        self.sure.clear()
        self.is_known = False
        self.lac_sure = self.explicit_sure = -1
        if self.fence is Fence.YES:
            self.fence = Fence.MAYBE


def expectation(events: Iterable[Event]) -> dict[int, Expected]:
    """What holds after these events, by ledger."""
    model = Model()
    for event in events:
        model.apply(event)
    return model.ledgers


class Model:
    """The expectation, event by event."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Expected] = {}
        self._requests: dict[int, tuple[Sent | FenceSent | LacSent, dict[int, int]]] = {}
        """Requests under way, and for an add the version that each of its entries was sent as."""
        self.events = 0

    def apply(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, Sent):
            self._on_sent(event)
        elif isinstance(event, FenceSent):
            self._requests[event.request_id] = event, {}
            ledger = self._begun(event.ledger_id)
            if ledger.fence is Fence.NO:
                ledger.fence = Fence.MAYBE
        elif isinstance(event, LacSent):
            self._requests[event.request_id] = event, {}
            ledger = self._begun(event.ledger_id)
            ledger.lac_sent = max(ledger.lac_sent, event.lac)
            ledger.explicit_sent.add(event.packet)
        elif isinstance(event, Confirmed):
            self._on_confirmed(event.request_id)
        elif isinstance(event, Refused):
            self._on_refused(event.request_id)
        elif isinstance(event, Deleted):
            ledger = self._ledger(event.ledger_id)
            ledger.forget_certainty()
            ledger.deleted_at = self.events
        elif isinstance(event, Checkpointed):
            # What failed for want of room may have reached the journal, behind every mark.
            unsure = {request.ledger_id for request, _ in self._requests.values()}
            for ledger_id, ledger in self.ledgers.items():
                if ledger.deleted_at is not None and ledger.deleted_at <= event.began:
                    ledger.is_gone = ledger_id not in unsure
        else:
            self._on_restarted(event)

    def _ledger(self, ledger_id: int) -> Expected:
        return self.ledgers.setdefault(ledger_id, Expected())

    def _begun(self, ledger_id: int) -> Expected:
        """The ledger of a request: if it was deleted it is made anew, and a crash may bring back
        with it what it had before."""
        ledger = self._ledger(ledger_id)
        ledger.deleted_at, ledger.is_gone = None, False
        return ledger

    def _on_sent(self, event: Sent) -> None:
        ledger = self._begun(event.ledger_id)
        places = {}
        for entry_id, packet in event.packets.items():
            versions = ledger.versions.setdefault(entry_id, [])
            places[entry_id] = len(versions)
            versions.append(packet)
        ledger.lac_sent = max(ledger.lac_sent, event.lac)
        self._requests[event.request_id] = event, places

    def _on_confirmed(self, request_id: int) -> None:
        request, places = self._requests.pop(request_id)
        ledger = self._ledger(request.ledger_id)
        ledger.is_known = True
        if isinstance(request, FenceSent):
            ledger.fence = Fence.YES
            return
        if isinstance(request, LacSent):
            ledger.explicit_sure = max(ledger.explicit_sure, request.lac)
        for entry_id, place in places.items():
            ledger.sure[entry_id] = max(place, ledger.sure.get(entry_id, 0))
        ledger.lac_sure = max(ledger.lac_sure, request.lac)

    def _on_refused(self, request_id: int) -> None:
        request, places = self._requests.pop(request_id)
        assert isinstance(request, Sent)
        versions = self._ledger(request.ledger_id).versions
        for entry_id, place in places.items():
            # It stays in its place as something that no packet is, so that places keep counting.
            versions[entry_id][place] = b""

    def _on_restarted(self, event: Restarted) -> None:
        self._requests.clear()
        for ledger_id, ledger in self.ledgers.items():
            found = event.found.get(ledger_id)
            if found is None and event.was_troubled and ledger.deleted_at is not None:
                continue  # made anew, it may come back with what it had, by the next start
            if found is None:
                # What was deleted and did not come back with this start never will: the mark is
                # behind everything that was replayed.
                is_gone = ledger.is_gone or ledger.deleted_at is not None
                self.ledgers[ledger_id] = Expected(is_gone=is_gone)
                continue
            packet = found.explicit_lac
            self.ledgers[ledger_id] = Expected(
                versions={entry_id: [each] for entry_id, each in found.packets.items()},
                sure=dict.fromkeys(found.packets, 0),
                is_known=True,
                fence=Fence.YES if found.fenced else Fence.NO,
                lac_sent=found.lac,
                lac_sure=found.lac,
                explicit_sent={packet} if packet else set(),
                explicit_sure=_lac_of(packet) if packet else -1,
            )


def _lac_of(packet: bytes) -> int:
    return int.from_bytes(packet[8:16], "big")
