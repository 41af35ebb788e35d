"""A subscription: one cursor, its consumers, and the rules for joining, seeking and leaving.

Joining, seeking and deleting exclude each other. A SUBSCRIBE that arrives during a seek waits for
it, because a retryable error would hang the official client. Leaving does not wait: a lost
connection removes its consumers at once.

A non-durable subscription lives as long as its consumers. A seek closes them, but keeps the
subscription until they reconnect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from magnetar.broker.base import replies
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    ConsumerAssignError,
    ConsumerBusyError,
    NotAllowedError,
    ServiceNotReadyError,
    UnknownFailureError,
)
from magnetar.broker.base.meter import Meter
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.topic.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    TYPE_NAMES,
    Consumer,
)
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher, SingleActiveDispatcher
from magnetar.broker.topic.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.topic.dispatch.failover import FailoverDispatcher
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.selectors import check_ranges
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.broker.topic.trim_gate import TrimGate
from magnetar.cursors import (
    AckRange,
    BatchAck,
    Cursor,
    CursorError,
    SubscriptionCursor,
    words_from_bits,
)
from magnetar.ledger.position import Position

_log = structlog.get_logger()


PARTLY_ACKED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of ack_set words that a subscription keeps of partly acknowledged batches, before it
ignores the first part of one more. A word of eight bytes comes as one byte on the wire. Batches of
1000 messages fill it when 134,000 of them are acknowledged in part."""

REPLICATED_PROPERTY: Final = "pulsar.replicated.subscription"
"""Position property of the cursor of a replicated subscription, with the value 1. It is stored
(docs/formats/cursor-record.md)."""


def is_replicated(cursor: SubscriptionCursor) -> bool:
    """Whether the cursor belongs to a replicated subscription."""
    return isinstance(cursor, Cursor) and bool(cursor.position_properties.get(REPLICATED_PROPERTY))


def _before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)


def _make_dispatcher(context: DispatchContext, consumer: Consumer) -> Dispatcher:
    """Return a dispatcher of the type that the consumer requests.

    Raises:
        NotAllowedError: there is no such type.
    """
    match consumer.sub_type:
        case t if t == EXCLUSIVE:
            return ExclusiveDispatcher(context)
        case t if t == FAILOVER:
            return FailoverDispatcher(context)
        case t if t == SHARED:
            return SharedDispatcher(context)
        case t if t == KEY_SHARED:
            return KeySharedDispatcher(context, consumer.key_shared)
    raise NotAllowedError(f"there is no subscription type {consumer.sub_type}")


def knows_end_of_topic(client_version: str) -> bool:
    """Whether the client understands REACHED_END_OF_TOPIC.

    The C++ client, in all its languages, closes its connection on it (protocol sheet section 12).
    Only its name identifies it.
    """
    return not client_version.startswith("Pulsar-CPP")


class HeldBack(Protocol):
    """Entries withheld from consumers, such as those that an open transaction has acknowledged."""

    def holds(self, position: Position, /) -> bool:
        """Whether an entry is withheld as a whole."""
        ...


CursorView = Callable[[SubscriptionCursor], SubscriptionCursor]
"""From a subscription's cursor to the view of it that its dispatcher uses."""


