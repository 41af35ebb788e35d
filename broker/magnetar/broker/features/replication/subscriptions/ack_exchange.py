"""Single acknowledgements between Magnetar clusters: what this cluster sends and receives.

*Telling*: a replicated subscription with holes is checked once per interval. New acknowledgements,
which no update and no earlier marker has told, go into one marker, named by their origins. They are
told only while a connected cluster declares that it takes such markers.

*Being told*: origins are mapped to entries here, which are acknowledged without a consumer. The
acknowledgement of an entry that may still arrive from a third cluster waits, within a bound. An
origin names exactly one message: nothing is acknowledged here that was not acknowledged there,
whatever entries are next to it here.

Nothing of this is stored by itself. Cursors store the acknowledgements, markers are in the log, and
a cluster that connects anew is told everything once more.

Source: geo-replication sheet, section 18.8; docs/decisions/0036.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import structlog

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.replication.acks import RANGES_MAX, Acks, OriginAcks, entries_in
from magnetar.broker.features.replication.copies import Copy
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.replication.subscriptions.ack_ranges import (
    behind,
    in_turns,
    within,
)
from magnetar.broker.features.replication.subscriptions.ack_telling import (
    AckTelling,
    first_part,
    fits,
    merged,
)
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.features.replication.subscriptions.origin_window import (
    OriginWindow,
    origin_of,
)
from magnetar.broker.features.replication.subscriptions.origins import LocalAcks, OriginIndex
from magnetar.broker.topic import TopicPort, TopicSubscriptions
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import AckRange, BatchAck, CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import EARLIEST, Position

_log = structlog.get_logger()

HELD_MAX: Final = 10_000
"""Ranges, and partly acknowledged batches, that are read of a subscription, at most."""


ENTRIES_PER_TURN: Final = 1_000
"""Entries that are acknowledged before other tasks run."""


class _Key(NamedTuple):
    subscription: str
    source: str
    """Cluster that sends the acknowledgements."""


class AckExchange:
    """Single acknowledgements of one topic."""

    def __init__(
        self,
        topic: TopicPort,
        subscriptions: TopicSubscriptions,
        counts: SubscriptionCounts,
        settings: BrokerSettings,
        *,
        here: str,
        incarnation: Callable[[], int],
        is_taken: Callable[[], bool],
        create: Callable[[str], Awaitable[None]],
        moved: Callable[[str, Position, Position], None],
    ) -> None:
        """Create the exchange.

        Args:
            here: name of this cluster.
            incarnation: returns the log's life; 0 if nothing was ever copied from it.
            is_taken: whether a connected cluster takes such markers.
            create: creates a replicated subscription at the beginning of the log.
            moved: called with the name of a subscription, and its mark-delete position before and
                after, when another cluster has moved it.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._counts = counts
        self._settings = settings
        self._is_enabled = (
            settings.replicated_subscriptions_enabled
            and settings.replicated_subscriptions_acks_enabled
        )
        self._here = here
        self._incarnation = incarnation
        self._is_taken = is_taken
        self._create = create
        self._moved = moved
        self._window: OriginWindow | None = None
        """Origins of the topic's entries; None while the topic has no replicated subscription."""
        self._telling: dict[str, AckTelling] = {}
        self._waiting: dict[_Key, Acks] = {}
        self._held: dict[_Key, Acks] = {}
        """Acknowledgements of entries that may still arrive."""
        self._has_grown = False
        """Whether copies were stored since the held acknowledgements were last tried."""
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._counted = 0
        self._is_closed = False

    # Life cycle

    def begin(self) -> None:
        """Start to index origins: the topic has a replicated subscription."""
        settings = self._settings
        if self._is_enabled and self._window is None:
            self._window = OriginWindow(
                self._topic.log,
                entries_max=settings.replicated_subscriptions_acks_window_entries,
                runs_max=settings.replicated_subscriptions_origins_max,
                read_entries=settings.read_ahead_entries,
                read_bytes=settings.read_ahead_bytes,
            )

    def forgotten(self, name: str, *, is_last: bool) -> None:
        """Forget a subscription that is no longer replicated. `is_last`: none is left."""
        self._telling.pop(name, None)
        self._held = {key: held for key, held in self._held.items() if key.subscription != name}
        self._count_waiting()
        if is_last:
            self._window = None

    def close(self) -> None:
        """Stop telling, and carry out nothing more."""
        self._is_closed = True
        self._waiting.clear()
        self._held.clear()
        self._count_waiting()
        for each in (self._task, self._reading):
            if each is not None:
                each.cancel()

    async def stopped(self) -> None:
        """Return when all tasks have ended."""
        tasks = [each for each in (self._task, self._reading) if each is not None]
        if tasks:
            await asyncio.wait(tasks)

    # Stored entries

    def copied(self, position: Position, copy: Copy | None) -> None:
        """Note a copy from another cluster that is stored after all other entries.

        `copy` is None for a marker, and for a copy that does not name its source.
        """
        if self._window is not None:
            self._window.index.add(position, origin_of(copy))
            self._has_grown = True

    def marked(self, position: Position) -> None:
        """Note a marker of this cluster that is stored after all other entries."""
        if self._window is not None:
            self._window.index.add(position, None)

    # Telling

    @property
    def is_telling(self) -> bool:
        """Whether another cluster would take what this one tells."""
        return self._window is not None and not self._is_closed and self._is_taken()

    def _telling_of(self, name: str) -> AckTelling:
        return self._telling.setdefault(name, AckTelling())

    def tell_again(self, name: str) -> None:
        """Tell everything about a subscription once more: other clusters may not have kept it."""
        self._telling_of(name).forget()

    def known_through(self, name: str, position: Position) -> None:
        """Note that the other clusters know all acknowledgements up to a position."""
        if self._window is not None:
            self._telling_of(name).known_through(position)

    def trim(self) -> None:
        """Forget the origins of entries that no subscription tells of any more."""
        if self.is_telling and self._window is not None:
            self._window.index.trim(self._passed_by_all())

    def look(self, subscription: Subscription) -> Acks | None:
        """Return the acknowledgements to tell of a subscription; None if there are no new ones."""
        window, name = self._window, subscription.name
        cursor = subscription.cursor
        if window is None or not self.is_telling:
            return None
        telling = self._telling_of(name)
        if not cursor.has_holes:
            return None
        if window.lacks(telling.through):
            self._read_soon(window, telling.through)
            return None
        ranges, batches = telling.untold(
            cursor.mark_delete,
            cursor.ranges(HELD_MAX),
            cursor.batches(HELD_MAX),
            low=window.index.low,
            ledgers=self._topic.log.ledgers,
        )
        if not ranges and not batches:
            return None
        acks, ranges, batches = self._fitted(name, window, ranges, batches)
        telling.known(ranges, batches)
        if not acks.by_source:
            return None  # only markers, and entries that have no name elsewhere
        self._counts.acks_told += acks.entries
        return acks

    def _passed_by_all(self) -> Position:
        """Return the position up to which no subscription tells of entries any more."""
        found = self._topic.log.last_confirmed
        for name, subscription in self._subscriptions.items():
            if not subscription.is_open:
                return EARLIEST  # its mark-delete position is not known yet
            if subscription.is_replicated:
                mark = subscription.cursor.mark_delete
                found = min(found, mark, self._telling_of(name).through)
        return found

    def _fitted(
        self,
        name: str,
        window: OriginWindow,
        ranges: list[AckRange],
        batches: list[BatchAck],
    ) -> tuple[Acks, list[AckRange], list[BatchAck]]:
        """Return as many acknowledgements as one marker can hold, from the first on."""
        here = Source(self._here, self._incarnation())
        items_max = RANGES_MAX
        while True:
            part, parts = first_part(ranges, batches, items_max)
            by_source = window.index.to_origins(here, part, parts)
            acks = Acks(name, by_source, window.is_whole)
            if fits(acks):
                return acks, part, parts
            if items_max > 1:
                items_max = max(1, min(items_max, len(part) + len(parts)) // 2)
            elif part and part[0].first_entry_id < part[0].last_entry_id:
                _, first, last = part[0]
                ranges = [part[0]._replace(last_entry_id=(first + last) // 2)]
            else:
                return Acks(name, {}, window.is_whole), part, parts  # no marker can hold it

    def _read_soon(self, window: OriginWindow, needed: Position) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(
                self._read(window, needed), name=f"origins-{self._topic.name}"
            )

    async def _read(self, window: OriginWindow, needed: Position) -> None:
        try:
            await window.reach(needed)
        except LedgerError as error:
            # The next look retries.
            _log.info("origins_not_read", topic=str(self._topic.name), reason=str(error))

    # Being told

    def receive(self, source: str, acks: Acks) -> None:
        """Take acknowledgements of a cluster, and carry them out in the background."""
        known = [*self._held.values(), *self._waiting.values()]
        waiting_max = self._settings.replicated_subscriptions_acks_waiting_max
        is_full = sum(map(_items, [acks, *known])) > waiting_max
        if not self._is_enabled or is_full:
            self._counts.acks_dropped += acks.entries
            return
        key = _Key(acks.subscription, source)
        before = self._waiting.get(key)
        self._waiting[key] = acks if before is None else _both(before, acks)
        self._start()

    def retry(self, *, is_due: bool = False) -> None:
        """Try held acknowledgements again, if copies were stored meanwhile, or if `is_due`."""
        is_busy = self._task is not None and not self._task.done()
        if self._held and not is_busy and (is_due or self._has_grown):
            self._has_grown = False
            self._start()

    def _start(self) -> None:
        if self._is_closed or (self._task is not None and not self._task.done()):
            return
        for key, held in self._held.items():
            new = self._waiting.get(key)
            self._waiting[key] = held if new is None else _both(held, new)
        self._held.clear()
        self._task = asyncio.get_running_loop().create_task(
            self._carry_out_all(), name=f"subscription-acks-{self._topic.name}"
        )

    async def _carry_out_all(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            acks = self._waiting.pop(key)
            try:
                left = await self._carry_out(key, acks)
            except (RequestError, LedgerError, CursorError) as error:
                _log.warning(
                    "subscription_acks_not_done",
                    topic=str(self._topic.name),
                    subscription=key.subscription,
                    cluster=key.source,
                    reason=str(error),
                )
                left = acks if error.retryable else None
                if left is None:
                    self._counts.acks_dropped += acks.entries
            if left is not None and left.by_source and not self._is_closed:
                held = self._held.get(key)
                self._held[key] = left if held is None else _both(held, left)
            self._count_waiting()

    async def _carry_out(self, key: _Key, acks: Acks) -> Acks | None:
        """Acknowledge the entries that are here; return the acknowledgements that must wait.

        Raises:
            RequestError: the subscription cannot be created.
            LedgerError: entries stored earlier cannot be read now.
        """
        name = key.subscription
        if name not in self._subscriptions:
            if not acks.is_whole:
                return acks  # an update creates it, not at the beginning
            await self._create(name)
        subscription = self._subscriptions.get(name)
        if subscription is None or not subscription.is_open:
            return acks
        window = self._window
        if not subscription.is_replicated or window is None:
            self._counts.acks_dropped += acks.entries
            return None
        await window.reach(subscription.cursor.mark_delete)
        if self._is_closed or subscription.is_closed or not self._topic.tenure.holds():
            return None
        found, waiting = self._to_locals(window.index, key.source, acks)
        before = subscription.cursor.mark_delete
        self._telling_of(name).known(*found)
        await self._acknowledge(subscription, found)
        if subscription.cursor.mark_delete != before:
            self._moved(name, before, subscription.cursor.mark_delete)
        return acks._replace(by_source=waiting)

    async def _acknowledge(self, subscription: Subscription, found: LocalAcks) -> None:
        ranges = behind(found.ranges, subscription.cursor.mark_delete)
        for part in [*in_turns(ranges, ENTRIES_PER_TURN), None]:
            if self._is_closed or subscription.is_closed or not self._topic.tenure.holds():
                return  # the next owner of the topic is told again
            self._counts.acks_applied += subscription.acknowledge_elsewhere(
                part or (), () if part else found.batches
            )
            await asyncio.sleep(0)  # let other tasks run

    def _to_locals(
        self, index: OriginIndex, teller: str, acks: Acks
    ) -> tuple[LocalAcks, Mapping[Source, OriginAcks]]:
        """Return the entries that are meant here, and acknowledgements that must wait."""
        log = self._topic.log
        ranges: list[AckRange] = []
        batches: list[BatchAck] = []
        waiting: dict[Source, OriginAcks] = {}
        for source, told in acks.by_source.items():
            if source.cluster == self._here:
                is_ours = source.incarnation == self._incarnation()
                found = LocalAcks(list(told.ranges), list(told.batches))
                coming = OriginAcks()
                if not is_ours:  # of a log that was deleted
                    found = LocalAcks([], [])
            else:
                found, coming = index.to_locals(source, told)
            ranges += within(found.ranges, log.ledgers, log.last_confirmed)
            batches += found.batches
            if source.cluster == teller:
                coming = OriginAcks()  # the marker comes after all that it names of its cluster
            if coming.ranges or coming.batches:
                waiting[source] = coming
            absent = told.entries - entries_in(found.ranges) - len(found.batches) - coming.entries
            self._counts.acks_absent += max(0, absent)
        return LocalAcks(sorted(ranges), sorted(batches)), waiting

    def _count_waiting(self) -> None:
        waiting = sum(each.entries for each in self._held.values())
        self._counts.acks_waiting += waiting - self._counted
        self._counted = waiting


def _both(one: Acks, other: Acks) -> Acks:
    return Acks(
        one.subscription,
        merged(one.by_source, other.by_source),
        one.is_whole or other.is_whole,
    )


def _items(acks: Acks) -> int:
    return sum(len(each.ranges) + len(each.batches) for each in acks.by_source.values())
