"""Messages that grow too old for their subscription (TTL), by the broker's time and by theirs.

A ledger that was closed longer ago than the TTL holds nothing younger, whatever the publish times
in it: they are the producers', and one clock that is ahead would keep all that follows for as long.
In what no such ledger holds, the newest message that is too old is found by binary search, once for
all subscriptions, from where the furthest behind stands, and everything up to it counts as
acknowledged. Where a message is met whose publish time lies in the future, those that stand beyond
it are searched from there. A publish time that is earlier than its entry can have been stored is of
a clock that is behind, and ages nothing: what the log knows of the storing counts, and none of the
entries just before may be younger. With clocks that disagree the result is approximate, and never
beyond the last confirmed entry (rule 4.3 of the managed ledger).

Backlogs of features, such as copies to another cluster, expire only where the feature says so: they
are lost by it.

Expiry, eviction and an operator's skip *advance* a subscription. To the cursor that is a cumulative
acknowledgement, and to the dispatcher as if every entry up to there had been acknowledged: what is
pending at a consumer stays with its client, and counts for nothing any more. Nothing is deleted
here; trimming follows when every cursor has passed.
"""

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeGuard

import structlog

from magnetar.broker.base.entry import stored_time_ms_of
from magnetar.broker.topic import FeatureBacklog, Topic
from magnetar.broker.topic.positions import CLOCKS_DIFFER_MS, ListedLog, newest_published_ms
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

_log = structlog.get_logger()

_CLOCK_SET_MS = 1_577_836_800_000
"""2020: machines whose clock nobody has set yet begin in 1970 or 2000."""

Expirable = Subscription | FeatureBacklog
"""What messages expire in."""

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
        if topic.policies.message_ttl_s <= 0:
            return None
        behind = _with_backlog(expiring(topic))
        return self._expire(topic, behind) if behind else None

    async def _expire(self, topic: Topic, behind: Sequence[Expirable]) -> None:
        await self.expire(topic, behind, age_s=topic.policies.message_ttl_s)

    async def expire(
        self, topic: Topic, subscriptions: Sequence[Expirable], *, age_s: float
    ) -> int:
        """Drop what is older than `age_s` from the subscriptions, or backlogs of features; returns
        how many entries, summed.

        Raises:
            LedgerError: an entry cannot be read now.
        """
        behind = _with_backlog(subscriptions)
        if not behind:
            return 0
        now_ms = self._clock.wall_ms()
        self._running.add(topic)
        try:
            return await self._expire_older(topic, behind, now_ms, now_ms - int(age_s * 1000))
        finally:
            self._running.discard(topic)

    async def _expire_older(
        self, topic: Topic, behind: Sequence[Expirable], now_ms: int, time_ms: int
    ) -> int:
        """Drop what is older than the time.

        Raises:
            LedgerError: an entry cannot be read now.
        """
        if not _is_ours(topic):
            return 0
        total = 0
        closed = await self._closed_before(topic, behind, now_ms, time_ms)
        if closed is not None:
            total += self.expire_through(topic, behind, closed)
        by_start: dict[Position, list[tuple[Expirable, Position]]] = {}
        for each in _with_backlog(behind):
            mark = each.cursor.mark_delete
            # Where transactions hold a subscription back, it is not at the end of those ledgers.
            start = mark if closed is None else max(mark, closed)
            by_start.setdefault(start, []).append((each, mark))
        through: Position | None = None
        for start, there in sorted(by_start.items(), key=itemgetter(0)):
            if through is None or start >= through:  # or else all up to there is known to be older
                through, first_ms = await _search(topic.log, start, time_ms, now_ms)
                if not _is_ours(topic):
                    return total
                if through is None and is_credible(first_ms, now_ms):
                    return total  # nor is what lies behind it
            if through is None:
                continue
            # One that went back meanwhile has entries before it that nobody looked at.
            still = [
                each for each, mark in there if each.is_open and each.cursor.mark_delete >= mark
            ]
            total += self.expire_through(topic, still, through)
        return total

    async def _closed_before(
        self, topic: Topic, behind: Sequence[Expirable], now_ms: int, time_ms: int
    ) -> Position | None:
        """The end of the ledgers that were closed before the time; None: nobody stands before it.

        Raises:
            LedgerError: an entry cannot be read now.
        """
        found = last_closed_before(topic.log, now_ms, time_ms)
        if found is None or all(each.cursor.mark_delete >= found[0] for each in behind):
            return None
        end, closed_ms = found
        _, entries = await topic.log.read_range(end, entries_max=1, bytes_max=1)
        if not _is_ours(topic):
            return None
        published_ms = stored_time_ms_of(entries[0]) if entries else None
        if is_credible(published_ms, now_ms) and published_ms > closed_ms + CLOCKS_DIFFER_MS:
            return None  # The broker that closed it had a clock that was behind.
        return end

    def expire_through(
        self, topic: Topic, subscriptions: Sequence[Expirable], through: Position
    ) -> int:
        """Drop everything through the position; returns how many entries, summed."""
        total = 0
        for subscription in subscriptions:
            if not isinstance(subscription, Subscription):
                total += subscription.drop_through(through)
                continue
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


