"""Trimming of a topic: removes ledgers that all durable cursors have passed and retention releases.

The order is this (managed ledger, section 6). The gate is closed to everything that places cursors.
The limit is the slowest durable cursor's *persisted* position, internal cursors included. Cursors
that are in a ledger to be removed move durably to the equivalent position behind it. Features store
what only those ledgers contain. The list is changed. The gate opens again, and only then the
ledgers are deleted. A crash at any point leaves orphans at worst. Nothing is trimmed before every
cursor of the topic is open (rule 6.2).

Cursors in memory hold nothing back: they continue at the first remaining entry.
"""

import asyncio
from collections.abc import Coroutine

import structlog

from magnetar.broker.features.compaction import CURSOR
from magnetar.broker.topic import Topic
from magnetar.cursors import Cursor
from magnetar.ledger.managed_log.log_retention import INFINITE, Retention
from magnetar.ledger.position import Position

_log = structlog.get_logger()


def retention_of(topic: Topic) -> Retention:
    """Return the topic's policy on the retention of consumed data."""
    retention = topic.policies.retention
    return Retention(retention.time_s, retention.size_bytes)


def waits_for_subscription(topic: Topic) -> bool:
    """Whether messages are kept because the topic has no durable subscription yet. An operator may
    trim it all the same."""
    if not topic.policies.unsubscribed_retention or topic.policies.retention.is_set:
        return False
    return not any(each.is_durable for each in topic.subscriptions.values())


def look_at(topic: Topic) -> Coroutine[object, object, None] | None:
    """Return the ticker's work; None if there is nothing to trim."""
    if waits_for_subscription(topic):
        return topic.log.delete_unlisted() if topic.log.leftover_ledgers else None
    return _trim(topic) if trim_point(topic) is not None or topic.log.leftover_ledgers else None


def is_used_up(topic: Topic, *, now_ms: int) -> bool:
    """Whether nothing in a terminated topic is needed any more.

    Every subscription has durably consumed it, and retention, whose time runs from the end of a
    ledger, is over. Compacted topics are never used up: the latest message of a key is kept for
    ever. Only a topic that is deleted as a whole may lose its last ledger. `now_ms`: wall clock.
    """
    end = topic.log.terminated
    if end is None or not topic.subscriptions.has_all_cursors or topic.is_reserved:
        return False
    if CURSOR in topic.internal_cursors or topic.use.is_held_for_reading:
        return False
    left = [each for each in topic.log.ledgers if each.entries]
    if not left:
        return True
    if waits_for_subscription(topic):
        return False
    cursors = topic.subscriptions.durable_cursors()
    if any(cursor.persisted_mark_delete < end for cursor in cursors):
        return False
    retention = retention_of(topic)
    ages_s = [(now_ms - each.closed_ms) / 1000 for each in left]
    return retention.size_bytes == 0 or INFINITE < retention.time_s < min(ages_s)


async def _trim(topic: Topic) -> None:
    await trim(topic)


def trim_point(topic: Topic, *, truncates: bool = False) -> Position | None:
    """Return the position at which the topic may begin now; None if nothing may be trimmed yet.
    Reads nothing."""
    if len(topic.log.ledgers) < 2 or not topic.subscriptions.has_all_cursors:
        return None
    if topic.is_reserved:
        return None  # The feature that owns this log trims it itself.
    consumed: Position | None = None
    for cursor in topic.durable_cursors():
        persisted = cursor.persisted_mark_delete
        if consumed is None or persisted < consumed:
            consumed = persisted
    return topic.log.trim_point(consumed, retention_of(topic), truncates=truncates)


async def trim(topic: Topic, *, truncates: bool = False) -> int:
    """Trim ledgers that may be removed; return their number. `truncates`: ignore retention.

    Raises:
        CursorError: a cursor could not be moved; nothing was removed.
        LedgerError: whether the ledgers left the list is not known; call again.
    """
    removed = 0
    async with topic.gate.trimming():
        before = trim_point(topic, truncates=truncates)
        if before is not None and not topic.is_closed and topic.tenure.holds():
            # Each cursor may move on its own; if one fails, the others need not move back.
            cursors: list[Cursor] = topic.durable_cursors()
            await asyncio.gather(*(cursor.leave(before) for cursor in cursors))
            for feature in topic.features:
                await feature.before_trim(before)
            if topic.tenure.holds():
                removed = await topic.log.unlist(before)
    if removed:
        topic.use.trimmed_ledgers += removed
        _log.info("topic_trimmed", topic=str(topic.name), ledgers=removed, first=str(before))
    await topic.log.delete_unlisted()
    return removed
