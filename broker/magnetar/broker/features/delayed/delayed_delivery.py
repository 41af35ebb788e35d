"""Delayed delivery on one topic: what is withheld, when it goes out, and where that is stored.

An entry is withheld while its time is more than a tick away (protocol sheet section 11). It is put
into the index when the first dispatcher comes by, and all subscriptions find it there. A dispatcher
passes it over, without reading it if the index knows it, and gets it by `deliver` when it is due:
one timer releases what is due to all of them.

The index is stored for the sake of its size and of the next start: records go to ledgers in
buckets, and the log's properties name those. What a crash takes from the tail, dispatchers find
again: they look at every entry that the index does not withhold. For the same reason a bucket that
cannot be read is let go. A ledger is written and closed before it is named, and deleted after it is
not: a crash between leaves orphans.

Times are those of the wall clock. One that is set back withholds again what a dispatcher meets once
more; one that is set forward is noticed at the latest after `_TIMER_MAX_S`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from weakref import ref

import structlog

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.delayed.bucket_ledgers import StoredBucket
from magnetar.broker.features.delayed.index import Bucket, DelayedIndex
from magnetar.broker.features.delayed.position_set import PositionSet
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import NO_ROWS, Feature, PublishBatch, PublishRows, TopicPort, Work
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, Send

_log = structlog.get_logger()

_TIMER_MAX_S = 5.0
_RELEASED_AT_ONCE = 2_000
"""Between turns of the loop."""
_FOREVER_MS = (1 << 63) - 1


class BucketStorage(Protocol):
    """Where buckets are kept; `BucketLedgers` is one. Errors are those of the ledger component."""

    def stored(self) -> Sequence[StoredBucket]: ...

    async def write(self, segments: Sequence[bytes], policies: Policies, /) -> int: ...

    async def name(self, buckets: Sequence[StoredBucket], /) -> None: ...

    async def read(self, ledger_id: int, first: int, last: int, /) -> list[bytes]: ...

    async def delete(self, ledger_id: int, /) -> None: ...


class DelayedDelivery(Feature):
    """What is delayed on one topic."""

    def __init__(
        self, topic: TopicPort, storage: BucketStorage, settings: BrokerSettings, clock: Clock
    ) -> None:
        self.settings = settings
        self._topic = topic
        self._storage = storage
        self._clock = clock
        self._index = DelayedIndex(segment_records=settings.delayed_segment_records)
        self._views: list[SubscriptionDelays] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """What the timer waits for, wall clock."""
        self._released_s = -_TIMER_MAX_S
        self._loading: asyncio.Task[None] | None = None
        self._storing: asyncio.Task[None] | None = None
        self._is_closed = False

    # Questions

    @property
    def next_due_ms(self) -> int | None:
        """When the next entry is due; None: none is known."""
        return self._index.next_due_ms

    @property
    def withheld(self) -> PositionSet:
        """Entries that are not due, as far as they are known."""
        return self._index.withheld

    @property
    def due_entries_max(self) -> int:
        """Entries that are due and wait in one dispatcher."""
        return self.settings.delayed_due_entries_max

    @property
    def size_bytes(self) -> int:
        """Of the index, in memory and in ledgers."""
        return self._index.size_bytes

    @property
    def in_memory_bytes(self) -> int:
        """Of the index, without what is in ledgers only."""
        return self._index.in_memory_bytes

    @property
    def stored_ledgers(self) -> list[int]:
        """The ledgers that hold the index."""
        return [each.ledger_id for each in self._index.buckets if each.ledger_id is not None]

    # Subscriptions

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """A subscription is being opened: its dispatchers ask about delays from now on."""
        self._views = [each for each in self._views if not each.is_closed]
        view = SubscriptionDelays(self, subscription)
        self._views.append(view)
        on_progress = _both(context.on_progress, view.progressed)
        return replace(context, delays=view, on_progress=on_progress)

    def withholds(self, position: Position, due_ms: int) -> bool:
        """Whether an entry with that time is held back; it is remembered then."""
        index = self._index
        if position in index.withheld:
            return True
        if due_ms <= self._cutoff_ms() or self._is_closed:
            return False
        index.add(due_ms, position)
        if self._timer is None or due_ms < self._timer_ms:
            self._arm()
        if index.tail_records >= self.settings.delayed_bucket_records:
            self.store()
        return True

    def _cutoff_ms(self) -> int:
        """What has its time until then is not delayed any more."""
        policies = self._topic.policies
        if not policies.delayed_delivery.active:
            return _FOREVER_MS
        return self._clock.wall_ms() + policies.delayed_delivery.tick_ms

    # Publishing

    def rows(self) -> PublishRows:
        policies = self._topic.policies
        if policies.delayed_delivery.active and policies.delayed_delivery.max_delay_ms > 0:
            return PublishRows(checks=(self.check,))
        return NO_ROWS

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, _payload: bytes
    ) -> None:
        """Look at a message before it is stored.

        Raises:
            NotAllowedError: it is delayed for longer than the topic's policy allows.
        """
        delay_max_ms = self._topic.policies.delayed_delivery.max_delay_ms
        if delay_max_ms <= 0 or not metadata.HasField("deliver_at_time"):
            return
        delay_ms = metadata.deliver_at_time - self._clock.wall_ms()
        if delay_ms > delay_max_ms:
            raise NotAllowedError(
                f"{self._topic.name}: the message of producer {batch.producer_name} with sequence "
                f"id {send.sequence_id} is delayed by {delay_ms} ms; the longest delay is "
                f"{delay_max_ms} ms"
            )

    # Releasing

    def release(self) -> None:
        """Give subscriptions what is due by now; what does not fit into a turn follows."""
        self._stop_timer()
        if self._is_closed or self._loading is not None:
            return  # what is being loaded ends here again
        self._released_s = self._clock.monotonic_s()
        due, missing = self._index.take_due(self._cutoff_ms(), _RELEASED_AT_ONCE)
        if due:
            for view in self._views:
                view.release(due)
        if missing:
            self._loading = self._loop.create_task(self._load_segments(missing))
        else:
            self._arm()
        if any(each.is_exhausted for each in self._index.buckets):
            self.store()

    def _arm(self) -> None:
        """Set the timer to when something is due; not more often than once a tick, nor too late."""
        self._stop_timer()
        due_ms = self._index.next_due_ms
        if due_ms is None or self._is_closed or self._loading is not None:
            return
        self._timer_ms = due_ms
        tick_s = self._topic.policies.delayed_delivery.tick_ms / 1000
        if due_ms <= self._cutoff_ms() - tick_s * 1000:
            wait_s = 0.0  # more was due than fits into a turn
        else:
            wait_s = max(
                (due_ms - self._clock.wall_ms()) / 1000,
                tick_s - (self._clock.monotonic_s() - self._released_s),
            )
        self._timer = self._loop.call_later(min(wait_s, _TIMER_MAX_S), self.release)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _load_segments(self, buckets: Sequence[Bucket]) -> None:
        """Read what comes next of these, and go on with the release."""
        try:
            for bucket in buckets:
                at = bucket.next_segment
                assert bucket.ledger_id is not None
                (segment,) = await self._storage.read(bucket.ledger_id, at, at)
                bucket.load(at, segment)
                self._index.unload(self.settings.delayed_segments_loaded_max)
        except LedgerError as error:
            _log.warning("delayed_index_not_read", topic=str(self._topic.name), error=str(error))
            await asyncio.sleep(self.settings.delayed_retry_ms / 1000)
        self._loading = None
        self.release()

    follows = frozenset({"delayed_delivery"})

    def policies_changed(self, before: Policies) -> None:
        now = self._topic.policies
        if now.delayed_delivery.active is not before.delayed_delivery.active:
            self.release()

    # Storing

    def look(self) -> Work | None:
        """What was trimmed leaves the index."""
        self.store()
        return None

    def shown(self) -> Mapping[str, Any]:
        return {"delayed_index_bytes": self.size_bytes}

    async def restore(self) -> None:
        """Take up what is stored, before anything is dispatched.

        Raises:
            BrokerPersistenceError: it is not for this release.
        """
        cutoff_ms = self._cutoff_ms()
        for stored in self._storage.stored():
            bucket = Bucket(
                [None] * len(stored.starts_ms),
                stored.starts_ms,
                records=stored.records,
                last=Position(*stored.last),
                ledger_id=stored.ledger_id,
            )
            try:
                segments = await self._storage.read(stored.ledger_id, 0, len(stored.starts_ms) - 1)
            except LedgerError as error:
                # Its entries are found by reading them; it is not named any more from now on.
                _log.warning("delayed_index_lost", topic=str(self._topic.name), error=str(error))
                bucket.next_segment = len(bucket.segments)
                self._index.buckets.append(bucket)
                continue
            self._index.restore(bucket, segments, cutoff_ms=cutoff_ms)
            bucket.unload(but_next=True)
        self._index.forget_before(self._topic.log.first_position())
        self._index.unload(self.settings.delayed_segments_loaded_max)
        self._arm()
        if self._index.buckets:
            _log.info(
                "delayed_index_restored",
                topic=str(self._topic.name),
                withheld=len(self.withheld),
                ledgers=len(self._index.buckets),
            )
            self.store()

    def store(self) -> None:
        """Store what has gathered, and forget what is used up, beside everything else."""
        if self._storing is None and not self._is_closed and self._index.size_bytes:
            self._storing = self._loop.create_task(self._store())
            self._storing.add_done_callback(self._stored)

    def _stored(self, storing: asyncio.Task[None]) -> None:
        self._storing = None
        if not storing.cancelled() and (error := storing.exception()) is not None:
            _log.error("delayed_index_broke", topic=str(self._topic.name), error=repr(error))

    async def _store(self) -> None:
        """Until nothing is left to do."""
        while True:
            try:
                if not await self._store_once():
                    return
            except (LogFencedError, LogClosedError):
                return  # the topic is about to be closed
            except LedgerError as error:
                # Nothing is lost: it is in memory, and the entries are in the log.
                _log.warning(
                    "delayed_index_not_stored", topic=str(self._topic.name), error=str(error)
                )
                await asyncio.sleep(self.settings.delayed_retry_ms / 1000)

    async def _store_once(self) -> bool:
        """One bucket, and all that are used up; False: there was nothing to do."""
        index = self._index
        first = self._topic.log.first_position()
        index.forget_before(first)
        if index.tail_records >= self.settings.delayed_bucket_records:
            index.seal()
        gone = [each for each in index.buckets if each.is_exhausted or each.last < first]
        kept = [each for each in index.buckets if each not in gone]
        new = next((each for each in kept if each.ledger_id is None), None)
        doomed = [each.ledger_id for each in gone if each.ledger_id is not None]
        if new is None and not doomed:
            index.buckets = kept
            return False
        names = [_described(each, each.ledger_id) for each in kept if each.ledger_id is not None]
        if new is not None:
            segments = new.whole()
            stored = _described(new, await self._storage.write(segments, self._topic.policies))
            names.append(stored)
        try:
            await self._storage.name(names)
        except (LogFencedError, LogClosedError):
            if new is not None:
                await self._storage.delete(stored.ledger_id)
            raise
        if new is not None:
            new.ledger_id = stored.ledger_id
            new.unload(but_next=True)
            index.unload(self.settings.delayed_segments_loaded_max)
        index.buckets = [each for each in index.buckets if each not in gone]
        for ledger_id in doomed:
            await self._storage.delete(ledger_id)
        return True

    def close(self) -> None:
        """The topic is closed."""
        self._is_closed = True
        self._stop_timer()
        for task in (self._loading, self._storing):
            if task is not None:
                task.cancel()


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def call_both() -> None:
        one()
        other()

    return call_both


def _described(bucket: Bucket, ledger_id: int) -> StoredBucket:
    return StoredBucket(
        ledger_id=ledger_id,
        records=bucket.records,
        starts_ms=bucket.starts_ms,
        last=bucket.last,
    )


class SubscriptionDelays:
    """The `Delays` of one Shared or Key_Shared dispatcher.

    What is due for its subscription and does not fit into its queue waits here, a bit each.
    """

    def __init__(self, topic: DelayedDelivery, subscription: Subscription) -> None:
        self._topic = topic
        self._subscription = ref(subscription)  # which has this
        self._due = PositionSet()
        """Due, not acknowledged when that was found, and not given to the dispatcher yet."""
        self._is_feed_scheduled = False

    # For the dispatcher

    def withholds(self, run: Run, index: int) -> bool:
        """Whether the entry, which its metadata delays, is not due."""
        position = Position(run.ledger_id, run.first_entry_id + index)
        return self._topic.withholds(position, run.delayed[index])

    def passed_over(self, position: Position) -> Position | None:
        """The last of the consecutive entries from here on that are withheld; None: it is not."""
        return self._topic.withheld.stretch_from(position)

    def rewound(self) -> None:
        """The dispatcher begins again, and finds what is due on its way."""
        self._due.clear()

    # For the topic

    @property
    def is_closed(self) -> bool:
        subscription = self._subscription()
        return subscription is None or subscription.is_closed

    @property
    def _dispatcher(self) -> Dispatcher | None:
        """The dispatcher, if it withholds anything, and has somebody to send to."""
        subscription = self._subscription()
        dispatcher = subscription.dispatcher if subscription is not None else None
        if dispatcher is None or not dispatcher.heeds_delays or not dispatcher.consumers:
            return None
        return dispatcher

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry of the topic is due; None: none is known."""
        return self._topic.next_due_ms

    @property
    def withheld(self) -> int:
        """Entries of its backlog that are withheld, as far as the index knows them."""
        subscription = self._subscription()
        if subscription is None:
            return 0
        dispatcher = subscription.dispatcher
        if subscription.context is None or dispatcher is None or not dispatcher.heeds_delays:
            return 0
        cursor = subscription.cursor
        # Those that were acknowledged all the same are dropped when they are due.
        return min(self._topic.withheld.count_after(cursor.mark_delete), cursor.backlog_entries)

    @property
    def size_bytes(self) -> int:
        """Memory of what is due and waits for room."""
        return self._due.size_bytes

    def release(self, positions: list[Position]) -> None:
        """Hand due entries to the dispatcher, but for those that it has not come to yet."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        after, is_acked, add = (
            dispatcher.read_after,
            dispatcher.context.cursor.is_acked,
            self._due.add,
        )
        for position in positions:
            if position <= after and not is_acked(position):
                add(position)
        self.feed()
        dispatcher.wake()

    def progressed(self) -> None:
        """The dispatcher has sent something: there may be room."""
        if self._due and not self._is_feed_scheduled:
            self._is_feed_scheduled = True
            asyncio.get_running_loop().call_soon(self._feed_scheduled)

    def _feed_scheduled(self) -> None:
        self._is_feed_scheduled = False
        self.feed()

    def feed(self) -> None:
        """Give the dispatcher some of what is due, in order of positions."""
        dispatcher = self._dispatcher
        if not self._due or dispatcher is None:
            return
        queue_max = self._topic.due_entries_max
        # Many at once, or none: each call goes through the whole queue of a Key_Shared dispatcher.
        room = queue_max - dispatcher.waiting_entries
        if room * 2 >= queue_max:
            is_acked = dispatcher.context.cursor.is_acked
            dispatcher.deliver([each for each in self._due.take(room) if not is_acked(each)])
