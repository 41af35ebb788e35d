"""Detect consumers that hoard: they take messages and acknowledge none. Pure.

A consumer with a large receiver queue that hangs holds thousands of messages long before any limit
stops it. On a Key_Shared subscription, no other consumer gets their keys meanwhile.
"""

from typing import Final

from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.subscription import Subscription

HOARDING_MESSAGES_MIN: Final = 100
"""Unacknowledged messages from which a consumer may hoard; with fewer, it may just be slow."""
HOARDING_AFTER_MS: Final = 60_000
"""Time without an acknowledgement, in ms, after which a consumer hoards."""


def hoarders_of(subscription: Subscription, now_ms: int) -> list[Consumer]:
    """Return the consumers of a subscription that hoard; see `is_hoarding`."""
    return [each for each in subscription.consumers if is_hoarding(each, now_ms)]


def is_hoarding(consumer: Consumer, now_ms: int) -> bool:
    """Whether a consumer holds many messages, and has acknowledged none for a minute.

    Args:
        now_ms: wall clock.
    """
    if not consumer.first_sent_ms or consumer.unacked_messages < HOARDING_MESSAGES_MIN:
        return False
    return now_ms - max(consumer.acked_ms, consumer.first_sent_ms) >= HOARDING_AFTER_MS
