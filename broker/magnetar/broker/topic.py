"""A topic: one managed log, its tail cache, its producers and its subscriptions.

A topic is loaded when it is first used (`topics.py`), and closed when the broker stops, when it
moves to another broker, or when another owner takes its log over. Closing tells every producer and
consumer, which go where they are told or look the topic up again; the object is never revived.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker import admission
from magnetar.broker.access import SHARED_ACCESS, Access, ProducerAccess
from magnetar.broker.compaction.compaction import Compaction
from magnetar.broker.consumer import TYPE_NAMES, Consumer
from magnetar.broker.deduplication.deduplication import Deduplication
from magnetar.broker.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.dispatch.base import Delays, DispatchContext, DispatchLimits
from magnetar.broker.dispatch.compacted import EarlyPlace
from magnetar.broker.dispatch.throttle import DispatchRates
from magnetar.broker.entry import last_batch_index_of
from magnetar.broker.errors import (
    BrokerPersistenceError,
    ConsumerBusyError,
    NotAllowedError,
    ProducerBusyError,
    ServiceNotReadyError,
)
from magnetar.broker.keeping.gate import TrimGate
from magnetar.broker.message_checks import MessageCheck, checks_of
from magnetar.broker.ownership.protocol import Destination, Tenure
from magnetar.broker.ownership.sole_owner import ALWAYS
from magnetar.broker.peer import Peer
from magnetar.broker.policies.effective import DEFAULTS, EffectivePolicies
from magnetar.broker.positions import ListedLog
from magnetar.broker.producer import Producer, PublishBatch
from magnetar.broker.publish_policies import PublishPolicies
from magnetar.broker.run import Run
from magnetar.broker.subscription import Subscription
from magnetar.broker.tail_cache import TailCache
from magnetar.cursors import Cursor, CursorError, SubscriptionCursor
from magnetar.ledger.errors import LedgerError, LogClosedError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.managed_log.log_retention import Retention
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

OpenCursor = Callable[[], Awaitable[SubscriptionCursor]]


class TopicLog(ListedLog, Protocol):
    """What a topic needs of its log; `ManagedLog` is one."""

    def append(self, batch: AppendBatch, /) -> None: ...

    async def rotate(self) -> None: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    async def update_properties(self, changes: Mapping[str, str | None], /) -> None: ...

    async def terminate(self) -> Position: ...

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None: ...

    async def unlist(self, before: Position, /) -> int: ...

    async def delete_unlisted(self) -> None: ...

    @property
    def leftover_ledgers(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of one topic; see `BrokerSettings`."""

    seek_return_timeout_ms: int
    producers_waiting_max: int
    dispatch: DispatchLimits


