"""The order in which a checkpoint consumer reads segments: parents before children. Pure; no I/O.

A segment is read once all its parents in the layout were read to their ends. So for each key, all
messages of a parent come before those of a child. Only sealed segments have an end.
"""

from collections.abc import Mapping
from types import MappingProxyType

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.checkpoint import Checkpoint, CheckpointKind
from magnetar.sdk.scalable.layout import Layout, Segment


class ReadingOrder:
    """The segments of one checkpoint consumer."""

    def __init__(self, layout: Layout, start: Checkpoint) -> None:
        """`start` is how far the topic has been read before."""
        self._layout = layout
        self._starts = {
            number: position
            for number, position in start.positions.items()
            if number in layout.by_id
        }
        self._finished: set[int] = set()
        for each in layout.segments:
            if start.kind is CheckpointKind.LATEST:
                self._starts[each.id] = MessageId.LATEST
            if each.is_sealed and self._starts.get(each.id) == MessageId.LATEST:
                self._finished.add(each.id)
        self._check_children()

    @property
    def readable(self) -> list[Segment]:
        """Segments to read now."""
        return [
            each
            for each in self._layout.segments
            if each.id not in self._finished
            and all(
                parent in self._finished for parent in each.parents if parent in self._layout.by_id
            )
        ]

    def start_of(self, segment_id: int) -> MessageId:
        """Return the message after which a segment is read."""
        return self._starts.get(segment_id, MessageId.EARLIEST)

    def is_sealed(self, segment_id: int) -> bool:
        """Return whether the segment has an end."""
        return not self._layout.is_active(segment_id)

    def settle(self, segment_id: int, start: MessageId) -> None:
        """Set the start of a segment that was to be read from its latest message on."""
        self._starts[segment_id] = start

    def finish(self, segment_id: int) -> None:
        """Mark a sealed segment as read to its end."""
        assert self.is_sealed(segment_id)
        self._finished.add(segment_id)
        self._starts[segment_id] = MessageId.LATEST

    def change(self, layout: Layout) -> None:
        """Adopt another layout of the topic."""
        self._layout = layout
        self._finished &= layout.by_id.keys()
        for gone in self._starts.keys() - layout.by_id.keys():
            del self._starts[gone]

    def checkpoint(self, read: Mapping[int, MessageId]) -> Checkpoint:
        """Return how far the topic is read. `read` has the last message of segments that are being
        read."""
        positions = {**self._starts, **read}
        for number in self._finished:
            positions[number] = MessageId.LATEST
        return Checkpoint(CheckpointKind.POSITIONS, MappingProxyType(positions))

    def _check_children(self) -> None:
        """Mark the parents of begun segments as read to their ends.

        Checkpoints of other clients may have the position of a parent's last message instead of its
        end.
        """
        for each in sorted(self._layout.segments, key=lambda one: -one.id):
            begun = each.id in self._finished or each.id in self._starts
            if not begun or self._starts.get(each.id) == MessageId.EARLIEST:
                continue
            for parent in each.parents:
                found = self._layout.by_id.get(parent)
                if found is not None and found.is_sealed:
                    self._finished.add(parent)
                    self._starts[parent] = MessageId.LATEST
