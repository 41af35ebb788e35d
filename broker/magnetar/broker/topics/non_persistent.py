"""A non-persistent topic: receipts at once, messages only to consumers with permits, nothing
stored.

Producers and consumers join by the rules of persistent topics; see the protocol sheet, section 7.
An entry goes to a consumer that has permits now, or is dropped. The choice is as for persistent
topics: the one consumer of Exclusive, the active one of Failover, the next one in turn of Shared,
the one that has the key's hash of Key_Shared. Nothing is pending, nothing is redelivered, and every
message has the id 0:0. The topic's log is always empty, and disappears with the broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from magnetar.broker.base.entry import MARKER
from magnetar.broker.base.errors import ConsumerBusyError, NotAllowedError
from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic import OpenCursor, PublishBatch, PublishLine, Topic, TopicSubscriptions
from magnetar.broker.topic.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.topic.dispatch.encoding import CHECKSUM_VERSION_MIN, strip_checksum
from magnetar.broker.topic.dispatch.failover import ActiveChoice, Notices
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.selectors import selector_of
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.errors import LogClosedError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.managed_log.log_extent import LogShape
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_retention import Retention
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import encode_message_prefix, encode_send_receipts

BATCH_ENTRIES_MAX = 1000
"""Most entries accepted of one batch: what one producer sent of the bytes that its connection
handles in one turn. More are dropped, and receipted with -1:-1.

