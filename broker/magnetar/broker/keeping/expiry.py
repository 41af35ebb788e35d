"""Messages that grow too old for their subscription (TTL), found by their publish times.

The newest message that is too old is found by binary search in what is not acknowledged, once for
all subscriptions of a topic, and everything up to it counts as acknowledged. Publish times are the
producers': with clocks that disagree the result is approximate, and never beyond the last confirmed
entry (rule 4.3 of the managed ledger).
"""

from collections.abc import Coroutine, Iterable, Sequence

import structlog

from magnetar.broker.entry import publish_time_ms_of
from magnetar.broker.keeping.advancing import advance
from magnetar.broker.positions import ListedLog
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

_log = structlog.get_logger()

_Piece = tuple[int, int, int]
"""Ledger, first entry, number of entries."""


class Expiry:
    """Expires the messages of topics that have a TTL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[Topic] = set()

    def is_running(self, topic: Topic) -> bool:
        """Whether messages of the topic are being expired just now."""
        return topic in self._running

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """For the ticker: the work, if messages of the topic can be too old."""
        if topic.policies.ttl_s <= 0 or not _with_backlog(topic.subscriptions.values()):
            return None
        return self._expire(topic)

    async def _expire(self, topic: Topic) -> None:
        await self.expire(topic, list(topic.subscriptions.values()), age_s=topic.policies.ttl_s)

    async def expire(
        self, topic: Topic, subscriptions: Sequence[Subscription], *, age_s: float
    ) -> int:
        """Drop what is older than `age_s` from the subscriptions; returns how many entries, summed.

        Raises:
            LedgerError: an entry cannot be read now.
        """
        behind = _with_backlog(subscriptions)
        if not behind:
            return 0
        now_ms = self._clock.wall_ms()
        after = min(each.cursor.mark_delete for each in behind)
        self._running.add(topic)
        try:
            through = await newest_older(topic.log, after, now_ms - int(age_s * 1000))
        finally:
            self._running.discard(topic)
        if through is None or topic.is_closed or not topic.tenure.holds():
            return 0
        return self.expire_through(topic, behind, through)

    def expire_through(
        self, topic: Topic, subscriptions: Sequence[Subscription], through: Position
    ) -> int:
        """Drop everything through the position; returns how many entries, summed."""
        total = 0
        for subscription in subscriptions:
            dropped = advance(subscription, through)
            if dropped:
                subscription.expired_entries += dropped
                subscription.last_expired_ms = self._clock.wall_ms()
                total += dropped
                _log.info(
                    "messages_expired",
                    topic=str(topic.name),
                    subscription=subscription.name,
                    entries=dropped,
                    through=str(through),
                )
        return total


def _with_backlog(subscriptions: Iterable[Subscription]) -> list[Subscription]:
    return [each for each in subscriptions if each.is_open and not each.cursor.is_caught_up]


async def newest_older(log: ListedLog, after: Position, publish_time_ms: int) -> Position | None:
    """The newest entry behind `after` that was published before the time; None: the first is not.

    One read if nothing is older, which is the usual case; else a binary search.

    Raises:
        LedgerError: an entry cannot be read now.
    """
    pieces = _pieces_behind(log, after)
    low, high = 0, sum(count for _, _, count in pieces)
    if not high or not await _is_older(log, _nth(pieces, 0), publish_time_ms):
        return None
    low = 1  # how many are known to be older
    while low < high:
        middle = (low + high) // 2
        if await _is_older(log, _nth(pieces, middle), publish_time_ms):
            low = middle + 1
        else:
            high = middle
    return _nth(pieces, low - 1)


async def _is_older(log: ListedLog, position: Position, publish_time_ms: int) -> bool:
    first, found = await log.read_range(position, entries_max=1, bytes_max=1)
    # What was trimmed away meanwhile, everybody had passed.
    return first != position or not found or publish_time_ms_of(found[0]) < publish_time_ms


def _pieces_behind(log: ListedLog, after: Position) -> list[_Piece]:
    """The confirmed entries behind a position."""
    last = log.last_confirmed
    pieces: list[_Piece] = []
    for ledger in log.ledgers:
        entries = ledger.entries
        if ledger.ledger_id == last.ledger_id:
            entries = min(entries, last.entry_id + 1)
        first = 0
        if ledger.ledger_id < after.ledger_id:
            continue
        if ledger.ledger_id == after.ledger_id:
            first = after.entry_id + 1
        if first < entries:
            pieces.append((ledger.ledger_id, first, entries - first))
    return pieces


def _nth(pieces: Sequence[_Piece], index: int) -> Position:
    for ledger_id, first, count in pieces:
        if index < count:
            return Position(ledger_id, first + index)
        index -= count
    raise IndexError(index)
