"""Read-only inspection of a topic: single entries, positions, and the contents of a backlog.

Source: HTTP sheet, section 9.2.
"""

import asyncio
from dataclasses import dataclass

from magnetar.broker.base.entry import MARKER, last_batch_index_of, messages_of
from magnetar.broker.base.entry_metadata import bare
from magnetar.broker.base.errors import BrokerPersistenceError, NotAllowedError, NotThereError
from magnetar.broker.topic import Backlog, Topic
from magnetar.broker.topic.positions import entries_in, nth_position, position_at_time
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position

_STEPS_PER_TURN = 1000
_READ_ENTRIES = 500
_READ_BYTES = 1 << 20

MESSAGE_POSITION_MAX = (1 << 31) - 1


async def entry_at(topic: Topic, position: Position) -> bytes:
    """Return one entry.

    Raises:
        NotThereError: there is none at that position.
        BrokerPersistenceError: it cannot be read now.
    """
    missing = NotThereError(f"{topic.name} has no message at {position}")
    if not topic.log.first_position() <= position <= topic.log.last_confirmed:
        raise missing
    first, found = await _read(topic, position, entries_max=1, bytes_max=1)
    if first != position or not found:
        raise missing
    return found[0]


async def nth_entry(topic: Topic, number: int, *, from_end: bool) -> tuple[Position, bytes]:
    """Return the entry with a number, from 1, counted from the first or from the last entry.

    Raises:
        NotAllowedError: there are fewer entries.
        BrokerPersistenceError: it cannot be read now.
    """
    total = entries_in(topic.log)
    if not 1 <= number <= total:
        raise NotAllowedError(f"{topic.name} has {total} messages: there is no message {number}")
    position = nth_position(topic.log, total - number if from_end else number - 1)
    return position, await entry_at(topic, position)


async def nth_unacked(topic: Topic, subscription: Backlog, number: int) -> Position | None:
    """Return the position of the unacknowledged entry with a number, from 1; None if there are
    fewer."""
    cursor, last = subscription.cursor, topic.visibility.last
    position = cursor.mark_delete
    if number > cursor.backlog_entries:
        return None
    for step in range(number):
        position = cursor.next_unacked(position)
        while position <= last and topic.visibility.is_aborted(position):
            position = cursor.next_unacked(position)
        if position > last:
            return None
        if step % _STEPS_PER_TURN == _STEPS_PER_TURN - 1:
            await asyncio.sleep(0)
    return position


async def first_at(topic: Topic, publish_time_ms: int) -> Position:
    """Return the position of the first entry published at or after a time.

    If there is none, return the position of the next entry to be written.

    Raises:
        BrokerPersistenceError: it cannot be read now.
    """
    try:
        return await position_at_time(topic.log, publish_time_ms)
    except LedgerError as error:
        raise _unreadable(topic, error) from error


async def last_message(topic: Topic) -> tuple[Position, int]:
    """Return the position of the last entry, and the index of its last message, -1 if it is no
    batch.

    An entry id of -1 means that the topic is empty.

    Raises:
        BrokerPersistenceError: it cannot be read now.
    """
    last = topic.log.last_confirmed
    if last.entry_id < 0 or not entries_in(topic.log):
        return Position(last.ledger_id, -1), -1
    _, found = await _read(topic, last, entries_max=1, bytes_max=1)
    return last, last_batch_index_of(found[0]) if found else -1


async def messages_of_last(topic: Topic) -> int:
    """Return the number of messages in the last entry; 0: the topic is empty.

    Raises:
        BrokerPersistenceError: it cannot be read now.
    """
    if topic.log.last_confirmed.entry_id < 0 or not entries_in(topic.log):
        return 0
    _, found = await _read(topic, topic.log.last_confirmed, entries_max=1, bytes_max=1)
    return messages_of(bare(found[0])) if found else 0


@dataclass(slots=True)
class BacklogCount:
    """Counts of a backlog."""

    entries: int = 0
    messages: int = 0
    markers: int = 0
    first: Position | None = None
    last: Position | None = None
    is_cut: bool = False
    """Whether the count stopped at its limit of entries."""


async def count_backlog(
    topic: Topic, subscription: Subscription, first: Position | None, entries_max: int
) -> BacklogCount:
    """Read and count the unacknowledged entries of a subscription, from `first` or its mark-delete
    on.

    Raises:
        BrokerPersistenceError: it cannot be read now.
    """
    count, cursor = BacklogCount(), subscription.cursor
    position = topic.log.next_position(cursor.mark_delete) if first is None else first
    position = max(position, topic.log.first_position())
    looked_at = 0
    while position <= topic.log.last_confirmed:
        if looked_at >= entries_max:
            count.is_cut = True
            break
        wanted = min(_READ_ENTRIES, entries_max - looked_at)
        start, found = await _read(topic, position, entries_max=wanted, bytes_max=_READ_BYTES)
        if not found:
            break
        for at, entry in enumerate(found):
            here = Position(start.ledger_id, start.entry_id + at)
            if not cursor.is_acked(here):
                _count(count, here, entry, is_aborted=topic.visibility.is_aborted(here))
        looked_at += len(found)
        position = topic.log.next_position(
            Position(start.ledger_id, start.entry_id + len(found) - 1)
        )
    return count


def _count(count: BacklogCount, position: Position, entry: bytes, *, is_aborted: bool) -> None:
    messages = MARKER if is_aborted else messages_of(entry)
    count.entries += 1
    count.messages += messages
    count.markers += messages == MARKER
    count.first = count.first or position
    count.last = position


async def _read(
    topic: Topic, position: Position, *, entries_max: int, bytes_max: int
) -> tuple[Position, list[bytes]]:
    try:
        return await topic.log.read_range(position, entries_max=entries_max, bytes_max=bytes_max)
    except LedgerError as error:
        raise _unreadable(topic, error) from error


def _unreadable(topic: Topic, error: LedgerError) -> BrokerPersistenceError:
    return BrokerPersistenceError(f"{topic.name} cannot be read now: {error}")
