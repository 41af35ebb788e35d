"""Whether segments of scalable topics are there that a query has not read. Pure.

A segment that was read to its end leaves its topic when retention lets it go. One that goes before
that is a loss, which the query must notice, though nothing of the segment is left to look at: the
offset says how far it was read, and the subscription of the query, which a split carries over to
the children, says that nobody has taken it away.
"""

from collections.abc import Iterable, Mapping

from magnetar.arrow.stored.offsets import BEFORE_FIRST, reach, shown_id
from magnetar.arrow.stored.segment_order import SegmentOrder
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.errors import DataLossError
from magnetar.sdk.spark.query_offset import QueryOffset
from magnetar.sdk.wire.topic_name import SEGMENT


def is_empty_for_good(state: TopicState) -> bool:
    """Whether a topic holds nothing and never will; one that was never used takes no subscription
    any more."""
    return state.has_ended and not state.ledgers


def check_gone(
    name: str, begun: QueryOffset, order: SegmentOrder, states: Mapping[str, TopicState]
) -> None:
    """Check a segment that the query has begun, and that has left its topic.

    It had been read to the end of what was there. While the query's subscription was on it, it
    cannot have gone with more than that: only expiry by a TTL, or an operator, moves that on. That
    it was there to the end is seen on the segments that came of it.

    Raises:
        DataLossError: messages went with it that the query has not read.
    """
    through, left = begun.topics[name], begun.entries_left.get(name, 0)
    if left or not _was_held(name, begun, order, states):
        how = f"{left} later entries are lost" if left else "later entries may be lost"
        where = f"up to {shown_id(through)}" if through != BEFORE_FIRST else "in no part"
        raise DataLossError(
            f"{name}: the segment was deleted, and the query has read it {where}: {how}. Set "
            "failOnDataLoss to false to go on with the segments that came of it"
        )


def _was_held(
    name: str, begun: QueryOffset, order: SegmentOrder, states: Mapping[str, TopicState]
) -> bool:
    """Whether the query's subscription was on a segment until it went: all that came of it have
    it."""
    heirs = order.heirs(name, states)
    return bool(heirs) and all(
        begun.subscription in (states[each].mark_deletes or {}) or is_empty_for_good(states[each])
        for each in heirs
    )


def check_new(order: SegmentOrder, begun: QueryOffset, states: Mapping[str, TopicState]) -> None:
    """Check segments that the query has not begun, of a topic that it knows.

    Raises:
        DataLossError: one of them was trimmed since it was first seen, or before.
    """
    if order.name not in begun.epochs:
        return  # The topic is new in the query: it begins with what there is.
    for name in order.unread(begun.topics.keys()):
        state = states.get(name)
        if state is None or name in begun.topics or is_empty_for_good(state):
            continue
        if state.removed_through > begun.removed_through.get(name, -1):
            raise DataLossError(
                f"{name}: ledger {state.removed_through} was trimmed, and the query has read "
                "nothing of the segment yet. Set failOnDataLoss to false to go on with what is left"
            )


def check_waiting(
    begun: QueryOffset, states: Mapping[str, TopicState], orders: Iterable[SegmentOrder]
) -> None:
    """Check segments that were to be begun after others. One that has gone while the query's
    subscription was on it, at its beginning, had no messages.

    Raises:
        DataLossError: one of them is gone, and was not read.
    """
    every = list(orders)
    passed = {name for order in every for name in order.passed(begun.topics.keys())}
    for name in begun.removed_through:
        if name in begun.topics or name in states or name in passed:
            continue
        left = begun.entries_left.get(name, 0)
        if left or not any(_was_held(name, begun, order, states) for order in every):
            raise DataLossError(
                f"{name}: the segment was deleted, and the query has read nothing of it yet. Set "
                "failOnDataLoss to false to go on with the segments that came of it"
            )


def check_read(name: str, begun: QueryOffset, through: MessageId) -> None:
    """Check a topic that is gone, and that a micro-batch ends in which was planned before.

    Raises:
        DataLossError: it is a segment, and the micro-batch has something of it.
    """
    is_segment = name.startswith(f"{SEGMENT}://")
    if is_segment and reach(begun.topics.get(name, BEFORE_FIRST)) < reach(through):
        raise DataLossError(
            f"{name}: the segment was deleted, and the micro-batch that is run again has its "
            f"messages up to {shown_id(through)}. Set failOnDataLoss to false to go on without them"
        )