Batches are answered at once, so nothing is in flight between two turns. Pulsar's brokers, which
answer later, limit what is in flight on a connection, of all its producers together
(maxConcurrentNonPersistentMessagePerConnection, 1000)."""


class PassingSubscription(Subscription):
    """A subscription of a non-persistent topic: membership only."""

    def _new_dispatcher(self, context: DispatchContext, consumer: Consumer) -> Dispatcher:
        return PassingDispatcher(context, consumer)

    @property
    def messages_dropped(self) -> int:
        dispatcher = self.dispatcher
        return dispatcher.dropped_messages if isinstance(dispatcher, PassingDispatcher) else 0

    async def seek(
        self,
        consumer: Consumer | None,
        find: Callable[[], Awaitable[tuple[Position, Sequence[int]]]],
    ) -> None:
        """Close the consumer as any seek does, so that it reconnects with all of its permits.

        All positions mean the same here: the next message.

        Raises:
            NotAllowedError: an operator asks, for whom a seek would have no effect.
        """
        if consumer is None:
            raise NotAllowedError(
                f"{self.topic} is not persistent: there is no position to reset to"
            )
        await super().seek(consumer, find)

    def _in_the_way(self, consumer: Consumer) -> Consumer | None:
        if consumer.sub_type == EXCLUSIVE:
            return self.consumers[0]
        dispatcher = self.dispatcher
        assert isinstance(dispatcher, PassingDispatcher)
        if dispatcher.mode != consumer.key_shared:
            raise ConsumerBusyError(
                f"subscription {self.name} is in use with {dispatcher.mode}, but the consumer "
                f"requested {consumer.key_shared}"
            )
        return dispatcher.conflict_of(consumer)

    def _needs_dispatcher(self, consumer: Consumer) -> bool:
        dispatcher = self.dispatcher
        return (
            not isinstance(dispatcher, PassingDispatcher)
            or dispatcher.sub_type != consumer.sub_type
            or dispatcher.mode != consumer.key_shared
        )


class PassingSubscriptions(TopicSubscriptions):
    """The subscriptions of a non-persistent topic."""

    _subscription_class = PassingSubscription

    async def _open(
        self, subscription: Subscription, open_cursor: OpenCursor, *, is_stored: bool
    ) -> None:
        """Attach a cursor without a stored position; `open_cursor` is ignored."""
        if not subscription.is_open:
            cursor = NonDurableCursor(self._topic.log, subscription.name, initial=LATEST)
            subscription.context = self._context_of(subscription, cursor, lambda: None)


class PassingLine(PublishLine):
    """The publish line of a non-persistent topic, which ends here and not in a log."""

    def append(self, batch: PublishBatch) -> None:
        """Answer the batch at once, and dispatch the accepted entries."""
        taken = batch.payloads[:BATCH_ENTRIES_MAX]
        highest = batch.highest_ids if batch.has_highest_ids else None
        cut = len(taken)
        frames = encode_send_receipts(
            batch.producer_id,
            batch.sequence_ids[:cut],
            ledger_id=0,
            entry_ids=[0] * cut,
            highest_sequence_ids=highest[:cut] if highest is not None else None,
        )
        left = len(batch.payloads) - cut
        if left:
            frames += encode_send_receipts(
                batch.producer_id,
                batch.sequence_ids[cut:],
                ledger_id=-1,
                entry_ids=[-1] * left,
                highest_sequence_ids=highest[cut:] if highest is not None else None,
            )
        self.entries_in += cut
        dropped = sum(batch.counts[cut:]) if left else 0
        self.messages_dropped += dropped
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.last_publish_s = batch.arrived_s
        batch.answered(frames, dropped=dropped)
        if self.tenure.holds():
            run = Run(
                0,
                0,
                taken,
                messages=batch.counts[:cut],
                is_plain=batch.is_plain,
                chunk_indexes=[each for each in batch.chunks if each < cut],
            )
            for subscription in self._subscriptions.values():
                if isinstance(subscription.dispatcher, PassingDispatcher):
                    subscription.dispatcher.offer(run)


class NonPersistentTopic(Topic):
    """Publishing and subscribing without a store; everything else is inherited from `Topic`."""

    _subscriptions_class = PassingSubscriptions
    _line_class = PassingLine


class PassingDispatcher(Dispatcher):
    """Dispatch without a store, for one subscription of any type."""

    def __init__(self, context: DispatchContext, consumer: Consumer) -> None:
        """`consumer`: the first one; its type and mode become the subscription's."""
        super().__init__(context)
        self.sub_type = consumer.sub_type
        self.mode = consumer.key_shared
        self.selector = selector_of(
            self.mode, splits_ranges=not context.settings.key_shared_consistent_hashing
        )
        self.dropped_messages = 0
        """Messages that no consumer could take; see `Subscription.messages_dropped`."""
        self._turn = 0
        self._choice = ActiveChoice(topic=context.topic, partition=context.partition)
        self._active: Consumer | None = None
        self._notices = Notices(
            weakly(self._is_active), delay_ms=context.settings.failover_delay_ms
        )

    # Membership

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        if self.sub_type == KEY_SHARED:
            self.selector.add(consumer)
        elif self.sub_type in (EXCLUSIVE, FAILOVER):
            self._choice.add(consumer)
            if self.sub_type == FAILOVER:
                self._notices.welcome(consumer)
            self._activate()

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = self._without(consumers)
        if not gone:
            return
        if self.sub_type == KEY_SHARED:
            for consumer in gone:
                self.selector.remove(consumer)
        elif self.sub_type in (EXCLUSIVE, FAILOVER):
            self._choice.remove_all(gone)
            self._notices.forget(gone)
            self._activate()

    def begin(self, consumer: Consumer) -> None:
        self._notices.begin(consumer)

    def _is_active(self, consumer: Consumer) -> bool:
        return consumer is self._active

    def _activate(self) -> None:
        """Choose the active consumer; notify all consumers of Failover if the choice has
        changed."""
        former, self._active = self._active, self._choice.chosen()
        if self.sub_type == FAILOVER and self._active is not former:
            asyncio.get_running_loop().call_soon(self._notices.tell_all, list(self.consumers))

    @property
    def active(self) -> Consumer | None:
        """Consumer that gets everything, of Exclusive and Failover."""
        return self._active

    def conflict_of(self, consumer: Consumer) -> Consumer | None:
        """Return a consumer that has some of the hashes that this one requests."""
        return self.selector.conflict_of(consumer.hash_ranges)

    # Sending

    def offer(self, run: Run) -> None:
        """Send entries to consumers with permits; drop the rest."""
        if self._is_paused or not self.consumers:
            self.dropped_messages += sum(each for each in run.messages if each != MARKER)
            return
        hashes = None
        if self.sub_type == KEY_SHARED:
            hashes = self.selector.hashes_in(run, 0, len(run.entries))
        outgoing: dict[Consumer, list[bytes]] = {}
        chunks = run.chunks
        for index, entry in enumerate(run.entries):
            messages = run.messages[index]
            if messages == MARKER:
                continue
            consumer = self._choose(hashes[index] if hashes is not None else 0)
            if consumer is None or consumer.permits <= 0 or not consumer.peer.is_writable:
                self.dropped_messages += messages
                continue
            if consumer.peer.protocol_version < CHECKSUM_VERSION_MIN:
                entry = strip_checksum(entry)
            prefix = encode_message_prefix(
                consumer.consumer_id,
                ledger_id=0,
                entry_id=0,
                payload_bytes=len(entry),
                partition=self.context.partition,
                consumer_epoch=consumer.epoch,
            )
            outgoing.setdefault(consumer, []).extend((prefix, entry))
            consumer.permits -= messages
            consumer.messages_out += messages
            consumer.bytes_out += len(entry)
            consumer.entries_out += 1
            if chunks and index in chunks:
                consumer.chunks_out += 1
        now_ms = self.context.wall_ms() if outgoing else 0
        for consumer, parts in outgoing.items():
            consumer.was_sent(now_ms)
            consumer.peer.write(b"".join(parts))

    def _choose(self, key_hash: int) -> Consumer | None:
        if self.sub_type == KEY_SHARED:
            return self.selector.select(key_hash)
        if self.sub_type in (EXCLUSIVE, FAILOVER):
            return self._active
        ready = [each for each in self.consumers if each.is_ready]
        if not ready:
            return None
        top = min(each.priority for each in ready)
        group = [each for each in ready if each.priority == top]
        self._turn += 1
        return group[self._turn % len(group)]

    def wake(self) -> None:
        """Do nothing: no entry waits for permits."""

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Do nothing: no entry is kept for redelivery."""

    def rewind(self) -> None:
        """Do nothing: there is no earlier position."""

    def _why_not_sending(self) -> Reason | None:
        return None


class VolatileLog:
    """The log interface of a topic, implemented for a log without entries."""

    terminated: Position | None = None
    leftover_ledgers = 0

    def __init__(self, path: str) -> None:
        self.path = path
        self.properties: dict[str, str] = {}
        self._shape = LogShape([(0, 0)])
        self._on_fenced: list[Callable[[], None]] = []

    def append(self, batch: AppendBatch) -> None:
        batch.on_failed(LogClosedError(f"{self.path} keeps nothing"))

    async def rotate(self) -> None:
        """Do nothing: there are no ledgers."""

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Update the properties, in memory only."""
        for name, value in changes.items():
            self.properties.pop(name, None)
            if value is not None:
                self.properties[name] = value

    async def terminate(self) -> Position:
        raise NotAllowedError(f"{self.path} is not persistent: it cannot be terminated")

    @property
    def ledgers(self) -> Sequence[LogLedger]:
        return ()

    @property
    def last_confirmed(self) -> Position:
        return self._shape.last_confirmed

    def prepare(self) -> None:
        """Do nothing: there are no ledgers."""

    def first_position(self) -> Position:
        return self._shape.first_at_or_after(Position(-1, -1))

    def next_position(self, position: Position) -> Position:
        return self._shape.next_position(position)

    def previous_position(self, position: Position) -> Position:
        return self._shape.previous_position(position)

    def entries_between(self, lower: Position, upper: Position) -> int:
        return 0

    def stored_since_ms(self, _position: Position) -> int:
        return 0

    async def entries_after(self, _ledger_id: int, _publish_ms: int) -> range | None:
        return None

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        return self.first_position(), []

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None:
        return None

    async def unlist(self, before: Position) -> int:
        return 0

    async def delete_unlisted(self) -> None:
        """Do nothing: there are no ledgers."""

    def on_fenced(self, callback: Callable[[], None]) -> None:
        self._on_fenced.append(callback)

    def abandon(self, reason: str) -> None:
        callbacks, self._on_fenced = self._on_fenced, []
        for callback in callbacks:
            callback()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
