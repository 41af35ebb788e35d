"""Updates of other clusters: the subscriptions of the same names here follow them.

An update names a position in this log. The subscription here acknowledges everything up to it, or
up to the first entry that the other cluster does not have (`absent.py`). A missing subscription is
created at the beginning of the log. An existing one that is not replicated is left alone.

Of several waiting updates of a subscription, only the newest counts. An update that could not be
carried out, or only in part, is retried at the next look: by then bookies may be back, or consumers
here may have acknowledged the entries that only they have.

Source: geo-replication sheet, sections 11 and 18.8.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.features.replication.markers import Update
from magnetar.broker.features.replication.subscriptions.absent import AbsentEntries, is_at_peer
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.topic import TopicPort, TopicSubscriptions
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, split_payload

_log = structlog.get_logger()

UPDATES_MAX: Final = 1_000
"""Subscriptions of one topic that may have a waiting update; a topic usually has fewer."""

PEERS_MAX: Final = 64
"""Clusters whose missing entries are remembered, at most."""


class _Key(NamedTuple):
    subscription: str
    source: str
    """Cluster that sends the update."""


class _Wanted(NamedTuple):
    """Position that an update asks a subscription to reach."""

    through: Position
    heard: frozenset[str]
    """Clusters that copy to the one that sends the update."""


class ReceivedUpdates:
    """Updates of other clusters to the subscriptions of one topic."""

    def __init__(
        self,
        topic: TopicPort,
        subscriptions: TopicSubscriptions,
        counts: SubscriptionCounts,
        *,
        here: str,
        create: Callable[[str], Awaitable[None]],
        advance: Callable[[Subscription, Position], int],
        moved: Callable[[str, Position], None],
        is_copied: Callable[[str, Position], bool],
        read_entries: int,
        read_bytes: int,
    ) -> None:
        """Create the receiver.

        Args:
            here: name of this cluster.
            create: creates a replicated subscription at the beginning of the log.
            advance: acknowledges everything of a subscription up to a position.
            moved: called with the name of a subscription, and its mark-delete position, when an
                update has moved it.
            is_copied: whether an entry is at a position that is copied to a cluster.
            read_entries: entries of one read of the log.
            read_bytes: bytes of one read of the log.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._counts = counts
        self._here = here
        self._create = create
        self._advance = advance
        self._moved = moved
        self._is_copied = is_copied
        self._read_entries = read_entries
        self._read_bytes = read_bytes
        self._waiting: dict[_Key, _Wanted] = {}
        self._held: dict[_Key, _Wanted] = {}
        """Updates that were not carried out completely."""
        self._absent: dict[tuple[str, frozenset[str]], AbsentEntries] = {}
        """Absent entries by the sending cluster, and the clusters that copy to it."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    # Inputs

    def receive(self, source: str, update: Update) -> None:
        """Take an update of a cluster, and carry it out in the background.

        Raises:
            RequestError: the name is not valid for a subscription.
            NotAllowedError: the log has not reached the position of the update.
        """
        through = update.positions.get(self._here)
        if through is None:
            return  # concerns other clusters only
        naming.check_subscription(update.subscription)
        last = self._topic.log.last_confirmed
        if through > last:
            raise NotAllowedError(
                f"an update of cluster {source} moves subscription {update.subscription} of "
                f"{self._topic.name} to {through}; the log ends at {last}"
            )
        key = _Key(update.subscription, source)
        if key not in self._waiting and len(self._waiting) + len(self._held) >= UPDATES_MAX:
            self._counts.updates_refused += 1
            return
        self._held.pop(key, None)
        self._waiting[key] = _Wanted(through, frozenset(update.positions) - {self._here})
        self._start()

    def look(self) -> None:
        """Retry the updates that were not carried out completely."""
        if self._held:
            self._waiting = {**self._held, **self._waiting}
            self._held.clear()
            self._start()

    def close(self) -> None:
        """Carry out nothing more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Return when the task has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # Carrying updates out

    def _start(self) -> None:
        if self._is_closed or (self._task is not None and not self._task.done()):
            return
        self._task = asyncio.get_running_loop().create_task(
            self._carry_out_all(), name=f"subscription-updates-{self._topic.name}"
        )

    async def _carry_out_all(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            wanted = self._waiting.pop(key)
            try:
                is_done = await self._carry_out(key, wanted)
            except (RequestError, LedgerError, CursorError) as error:
                _log.warning(
                    "subscription_update_not_done",
                    topic=str(self._topic.name),
                    subscription=key.subscription,
                    cluster=key.source,
                    reason=str(error),
                )
                self._counts.updates_refused += 1
                is_done = not error.retryable
            if not is_done and key not in self._waiting:
                self._held[key] = wanted

    async def _carry_out(self, key: _Key, wanted: _Wanted) -> bool:
        """Move a subscription; return whether nothing is left to do.

        Raises:
            RequestError: the subscription cannot be created.
            LedgerError: the entries in between cannot be read now.
        """
        name = key.subscription
        if name not in self._subscriptions:
            await self._create(name)
        subscription = self._subscriptions.get(name)
        if subscription is None or not subscription.is_open:
            return False
        if not subscription.is_replicated:
            self._counts.updates_refused += 1
            return True
        through = await self._reach(subscription, key.source, wanted)
        if self._is_closed or subscription.is_closed or not self._topic.tenure.holds():
            return True
        before = subscription.cursor.mark_delete
        self._advance(subscription, through)
        mark = subscription.cursor.mark_delete
        if mark > before:
            self._counts.updates_applied += 1
            self._moved(name, mark)
        return mark >= wanted.through

    async def _reach(self, subscription: Subscription, source: str, wanted: _Wanted) -> Position:
        """Return how far an update may move a subscription.

        Raises:
            LedgerError: the entries in between cannot be read now.
        """
        log, cursor, through = self._topic.log, subscription.cursor, wanted.through
        absent = self._absent_of(source, wanted.heard)
        while True:
            mark = cursor.mark_delete
            stop = absent.first_open(mark, through, cursor.is_acked)
            if stop is not None:
                return log.previous_position(stop)
            after = absent.unread_after(mark, through)
            if after is None:
                absent.trim()
                return through
            # Later entries are examined when an update covers them, and not kept before: they may
            # still be excluded from copying to the other cluster.
            entries_max = max(1, min(self._read_entries, log.entries_between(after, through)))
            first, entries = await log.read_range(
                log.next_position(after), entries_max=entries_max, bytes_max=self._read_bytes
            )
            if not entries:
                return mark  # it is trimmed, or about to be: a later look detects that
            positions = [
                Position(first.ledger_id, first.entry_id + at) for at in range(len(entries))
            ]
            absent.on_read(
                min(positions[-1], through),
                [
                    position
                    for position, entry in zip(positions, entries, strict=True)
                    if position <= through
                    and not self._is_at_peer(position, entry, source, wanted.heard)
                ],
            )
            await asyncio.sleep(0)  # let other tasks run

    def _absent_of(self, source: str, heard: frozenset[str]) -> AbsentEntries:
        found = self._absent.get((source, heard))
        if found is None:
            if len(self._absent) >= PEERS_MAX:
                self._absent.clear()  # the lists of clusters have changed often: read again
            found = self._absent[source, heard] = AbsentEntries()
        return found

    def _is_at_peer(
        self, position: Position, entry: bytes, source: str, heard: frozenset[str]
    ) -> bool:
        if self._topic.visibility.is_aborted(position):
            return True  # no consumer in any cluster gets it
        try:
            metadata, _ = split_payload(entry)
        except MalformedPayloadError:
            return False
        return is_at_peer(
            metadata,
            peer=source,
            here=self._here,
            heard_by_peer=heard,
            is_copied=self._is_copied(source, position),
        )