def expiring(topic: Topic) -> list[Expirable]:
    """What messages of a topic expire in: all subscriptions, and features that want it."""
    wanting = (each for each in topic.feature_backlogs().values() if each.expires)
    return [*topic.subscriptions.values(), *wanting]


def advance(subscription: Subscription, through: Position) -> int:
    """Have nothing through `through` be delivered any more; returns how many entries that drops."""
    if subscription.is_closed or not subscription.is_open:
        return 0
    cursor = subscription.cursor
    context = subscription.context
    if context is not None and context.visibility is not None:
        # What is in an open transaction was not even offered yet.
        through = min(through, context.visibility.last)
    before = cursor.backlog_entries
    if not cursor.ack_cumulative(through):
        return 0
    subscription.moved()
    if subscription.dispatcher is not None:
        subscription.dispatcher.acked_through(through)
    subscription.wake()
    return max(0, before - cursor.backlog_entries)


def _is_ours(topic: Topic) -> bool:
    return not topic.is_closed and topic.tenure.holds()


def _with_backlog(subscriptions: Iterable[Expirable]) -> list[Expirable]:
    return [each for each in subscriptions if each.is_open and not each.cursor.is_caught_up]


def is_credible(published_ms: int | None, now_ms: int) -> TypeGuard[int]:
    """Whether a publish time may be true: it is there, and not in the future."""
    return published_ms is not None and published_ms <= now_ms


def closings(ledgers: Iterable[LogLedger], now_ms: int) -> Iterator[tuple[LogLedger, int]]:
    """The closed ledgers of a log, oldest first, each with when everything in it was stored, ms.

    Left out are those whose closing time is of a clock that was wrong, and says nothing: before any
    broker ran, before that of an earlier ledger, or in the future. Behind an open ledger nothing is
    known.
    """
    latest_ms = _CLOCK_SET_MS
    for ledger in ledgers:
        if not ledger.is_closed:
            return
        if latest_ms <= ledger.closed_ms <= now_ms:
            latest_ms = ledger.closed_ms
            yield ledger, latest_ms


def last_closed_before(log: ListedLog, now_ms: int, time_ms: int) -> tuple[Position, int] | None:
    """The end of the last ledger that was closed before the time, and when; None: there is none.

    Never beyond the last confirmed entry. Nothing is read.
    """
    found: tuple[Position, int] | None = None
    for ledger, closed_ms in closings(log.ledgers, now_ms):
        if closed_ms >= time_ms:
            break
        if ledger.entries:
            end = Position(ledger.ledger_id, ledger.entries - 1)
            found = min(end, log.last_confirmed), closed_ms
    return found


async def newest_older(
    log: ListedLog, after: Position, publish_time_ms: int, *, now_ms: int
) -> Position | None:
    """The newest entry behind `after` that was published before the time; None: the first is not.

    One whose time cannot be read is not older: if it were, all before it would be dropped with it.
    One read if nothing is older, which is the usual case; else a binary search.

    Raises:
        LedgerError: an entry cannot be read now.
    """
    return (await _search(log, after, publish_time_ms, now_ms))[0]


async def _search(
    log: ListedLog, after: Position, publish_time_ms: int, now_ms: int
) -> tuple[Position | None, int | None]:
    """Return the last expired position, and when the first entry was published, if known."""
    pieces = _pieces_behind(log, after)
    high = sum(count for _, _, count in pieces)
    if not high:
        return None, None
    first_ms = await _newest_ms(log, _nth(pieces, 0), now_ms)
    if first_ms is None or first_ms >= publish_time_ms:
        return None, first_ms
    low = 1  # how many are known to be older
    while low < high:
        middle = (low + high) // 2
        published_ms = await _newest_ms(log, _nth(pieces, middle), now_ms)
        if published_ms is not None and published_ms < publish_time_ms:
            low = middle + 1
        else:
            high = middle
    return _nth(pieces, low - 1), first_ms


async def _newest_ms(log: ListedLog, position: Position, now_ms: int) -> int | None:
    return await newest_published_ms(log, position, now_ms=now_ms, time_of=stored_time_ms_of)


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
