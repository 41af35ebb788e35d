"""Trimming a topic: ledgers that every durable cursor has passed, and that nobody wants kept, go.

In this order (managed ledger, section 6): with the gate closed to those who place cursors, the
limit is the slowest durable cursor's *persisted* position, internal cursors included; cursors that
stand in a ledger which goes are moved to the equivalent position behind it, durably; features store
what only those ledgers can tell; the list is changed; and only then, with the gate open again, the
ledgers are deleted. A crash anywhere leaves orphans at worst. Nothing is trimmed before every
cursor of the topic is open (rule 6.2).

Cursors in memory hold nothing back: they go on at the first entry that is left.
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
    """What the topic's policies say of consumed data."""
    retention = topic.policies.retention
    return Retention(retention.time_s, retention.size_bytes)


def waits_for_subscription(topic: Topic) -> bool:
    """Whether the messages of a topic are kept since nobody has subscribed to it yet; an operator
    may trim it all the same."""
    if not topic.policies.unsubscribed_retention or topic.policies.retention.is_set:
        return False
    return not any(each.is_durable for each in topic.subscriptions.values())


def look_at(topic: Topic) -> Coroutine[object, object, None] | None:
    """For the ticker: the work, if there is anything to trim."""
    if waits_for_subscription(topic):
        return topic.log.delete_unlisted() if topic.log.leftover_ledgers else None
    return _trim(topic) if trim_point(topic) is not None or topic.log.leftover_ledgers else None


def is_used_up(topic: Topic, *, now_ms: int) -> bool:
    """Whether nothing in a topic that has ended is wanted any more: every subscription is durably
    done with it, and retention, whose time runs from the end of a ledger, is over. What was
    compacted stays: the latest message of a key is wanted for ever.

    Only a topic that goes as a whole may lose its last ledger. `now_ms`: wall clock.
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
    """Where the topic may begin by now; None: nothing may go, or not yet. Reads nothing."""
    if len(topic.log.ledgers) < 2 or not topic.subscriptions.has_all_cursors:
        return None
    if topic.is_reserved:
        return None  # Its log is a feature's own, which lets go of it itself.
    consumed: Position | None = None
    for cursor in topic.durable_cursors():
        persisted = cursor.persisted_mark_delete
        if consumed is None or persisted < consumed:
            consumed = persisted
    return topic.log.trim_point(consumed, retention_of(topic), truncates=truncates)


async def trim(topic: Topic, *, truncates: bool = False) -> int:
    """Trim what may go; returns how many ledgers went. `truncates`: whatever retention says.

    Raises:
        CursorError: a cursor could not be moved; nothing was removed.
        LedgerError: whether the ledgers left the list is not known; call again.
    """
    removed = 0
    async with topic.gate.trimming():
        before = trim_point(topic, truncates=truncates)
        if before is not None and not topic.is_closed and topic.tenure.holds():
            # Not all at once in one go that fails half way: each of them may move on its own.
            cursors: list[Cursor] = topic.durable_cursors()
            await asyncio.gather(*(cursor.leave(before) for cursor in cursors))
            for feature in topic.features:
                await feature.before_trim()
            if topic.tenure.holds():
                removed = await topic.log.unlist(before)
    if removed:
        topic.use.trimmed_ledgers += removed
        _log.info("topic_trimmed", topic=str(topic.name), ledgers=removed, first=str(before))
    await topic.log.delete_unlisted()
    return removed