class Subscription:
    """One subscription of one topic. `context` is set with the cursor, once that is open."""

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        is_durable: bool,
        seek_return_timeout_ms: int,
        gate: TrimGate,
        on_abandoned: Callable[["Subscription"], None],
        opened_ms: int,
    ) -> None:
        """`gate`: the topic's gate. `on_abandoned`: called when a non-durable subscription loses
        its last consumer."""
        self.topic = topic
        self.name = name
        self.is_durable = is_durable
        self.lock = asyncio.Lock()
        self.is_closed = False
        self.context: DispatchContext | None = None
        self.dispatcher: Dispatcher | None = None
        self.is_replicated = False
        """Whether it is replicated to other clusters; changed by `set_replicated`."""
        self.on_replicated: Callable[[Subscription], None] | None = None
        """Called after a change of `is_replicated`."""
        self.pending_acks: HeldBack | None = None
        """Entries withheld from consumers although unacknowledged; None if nothing was ever
        withheld."""
        self._view: CursorView | None = None
        """View of the cursor for dispatchers, which includes `pending_acks`."""
        self._sent_before = (0, 0, 0)
        """Messages, bytes and redeliveries of consumers that have left."""
        self.last_flow_ms = 0
        """When a consumer last granted permits, ms since the epoch; 0: never."""
        self._advanced_ms = 0
        """When the mark-delete position last moved, ms since the epoch; read it by
        `last_advanced_ms`."""
        self._last_sent_ms = 0
        """When messages were last sent to a consumer that has left, ms since the epoch; 0:
        never."""
        self._last_acked_ms = 0
        self._mark: Position | None = None
        """Mark-delete position at the last look; None before the first."""
        self.expired_entries = 0
        """Entries that expired since the subscription was opened on this broker."""
        self.last_expired_ms = 0
        self._meter = Meter(0, 0, since_ms=opened_ms)
        """Rates of expired entries and of dropped messages."""
        self.last_used_s = 0.0
        """When it was last seen in use, monotonic seconds."""
        self.seen_written_ms = -1
        """When its cursor had been written, ms since the epoch, as of the last look; -1: never
        looked."""
        self.was_used = False
        """Whether a consumer has joined or left since the last check for unused subscriptions."""
        self._is_full_logged = False
        self._gate = gate
        self._seek_return_timeout_ms = seek_return_timeout_ms
        self._on_abandoned = on_abandoned
        self._return_timer: asyncio.TimerHandle | None = None

    # State

    @property
    def is_open(self) -> bool:
        return self.context is not None

    @property
    def cursor(self) -> SubscriptionCursor:
        assert self.context is not None, "the cursor is not open yet"
        return self.context.cursor

    async def set_replicated(self, value: bool) -> None:
        """Turn replication of the subscription to other clusters on or off; durable on return.

        Raises:
            NotAllowedError: the subscription is not durable.
            BrokerPersistenceError: the change could not be stored; try again.
        """
        if not self.is_durable:
            raise NotAllowedError(
                f"subscription {self.name} of {self.topic} is not durable: it is not replicated"
            )
        cursor = self.cursor
        if isinstance(cursor, Cursor):
            properties = dict(cursor.position_properties)
            properties.pop(REPLICATED_PROPERTY, None)
            cursor.set_position_properties(
                {**properties, REPLICATED_PROPERTY: 1} if value else properties
            )
            try:
                await cursor.persist()
            except CursorError as error:
                raise BrokerPersistenceError(
                    f"subscription {self.name} of {self.topic}: whether it is replicated is not "
                    f"stored: {error}"
                ) from error
        self.is_replicated = value
        if self.on_replicated is not None:
            self.on_replicated(self)

    def hold_back(self, held: HeldBack, view: CursorView) -> None:
        """Withhold entries from consumers from now on. `view`: the cursor as dispatchers then see
        it."""
        self.pending_acks, self._view = held, view
        if self.dispatcher is not None:
            self.dispatcher.use_cursor(view(self.cursor))

    def sent(self) -> tuple[int, int, int]:
        """Return messages, bytes and redeliveries, including those of consumers that have left."""
        messages, size, again = self._sent_before
        for consumer in self.consumers:
            messages += consumer.messages_out
            size += consumer.bytes_out
            again += consumer.messages_redelivered
        return messages, size, again

    def sample(self, now_ms: int) -> None:
        """Sample the subscription's counters for the rates, without its consumers'; called once per
        interval."""
        self._meter.sample(now_ms, self.expired_entries, self.messages_dropped)
        self._notice_move(self.last_acked_ms)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Return entries expired, and messages dropped, per second of the last minute."""
        return self._meter.per_s(now_ms, self.expired_entries, self.messages_dropped)

    @property
    def last_sent_ms(self) -> int:
        """When a consumer was sent messages last, ms since the epoch; 0: never."""
        return max([self._last_sent_ms, *(each.sent_ms for each in self.consumers)])

    @property
    def last_acked_ms(self) -> int:
        """When a consumer acknowledged anything last, ms since the epoch; 0: never."""
        return max([self._last_acked_ms, *(each.acked_ms for each in self.consumers)])

    @property
    def messages_dropped(self) -> int:
        """Messages that were not stored, and that no consumer could take."""
        return 0

    @property
    def last_advanced_ms(self) -> int:
        """When the mark-delete position last moved, ms since the epoch; 0: not since it was opened.

        For speed, acknowledgements do not record this. The next sample or read of this property
        notices a move, and dates it by the last acknowledgement.
        """
        self._notice_move(self.last_acked_ms)
        return self._advanced_ms

    def moved(self) -> None:
        """Note that something other than acknowledgements of consumers moved the mark-delete
        position."""
        if self.context is not None:
            self._notice_move(self.context.wall_ms())

    def _notice_move(self, at_ms: int) -> None:
        if self.context is None:
            return
        mark = self.context.cursor.mark_delete
        if mark != self._mark:
            self._mark = mark
            self._advanced_ms = max(self._advanced_ms, at_ms)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def type_name(self) -> str:
        return TYPE_NAMES[self.dispatcher.sub_type] if self.dispatcher is not None else "None"

    @property
    def unacked_messages(self) -> int:
        return sum(consumer.unacked_messages for consumer in self.consumers)

    def wake(self) -> None:
        """Run the dispatcher: entries were appended, or a consumer can take more."""
        if self.dispatcher is not None:
            self.dispatcher.wake()
            assert self.context is not None
            if self.context.log.terminated is not None:
                self.tell_end()

    def limits_changed(self) -> None:
        """Apply changed policies to the dispatcher; entries that waited for former limits may be
        sent."""
        if self.dispatcher is not None:
            self.dispatcher.limits_changed()

    def tell_end(self) -> None:
        """Notify consumers that the topic is terminated and everything is acknowledged."""
        context = self.context
        if context is None or context.log.terminated is None or self.is_closed:
            return
        if not context.cursor.is_caught_up or not context.tenure.holds():
            return
        for consumer in self.consumers:
            if not consumer.is_told_end and not consumer.is_closed:
                consumer.is_told_end = True
                if knows_end_of_topic(consumer.peer.client_version):
                    consumer.peer.write(replies.reached_end_of_topic(consumer.consumer_id))

    def why_idle(self) -> Reason | None:
        """Return why nothing is delivered now; None if something is, or is about to be."""
        if self.is_closed or self.context is None:
            return Reason.PAUSED
        if self.dispatcher is None:
            return Reason.NO_CONSUMER
        return self.dispatcher.why_idle()

    def check(self) -> None:
        """Check the dispatcher's accounts for contradictions.

        Raises:
            AccountsError: they contradict each other.
        """
        if self.dispatcher is not None:
            self.dispatcher.check()

    # Joining and leaving. The caller of the coroutines holds `lock`.

    async def join(self, consumer: Consumer, check: Callable[[], None] | None = None) -> None:
        """Admit a consumer. `check`: a last check that may refuse it; no await follows.

        Raises:
            ConsumerBusyError: the subscription is taken, or used with another type or mode.
            ConsumerAssignError: its hash ranges are invalid, or overlap with another consumer's.
            NotAllowedError: there is no such type.
        """
        assert self.lock.locked()
        assert self.context is not None
        if consumer.hash_ranges or consumer.key_shared.is_sticky:
            check_ranges(
                consumer.hash_ranges, of=f"consumer {consumer.name!r} of subscription {self.name}"
            )
        while self.consumers:
            assert self.dispatcher is not None
            if self.dispatcher.sub_type != consumer.sub_type:
                raise ConsumerBusyError(
                    f"subscription {self.name} is in use as {self.type_name}, but the consumer "
                    f"requested {TYPE_NAMES.get(consumer.sub_type, consumer.sub_type)}"
                )
            holder = self._in_the_way(consumer)
            if holder is None:
                break
            is_taken = holder.peer is consumer.peer or await holder.peer.is_alive()
            if not is_taken:
                # Now, not in its turn: a lost connection has a few of its consumers leave per turn
                # of the event loop, and probing it again may not let another turn begin.
                self.leave(holder)
            elif holder in self.consumers:
                if consumer.sub_type == EXCLUSIVE:
                    raise ConsumerBusyError(
                        f"subscription {self.name} is exclusive and has a consumer: "
                        f"{holder.name!r} at {holder.peer.address}"
                    )
                what = "are not" if consumer.key_shared.by_buckets else "overlap with"
                raise ConsumerAssignError(
                    f"subscription {self.name}: the hash ranges of {consumer.name!r} {what} "
                    f"those of {holder.name!r} at {holder.peer.address}"
                )
        if self.is_closed:
            raise ServiceNotReadyError(f"{self.topic} is closing")
        if check is not None:
            check()
        if self._needs_dispatcher(consumer):
            context = self.context
            if self._view is not None:
                context = replace(context, cursor=self._view(self.cursor))
            dispatcher = self._new_dispatcher(context, consumer)
            if self.dispatcher is not None:
                self.dispatcher.close()
            self.dispatcher = dispatcher
        assert self.dispatcher is not None
        self._stop_return_timer()
        self.was_used = True
        if self._mark is None:
            self._mark = self.cursor.mark_delete
        self.dispatcher.add(consumer)
        if self.context.log.terminated is not None:
            # After the answer to its SUBSCRIBE.
            asyncio.get_running_loop().call_soon(self.tell_end)

    def _new_dispatcher(self, context: DispatchContext, consumer: Consumer) -> Dispatcher:
        return _make_dispatcher(context, consumer)

    def _in_the_way(self, consumer: Consumer) -> Consumer | None:
        """Return a consumer that excludes the new one, provided that it is alive.

        Raises:
            ConsumerBusyError: the modes of Key_Shared do not agree.
        """
        if consumer.sub_type == EXCLUSIVE:
            return self.consumers[0]
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, KeySharedDispatcher):
            return None
        if dispatcher.mode != consumer.key_shared:
            raise ConsumerBusyError(
                f"subscription {self.name} is in use with {dispatcher.mode}, but the consumer "
                f"requested {consumer.key_shared}"
            )
        return dispatcher.conflict_of(consumer.hash_ranges)

    def _needs_dispatcher(self, consumer: Consumer) -> bool:
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.sub_type != consumer.sub_type:
            return True
        return isinstance(dispatcher, KeySharedDispatcher) and (
            dispatcher.mode != consumer.key_shared
        )

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer for good."""
        self.leave_all((consumer,))

    def leave_all(self, consumers: Sequence[Consumer]) -> None:
        """Remove consumers for good."""
        leaving = [each for each in consumers if not each.is_closed]
        if not leaving:
            return
        self.was_used = True
        for consumer in leaving:
            consumer.is_closed = True
            messages, size, again = self._sent_before
            self._sent_before = (
                messages + consumer.messages_out,
                size + consumer.bytes_out,
                again + consumer.messages_redelivered,
            )
            self._last_sent_ms = max(self._last_sent_ms, consumer.sent_ms)
            self._last_acked_ms = max(self._last_acked_ms, consumer.acked_ms)
        if self.dispatcher is not None:
            self.dispatcher.remove_all(leaving)
        if not self.is_durable and not self.consumers and not self.lock.locked():
            # While the lock is held, a consumer joins or seeks: the subscription is not abandoned.
            self._on_abandoned(self)

    def disconnect(self, consumer: Consumer, destination: Destination | None = None) -> None:
        """Remove a consumer and notify its client; if the topic moves, with the destination."""
        if not consumer.is_closed:
            self.leave(consumer)
            consumer.on_closed(consumer, destination)

    # Requests of consumers

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits."""
        consumer.permits += permits
        self.last_flow_ms = consumer.flow_ms = consumer.peer.heard_ms
        if not consumer.first_flow_ms:
            consumer.first_flow_ms = consumer.flow_ms
            if self.dispatcher is not None:
                self.dispatcher.begin(consumer)
        self.wake()

    def acknowledge(self, consumer: Consumer, ledger_id: int, first: int, final: int) -> None:
        """Acknowledge whole entries of a ledger, both ends included; ignore those beyond the end of
        the log."""
        context, dispatcher = self.context, self.dispatcher
        assert context is not None
        assert dispatcher is not None
        last = context.log.last_confirmed
        if ledger_id >= last.ledger_id:
            if ledger_id > last.ledger_id:
                return
            final = min(final, last.entry_id)
        if first > final or ledger_id < 0:
            return
        new = context.cursor.ack_range(ledger_id, first, final)
        consumer.acked_ms = consumer.peer.heard_ms
        if context.trace is not None:
            context.trace.acked_range(ledger_id, first, final)
        if dispatcher.keeps_accounts:
            dispatcher.acked(
                consumer, [Position(ledger_id, each) for each in range(first, final + 1)]
            )
        else:
            consumer.messages_acked += new
        if context.early is not None and context.early.after is not None:
            context.early.acked([Position(ledger_id, each) for each in range(first, final + 1)])
        if context.log.terminated is not None:
            self.tell_end()

    def acknowledge_each(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Acknowledge single whole entries, none of them beyond the end of the log."""
        context, dispatcher = self.context, self.dispatcher
        assert context is not None
        assert dispatcher is not None
        new = context.cursor.ack_many(positions)
        consumer.acked_ms = consumer.peer.heard_ms
        if context.trace is not None:
            context.trace.acked_each(positions)
        if dispatcher.keeps_accounts:
            dispatcher.acked(consumer, positions)
        else:
            consumer.messages_acked += new
        if context.early is not None and context.early.after is not None:
            context.early.acked(positions)
        if context.log.terminated is not None:
            self.tell_end()

    def acknowledge_indexes(
        self, consumer: Consumer, position: Position, words: Sequence[int], batch_size: int
    ) -> None:
        """Acknowledge the messages of a batch whose bit is 0 in the ack_set words.

        `batch_size`: messages in the entry if the client sent it, else 0. Beyond
        `PARTLY_ACKED_BYTES_MAX`, no further entry is acknowledged in part: its messages are
        delivered again unless all of them are acknowledged.
        """
        cursor, dispatcher = self.cursor, self.dispatcher
        assert dispatcher is not None
        if cursor.is_acked(position):
            return
        if cursor.batch_bytes >= PARTLY_ACKED_BYTES_MAX and not self._is_full_logged:
            self._is_full_logged = True
            _log.warning(
                "partial_acknowledgements_full", topic=str(self.topic), subscription=self.name
            )
        if cursor.ack_batch(
            position, words, max(batch_size, 0), batch_bytes_max=PARTLY_ACKED_BYTES_MAX
        ):
            dispatcher.acked(consumer, (position,))
            if not dispatcher.keeps_accounts:
                consumer.messages_acked += 1
            if self.context is not None and self.context.trace is not None:
                self.context.trace.acked_each((position,))
        else:
            dispatcher.partly_acked(position)
        consumer.acked_ms = consumer.peer.heard_ms
        self.tell_end()

    def acknowledge_through(
        self, consumer: Consumer, position: Position, words: Sequence[int], batch_size: int
    ) -> None:
        """Acknowledge cumulatively; Shared and Key_Shared subscriptions ignore this."""
        context = self.context
        assert context is not None
        assert self.dispatcher is not None
        if not isinstance(self.dispatcher, SingleActiveDispatcher):
            return
        cursor = context.cursor
        before, singly = cursor.mark_delete, cursor.individual_count
        cursor.ack_cumulative(position, words, max(batch_size, 0))
        after = cursor.mark_delete
        if after.ledger_id == before.ledger_id:  # nearly always
            passed = after.entry_id - before.entry_id
        else:
            passed = context.log.entries_between(before, after)
        if singly:
            passed -= min(passed, singly - cursor.individual_count)
        consumer.messages_acked += passed
        consumer.acked_ms = consumer.peer.heard_ms
        if context.trace is not None:
            context.trace.acked_through(_before(position) if words else position)
        early = context.early
        if early is not None and early.after is not None:
            early.acked_through(_before(position) if words else position)
        if context.log.terminated is not None:
            self.tell_end()

    def acknowledge_elsewhere(self, ranges: Iterable[AckRange], batches: Iterable[BatchAck]) -> int:
        """Acknowledge what consumers have acknowledged in another cluster; return how many entries
        are new.

        The log must have all of the ranges. Entries pending at a consumer stay with its client, and
        are not sent again.
        """
        if self.is_closed or self.context is None:
            return 0
        cursor, new = self.cursor, 0
        for ledger_id, first, last in ranges:
            if cursor.mark_delete >= Position(ledger_id, last):
                continue
            positions = [Position(ledger_id, each) for each in range(first, last + 1)]
            positions = [each for each in positions if not cursor.is_acked(each)]
            new += cursor.ack_many(positions)
            self._acked_elsewhere(positions)
        for ledger_id, entry_id, remaining in batches:
            position = Position(ledger_id, entry_id)
            before = cursor.remaining_words(position)
            if cursor.is_acked(position):
                continue
            is_acked = cursor.ack_batch(position, words_from_bits(remaining))
            if is_acked:
                self._acked_elsewhere([position])
            elif self.dispatcher is not None:
                self.dispatcher.partly_acked(position)
            new += is_acked or cursor.remaining_words(position) != before
        if new:
            self.moved()
            self.wake()
        return new

    def _acked_elsewhere(self, positions: Sequence[Position]) -> None:
        dispatcher = self.dispatcher
        if positions and dispatcher is not None and dispatcher.keeps_accounts and self.consumers:
            # The dispatcher finds the consumer that has an entry; it only looks at this one first.
            dispatcher.acked(self.consumers[0], positions)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, *, epoch: int
    ) -> None:
        """Send unacknowledged entries again; None: all of the consumer's."""
        assert self.dispatcher is not None
        if epoch >= 0:
            consumer.epoch = epoch
        if self.context is not None and self.context.trace is not None:
            self.context.trace.redelivered()
        self.dispatcher.redeliver(consumer, positions)

    def check_unsubscribe(self, consumer: Consumer, *, is_forced: bool) -> None:
        """Refuse if the consumer may not delete the subscription.

        Raises:
            BrokerMetadataError: others are connected, or it is not the active consumer.
        """
        if is_forced:
            return
        if len(self.consumers) > 1:
            raise BrokerMetadataError(
                f"subscription {self.name} has {len(self.consumers)} consumers; only the last one "
                "can unsubscribe"
            )
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SingleActiveDispatcher) and dispatcher.active not in (
            None,
            consumer,
        ):
            raise BrokerMetadataError(
                f"the consumer is not the active one of subscription {self.name}"
            )

    async def seek(
        self,
        consumer: Consumer | None,
        find: Callable[[], Awaitable[tuple[Position, Sequence[int]]]],
    ) -> None:
        """Close the consumers and move the cursor; the consumers reconnect at the new position.

        Closed are the requesting and the active consumer, or all of a Shared subscription; all if
        an operator seeks (`consumer` is None).

        `find` returns the position to deliver next, and the ack_set words of the indexes before it.

        Raises:
            UnknownFailureError: the new position could not be stored.
            LedgerError: it could not be found.
        """
        async with self.lock:
            dispatcher = self.dispatcher
            if (dispatcher is None and consumer is not None) or self.is_closed:
                raise UnknownFailureError(f"subscription {self.name} is being closed")
            if dispatcher is not None:
                dispatcher.pause()
            try:
                if dispatcher is not None:
                    for closing in self._seeking(dispatcher, consumer):
                        self.disconnect(closing)
                async with self._gate.placing():
                    position, words = await find()
                    self.placed(position)  # first: the reset saves it with the position
                    await self.cursor.reset(position, words)
                    self._mark = self.cursor.mark_delete  # set, not advanced
            except CursorError as error:
                raise UnknownFailureError(f"the new position is not stored: {error}") from error
            finally:
                if not self.is_closed:
                    if dispatcher is not None:
                        dispatcher.resume()
                    # After a failed seek, too: its consumers were closed.
                    self._await_return()

    def placed(self, first: Position) -> None:
        """Note that the subscription continues at a position, which may be trimmed from the log."""
        if self.context is not None and self.context.early is not None:
            self.context.early.place(first)

    def _seeking(self, dispatcher: Dispatcher, asking: Consumer | None) -> list[Consumer]:
        if asking is not None and isinstance(dispatcher, SingleActiveDispatcher):
            return [each for each in dispatcher.consumers if each in (asking, dispatcher.active)]
        return list(dispatcher.consumers)

    def _await_return(self) -> None:
        """Keep a non-durable subscription for consumers that a seek closed, for a limited time."""
        if not self.is_durable and not self.consumers:
            self._stop_return_timer()
            self._return_timer = asyncio.get_running_loop().call_later(
                self._seek_return_timeout_ms / 1000, self._nobody_returned
            )

    def _nobody_returned(self) -> None:
        self._return_timer = None
        if not self.consumers and not self.lock.locked():
            self._on_abandoned(self)

    def _stop_return_timer(self) -> None:
        if self._return_timer is not None:
            self._return_timer.cancel()
            self._return_timer = None

    def close(self, destination: Destination | None = None) -> None:
        """Disconnect all consumers and stop. The caller closes or deletes the cursor."""
        self.is_closed = True
        self._stop_return_timer()
        if self.dispatcher is not None:
            self.dispatcher.close()
            for consumer in list(self.dispatcher.consumers):
                self.disconnect(consumer, destination)