class Topic:
    """One topic that this broker owns. All methods run on the event loop."""

    _subscription_class: type[Subscription] = Subscription

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        cache: TailCache,
        limits: TopicLimits,
        tenure: Tenure = ALWAYS,
        policies: EffectivePolicies = DEFAULTS,
    ) -> None:
        """`tenure`: the right to serve it. `policies`: what counts for it now."""
        self.name = name
        self.tenure = tenure
        self.policies = policies
        """What counts now; see `apply_policies`."""
        self.subscribe_rate = admission.SubscribeRate()
        self.on_policies: list[Callable[[EffectivePolicies], None]] = []
        """Called with the policies that are replaced; `policies` are the new ones already."""
        self.log = log
        self.cache = cache
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.internal_cursors: dict[str, Cursor] = {}
        """Durable cursors that are no subscriptions, by name; they hold trimming back, too."""
        self.gate = TrimGate()
        """Entered by whoever makes a durable cursor, or moves one back (rule 5.2)."""
        self.publish_policies = PublishPolicies(self, asyncio.get_running_loop().time)
        self.access = ProducerAccess(self, waiting_max=limits.producers_waiting_max)
        self.delayed: DelayedDelivery | None = None
        """Set while the topic is loaded."""
        self.deduplication: Deduplication | None = None
        """Set while the topic is loaded, if it deduplicates."""
        self.compaction: Compaction | None = None
        """Set while the topic is loaded."""
        self.checks: tuple[MessageCheck, ...] = ()
        """What looks at the metadata of each message that is published."""
        self.update_checks()
        self.reload: Callable[[str], None] = self._close_for
        """Gives the topic up at once, and whoever asks for it loads it again; takes the reason."""
        self.reopen: Callable[[str], None] = self._close_for
        """The same, after its publishes are answered and everything is saved."""
        self.is_closed = False
        self.is_draining = False
        """It moves: no more publishes are taken, and those under way are being answered."""
        self._in_flight = 0
        """Batches that the log has not answered."""
        self._drained: asyncio.Future[None] | None = None
        self._full_name = str(name)
        self._partition = name.partition_index
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.dispatch_rates = DispatchRates(lambda: self.policies, self._loop.time)
        self._is_wake_scheduled = False
        self._is_trim_scheduled = False
        self._last_index: tuple[Position, int] = (Position(-1, -1), -1)
        # Statistics; the metrics collector reads them.
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.messages_failed = 0
        self.trimmed_ledgers = 0
        self.evicted_entries = 0
        """Entries that left a backlog because it was above its quota."""
        self.messages_out_before = 0
        self.bytes_out_before = 0

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """These count from now on; whoever must act on that hears of it."""
        before = self.policies
        if policies != before and not self.is_closed:
            self.policies = policies
            self.dispatch_rates.update()
            for subscription in self.subscriptions.values():
                subscription.limits_changed()
            for callback in self.on_policies:
                callback(before)

    # Publishing

    def publish(self, batch: PublishBatch) -> None:
        """Append a batch; its producer hears of the outcome."""
        self._in_flight += 1
        if self.is_closed:
            batch.on_failed(LogClosedError(f"{self._full_name} is closed"))
        else:
            self.log.append(batch)

    def entries_appended(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Entries are durable: keep them for those who tail, and wake the dispatchers once."""
        self._answered()
        self.entries_in += len(batch.payloads)
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        if self.deduplication is not None:
            self.deduplication.on_stored(batch, ledger_id, first_entry_id)
        if not self.subscriptions:
            return
        run = Run(ledger_id, first_entry_id, batch.payloads, messages=batch.counts)
        self.cache.add(run)
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def on_publish_failed(self, messages: int) -> None:
        """Count messages that could not be stored."""
        self._answered()
        self.messages_failed += messages
        if self.log.terminated is not None:
            return  # refused for sure, and for good
        if self.deduplication is not None and not self.is_closed:
            # They may turn up in the log: only its recovery tells.
            self.reload("a message may be stored or not, and the topic deduplicates")

    def _answered(self) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self, timeout_s: float) -> None:
        """Take no more publishes, and wait until those under way are answered.

        What clients send from now on gets no receipt: they send it again to the next owner. If the
        time is over, publishes under way may be stored and are sent again nevertheless.
        """
        self.is_draining = True
        if self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=timeout_s)

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        for subscription in list(self.subscriptions.values()):
            subscription.wake()
        self.trim_cache()

    def log_ended(self) -> None:
        """The log was terminated: consumers that have seen everything are told."""
        for subscription in list(self.subscriptions.values()):
            subscription.wake()

    def _trim_soon(self) -> None:
        """Trim once, however many dispatchers move on in this turn of the loop."""
        if not self._is_trim_scheduled and len(self.cache):
            self._is_trim_scheduled = True
            self._loop.call_soon(self.trim_cache)

    def trim_cache(self) -> None:
        """Drop from the cache what every connected subscription has passed."""
        self._is_trim_scheduled = False
        if not len(self.cache):
            return
        slowest: Position | None = None
        for subscription in self.subscriptions.values():
            dispatcher = subscription.dispatcher
            if dispatcher is not None and dispatcher.consumers:
                after = dispatcher.read_after
                if slowest is None or after < slowest:
                    slowest = after
        if slowest is None:
            self.cache.clear()  # nobody is connected who could use it
        else:
            self.cache.evict_through(slowest)

    # Producers

    async def admit_producer(self, peer: Peer, name: str) -> None:
        """Refuse a producer if there are as many as may be; dead connections do not count.

        Raises:
            ProducerBusyError
        """
        others = [each for each in self.producers.values() if each.name != name]
        try:
            admission.check_producers(self._full_name, self.policies, len(others))
        except ProducerBusyError:
            await _probe(others, but=peer)
        self.check_producers(name)

    def check_producers(self, name: str) -> None:
        """The same without a look at connections: when it is let in.

        Raises:
            ProducerBusyError
        """
        others = len(self.producers) - (name in self.producers)
        admission.check_producers(self._full_name, self.policies, others)

    async def add_producer(
        self,
        peer: Peer,
        producer_id: int,
        *,
        name: str,
        epoch: int,
        access: Access = SHARED_ACCESS,
    ) -> Producer:
        """Let a producer in; it may have to wait for its turn.

        Raises:
            As `ProducerAccess.join`.
        """
        return await self.access.join(peer, producer_id, name=name, epoch=epoch, access=access)

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer that has left."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.access.leave(producer)

    def update_checks(self) -> None:
        """What is checked of messages has changed."""
        self.checks = checks_of(self)

    async def settled(self, producer_name: str) -> None:
        """Return when no message that was published under that name is undecided.

        Without deduplication nobody asks.
        """
        if self.deduplication is not None:
            await self.deduplication.settled(producer_name)

    # Subscriptions

    async def subscribe(
        self, name: str, consumer: Consumer, *, is_durable: bool, open_cursor: OpenCursor
    ) -> Subscription:
        """Let a consumer in, creating the subscription if need be.

        `open_cursor` makes the cursor; it is called while nobody else can join or seek.

        Raises:
            ConsumerBusyError, NotAllowedError: see `Subscription.join`, and the policies.
            SubscriptionNotFoundError: by the policies it does not appear by itself.
            ServiceNotReadyError: the topic was closed meanwhile.
            BrokerPersistenceError: the cursor cannot be opened now.
        """
        admission.check_type(self._full_name, self.policies, TYPE_NAMES[consumer.sub_type])
        while True:
            subscription = self._subscription(name, is_durable=is_durable)
            async with subscription.lock:
                if subscription.is_closed and not self.is_closed:
                    continue  # deleted while we waited for it: make a new one
                if self.is_closed:
                    raise ServiceNotReadyError(f"{self._full_name} is closing")
                try:
                    await self._admit_consumer(subscription, consumer)
                    is_new = not subscription.is_open
                    await self._open(subscription, open_cursor)
                    if is_new and consumer.start is not None:
                        subscription.placed(consumer.start)
                    await subscription.join(consumer)
                except BaseException:
                    self._drop_if_unused(subscription)
                    raise
                return subscription

    async def _admit_consumer(self, subscription: Subscription, consumer: Consumer) -> None:
        """Refuse a consumer by the policies; connections that are dead do not count."""
        try:
            self._check_consumers(subscription)
        except ConsumerBusyError:
            every = [each for known in self.subscriptions.values() for each in known.consumers]
            await _probe(every, but=consumer.peer)
            self._check_consumers(subscription)

    def _check_consumers(self, subscription: Subscription) -> None:
        admission.check_consumer(
            self._full_name,
            self.policies,
            subscription.name,
            sum(len(each.consumers) for each in self.subscriptions.values()),
            len(subscription.consumers),
        )

    def _subscription(
        self, name: str, *, is_durable: bool, is_asked_for: bool = False
    ) -> Subscription:
        """The subscription of that name, or a new one without a cursor yet."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            admission.check_subscription(
                self._full_name,
                self.policies,
                self.subscriptions,
                name,
                is_durable=is_durable,
                is_asked_for=is_asked_for,
            )
            subscription = self.subscriptions[name] = self._subscription_class(
                self._full_name,
                name,
                is_durable=is_durable,
                seek_return_timeout_ms=self._limits.seek_return_timeout_ms,
                gate=self.gate,
                on_abandoned=self._abandoned,
            )
        elif subscription.is_durable != is_durable:
            kind = "durable" if subscription.is_durable else "not durable"
            raise NotAllowedError(f"subscription {name} of {self._full_name} is {kind}")
        return subscription

    async def ensure_subscription(self, name: str, open_cursor: OpenCursor) -> None:
        """Have a durable subscription, without a consumer.

        Raises:
            NotAllowedError: the name is a reader's, or there are too many.
            BrokerPersistenceError: the cursor cannot be opened now.
        """
        subscription = self._subscription(name, is_durable=True, is_asked_for=True)
        async with subscription.lock:
            try:
                await self._open(subscription, open_cursor)
            except BaseException:
                self._drop_if_unused(subscription)
                raise

    async def _open(self, subscription: Subscription, open_cursor: OpenCursor) -> None:
        if subscription.is_open:
            return
        async with self.gate.placing():
            try:
                cursor = await open_cursor()
            except CursorError as error:
                raise BrokerPersistenceError(
                    f"subscription {subscription.name} of {self._full_name}: {error}"
                ) from error
            delays = self.delayed.view_of(subscription) if self.delayed is not None else None

            def on_progress() -> None:
                self._trim_soon()
                if delays is not None:
                    delays.progressed()

            subscription.context = self._context_of(subscription, cursor, on_progress, delays)

    def _context_of(
        self,
        subscription: Subscription,
        cursor: SubscriptionCursor,
        on_progress: Callable[[], None],
        delays: Delays | None = None,
    ) -> DispatchContext:
        return DispatchContext(
            topic=self._full_name,
            subscription=subscription.name,
            partition=self._partition,
            log=self.log,
            cache=self.cache,
            cursor=cursor,
            tenure=self.tenure,
            limits=self._limits.dispatch,
            policies=lambda: self.policies,
            on_progress=on_progress,
            limiters=self.dispatch_rates.limiters_of(subscription.name),
            delays=delays,
            early=self._early_place(cursor),
        )

    def _early_place(self, cursor: SubscriptionCursor) -> EarlyPlace | None:
        compaction = self.compaction
        if compaction is None:
            return None
        return EarlyPlace(lambda: compaction.compacted, self.log.first_position, cursor)

    def _drop_if_unused(self, subscription: Subscription) -> None:
        """After a failed join: a subscription without cursor, or a reader's without a reader."""
        if not subscription.is_open or (not subscription.is_durable and not subscription.consumers):
            self._abandoned(subscription)

    def _abandoned(self, subscription: Subscription) -> None:
        """Forget a subscription that lives in memory only, or was deleted."""
        if subscription.is_closed:
            return
        self._count_out(subscription)
        subscription.close()
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        self.trim_cache()

    async def unsubscribe(
        self, subscription: Subscription, consumer: Consumer, *, is_forced: bool
    ) -> None:
        """Delete a subscription on behalf of one of its consumers, who is not told otherwise.

        Raises:
            BrokerMetadataError: not allowed, see `Subscription.check_unsubscribe`.
            BrokerPersistenceError: the cursor could not be deleted.
        """
        async with subscription.lock:
            subscription.check_unsubscribe(consumer, is_forced=is_forced)
            await self._delete(subscription)
            subscription.leave(consumer)
            self._abandoned(subscription)

    async def delete_subscription(self, subscription: Subscription, *, is_forced: bool) -> None:
        """Delete a subscription on behalf of nobody who is connected; its consumers are told.

        Raises:
            ConsumerBusyError: it has consumers, and is not to be deleted by force.
            BrokerPersistenceError: the cursor could not be deleted.
        """
        async with subscription.lock:
            if subscription.is_closed:
                return
            if subscription.consumers and not is_forced:
                raise ConsumerBusyError(
                    f"Subscription has active connected consumers: {subscription.name} of "
                    f"{self._full_name} has {len(subscription.consumers)}"
                )
            await self._delete(subscription)
            self._abandoned(subscription)

    async def _delete(self, subscription: Subscription) -> None:
        try:
            await subscription.cursor.delete()
        except CursorError as error:
            raise BrokerPersistenceError(
                f"subscription {subscription.name} is not deleted: {error}"
            ) from error

    def durable_cursors(self) -> list[Cursor]:
        """The cursors that survive the broker, internal ones included: they hold trimming back."""
        cursors = [each.cursor for each in self.subscriptions.values() if each.is_open]
        durable = [each for each in cursors if isinstance(each, Cursor)]
        return durable + list(self.internal_cursors.values())

    @property
    def has_all_cursors(self) -> bool:
        """Whether no durable subscription is still being opened (rule 6.2)."""
        return all(each.is_open or not each.is_durable for each in self.subscriptions.values())

    def consumer_left(self, subscription: Subscription, consumer: Consumer) -> None:
        """Take a consumer out of its subscription."""
        subscription.leave(consumer)
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        self.trim_cache()

    def _count_out(self, subscription: Subscription) -> None:
        for consumer in subscription.consumers:
            self.messages_out_before += consumer.messages_out
            self.bytes_out_before += consumer.bytes_out

    # Questions

    def sent(self) -> tuple[int, int]:
        """Messages and bytes sent to consumers, those that have left included."""
        messages, size = self.messages_out_before, self.bytes_out_before
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                messages += consumer.messages_out
                size += consumer.bytes_out
        return messages, size

    async def last_message(self) -> tuple[Position, int]:
        """Position of the last entry, and the index of the last message in it (-1: no batch).

        (-1, -1) and -1 if the topic holds nothing.

        Raises:
            BrokerPersistenceError: the entry could not be read.
        """
        last = self.log.last_confirmed
        if last.entry_id < 0 or self.log.first_position() > last:
            return Position(-1, -1), -1
        known, index = self._last_index
        if known == last:
            return last, index
        run = self.cache.find(last)
        if run is not None:
            entry = run.entries[run.index_of(last)]
        else:
            try:
                _, found = await self.log.read_range(last, entries_max=1, bytes_max=1)
            except LedgerError as error:
                raise BrokerPersistenceError(
                    f"{self._full_name}: the last message cannot be read: {error}"
                ) from error
            if not found:
                raise BrokerPersistenceError(f"{self._full_name}: the last message is gone")
            entry = found[0]
        self._last_index = (last, last_batch_index_of(entry))
        return self._last_index

    # Closing

    def _close_for(self, _reason: str) -> None:
        self.disconnect_all()

    def disconnect_all(self, destination: Destination | None = None) -> None:
        """Take no more; tell every producer and consumer where the topic is, or to look it up."""
        self.is_closed = True
        self.access.close()
        self.publish_policies.close()
        if self.deduplication is not None:
            self.deduplication.close()
        if self.delayed is not None:
            self.delayed.close()
        if self.compaction is not None:
            self.compaction.close()
        for producer in list(self.producers.values()):
            producer.close_by_broker(destination)
        for subscription in list(self.subscriptions.values()):
            self._count_out(subscription)
            subscription.close(destination)
        self.cache.clear()


async def _probe(members: Sequence[Producer | Consumer], *, but: Peer) -> None:
    """Have those leave whose connections, but for one that just spoke, turn out to be dead."""
    peers = dict.fromkeys(each.peer for each in members if each.peer is not but)
    await asyncio.gather(*(peer.is_alive() for peer in peers))
