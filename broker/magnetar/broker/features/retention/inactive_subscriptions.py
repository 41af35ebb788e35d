"""Subscriptions that nobody has used for long are deleted, where a policy says so.

A subscription is in use while it has consumers. Otherwise its time runs from the first look behind
the last one that came or left here, however short its stay was, or that found its cursor written,
whichever is later. The first look here counts as one, so that consumers have the whole time to come
back after a move of the topic. Wall clocks do not count: one that is corrected by years would take
backlogs with it.
"""

from collections.abc import Coroutine
from contextlib import suppress

import structlog

from magnetar.broker.base.errors import ConsumerBusyError
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import Cursor
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


class InactiveSubscriptions:
    """Deletes subscriptions whose time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """For the ticker: the work, if there is a subscription to delete."""
        expiration_s = topic.policies.subscription_expiration_s
        now_s = self._clock.monotonic_s()
        expired: list[Subscription] = []
        for subscription in topic.subscriptions.values():
            if not subscription.is_durable or not subscription.is_open:
                continue
            cursor = subscription.cursor
            if not isinstance(cursor, Cursor):
                continue
            written_ms = cursor.last_active_ms
            is_used = subscription.consumers or subscription.was_used or subscription.lock.locked()
            if is_used or written_ms != subscription.seen_written_ms:
                subscription.last_used_s = now_s
                subscription.was_used = False
                subscription.seen_written_ms = written_ms
            elif 0 < expiration_s < now_s - subscription.last_used_s:
                expired.append(subscription)
        return self._delete(topic, expired) if expired else None

    def note_unused(self, topic: Topic, since_s: float) -> None:
        """Nobody has used the topic's subscriptions since then, by the monotonic clock: it was
        loaded by the broker itself, whose writing to their cursors is no use."""
        for subscription in topic.subscriptions.values():
            if subscription.is_open and isinstance(subscription.cursor, Cursor):
                subscription.last_used_s = since_s
                subscription.seen_written_ms = subscription.cursor.last_active_ms

    async def _delete(self, topic: Topic, subscriptions: list[Subscription]) -> None:
        for subscription in subscriptions:
            if not subscription.consumers and topic.tenure.holds():
                _log.info(
                    "inactive_subscription_deleted",
                    topic=str(topic.name),
                    subscription=subscription.name,
                    unused_s=topic.policies.subscription_expiration_s,
                )
                with suppress(ConsumerBusyError):  # somebody came after all
                    await topic.subscriptions.delete(subscription, is_forced=False)
