"""Sends acknowledgements and redelivery requests of one consumer to the broker.

Acknowledgements are collected and sent together. Redelivery of an entry is requested when its delay
is over. What cannot be sent because the consumer is not attached waits for the next attachment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from magnetar.sdk.ack_grouping import ALL_MESSAGES, AckGrouping, ack_frame
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, NotSupportedError, service_error
from magnetar.sdk.interceptors import Interceptors
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock
from magnetar.sdk.receiver_queue import ReceiverQueue
from magnetar.sdk.redelivery import AckTimeouts, NackDelay, Redelivery
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandRedeliverUnacknowledgedMessages,
)

Acknowledgeable = Message[Any] | MessageBatch | MessageId
"""Anything that can be acknowledged: a message, its id, or all messages of an entry."""


class Acknowledger:
    """Acknowledgements and redelivery requests of one consumer, with their timers."""

    def __init__(
        self,
        consumer_id: int,
        topic: str,
        settings: ConsumerSettings,
        acks: AckGrouping,
        queue: ReceiverQueue,
        *,
        clock: Clock,
        connection: Callable[[], Connection | None],
    ) -> None:
        """Start without timers.

        `connection` returns the connection that the consumer is attached to; None if it is
        detached.
        """
        self._id = consumer_id
        self._settings = settings
        self._acks = acks
        self._queue = queue
        self._clock = clock
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._flush_timer: asyncio.Handle | None = None
        self._interceptors = Interceptors(topic, settings.interceptors)
        self._redelivery = Redelivery()
        self._nack_delay = NackDelay(
            settings.nack_delay_ms / 1000,
            settings.nack_delay_multiplier,
            settings.nack_delay_max_ms / 1000,
        )
        self._redelivery_timer: asyncio.TimerHandle | None = None
        self._timeouts = (
            AckTimeouts(settings.ack_timeout_ms / 1000) if settings.ack_timeout_ms else None
        )
        self._timeout_timer: asyncio.TimerHandle | None = None
        self.acknowledged = 0
        """Calls to acknowledge, one for each message or entry of a call; not the messages they
        covered."""
        self.negatively_acknowledged = 0
        self.timed_out = 0

    # -- acknowledging

    def add(self, what: Acknowledgeable) -> None:
        """Acknowledge one message, or all messages of an entry."""
        self._collect(what)
        self._after_ack()

    def _collect(self, what: Acknowledgeable) -> None:
        self.acknowledged += 1
        ledger_id, entry_id = what.ledger_id, what.entry_id
        if isinstance(what, MessageBatch):
            self._acks.add_entry(ledger_id, entry_id)
            is_all = True
        else:
            is_all = self._acks.add(ledger_id, entry_id, what.batch_index, what.batch_size)
        if self._redelivery or self._timeouts is not None:
            self._settle((ledger_id, entry_id), ALL_MESSAGES if is_all else _bits_of(what))
        if self._interceptors:
            self._interceptors.tell("on_acknowledge", (_id_of(what),))

    def _settle(self, entry: tuple[int, int], bits: int) -> None:
        """Cancel the redelivery of messages of an entry, whether for a negative acknowledgement or
        a timeout."""
        self._redelivery.discard(*entry, bits)
        if self._timeouts is not None:
            self._timeouts.discard(entry, bits)

    def _settle_through(self, last: MessageId) -> None:
        """Cancel the redelivery of all messages up to and including `last`."""
        entry = (last.ledger_id, last.entry_id)
        self._redelivery.discard_before(entry)
        if self._timeouts is not None:
            self._timeouts.discard_before(entry)
        index = last.batch_index
        is_whole = index < 0 or index >= last.batch_size - 1
        self._settle(entry, ALL_MESSAGES if is_whole else (2 << index) - 1)

    def add_many(self, what: Iterable[Acknowledgeable]) -> None:
        """Acknowledge many messages or entries; fastest for entries."""
        if self._timeouts is not None or self._redelivery or self._interceptors:
            for one in what:
                self._collect(one)
            self._after_ack()
            return
        acks = self._acks
        for one in what:
            if isinstance(one, MessageBatch):
                acks.add_entry(one.ledger_id, one.entry_id)
            else:
                acks.add(one.ledger_id, one.entry_id, one.batch_index, one.batch_size)
            self.acknowledged += 1
        self._after_ack()

    def add_cumulative(self, what: Acknowledgeable) -> None:
        """Acknowledge everything up to and including `what`."""
        message_id = _id_of(what)
        self.acknowledged += 1
        self._acks.add_cumulative(message_id)
        if self._redelivery or self._timeouts is not None:
            self._settle_through(message_id)
        if self._interceptors:
            self._interceptors.tell("on_acknowledge_cumulative", (message_id,))
        self._after_ack()

    def resume_id(self, last: MessageId) -> MessageId:
        """Return the id for a reader to continue behind `last`: its `first_chunk` is where to
        begin, if a message in chunks began before `last` and is still to come."""
        return self._acks.resume_id(last)

    def tell_read(self, last: MessageId) -> None:
        """Report with the next flush how far a reader has read."""
        self._acks.add_cumulative(last)

    def flush(self) -> None:
        """Send the collected acknowledgements now, if the consumer is attached."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        connection = self._connection()
        if connection is None or not len(self._acks):
            return  # sent after the next attachment
        commands = self._acks.take(self._id)
        for command in commands.others:
            connection.send(ack_frame(command))
        connection.write(commands.encode_entries(self._id))

    async def confirm(self, what: Iterable[Acknowledgeable] = ()) -> None:
        """Acknowledge, send at once with all that waits, and wait for the broker's answers.

        Raises:
            SdkError: the broker did not confirm all acknowledgements.
        """
        for one in what:
            self._collect(one)
        if not len(self._acks):
            return
        connection = self._connection()
        if connection is None:
            raise BrokerUnavailableError(
                "not connected: the acknowledgements are sent after the reconnect"
            )
        # All are sent before the first answer is awaited: it may be an error, or never be seen.
        answers = [
            self._confirmed(connection, command)
            for command in self._acks.take(self._id).commands(self._id)
        ]
        for result in await asyncio.gather(*answers, return_exceptions=True):
            if result is not None:
                raise result

    async def acknowledge_in(
        self,
        txn: tuple[int, int],
        what: Acknowledgeable,
        *,
        cumulative: bool,
    ) -> None:
        """Acknowledge in a transaction, and wait for the answer.

        Raises:
            NotSupportedError: a cumulative acknowledgement would cover the beginning of a message
                in chunks that ends behind it.
            SdkError: the broker did not confirm the acknowledgement.
        """
        connection = self._connection()
        if connection is None:
            raise BrokerUnavailableError("not connected: nothing was acknowledged")
        if cumulative:
            self._check_chunks(_id_of(what))
        acks = AckGrouping(batch_index_ack=True)  # apart from the acknowledgements that wait
        entry = (what.ledger_id, what.entry_id)
        self.acknowledged += 1
        if cumulative:
            acks.add_cumulative(_id_of(what))
            self._settle_through(_id_of(what))
        else:
            self._settle(entry, _bits_of(what))
            self._acks.add_in_transaction(entry, _bits_of(what), what.batch_size)
            self._after_ack()
            # The other chunks of a chunked message, too.
            for other in self._acks.with_chunks([entry]):
                if other != entry:
                    acks.add_entry(*other)
            if isinstance(what, MessageBatch):
                acks.add_entry(*entry)
            else:
                acks.add(*entry, what.batch_index, what.batch_size)
        for command in acks.take(self._id).commands(self._id):
            for message_id in command.message_id:
                if message_id.ack_set and not isinstance(what, MessageBatch):
                    message_id.batch_size = what.batch_size
            command.txnid_most_bits, command.txnid_least_bits = txn
            await self._confirmed(connection, command)

    def _check_chunks(self, last: MessageId) -> None:
        """Check that a cumulative acknowledgement covers no chunks of a message behind it.

        It cannot be split as outside of transactions, into a cumulative one before those chunks and
        single ones behind them: brokers refuse what adds nothing to a transaction, or to what is
        acknowledged already, and how far that is they do not tell.

        Raises:
            NotSupportedError
        """
        begun = self._acks.begun_before(last)
        if begun is not None:
            raise NotSupportedError(
                f"{last} cannot be acknowledged cumulatively in a transaction: a message in chunks "
                f"that began at {MessageId(*begun)} ends behind it; acknowledge the messages "
                "singly, in a new transaction"
            )

    def _confirmed(
        self, connection: Connection, command: CommandAck
    ) -> Coroutine[object, object, None]:
        """Send an ACK; return a coroutine that waits until the broker has carried it out.

        Raises:
            BrokerUnavailableError: the connection is broken.
        """
        command.request_id = connection.next_request_id()
        return _carried_out(connection.begin_request(command.request_id, ack_frame(command)))

    def _after_ack(self) -> None:
        if len(self._acks) >= self._settings.ack_group_max:
            self.flush()
        elif self._flush_timer is None and len(self._acks):
            delay_ms = self._settings.ack_group_ms
            self._flush_timer = (
                self._loop.call_later(delay_ms / 1000, self.flush)
                if delay_ms
                else self._loop.call_soon(self.flush)
            )

    # -- redelivery

    def add_negative(self, what: Acknowledgeable) -> None:
        """Request redelivery of a message after `nack_delay_ms`; of a batch, the whole entry."""
        self.negatively_acknowledged += 1
        count = 0 if isinstance(what, MessageId) else what.redelivery_count
        if self._is_current(what):
            self._ask_later((what.ledger_id, what.entry_id), _bits_of(what), count)
        if self._interceptors:
            self._interceptors.tell("on_negative_acknowledge", (_id_of(what),))

    def ask_later(self, entries: Iterable[tuple[int, int]]) -> None:
        """Request redelivery of entries after the delay of negative acknowledgements."""
        for entry in entries:
            self._ask_later(entry, ALL_MESSAGES, 0)

    def _ask_later(self, entry: tuple[int, int], bits: int, redelivery_count: int) -> None:
        now_s = self._clock.monotonic_s()
        delay_s = self._nack_delay.after(redelivery_count)
        self._redelivery.add(*entry, bits, now_s=now_s, delay_s=delay_s)
        if self._timeouts is not None:
            self._timeouts.discard(entry, bits)
        if self._redelivery_timer is not None:
            # With different delays this message may be due before those that wait.
            self._redelivery_timer.cancel()
            self._redelivery_timer = None
        self._arm_redelivery(now_s)

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        """Request redelivery of messages at once; of batches, the whole entries."""
        entries = sorted({(one.ledger_id, one.entry_id) for one in what if self._is_current(one)})
        if entries:
            self.flush()
            self._send_redeliver(entries, of_before=True)

    def redeliver_all(self) -> None:
        """Request redelivery of everything that was delivered and not acknowledged."""
        self.flush()
        self._send_redeliver([])

    def _is_current(self, what: Acknowledgeable) -> bool:
        """Whether redelivery of `what` has to be requested. An id alone does not tell, so it counts
        as current."""
        return isinstance(what, MessageId) or self._queue.is_current(what)

    def _arm_redelivery(self, now_s: float) -> None:
        next_s = self._redelivery.next_s
        if self._redelivery_timer is None and next_s is not None:
            self._redelivery_timer = self._loop.call_later(
                max(0.0, next_s - now_s), self._on_redelivery_timer
            )

    def _on_redelivery_timer(self) -> None:
        self._redelivery_timer = None
        now_s = self._clock.monotonic_s()
        # By this clock a timer may fire slightly too early: a millisecond does not matter.
        due = self._redelivery.take_due(now_s=now_s + 0.001)
        if due:
            self.flush()
            self._send_redeliver(due)
        self._arm_redelivery(now_s)

    # -- ack timeouts

    @property
    def watches_timeouts(self) -> bool:
        """Whether `track` must be called with the messages that the application takes."""
        return self._timeouts is not None

    def track(self, messages: Iterable[Message[Any] | MessageBatch]) -> None:
        """Start the ack timeouts of messages that the application took."""
        timeouts = self._timeouts
        if timeouts is None:
            return
        now_s = self._clock.monotonic_s()
        for message in messages:
            if self._is_current(message):
                timeouts.add((message.ledger_id, message.entry_id), _bits_of(message), now_s=now_s)
        self._arm_timeouts(now_s)

    def _arm_timeouts(self, now_s: float) -> None:
        next_s = None if self._timeouts is None else self._timeouts.next_s
        if self._timeout_timer is None and next_s is not None:
            self._timeout_timer = self._loop.call_later(
                max(0.0, next_s - now_s), self._on_timeout_timer
            )

    def _on_timeout_timer(self) -> None:
        assert self._timeouts is not None
        self._timeout_timer = None
        now_s = self._clock.monotonic_s()
        due = self._timeouts.take_due(now_s=now_s + 0.001)
        if due:
            self.timed_out += len(due)
            self._interceptors.tell("on_ack_timeout", (MessageId(*each) for each in due))
            self.flush()
            self._send_redeliver(due)
        self._arm_timeouts(now_s)

    def _send_redeliver(self, entries: list[tuple[int, int]], *, of_before: bool = False) -> None:
        """Request redelivery of entries; an empty list means all. Do nothing when detached, because
        the next attachment redelivers everything.

        `of_before`: the entries may be of an earlier attachment.
        """
        connection = self._connection()
        if connection is None:
            return
        is_all = not entries or self._settings.subscription_type.keeps_order
        entries = self._acks.with_chunks(entries)
        if is_all:
            # The broker goes back to the first unacknowledged message, or sends all delivered
            # messages again. Messages queued here, or in flight with the old epoch, come again.
            self._end_waits()
            self._queue.epoch += 1
            self._queue.drop()
        else:
            for entry in entries:
                self._settle(entry, ALL_MESSAGES)
            self._queue.drop_entries(set(entries), of_before=of_before)
        connection.send(
            BaseCommand(
                type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
                redeliverUnacknowledgedMessages=CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self._id,
                    message_ids=[
                        # Negative ids, such as that of a duplicate, must not stop the others.
                        MessageId(ledger_id, entry_id).to_data()
                        for ledger_id, entry_id in entries
                    ],
                    consumer_epoch=self._queue.epoch if is_all else None,
                ),
            )
        )

    # -- closing

    def end_deliveries(self) -> None:
        """Forget the state of single messages: whatever is not acknowledged is delivered again,
        here or to another consumer, perhaps from another position. Waiting acknowledgements are
        kept."""
        self._acks.forget_parts()
        self._end_waits()

    def forget(self) -> None:
        """Forget all acknowledgements and redeliveries, because the subscription was moved."""
        self._acks.clear()
        self._end_waits()

    def _end_waits(self) -> None:
        self._redelivery.clear()
        if self._timeouts is not None:
            self._timeouts.clear()

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._flush_timer, self._redelivery_timer, self._timeout_timer):
            if timer is not None:
                timer.cancel()


def _bits_of(what: Acknowledgeable) -> int:
    """Return the messages of the entry that `what` acknowledges, as bits: bit i is message i of a
    batch."""
    if not isinstance(what, MessageBatch):
        return ALL_MESSAGES if what.batch_index < 0 else 1 << what.batch_index
    if what.remaining is not None:
        return what.remaining
    return (1 << what.batch_size) - 1 if what.batch_size else ALL_MESSAGES


def _id_of(what: Acknowledgeable) -> MessageId:
    return what if isinstance(what, MessageId) else what.message_id


async def _carried_out(answer: Awaitable[BaseCommand]) -> None:
    response = (await answer).ackResponse
    if response.HasField("error"):
        raise service_error(response.error, str(response.message))
