"""Offsets of scalable topics: where their segments begin. Pure.

A user names whole topics (`topic://…`, `earliest` or `latest`) or segments. The ancestors of named
segments count as read. docs/spark.md has the rules.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from magnetar.arrow.stored.errors import OffsetError
from magnetar.arrow.stored.offsets import StartingOffsets, reach, shown_id
from magnetar.arrow.stored.segment_order import SegmentOrder
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.message_id import MessageId


def with_segments(offsets: StartingOffsets, orders: Iterable[SegmentOrder]) -> StartingOffsets:
    """Replace each scalable topic by its segments. A segment that is named itself keeps its
    position."""
    if offsets.word:
        return offsets
    topics = dict(offsets.topics)
    for order in orders:
        whole = topics.pop(order.name, None)
        if whole is not None:
            topics = {**dict.fromkeys(order.names, whole), **topics}
    return replace(offsets, topics=topics)


def begins_behind(offsets: StartingOffsets, order: SegmentOrder) -> StartingOffsets:
    """Mark the ancestors of named segments as read, unless they have positions of their own."""
    if offsets.word:
        return offsets
    passed = order.passed(_placed(offsets, order))
    topics = {**dict.fromkeys(passed, MessageId.LATEST), **offsets.topics}
    return replace(offsets, topics=topics)


def done_names(offset: Mapping[str, MessageId], states: Mapping[str, TopicState]) -> set[str]:
    """Return topics that were read to their ends and will never get new messages."""
    return {
        name
        for name, state in states.items()
        if name in offset and state.has_ended and reach(offset[name]) >= reach(state.end)
    }


def begun_by(
    orders: Iterable[SegmentOrder],
    states: Mapping[str, TopicState],
    starts: Mapping[str, MessageId],
    starting: StartingOffsets,
) -> tuple[dict[str, MessageId], frozenset[str], frozenset[str]]:
    """Choose the segments in the first offset of a streaming query.

    Args:
        starts: the last entry that is not read, of all segments.
        starting: the user's positions.

    Returns:
        The offset, the segments in it that need not be read, and those that begin later.

    Raises:
        OffsetError: a segment is to be read from a position on, and so is one of its descendants.
    """
    found = dict(starts)
    waiting: set[str] = set()
    done = done_names(starts, states)
    for order in orders:
        placed = _placed(starting, order)
        passed = order.passed(placed)
        for name in sorted(passed & placed - done):
            at = starting.of(name)
            if at is not None and at != MessageId.LATEST:
                raise OffsetError(
                    f"option startingOffsets: {name} is to be read from {shown_id(at)} on, and a "
                    "segment that came of it as well: that is read when all before it was. Name "
                    "one of the two"
                )
        first = order.first(done, passed)
        waiting.update(name for name in order.unread(first) if name not in first | passed)
        for name in order.names:
            if name not in first:
                found.pop(name, None)
    return found, frozenset(done & found.keys()), frozenset(waiting)


def _placed(offsets: StartingOffsets, order: SegmentOrder) -> set[str]:
    """Return the segments that begin after their first message."""
    return {name for name in order.names if offsets.of(name) not in (None, MessageId.EARLIEST)}
