"""Moving subscriptions forward past what nobody is to consume any more: too old, too much, skipped.

To the cursor that is a cumulative acknowledgement, and to the dispatcher as if every entry up to
there had been acknowledged: what is pending at a consumer stays with its client, and counts for
nothing any more. Nothing is deleted here; trimming follows when every cursor has passed.
"""

from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.position import Position


def advance(subscription: Subscription, through: Position) -> int:
    """Have nothing through `through` be delivered any more; returns how many entries that drops."""
    if subscription.is_closed or not subscription.is_open:
        return 0
    cursor = subscription.cursor
    context = subscription.context
    if context is not None and context.visibility is not None:
        # What is in an open transaction was not even offered yet.
        through = min(through, context.visibility.last)
    before = cursor.backlog_entries
    if not cursor.ack_cumulative(through):
        return 0
    subscription.moved()
    if subscription.dispatcher is not None:
        subscription.dispatcher.acked_through(through)
    subscription.wake()
    return max(0, before - cursor.backlog_entries)
