"""Keeps the messages of a producer in order over splits and merges of segments. Pure; no I/O.

Order per key over splits and merges, without a message lost or sent twice:

- Every message has a number in the order of the calls.
- Each segment has a lane. A message is *in flight* once the producer of the segment has it, until
  it is stored or fails. A segment that ends returns the messages that it has not stored, in order.
- A lane *leaves* when its segment is sealed in the layout. While it has messages in flight, lanes
  whose ranges overlap its own are *held*: their messages wait. Returned messages wait in their own
  lane.
- A lane that leaves and has nothing in flight is removed, and its messages wait in the lanes of the
  segments that have their keys now, by their numbers.

So a message is sent to a child only when the outcome of all earlier messages of its key is known. A
broker may report the end of a segment before the layout, or after: both lead to the same result.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from magnetar.sdk.scalable.layout import Layout, Segment


class Sendable(Protocol):
    """A message of a producer."""

    order: int
    """Number of the message in the order of the calls."""
    key: bytes | None
    """None if any segment may take the message."""
    segment_id: int
    """The lane that has the message in flight; set here."""


S = TypeVar("S", bound=Sendable)


@dataclass(slots=True)
class Step(Generic[S]):
    """Actions that follow a change."""

    closed: list[int] = field(default_factory=list)
    """Segments whose producers are not needed any more."""
    given: list[tuple[Segment, list[S]]] = field(default_factory=list)
    """Messages to send now; they count as in flight."""
    opened: list[Segment] = field(default_factory=list)
    """Segments that need a producer."""


class _Lane(Generic[S]):
    """The messages for one segment."""

    __slots__ = ("has_ended", "in_flight", "is_opening", "is_ready", "segment", "waiting")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.in_flight = 0
        self.waiting: list[S] = []
        """Messages that wait, in the order of their numbers."""
        self.is_opening = self.is_ready = False
        """Whether the segment's producer is being created, or can be used."""
        self.has_ended = False
        """Whether the segment's broker takes no more messages: the next layout names the
        successors."""

    def wait(self, send: S) -> None:
        """Add a message that cannot be sent now."""
        if self.waiting and self.waiting[-1].order > send.order:
            insort(self.waiting, send, key=lambda each: each.order)
        else:
            self.waiting.append(send)


