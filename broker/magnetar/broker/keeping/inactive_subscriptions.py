"""Subscriptions that nobody has used for long are deleted, where a policy says so.

A subscription is in use while it has consumers. Otherwise its time runs from the first look behind
the last one that came or left here, however short its stay was, or from when its cursor was last
written, whichever is later; opening a cursor writes it, so that consumers have the whole time to
come back after a move of the topic.
"""

from collections.abc import Coroutine
from contextlib import suppress

import structlog

from magnetar.broker.errors import ConsumerBusyError
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
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
        now_ms = self._clock.wall_ms()
        expired: list[Subscription] = []
        for subscription in topic.subscriptions.values():
            if not subscription.is_durable or not subscription.is_open:
                continue
            cursor = subscription.cursor
            if subscription.consumers or subscription.was_used or subscription.lock.locked():
                subscription.last_used_ms = now_ms
                subscription.was_used = False
            elif isinstance(cursor, Cursor):
                since_ms = max(subscription.last_used_ms, cursor.last_active_ms)
                if 0 < expiration_s * 1000 < now_ms - since_ms:
                    expired.append(subscription)
        return self._delete(topic, expired) if expired else None

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
