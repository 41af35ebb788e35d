"""Divides the segments of a topic among a subscription's consumers: a coordinator's core. Pure.

Consumers register by name. The segments, in the order of their ranges, are dealt to the consumers,
in the order of their names, one at a time in turns. So the assignment follows from names and layout
alone: a new coordinator, on this broker or another one, computes the same one. If there are more
consumers than segments, the surplus share segments that have entry buckets. Each segment takes as
many consumers as it has buckets, and the segments' brokers divide the buckets. Any further consumer
has no segment until others leave.

    register ──> attached ──(connection lost)──> detached ──(grace over)──> gone
                   │  ^                              │
                   │  └────(the name comes back)─────┘
                   └──(unregister)──> gone

A detached consumer keeps its segments, so that no other consumer moves if it comes back in time. It
may still be connected to the brokers that have its segments.

Order over splits and merges: a segment is assigned once all its ancestors are *drained*, that is,
sealed and completely acknowledged on the subscription. A drained segment is assigned to no
consumer. While a seek moves the subscription back on a segment, the segment is *held*. It then
counts as not drained, even if a check finds it drained, and its descendants are withdrawn. When its
last hold ends, the segment is checked again. Checkpoint consumers keep the order themselves, so all
their segments are assigned at once.

The epoch sent to consumers never decreases: they silently drop an assignment whose epoch is below
the last one. Source: sheet of Pulsar 5, sections 1.7, 3.1 and 3.4.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from magnetar.broker.features.scalable.layout import Layout, Segment

M = TypeVar("M")
"""Origin of a registration; two are equal only if they are one object."""
Held = Mapping[int, int | None]
"""Segments on which the subscription moves back, by the id of the hold; None for all segments."""
_NOT_HELD: Final[Held] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Assignment:
    """The segments that one consumer has."""

    epoch: int
    segments: tuple[Segment, ...]
    is_shared: bool = False
    """Whether other consumers share its only segment, which then has entry buckets."""


@dataclass(slots=True)
class _Consumer(Generic[M]):
    member: M
    until_s: float | None = None
    """When a detached consumer is removed, in monotonic seconds; None while it is attached."""
    told: Assignment | None = None


class SegmentAssignment(Generic[M]):
    """The consumers of one subscription, and the segments that each of them has.

    Calls return the news: members to notify, with their new assignments.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        grace_s: float,
        is_ordered: bool = True,
        held: Held = _NOT_HELD,
    ) -> None:
        """`grace_s`: how long a detached consumer keeps its segments. `is_ordered`: whether a
        segment waits for its ancestors."""
        self._grace_s = grace_s
        self._is_ordered = is_ordered
        self._layout = layout
        self._epoch = layout.epoch
        self._drained: set[int] = set()
        """Ids of sealed segments that are drained."""
        self._held = dict(held)
        self.moves = 0
        """Number of times that a hold of the subscription has begun or ended."""
        self._segments = self._assignable()
        self._consumers: dict[str, _Consumer[M]] = {}

    def __len__(self) -> int:
        """Return the number of consumers, including detached ones."""
        return len(self._consumers)

    def __contains__(self, name: str) -> bool:
        return name in self._consumers

    def register(self, name: str, member: M) -> tuple[Assignment, list[tuple[M, Assignment]]]:
        """Attach a consumer; return its assignment, and the news for the others.

        A known name is attached to this member from now on: the consumer has come back, or its
        former connection is dead and the broker has not noticed.
        """
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = _Consumer(member)
        consumer.member, consumer.until_s = member, None
        news = self._assign(besides=consumer)
        assert consumer.told is not None
        return consumer.told, news

    def unregister(self, name: str, member: M) -> list[tuple[M, Assignment]]:
        """Remove a consumer that leaves, unless it has been attached to another member."""
        consumer = self._consumers.get(name)
        if consumer is None or consumer.member is not member:
            return []
        del self._consumers[name]
        return self._assign()

    def detach(self, name: str, member: M, *, now_s: float) -> None:
        """Detach a consumer that lost its connection; it has the grace period to come back."""
        consumer = self._consumers.get(name)
        if consumer is not None and consumer.member is member:
            consumer.until_s = now_s + self._grace_s

    @property
    def next_expiry_s(self) -> float | None:
        """When the next detached consumer is removed; None if all are attached."""
        return min(
            (each.until_s for each in self._consumers.values() if each.until_s is not None),
            default=None,
        )

    def expire(self, *, now_s: float) -> list[tuple[M, Assignment]]:
        """Remove the consumers that have not come back in time."""
        gone = [
            name
            for name, each in self._consumers.items()
            if each.until_s is not None and each.until_s <= now_s
        ]
        for name in gone:
            del self._consumers[name]
        return self._assign() if gone else []

    def change(self, layout: Layout, held: Held = _NOT_HELD) -> list[tuple[M, Assignment]]:
        """Apply another layout of the topic, or holds that began or ended."""
        if layout.born_ms != self._layout.born_ms:
            self._drained.clear()  # Segments of another topic, even if the ids are equal.
            self._held = {}
        for hold in held.keys() ^ self._held.keys():
            # Also when a hold ends: a check that began before may have found the segment drained.
            self._undrain(held[hold] if hold in held else self._held[hold])
        self._held = dict(held)
        self._layout = layout
        self._epoch = max(self._epoch, layout.epoch)
        self._segments = self._assignable()
        return self._assign()

    def empty(self) -> list[tuple[M, Assignment]]:
        """Withdraw all segments, because the topic is gone."""
        self._segments = ()
        return self._assign()

    def drained(self, segment_ids: Iterable[int]) -> list[tuple[M, Assignment]]:
        """Note sealed segments that a check found drained.

        The caller has compared `moves` before and after the check. If it has changed, the segments
        may have been drained only before the subscription moved back.
        """
        self._drained.update(each for each in segment_ids if not self._is_held(each))
        self._segments = self._assignable()
        return self._assign()

    def _is_held(self, segment_id: int) -> bool:
        return any(each in (None, segment_id) for each in self._held.values())

    def _undrain(self, segment_id: int | None) -> None:
        self.moves += 1
        if segment_id is None:
            self._drained.clear()
        else:
            self._drained.discard(segment_id)

    @property
    def undrained(self) -> Sequence[Segment]:
        """Sealed segments that are assigned, and may have become drained."""
        if not self._is_ordered:
            return ()
        return [each for each in self._segments if each.is_sealed and not self._is_held(each.id)]

    @property
    def attached(self) -> list[M]:
        """Members whose connections are open."""
        return [each.member for each in self._consumers.values() if each.until_s is None]

    def _assign(self, *, besides: _Consumer[M] | None = None) -> list[tuple[M, Assignment]]:
        """Divide the segments again; return the news for attached members."""
        news: list[tuple[M, Assignment]] = []
        names = sorted(self._consumers)
        sharers = self._shared(len(names) - len(self._segments))
        for at, name in enumerate(names):
            consumer = self._consumers[name]
            assignment = Assignment(self._epoch, self._segments[at :: len(names)])
            if at in sharers:
                assignment = Assignment(self._epoch, (sharers[at],), is_shared=True)
            if consumer.told == assignment:
                continue
            consumer.told = assignment
            if consumer is not besides and consumer.until_s is None:
                news.append((consumer.member, assignment))
        return news

    def _shared(self, surplus: int) -> Mapping[int, Segment]:
        """Return the segments that are shared because consumers outnumber segments. The key is the
        place of a consumer that shares it: its first consumer, or one of the surplus."""
        if surplus <= 0 or not self._is_ordered:
            return {}
        room = {at: each.buckets - 1 for at, each in enumerate(self._segments)}
        shared: dict[int, Segment] = {}
        beyond = len(self._segments)
        while surplus > 0 and any(left > 0 for left in room.values()):
            for at, segment in enumerate(self._segments):
                if surplus > 0 and room[at] > 0:
                    room[at] -= 1
                    surplus -= 1
                    shared[at] = shared[beyond] = segment
                    beyond += 1
        return shared

    def _assignable(self) -> tuple[Segment, ...]:
        """Return the segments that may be assigned, in the order of their ranges."""
        segments: Iterable[Segment] = self._layout.segments
        if self._is_ordered:
            ready = self._ready()
            segments = [
                each
                for each in self._layout.segments
                if each.id not in self._drained and ready[each.id]
            ]
        return tuple(sorted(segments, key=lambda each: (each.hash_start, each.id)))

    def _ready(self) -> Mapping[int, bool]:
        """Return whether all ancestors of each segment are drained, over all generations. A drained
        segment may have an ancestor on which the subscription moved back. An ancestor that left the
        layout has been drained."""
        ready: dict[int, bool] = {}
        for segment in sorted(self._layout.segments, key=lambda each: each.id):  # Parents first.
            known = [each for each in segment.parents if each in ready]
            ready[segment.id] = all(ready[each] and each in self._drained for each in known)
        return ready
