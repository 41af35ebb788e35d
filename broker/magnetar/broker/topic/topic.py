"""A topic: one managed log, its tail cache, its producers and its subscriptions.

A topic is loaded when it is first used (`topics/`), and closed when the broker stops, when it
moves to another broker, or when another owner takes its log over. Closing tells every producer and
consumer, which go where they are told or look the topic up again; the object is never revived.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from magnetar.broker import admission
from magnetar.broker.access import SHARED_ACCESS, Access, ProducerAccess
from magnetar.broker.compaction.compaction import Compaction
from magnetar.broker.deduplication.deduplication import Deduplication
from magnetar.broker.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.dispatch.throttle import DispatchRates
from magnetar.broker.entry import MARKER
from magnetar.broker.errors import ProducerBusyError
from magnetar.broker.keeping.gate import TrimGate
from magnetar.broker.message_checks import MessageCheck, checks_of
from magnetar.broker.meter import Meter, Sampled
from magnetar.broker.ownership.protocol import Destination, Tenure
from magnetar.broker.ownership.sole_owner import ALWAYS
from magnetar.broker.peer import probe
from magnetar.broker.policies.effective import DEFAULTS, EffectivePolicies
from magnetar.broker.producer import Producer, ProducerPeer, PublishBatch
from magnetar.broker.publish_policies import PublishPolicies
from magnetar.broker.run import Run
from magnetar.broker.tail_cache import TailCache
from magnetar.broker.topic.last_message import LastMessage
from magnetar.broker.topic.subscriptions import TopicSubscriptions
from magnetar.broker.topic.surroundings import OldestEntry, TopicLimits, TopicLog
from magnetar.broker.tracing import TopicTrace
from magnetar.broker.transactions.appends import Record
from magnetar.broker.transactions.visibility import Visibility
from magnetar.cursors import Cursor
from magnetar.ledger.errors import LogClosedError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

if TYPE_CHECKING:
    from magnetar.broker.transactions.coordinator import Coordinator
    from magnetar.broker.transactions.topic_transactions import TopicTransactions


_SAMPLES_PER_TURN = 500
"""Producers, subscriptions and consumers whose counters are noted in one turn of the event loop."""


class Topic:
    """One topic that this broker owns. All methods run on the event loop."""

    _subscriptions_class: type[TopicSubscriptions] = TopicSubscriptions

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        cache: TailCache,
        limits: TopicLimits,
        tenure: Tenure = ALWAYS,
        policies: EffectivePolicies = DEFAULTS,
        *,
        clock: Clock,
    ) -> None:
        """`tenure`: the right to serve it. `policies`: what counts for it now."""
        self.name = name
        self.limits = limits
        self.clock = clock
        self.loaded_s = clock.monotonic_s()
        self.tenure = tenure
        self.policies = policies
        """What counts now; see `apply_policies`."""
        self.subscribe_rate = admission.SubscribeRate()
        self.on_policies: list[Callable[[EffectivePolicies], None]] = []
        """Called with the policies that are replaced; `policies` are the new ones already."""
        self.log = log
        self.cache = cache
        self.visibility = Visibility(log)
        """What of it may be read."""
        self.producers: dict[str, Producer] = {}
        self.subscriptions = self._subscriptions_class(
            self, seek_return_timeout_ms=limits.seek_return_timeout_ms
        )
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
        self.trace: TopicTrace | None = None
        """Set while the topic is loaded, if messages are traced."""
        self.compaction: Compaction | None = None
        """Set while the topic is loaded."""
        self.transactions: TopicTransactions | None = None
        """Set while the topic is loaded, unless it keeps nothing."""
        self.coordinator: Coordinator | None = None
        """Set if it is the place of a coordinator of transactions: its log is that one's."""
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
        self.is_terminating = False
        """It is about to take no more messages, for good; its log takes none by now."""
        self._in_flight = 0
        """Batches that the log has not answered."""
        self._drained: asyncio.Future[None] | None = None
        self._full_name = str(name)
        self._loop = asyncio.get_running_loop()
        self._is_wake_scheduled = False
        self._is_trim_scheduled = False
        self.last_message = LastMessage(self._full_name, log, cache, self.visibility)
        self.is_asked_for = False
        """Somebody but the broker itself has asked for it since it was loaded."""
        self.joined = 0
        """How often a producer or consumer was let in: whoever looks now and then sees by it that
        somebody was here meanwhile."""
        self._read_until_s = 0.0
        # Statistics; the metrics collector reads them.
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.messages_dropped = 0
        """Messages that a topic without a store took no notice of: too many at once."""
        self.meter = Meter(0, 0, 0, since_ms=clock.wall_ms())
        """Of messages, bytes and what was dropped."""
        self.oldest_seen: OldestEntry | None = None
        """The oldest entry of its backlogs when statistics were last asked for."""
        self.last_publish_s = 0.0
        """When the newest message arrived, monotonic; 0: none since the topic was loaded."""
        self.entries_in = 0
        self.messages_failed = 0
        self.trimmed_ledgers = 0
        self.evicted_entries = 0
        """Entries that left a backlog because it was above its quota."""
        self.dispatch_rates = DispatchRates(
            lambda: self.policies, self._loop.time, lambda: (self.messages_in, self.bytes_in)
        )

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
            if batch.transactions is not None and self.transactions is not None:
                batch.handed_over = self.transactions.buffer.handed_over()
            self.log.append(batch)

    def entries_appended(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Entries are durable: keep them for those who tail, and wake the dispatchers once."""
        self._answered()
        self.entries_in += len(batch.payloads)
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.last_publish_s = batch.arrived_s
        if batch.transactions is not None and self.transactions is not None:
            self.transactions.buffer.stored(batch, ledger_id, first_entry_id)
        if self.deduplication is not None:
            self.deduplication.on_stored(batch, ledger_id, first_entry_id)
        if batch.traces is not None and self.trace is not None:
            self.trace.stored(batch.traces, ledger_id, first_entry_id)
        if not self.subscriptions:
            return
        run = Run(
            ledger_id,
            first_entry_id,
            batch.payloads,
            messages=batch.counts,
            is_plain=batch.is_plain,
            chunk_indexes=batch.chunks,
        )
        self.cache.add(run)
        self._wake_soon()

    def append_internal(self, record: Record) -> None:
        """Append entries of the broker's own, which are never delivered."""
        self._in_flight += 1
        record.done.add_done_callback(lambda _: self._answered())
        if self.is_closed:
            record.on_failed(LogClosedError(f"{self._full_name} is closed"))
        else:
            self.log.append(record)

    def internal_stored(self, position: Position, entry: bytes) -> None:
        """Such an entry is durable; readers may see more now."""
        self.entries_in += 1
        if self.subscriptions:
            self.cache.add(Run(*position, [entry], messages=[MARKER]))
            self._wake_soon()

    def _wake_soon(self) -> None:
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
        self._is_trim_scheduled = True  # below, however many dispatchers move on
        for subscription in list(self.subscriptions.values()):
            subscription.wake()
        self.trim_cache()

    def log_ended(self) -> None:
        """The log was terminated: consumers that have seen everything are told."""
        for subscription in list(self.subscriptions.values()):
            subscription.wake()

    def trim_cache_soon(self) -> None:
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

    async def admit_producer(self, peer: ProducerPeer, name: str) -> None:
        """Refuse a producer if there are as many as may be; dead connections do not count.

        Raises:
            ProducerBusyError
        """
        try:
            self.check_producers(name)
        except ProducerBusyError:
            others = [each for each in self.producers.values() if each.name != name]
            await probe((each.peer for each in others), but=peer)
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
        peer: ProducerPeer,
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

    def hold_for_reading(self, hold_s: float) -> None:
        """Count as used for so long: somebody reads what is stored without connecting, as queries
        do that go straight to the bookies. Kept in memory: a topic that moves forgets it."""
        self._read_until_s = max(self._read_until_s, asyncio.get_running_loop().time() + hold_s)

    @property
    def is_held_for_reading(self) -> bool:
        """Whether somebody reads it without connecting."""
        return asyncio.get_running_loop().time() < self._read_until_s

    def sample(self, now_ms: int) -> None:
        """Note the counters for the rates, once per interval."""
        self.meter.sample(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)
        subscriptions = list(self.subscriptions.values())
        consumers = (each for subscription in subscriptions for each in subscription.consumers)
        self._sample([*self.producers.values(), *subscriptions, *consumers], now_ms)

    def _sample(self, members: Sequence[Sampled], now_ms: int) -> None:
        for member in members[:_SAMPLES_PER_TURN]:
            member.sample(now_ms)
        rest = members[_SAMPLES_PER_TURN:]
        if rest:
            self._loop.call_soon(self._sample, rest, now_ms)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Messages and bytes published, and messages dropped, per second of the last minute."""
        return self.meter.per_s(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)

    @property
    def last_publish_ms(self) -> int:
        """When the newest message arrived, ms since the epoch; 0: none since it was loaded."""
        if not self.last_publish_s:
            return 0
        ago_s = max(0.0, self.clock.monotonic_s() - self.last_publish_s)
        return self.clock.wall_ms() - int(ago_s * 1000)

    # Cursors

    def durable_cursors(self) -> list[Cursor]:
        """The cursors that survive the broker, internal ones included: they hold trimming back."""
        return [*self.subscriptions.durable_cursors(), *self.internal_cursors.values()]

    def abandon_cursors(self) -> None:
        """Write nothing of them any more, nor of what else is beside the log: they may be somebody
        else's."""
        for cursor in self.durable_cursors():
            cursor.abandon()
        if self.transactions is not None:
            self.transactions.abandon()

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
        if self.coordinator is not None:
            self.coordinator.close()
        for producer in list(self.producers.values()):
            producer.close_by_broker(destination)
        self.subscriptions.close(destination)
        if self.trace is not None:
            self.trace.close()
        self.cache.clear()
