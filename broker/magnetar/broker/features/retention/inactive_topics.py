"""Topics that nobody has used for long are deleted, where a policy says so.

A topic is in use while somebody is connected to it, and, by the mode of the policy, while it has a
subscription (the default) or while a subscription has something left to deliver; and while somebody
reads what is stored without connecting (`TopicUse.hold_for_reading`). Retention keeps it for as
long as it keeps messages. The time of disuse of a topic that nobody has joined begins when the
topic is loaded; else with the first look that finds it, and anew with the first look behind whoever
has come and gone; whoever joins in the last moment is not sent away.
"""

from collections.abc import Coroutine
from typing import Protocol
from weakref import WeakKeyDictionary

import structlog

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.policies.model import DeleteMode
from magnetar.broker.topic import Topic
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class DeletesTopics(Protocol):
    """What of `TopicRemoval` is needed."""

    async def delete_unless_used(self, topic: Topic) -> None: ...


class InactiveTopics:
    """Remembers since when topics are out of use, and has them deleted."""

    def __init__(self, clock: Clock, topics: DeletesTopics) -> None:
        self._clock = clock
        self._topics = topics
        self._unused: WeakKeyDictionary[Topic, tuple[float, int]] = WeakKeyDictionary()
        """Since when, and how many had joined by then."""

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """For the ticker: the work, if the topic's time is over."""
        policies = topic.policies
        if not policies.inactive_topic_is_on or is_used(topic):
            self._unused.pop(topic, None)
            return None
        now_s = self._clock.monotonic_s()
        use = topic.use
        first_s = now_s if use.joined else use.loaded_s
        since_s, joined = self._unused.get(topic, (first_s, use.joined))
        if joined != use.joined:
            since_s = now_s  # Somebody has come and gone between two looks.
        self._unused[topic] = since_s, use.joined
        unused_s = now_s - since_s
        if unused_s < policies.inactive_topic_max_s or _is_retained(topic, unused_s):
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
    """Whether somebody is connected, or a subscription keeps the topic by its policies."""
    if topic.producers or topic.is_reserved or topic.use.is_held_for_reading:
        return True
    for subscription in topic.subscriptions.values():
        if subscription.consumers or subscription.lock.locked() or not subscription.is_open:
            return True
        if topic.policies.inactive_topic_mode is DeleteMode.NO_SUBSCRIPTIONS:
            return True
        if subscription.cursor.backlog_entries:
            return True
    return False


def check_unused(topic: Topic) -> None:
    """Refuse to delete a topic that has come into use.

    Raises:
        NotAllowedError
    """
    if is_used(topic) or topic.is_closed:
        raise NotAllowedError(f"{topic.name} is in use again")


def _is_retained(topic: Topic, unused_s: float) -> bool:
    retention_s = topic.policies.retention_time_s
    return retention_s < 0 or unused_s < retention_s