class SegmentLanes(Generic[S]):
    """The lanes of one producer."""

    def __init__(self, layout: Layout, in_turn: Callable[[S, int], int]) -> None:
        """`in_turn` chooses a segment for a message without a key: an index below the number of
        segments."""
        self.layout = layout
        self.is_due = False
        """Whether `step` has something to do."""
        self._in_turn = in_turn
        self._lanes: dict[int, _Lane[S]] = {}
        self._leaving: dict[int, _Lane[S]] = {}

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits in any lane."""
        return any(lane.waiting for lane in self._lanes.values())

    def put(self, send: S) -> Segment | None:
        """Add a message. Return the segment that takes it now; None if it waits."""
        lane = self._lane_for(send)
        if lane.is_ready and not lane.waiting and not self._is_held(lane):
            lane.in_flight += 1
            send.segment_id = lane.segment.id
            return lane.segment
        lane.wait(send)
        if not (lane.is_ready or lane.is_opening or lane.has_ended):
            self.is_due = True
        return None

    def done(self, send: S) -> None:
        """Record that a message in flight is stored, or has failed for good."""
        lane = self._lanes[send.segment_id]
        lane.in_flight -= 1
        if not lane.in_flight and send.segment_id in self._leaving:
            self.is_due = True

    def refused(self, send: S) -> None:
        """Take back a message in flight that was not stored because the segment has ended."""
        lane = self._lanes[send.segment_id]
        lane.in_flight -= 1
        lane.is_ready = False
        lane.has_ended = True
        lane.wait(send)
        self.is_due = True

    def require(self, segment_id: int) -> None:
        """Mark the producer of an active segment as being created, although no message waits for
        it."""
        self._lane(self.layout.by_id[segment_id]).is_opening = True

    def ready(self, segment_id: int) -> bool:
        """Mark the producer of a segment as usable. Return False if it is not needed any more."""
        lane = self._lanes.get(segment_id)
        if lane is None or segment_id in self._leaving:
            return False
        lane.is_opening, lane.is_ready = False, True
        self.is_due = True
        return True

    def not_ready(self, segment_id: int, *, has_ended: bool) -> list[S]:
        """Record that the producer of a segment could not be created; return the messages that fail
        with it.

        None fail if the segment has ended, or leaves: they wait for the layout.
        """
        lane = self._lanes.get(segment_id)
        if lane is None:
            return []
        lane.is_opening = lane.is_ready = False
        if has_ended or segment_id in self._leaving:
            lane.has_ended = True
            self.is_due = True
            return []
        failed, lane.waiting = lane.waiting, []
        return failed

    def change(self, layout: Layout) -> None:
        """Adopt another layout of the topic."""
        self.layout = layout
        self._leaving = {}
        for number, lane in self._lanes.items():
            lane.segment = layout.by_id.get(number, lane.segment)
            if layout.is_active(number):
                lane.has_ended = False  # One attempt for each layout.
            else:
                self._leaving[number] = lane
        self.is_due = True

    def step(self) -> Step[S]:
        """Return the actions that are possible now."""
        self.is_due = False
        step: Step[S] = Step()
        moved: list[S] = []
        for number, lane in list(self._leaving.items()):
            if not lane.in_flight:
                del self._leaving[number], self._lanes[number]
                moved += lane.waiting
                step.closed.append(number)
        for send in sorted(moved, key=lambda each: each.order):
            self._lane_for(send).wait(send)
        for lane in self._lanes.values():
            if not lane.waiting or lane.has_ended or lane.segment.id in self._leaving:
                continue
            if lane.is_ready and not self._is_held(lane):
                sends, lane.waiting = lane.waiting, []
                lane.in_flight += len(sends)
                for send in sends:
                    send.segment_id = lane.segment.id
                step.given.append((lane.segment, sends))
            elif not (lane.is_ready or lane.is_opening):
                lane.is_opening = True
                step.opened.append(lane.segment)
        return step

    def take_waiting(self, is_over: Callable[[S], bool]) -> list[tuple[S, bool]]:
        """Remove messages that have waited too long, from the front of each lane.

        Each comes with whether its segment has ended.
        """
        found: list[tuple[S, bool]] = []
        for lane in self._lanes.values():
            count = _count_while(is_over, lane.waiting)
            found += [(send, lane.has_ended) for send in lane.waiting[:count]]
            del lane.waiting[:count]
        return sorted(found, key=lambda each: each[0].order)

    def first_waiting(self) -> S | None:
        """Return the message that has waited longest."""
        firsts = [lane.waiting[0] for lane in self._lanes.values() if lane.waiting]
        return min(firsts, key=lambda each: each.order, default=None)

    def _lane_for(self, send: S) -> "_Lane[S]":
        layout = self.layout
        if send.key is not None:
            return self._lane(layout.segment_of(send.key))
        return self._lane(layout.active[self._in_turn(send, len(layout.active))])

    def _lane(self, segment: Segment) -> "_Lane[S]":
        lane = self._lanes.get(segment.id)
        if lane is None:
            lane = self._lanes[segment.id] = _Lane(segment)
        return lane

    def _is_held(self, lane: "_Lane[S]") -> bool:
        """Return whether messages of the lane's keys are in flight in a lane that leaves."""
        return any(
            each.in_flight and each.segment.overlaps(lane.segment)
            for each in self._leaving.values()
        )


def _count_while(is_over: Callable[[S], bool], sends: Iterable[S]) -> int:
    count = 0
    for send in sends:
        if not is_over(send):
            break
        count += 1
    return count
