"""How much lies behind the cursors of a topic, and since when.

Amounts are estimates from the ledger list: nothing is read for them. Entries are counted; bytes are
whole ledgers plus a share of those that a position cuts. Nothing is ever negative: a position in a
ledger that is gone counts as the border where that ledger was.
"""

import asyncio
from dataclasses import dataclass

from magnetar.broker.base.entry import publish_time_ms_of
from magnetar.broker.features.retention.expiry import closings, is_credible
from magnetar.broker.topic import OldestEntry, Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_retention import bytes_behind


@dataclass(frozen=True, slots=True)
class BacklogAge:
    """How old the oldest message is that a durable subscription of a topic has not acknowledged."""

    subscription: str
    age_s: int


_LOOK_S_MAX = 1.0
"""Statistics do not wait longer for bookies to say how old a message is."""


def storage_bytes(topic: Topic) -> int:
    """Size of the topic's ledgers, one copy of them."""
    return sum(ledger.bytes for ledger in topic.log.ledgers)


def backlog_bytes(topic: Topic, subscription: Subscription) -> int:
    """About how many bytes lie behind what a subscription has acknowledged without a gap."""
    if not subscription.is_open or subscription.cursor.is_caught_up:
        return 0
    return bytes_behind(topic.log.ledgers, subscription.cursor.mark_delete)


def slowest(topic: Topic) -> Subscription | None:
    """The durable subscription that is furthest back; None: there is none with a backlog."""
    found: Subscription | None = None
    for each in topic.subscriptions.values():
        if not each.is_durable or not each.is_open or each.cursor.is_caught_up:
            continue
        if found is None or each.cursor.mark_delete < found.cursor.mark_delete:
            found = each
    return found


def topic_backlog_bytes(topic: Topic) -> int:
    """The largest backlog of a durable subscription, which is what a quota counts."""
    furthest_back = slowest(topic)
    return backlog_bytes(topic, furthest_back) if furthest_back is not None else 0


async def oldest_publish_ms(topic: Topic, subscription: Subscription) -> int | None:
    """When the oldest unacknowledged entry was published, ms since the epoch. One read at most.

    None: there is none, or it does not say.

    Raises:
        LedgerError: it cannot be read now.
    """
    oldest = await oldest_entry(topic, subscription)
    return oldest.published_ms if oldest is not None else None


async def oldest_entry(topic: Topic, subscription: Subscription) -> OldestEntry | None:
    """The oldest unacknowledged entry; None: there is none. One read at most.

    Raises:
        LedgerError: it cannot be read now.
    """
    if not subscription.is_open or subscription.cursor.is_caught_up:
        return None
    position = subscription.cursor.next_unacked(subscription.cursor.mark_delete)
    if position > topic.log.last_confirmed:
        return None
    run = topic.tail.cache.find(position)
    if run is not None:
        return OldestEntry(position, publish_time_ms_of(run.entries[run.index_of(position)]))
    position, found = await topic.log.read_range(position, entries_max=1, bytes_max=1)
    return OldestEntry(position, publish_time_ms_of(found[0])) if found else None


async def age_s(topic: Topic, subscription: Subscription, now_ms: int) -> float | None:
    """The age of the oldest unacknowledged entry; None: there is none. One read at most.

    An entry from the future is as old as its ledger is closed, and not old at all while that is
    open. None is older than it can have been stored.

    Raises:
        LedgerError: it cannot be read now.
    """
    oldest = await oldest_entry(topic, subscription)
    return _age_s(topic, oldest, now_ms) if oldest is not None else None


async def backlog_age(topic: Topic, now_ms: int, *, reads: bool = True) -> BacklogAge | None:
    """The age of the oldest message in the backlogs of durable subscriptions, for statistics.

    The message is read once and remembered until it is acknowledged.

    Args:
        reads: whether it may be read from bookies now.

    Returns:
        None: there is no backlog, or the message cannot be read now.
    """
    furthest_back = slowest(topic)
    if furthest_back is None:
        return None
    position = furthest_back.cursor.next_unacked(furthest_back.cursor.mark_delete)
    oldest = topic.use.oldest_seen
    if oldest is None or oldest.position != position:
        if not reads and topic.tail.cache.find(position) is None:
            return None
        try:
            async with asyncio.timeout(_LOOK_S_MAX):
                oldest = await oldest_entry(topic, furthest_back)
        except (LedgerError, TimeoutError):
            return None
        topic.use.oldest_seen = oldest
        if oldest is None:
            return None
    return BacklogAge(furthest_back.name, int(_age_s(topic, oldest, now_ms)))


def _age_s(topic: Topic, oldest: OldestEntry, now_ms: int) -> float:
    if is_credible(oldest.published_ms, now_ms):
        stored_ms = topic.log.stored_since_ms(oldest.position)
        return (now_ms - max(oldest.published_ms, stored_ms)) / 1000
    for ledger, closed_ms in closings(topic.log.ledgers, now_ms):
        if ledger.ledger_id == oldest.position.ledger_id:
            # The producer's clock is ahead: it was there when its ledger was closed.
            return (now_ms - closed_ms) / 1000
    return 0.0
