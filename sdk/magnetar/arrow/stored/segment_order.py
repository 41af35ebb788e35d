"""The reading order of a scalable topic's segments: parents before children. Pure; no I/O.

An offset names the segments that are *begun*. A segment begins when all its parents in the layout
were read to their ends, and leaves the offset when all its children have begun. So the ancestors of
a begun segment were read to their ends, and need not be named. An offset has about as many names as
the topic has active segments, however often these were split and merged.

In a streaming query the parents must be at their ends where a micro-batch *begins*. Spark does not
define the order in which tasks of one micro-batch run, so a parent and its child never share one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.wire.topic_name import SEGMENT

_SEGMENT = f"{SEGMENT}://"


@dataclass(frozen=True, slots=True)
class Begun:
    """How far a query has read its scalable topics."""

    names: Collection[str] = ()
    """Topics that the offset names, including segments."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Scalable topic -> epoch of the newest layout that the query has seen."""


class SegmentOrder:
    """The segments of one scalable topic at one moment, by the names of their topics."""

    def __init__(self, name: LayoutName, layout: Layout) -> None:
        self.name = str(name)
        self.epoch = layout.epoch
        self._segments = layout.segments
        """Ordered by id, so that parents come before their children."""
        self._by_name = {str(each.topic): each for each in layout.segments}
        self._by_id = layout.by_id
        self._children: dict[int, list[str]] = {}
        for each in layout.segments:
            for parent in each.parents:
                self._children.setdefault(parent, []).append(str(each.topic))

    def __repr__(self) -> str:
        return f"<SegmentOrder of {self.name}, epoch {self.epoch}, {len(self._by_name)} segments>"

    @property
    def names(self) -> tuple[str, ...]:
        """All segments of the layout, parents before their children."""
        return tuple(self._by_name)

    def is_sealed(self, name: str) -> bool:
        """Return whether a segment of the layout takes no more messages."""
        return self._by_name[name].is_sealed

    def passed(self, begun: Collection[str]) -> set[str]:
        """Return the ancestors of segments that have begun: they were read to their ends before."""
        waiting = [self._by_name[name] for name in begun if name in self._by_name]
        found: set[str] = set()
        while waiting:
            for parent in self._parents(waiting.pop()):
                name = str(parent.topic)
                if name not in found:
                    found.add(name)
                    waiting.append(parent)
        return found

    def unread(self, begun: Collection[str]) -> list[str]:
        """Return segments that may have something to read, now or later, including those that have
        begun."""
        passed = self.passed(begun)
        return [name for name in self._by_name if name in begun or name not in passed]

    def step(self, begun: Collection[str], done: Collection[str]) -> set[str]:
        """Return the segments of the next offset: those that have begun or can begin, except those
        that leave.

        Args:
            begun: the names in the current offset.
            done: segments that were read to their ends there.
        """
        passed = self.passed(begun)
        is_read = passed.union(name for name in done if name in begun)
        begins = {
            name
            for name, segment in self._by_name.items()
            if name not in begun and name not in passed and self._is_open(segment, is_read)
        }
        known = begins.union(begun, passed)
        return begins | {
            name
            for name in begun
            if name in self._by_name and not (name in done and self._leaves(name, known))
        }

    def first(self, done: Collection[str], passed: Collection[str] = ()) -> set[str]:
        """Return the segments of a query's first offset.

        Args:
            done: segments with nothing after the query's start, now or later.
            passed: segments that count as read, whatever they contain.
        """
        is_read = set(passed)
        begun: set[str] = set()
        for name, segment in self._by_name.items():
            if name not in is_read and self._is_open(segment, is_read):
                begun.add(name)
                if name in done:
                    is_read.add(name)
        known = begun.union(passed)
        return {name for name in begun if not (name in done and self._leaves(name, known))}

    def heirs(self, gone: str, names: Collection[str]) -> list[str]:
        """Return those of `names` that descend from a segment which is no longer in the layout.

        These are later segments with some of its hashes.
        """
        if not gone.startswith(_SEGMENT):
            return [name for name in names if name in self._by_name]  # It had all hashes.
        parts = gone.rpartition("/")[2].split("-")
        first, last, number = int(parts[0], 16), int(parts[1], 16), int(parts[2])
        return [
            name
            for name in names
            if (each := self._by_name.get(name)) is not None
            and each.id > number
            and each.hash_start <= last
            and first <= each.hash_end
        ]

    def _parents(self, segment: Segment) -> list[Segment]:
        """Return the parents in the layout.

        A parent that is gone was read to its end before: until then, the subscription of the query
        retains it.
        """
        return [self._by_id[each] for each in segment.parents if each in self._by_id]

    def _is_open(self, segment: Segment, is_read: Collection[str]) -> bool:
        return all(str(parent.topic) in is_read for parent in self._parents(segment))

    def _leaves(self, name: str, known: Collection[str]) -> bool:
        """Return whether a fully read segment need not be named any more: its children imply it."""
        children = self._children.get(self._by_name[name].id, [])
        return bool(children) and all(child in known for child in children)
