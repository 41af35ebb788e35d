"""Expiry of messages by the TTL of their topic, by the broker's clock and by publish times.

A ledger that was closed longer ago than the TTL contains only expired messages, whatever their
publish times say. Publish times come from producers: one clock that is ahead would otherwise keep
all later messages for as long. In the other ledgers, a binary search finds the newest expired
message, once for all subscriptions, from the position of the furthest behind. Everything up to it
then counts as acknowledged. If the search meets a publish time in the future, subscriptions beyond
that message are searched from their own position. A publish time before the earliest possible
storing time comes from a clock that is behind. The earliest storing time that the log knows counts
instead, and none of the entries just before may be younger. If clocks disagree, the result is
approximate, and never beyond the last confirmed entry (rule 4.3 of the managed ledger).

Backlogs of features, such as copies to another cluster, expire only if the feature allows it,
because expired messages are lost to it.

Expiry, eviction and an operator's skip *advance* a subscription. For the cursor, that is a
cumulative acknowledgement. For the dispatcher, it is as if every entry up to there had been
acknowledged: pending messages stay with their clients, but no longer count. Nothing is deleted
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
"""Start of 2020. Machines whose clock was never set start in 1970 or 2000."""

Expirable = Subscription | FeatureBacklog
"""Subscription or feature backlog in which messages expire."""

_Piece = tuple[int, int, int]
"""Ledger id, first entry id and number of entries."""


class Expiry:
    """Expires the messages of topics that have a TTL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[Topic] = set()

    def is_running(self, topic: Topic) -> bool:
        """Whether messages of the topic are being expired now."""
        return topic in self._running

    def look_at(self, topic: Topic) -> Coroutine[object, object, None] | None:
        """Return the ticker's work; None unless the topic has a TTL and a backlog."""
        if topic.policies.message_ttl_s <= 0:
            return None
        behind = _with_backlog(expiring(topic))
        return self._expire(topic, behind) if behind else None

    async def _expire(self, topic: Topic, behind: Sequence[Expirable]) -> None:
        await self.expire(topic, behind, age_s=topic.policies.message_ttl_s)

    async def expire(
        self, topic: Topic, subscriptions: Sequence[Expirable], *, age_s: float
    ) -> int:
        """Drop entries older than `age_s` from subscriptions or feature backlogs; return their
        number.

        The number is summed over `subscriptions`.

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
        """Drop entries that were published or stored before `time_ms`.

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
            # If an open transaction limits a subscription, it is not at the end of those ledgers.
            start = mark if closed is None else max(mark, closed)
            by_start.setdefault(start, []).append((each, mark))
        through: Position | None = None
        for start, there in sorted(by_start.items(), key=itemgetter(0)):
            if through is None or start >= through:  # else all up to there is known to be older
                through, first_ms = await _search(topic.log, start, time_ms, now_ms)
                if not _is_ours(topic):
                    return total
                if through is None and is_credible(first_ms, now_ms):
                    return total  # later entries are not older either
            if through is None:
                continue
            # A subscription that was moved back meanwhile has earlier entries that were not
            # checked.
            still = [
                each for each, mark in there if each.is_open and each.cursor.mark_delete >= mark
            ]
            total += self.expire_through(topic, still, through)
        return total

    async def _closed_before(
        self, topic: Topic, behind: Sequence[Expirable], now_ms: int, time_ms: int
    ) -> Position | None:
        """Return the end of the ledgers closed before `time_ms`; None if no subscription is before
        it.

        Also None if an entry there shows that the closing time came from a clock that was behind.

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
            return None  # The clock of the broker that closed it was behind.
        return end

    def expire_through(
        self, topic: Topic, subscriptions: Sequence[Expirable], through: Position
    ) -> int:
        """Drop everything through the position; return the number of entries, summed."""
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
    """Return where messages of a topic expire: all subscriptions, and features that allow it."""
    wanting = (each for each in topic.feature_backlogs().values() if each.expires)
    return [*topic.subscriptions.values(), *wanting]


def advance(subscription: Subscription, through: Position) -> int:
    """Stop delivery of entries up to and including `through`; return how many entries that
    drops."""
    if subscription.is_closed or not subscription.is_open:
        return 0
    cursor = subscription.cursor
    context = subscription.context
    if context is not None and context.visibility is not None:
        # Messages behind the first open transaction were not offered yet.
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
    """Whether a publish time may be true: it exists and is not in the future."""
    return published_ms is not None and published_ms <= now_ms


def closings(ledgers: Iterable[LogLedger], now_ms: int) -> Iterator[tuple[LogLedger, int]]:
    """Yield the closed ledgers of a log, oldest first, with the time in ms by which all their
    entries were stored.

    Ledgers whose closing time comes from a wrong clock are left out: a time before any broker ran,
    before that of an earlier ledger, or in the future. Nothing is known of ledgers behind an open
    one.
    """
    latest_ms = _CLOCK_SET_MS
    for ledger in ledgers:
        if not ledger.is_closed:
            return
        if latest_ms <= ledger.closed_ms <= now_ms:
            latest_ms = ledger.closed_ms
            yield ledger, latest_ms


def last_closed_before(log: ListedLog, now_ms: int, time_ms: int) -> tuple[Position, int] | None:
    """Return the end of the last ledger closed before `time_ms` and its closing time, or None.

    The position is never beyond the last confirmed entry. Nothing is read.
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
    """Return the newest entry behind `after` that was published before the time; None if none was.

    An entry without a readable time does not count as older: otherwise all entries before it would
    be dropped with it. One read if the first entry is not older, which is the usual case; else a
    binary search.

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
    low = 1  # number of entries that are known to be older
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
    """Return the confirmed entries behind a position."""
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
