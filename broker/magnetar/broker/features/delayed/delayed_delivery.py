"""Delayed delivery on one topic: entries that are withheld until they are due.

An entry is withheld while its due time is more than a tick away (protocol sheet section 11). The
first dispatcher that reads it adds it to the index, where all subscriptions find it. A dispatcher
skips a withheld entry, without reading it if the index knows it. When the entry is due, the
dispatcher gets it by `deliver`: one timer releases due entries to all subscriptions.

The index is stored to bound its memory, and for the next start. Buckets of records go to ledgers,
and the log's properties list those ledgers. A crash loses the tail, but dispatchers find its
entries again, because they read every entry that the index does not withhold. For the same reason
the broker gives up a bucket that it cannot read when the topic is loaded. Later it loads the topic
again for that, if a retry cannot help or many have failed. A ledger is written and closed before it
is listed, and deleted after it is no longer listed: a crash in between leaves orphans.

Times are those of the wall clock. After it is set back, entries that a dispatcher reads again are
withheld again. A clock that is set forward takes effect within `_TIMER_MAX_S`.
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
"""Entries released per turn of the event loop, at most."""
_READS_MAX = 60
"""Consecutive failed reads after which a bucket is given up: five minutes, by default. Its bookies
may never come back; until then its messages that are due are not delivered."""
_FOREVER_MS = (1 << 63) - 1


class BucketStorage(Protocol):
    """Storage of buckets; `BucketLedgers` is one. Errors are those of the ledger component."""

    def stored(self) -> Sequence[StoredBucket]: ...

    async def write(self, segments: Sequence[bytes], policies: Policies, /) -> int: ...

    async def name(self, buckets: Sequence[StoredBucket], /) -> None: ...

    async def read(self, ledger_id: int, first: int, last: int, /) -> list[bytes]: ...

    async def delete(self, ledger_id: int, /) -> None: ...


class DelayedDelivery(Feature):
    """Delayed delivery of one topic."""

    def __init__(
        self,
        topic: TopicPort,
        storage: BucketStorage,
        settings: BrokerSettings,
        clock: Clock,
        given_up: set[int],
    ) -> None:
        """`given_up`: ledgers of the index that this broker reads no more, of all topics. It
        outlives the topic."""
        self.settings = settings
        self._topic = topic
        self._storage = storage
        self._clock = clock
        self._given_up = given_up
        self._index = DelayedIndex(segment_records=settings.delayed_segment_records)
        self._views: list[SubscriptionDelays] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """Due time that the timer waits for, ms of the wall clock."""
        self._released_s = -_TIMER_MAX_S
        self._to_load: list[Bucket] = []
        """Buckets whose next segment is to be read."""
        self._loading: asyncio.Task[None] | None = None
        self._failed: list[Bucket] = []
        """Buckets whose last read has failed, until they are read again."""
        self._retry: asyncio.TimerHandle | None = None
        """Timer after which the failed buckets are read again."""
        self._storing: asyncio.Task[None] | None = None
        self._is_closed = False

    # Questions

    @property
    def next_due_ms(self) -> int | None:
        """When the next entry is due, ms since the epoch; None if no such entry is known."""
        return self._index.next_due_ms

    @property
    def withheld(self) -> PositionSet:
        """Known entries that are not due yet."""
        return self._index.withheld

    @property
    def due_entries_max(self) -> int:
        """Most due entries that wait in the queue of one dispatcher."""
        return self.settings.delayed_due_entries_max

    @property
    def size_bytes(self) -> int:
        """Bytes of the index, in memory and in ledgers."""
        return self._index.size_bytes

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of the index in memory."""
        return self._index.in_memory_bytes

    @property
    def stored_ledgers(self) -> list[int]:
        """Ledgers that hold the index."""
        return [each.ledger_id for each in self._index.buckets if each.ledger_id is not None]

    # Subscriptions

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """Make the dispatchers of a subscription that is being opened withhold delayed entries."""
        self._views = [each for each in self._views if not each.is_closed]
        view = SubscriptionDelays(self, subscription)
        self._views.append(view)
        on_progress = _both(context.on_progress, view.progressed)
        return replace(context, delays=view, on_progress=on_progress)

    def withholds(self, position: Position, due_ms: int) -> bool:
        """Whether an entry with this due time is withheld; if so, remember it."""
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
        """Return the time up to which entries count as due, ms since the epoch."""
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
        """Check a message before it is stored.

        Raises:
            NotAllowedError: its delay is longer than the topic's policy allows.
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
        """Release the entries that are due; those beyond the limit of a turn follow later."""
        self._stop_timer()
        if self._is_closed:
            return
        self._released_s = self._clock.monotonic_s()
        due, missing = self._index.take_due(self._cutoff_ms(), _RELEASED_AT_ONCE)
        if due:
            for view in self._views:
                view.release(due)
        for bucket in missing:
            bucket.is_away = True
        self._to_load += missing
        if self._to_load and self._loading is None:
            self._loading = self._loop.create_task(self._load_segments())
        self._arm()
        if any(each.is_exhausted for each in self._index.buckets):
            self.store()

    def _arm(self) -> None:
        """Set the timer to the next due time: at most once per tick, within `_TIMER_MAX_S`."""
        self._stop_timer()
        due_ms = self._index.next_release_ms
        if due_ms is None or self._is_closed:
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

    async def _load_segments(self) -> None:
        """Read the next segment of each bucket that needs it, and continue the release after each:
        the read of the next one may take long."""
        try:
            while self._to_load:
                bucket = self._to_load.pop(0)
                if await self._load_segment(bucket):
                    self._index.unload(self.settings.delayed_segments_loaded_max)
                    self.release()
        finally:
            self._loading = None

    async def _load_segment(self, bucket: Bucket) -> bool:
        """Read the next segment of a bucket; return whether it was read."""
        at = bucket.next_segment
        assert bucket.ledger_id is not None
        try:
            (segment,) = await self._storage.read(bucket.ledger_id, at, at)
        except LedgerError as error:
            self._not_loaded(bucket, error, may_pass=error.retryable)
        except Exception as error:  # noqa: BLE001 - a defect must not hold up all other buckets
            _log.exception("delayed_index_broke", topic=str(self._topic.name))
            self._not_loaded(bucket, error, may_pass=True)
        else:
            bucket.load(at, segment)
            return True
        return False

    def _not_loaded(self, bucket: Bucket, error: Exception, *, may_pass: bool) -> None:
        if bucket not in self._index.buckets:
            return  # its messages were trimmed meanwhile, and its ledger is deleted
        bucket.failures += 1
        if may_pass and bucket.failures < _READS_MAX:
            self._read_later(bucket, error)
        else:
            self._give_up(bucket, error)

    def _read_later(self, bucket: Bucket, error: Exception) -> None:
        """Leave a bucket away for a while: the others must not wait for it."""
        _log.warning("delayed_index_not_read", topic=str(self._topic.name), error=str(error))
        self._failed.append(bucket)
        if self._retry is None and not self._is_closed:
            self._retry = self._loop.call_later(self.settings.delayed_retry_ms / 1000, self.retry)

    def retry(self) -> None:
        """Read the buckets again whose reads have failed."""
        self._stop_retry()
        for bucket in self._failed:
            bucket.is_away = False
        self._failed.clear()
        self.release()

    def _stop_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _give_up(self, bucket: Bucket, error: Exception) -> None:
        """Have the topic loaded again: that drops the bucket, and dispatchers read its entries.

        Until then the bucket stays away.
        """
        assert bucket.ledger_id is not None
        # The load may well be able to read it as a whole, and the topic be loaded again for ever.
        self._given_up.add(bucket.ledger_id)
        _log.warning("delayed_index_lost", topic=str(self._topic.name), error=str(error))
        self._topic.reopen("a part of its index of delayed messages cannot be read")

    follows = frozenset({"delayed_delivery"})

    def policies_changed(self, before: Policies) -> None:
        now = self._topic.policies
        if now.delayed_delivery.active is not before.delayed_delivery.active:
            self.release()

    # Storing

    def look(self) -> Work | None:
        """Store the index again, so that trimmed entries leave it."""
        self.store()
        return None

    def shown(self) -> Mapping[str, Any]:
        return {"delayed_index_bytes": self.size_bytes}

    async def restore(self) -> None:
        """Load the stored index, before anything is dispatched.

        Raises:
            BrokerPersistenceError: this release cannot read the list of ledgers.
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
            segments = await self._read_whole(stored)
            if segments is None:
                # Dispatchers find its entries by reading them. The next store drops the bucket from
                # the list.
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

    async def _read_whole(self, stored: StoredBucket) -> list[bytes] | None:
        """Read all segments of a bucket; return None if it is given up."""
        if stored.ledger_id in self._given_up:
            return None
        try:
            return await self._storage.read(stored.ledger_id, 0, len(stored.starts_ms) - 1)
        except Exception as error:  # noqa: BLE001 - a defect must not keep the topic away
            _log.warning(
                "delayed_index_lost",
                topic=str(self._topic.name),
                error=str(error),
                exc_info=None if isinstance(error, LedgerError) else error,
            )
            return None

    def store(self) -> None:
        """Store a full tail and drop used buckets, in a task beside all other work."""
        if self._storing is None and not self._is_closed and self._index.size_bytes:
            self._storing = self._loop.create_task(self._store())
            self._storing.add_done_callback(self._stored)

    def _stored(self, storing: asyncio.Task[None]) -> None:
        self._storing = None
        if not storing.cancelled() and (error := storing.exception()) is not None:
            _log.error("delayed_index_broke", topic=str(self._topic.name), error=repr(error))

    async def _store(self) -> None:
        """Store and delete until there is nothing left to do."""
        while True:
            try:
                if not await self._store_once():
                    return
            except (LogFencedError, LogClosedError):
                return  # the topic is about to be closed
            except LedgerError as error:
                # Nothing is lost: the index is in memory, and the entries are in the log.
                _log.warning(
                    "delayed_index_not_stored", topic=str(self._topic.name), error=str(error)
                )
                await asyncio.sleep(self.settings.delayed_retry_ms / 1000)

    async def _store_once(self) -> bool:
        """Store one bucket, and drop the used ones; return False if nothing was to do."""
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
        self._given_up.difference_update(doomed)
        for ledger_id in doomed:
            await self._storage.delete(ledger_id)
        return True

    def close(self) -> None:
        """Stop the timer and the tasks: the topic is closed."""
        self._is_closed = True
        self._stop_timer()
        self._stop_retry()
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
    """`Delays` of one Shared or Key_Shared dispatcher.

    Due entries of the subscription that do not fit into its queue wait here, one bit each.
    """

    def __init__(self, topic: DelayedDelivery, subscription: Subscription) -> None:
        self._topic = topic
        self._subscription = ref(subscription)  # which holds this object
        self._due = PositionSet()
        """Due entries, not acknowledged when they became due, that the dispatcher does not have
        yet."""
        self._is_feed_scheduled = False

    # For the dispatcher

    def withholds(self, run: Run, index: int) -> bool:
        """Whether an entry, whose metadata set a due time, is withheld."""
        position = Position(run.ledger_id, run.first_entry_id + index)
        return self._topic.withholds(position, run.delayed[index])

    def passed_over(self, position: Position) -> Position | None:
        """Return the last of the consecutive withheld entries that begin at `position`, if any."""
        return self._topic.withheld.stretch_from(position)

    def rewound(self) -> None:
        """Forget the waiting entries: the dispatcher starts over, and reads them again."""
        self._due.clear()

    # For the topic

    @property
    def is_closed(self) -> bool:
        subscription = self._subscription()
        return subscription is None or subscription.is_closed

    @property
    def _dispatcher(self) -> Dispatcher | None:
        """The dispatcher, if it withholds delayed entries and has a consumer."""
        subscription = self._subscription()
        dispatcher = subscription.dispatcher if subscription is not None else None
        if dispatcher is None or not dispatcher.heeds_delays or not dispatcher.consumers:
            return None
        return dispatcher

    @property
    def next_due_ms(self) -> int | None:
        """When the topic's next delayed entry is due, ms since the epoch; None if unknown."""
        return self._topic.next_due_ms

    @property
    def withheld(self) -> int:
        """Entries of the subscription's backlog that the index withholds."""
        subscription = self._subscription()
        if subscription is None:
            return 0
        dispatcher = subscription.dispatcher
        if subscription.context is None or dispatcher is None or not dispatcher.heeds_delays:
            return 0
        cursor = subscription.cursor
        # A withheld entry that is acknowledged all the same is dropped when it is due.
        return min(self._topic.withheld.count_after(cursor.mark_delete), cursor.backlog_entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of the due entries that wait for room."""
        return self._due.size_bytes

    def release(self, positions: list[Position]) -> None:
        """Hand due entries to the dispatcher, except those that it has not read up to yet."""
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
        """Continue to feed the dispatcher, which has sent something: its queue may have room."""
        if self._due and not self._is_feed_scheduled:
            self._is_feed_scheduled = True
            asyncio.get_running_loop().call_soon(self._feed_scheduled)

    def _feed_scheduled(self) -> None:
        self._is_feed_scheduled = False
        self.feed()

    def feed(self) -> None:
        """Give the dispatcher some of the due entries, in order of positions."""
        dispatcher = self._dispatcher
        if not self._due or dispatcher is None:
            return
        queue_max = self._topic.due_entries_max
        # Many at once, or none: each call scans the whole queue of a Key_Shared dispatcher.
        room = queue_max - dispatcher.waiting_entries
        if room * 2 >= queue_max:
            is_acked = dispatcher.context.cursor.is_acked
            dispatcher.deliver([each for each in self._due.take(room) if not is_acked(each)])
