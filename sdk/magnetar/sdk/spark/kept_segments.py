"""Checks that segments of scalable topics with unread data still exist. Pure.

A segment that was read to its end leaves its topic when retention deletes it. If it leaves earlier,
that is a loss, which the query must notice although the segment cannot be inspected any more. Two
facts remain. The offset says how far the segment was read. And the query's subscription, which a
split carries over to the children, shows that it retained the segment until the end.
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
    """Return whether a topic is empty and will never have messages.

    One that was never used accepts no subscription any more.
    """
    return state.has_ended and not state.ledgers


def check_gone(
    name: str, begun: QueryOffset, order: SegmentOrder, states: Mapping[str, TopicState]
) -> None:
    """Check a segment that the query has begun, and that has left its topic.

    The query had read it to its end at that time. While the query's subscription was on it, no
    later messages can have been lost: only expiry by a TTL, or an operator, moves that
    subscription. The descendants of the segment show whether the subscription was on it to the end.

    Raises:
        DataLossError: the segment had messages that the query has not read.
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
    """Return whether the query's subscription was on a segment until its end: all descendants have
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
        return  # The topic is new in the query: it begins with what exists.
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
    """Check segments that were to begin after others.

    If one has gone while the query's subscription was at its beginning, it had no messages.

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
    """Check a topic that is gone, and that is in the end of an already planned micro-batch.

    Raises:
        DataLossError: the topic is a segment, and the micro-batch has messages of it.
    """
    is_segment = name.startswith(f"{SEGMENT}://")
    if is_segment and reach(begun.topics.get(name, BEFORE_FIRST)) < reach(through):
        raise DataLossError(
            f"{name}: the segment was deleted, and the micro-batch that is run again has its "
            f"messages up to {shown_id(through)}. Set failOnDataLoss to false to go on without them"
        )
