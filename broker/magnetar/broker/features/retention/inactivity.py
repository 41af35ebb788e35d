"""Deletion of topics and subscriptions that are unused for long, if a policy demands it.

A subscription is in use while it has consumers. Otherwise its idle time starts at the latest check
that found it used: a consumer came or left since the check before, however short its stay, or its
cursor was written. The first check here counts as such, so that after a move of the topic consumers
have the whole time to come back. Wall clocks do not count: correcting one by years would delete
backlogs.

A topic is in use while a client is connected to it. By the mode of the policy, it is also in use
while it has a subscription (the default), or while a subscription has a backlog. A reader of stored
data without a connection uses it as well (`TopicUse.hold_for_reading`). Retention keeps the topic
for as long as it keeps messages, and so does `unsubscribed_retention` while it has no subscription.
The idle time of a topic that no client has joined begins when the topic is loaded. Otherwise it
begins at the first check that finds the topic unused, and again at the first check after a client
came and left. A client that joins in the last moment is not disconnected.
"""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import ConsumerBusyError, NotAllowedError
from magnetar.broker.features.retention.trimming import waits_for_subscription
from magnetar.broker.features.scalable.sealing import SegmentSealing
from magnetar.broker.policies.model import DeleteMode
from magnetar.broker.topic import Topic
from magnetar.broker.topic.positions import entries_in
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import Cursor
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class InactiveSubscriptions:
    """Deletes subscriptions that are unused for longer than their policy allows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """Return the ticker's work; None if no subscription is to be deleted."""
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

    def note_unused(self, topic: Topic, since_s: Mapping[str, float]) -> None:
        """Set since when each of the topic's subscriptions is unused, by the monotonic clock; one
        without a time is new. The broker loaded the topic for itself, and its writes to their
        cursors are no use."""
        now_s = self._clock.monotonic_s()
        for subscription in topic.subscriptions.values():
            if subscription.is_open and isinstance(subscription.cursor, Cursor):
                subscription.last_used_s = since_s.get(subscription.name, now_s)
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
                with suppress(ConsumerBusyError):  # a consumer came after all
                    await topic.subscriptions.delete(subscription, is_forced=False)


class DeletesTopics(Protocol):
    """The part of `TopicRemoval` that is needed here."""

    async def delete_unless_used(self, topic: Topic) -> None: ...


class InactiveTopics:
    """Tracks since when topics are unused, and requests their deletion."""

    def __init__(self, clock: Clock, topics: DeletesTopics) -> None:
        self._clock = clock
        self._topics = topics
        self._unused: WeakKeyDictionary[Topic, tuple[float, int]] = WeakKeyDictionary()
        """By topic: since when it is unused, and how many clients had joined by then."""

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """Return the ticker's work; None unless the topic's idle time is over."""
        policies = topic.policies
        # Segments are created and deleted with the layout of their topic.
        sealing = topic.find(SegmentSealing)
        is_part = sealing is not None and sealing.is_part
        if not policies.inactive_topic.is_on or is_part or is_used(topic):
            self._unused.pop(topic, None)
            return None
        now_s = self._clock.monotonic_s()
        use = topic.use
        first_s = now_s if use.joined else use.loaded_s
        since_s, joined = self._unused.get(topic, (first_s, use.joined))
        if joined != use.joined:
            since_s = now_s  # A client has come and left between two checks.
        self._unused[topic] = since_s, use.joined
        unused_s = now_s - since_s
        if unused_s < policies.inactive_topic.max_s or _is_retained(topic, unused_s):
            return None
        return self._delete(topic, unused_s)

    async def _delete(self, topic: Topic, unused_s: float) -> None:
        name: TopicName = topic.name
        _log.info("inactive_topic_deleted", topic=str(name), unused_s=round(unused_s))
        try:
            await self._topics.delete_unless_used(topic)
        except NotAllowedError as error:
            self._unused.pop(topic, None)
            _log.info("inactive_topic_kept", topic=str(name), reason=str(error))


def is_used(topic: Topic) -> bool:
    """Whether a client is connected, or a subscription keeps the topic by its policies."""
    if topic.producers or topic.is_reserved or topic.use.is_held_for_reading:
        return True
    if any(
        naming.is_replicator(name) and cursor.backlog_entries
        for name, cursor in topic.internal_cursors.items()
    ):
        return True  # messages are not yet copied to every cluster
    if topic.name.is_persistent and waits_for_subscription(topic) and entries_in(topic.log):
        return True
    for subscription in topic.subscriptions.values():
        if subscription.consumers or subscription.lock.locked() or not subscription.is_open:
            return True
        if topic.policies.inactive_topic.mode is DeleteMode.NO_SUBSCRIPTIONS:
            return True
        if subscription.cursor.backlog_entries:
            return True
    return False


def check_unused(topic: Topic) -> None:
    """Refuse to delete a topic that is in use again.

    Raises:
        NotAllowedError
    """
    if is_used(topic) or topic.is_closed:
        raise NotAllowedError(f"{topic.name} has clients again: it is not deleted")


def _is_retained(topic: Topic, unused_s: float) -> bool:
    retention_s = topic.policies.retention.time_s
    return retention_s < 0 or unused_s < retention_s
