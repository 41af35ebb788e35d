"""What the application says of messages, on its way to the broker: done, or once more.

Acknowledgements are collected and sent together; entries that are to come again are asked for when
their delay is over. What cannot be sent because we are not attached waits for the next attachment.
"""

import asyncio
from collections.abc import Callable, Iterable

from magnetar.sdk.ack_grouping import AckGrouping, ack_frame
from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import service_error
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock
from magnetar.sdk.receiver_queue import ReceiverQueue
from magnetar.sdk.redelivery import Redelivery
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandRedeliverUnacknowledgedMessages,
    MessageIdData,
)

Acknowledgeable = Message | MessageBatch | MessageId
"""What can be acknowledged: a message, its id, or all messages of an entry."""


class Acknowledger:
    """The acknowledgements and redelivery requests of one consumer, with their timers."""

    def __init__(
        self,
        consumer_id: int,
        settings: ConsumerSettings,
        acks: AckGrouping,
        queue: ReceiverQueue,
        *,
        clock: Clock,
        connection: Callable[[], Connection | None],
    ) -> None:
        """`connection` gives the one that we are attached to, if we are."""
        self._id = consumer_id
        self._settings = settings
        self._acks = acks
        self._queue = queue
        self._clock = clock
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._flush_timer: asyncio.Handle | None = None
        self._redelivery = Redelivery(settings.nack_delay_ms / 1000)
        self._redelivery_timer: asyncio.TimerHandle | None = None

    # -- done

    def add(self, what: Acknowledgeable) -> None:
        """Acknowledge one message, or all of an entry."""
        if isinstance(what, MessageBatch):
            self._acks.add_entry(what.ledger_id, what.entry_id)
        else:
            self._acks.add(what.ledger_id, what.entry_id, what.batch_index, what.batch_size)
        if self._redelivery.next_s is not None:
            self._redelivery.discard(what.ledger_id, what.entry_id)
        self._after_ack()

    def add_many(self, what: Iterable[Acknowledgeable]) -> None:
        """`add` for many; fastest for entries."""
        acks, redelivery = self._acks, self._redelivery
        has_nacks = redelivery.next_s is not None
        for one in what:
            if isinstance(one, MessageBatch):
                acks.add_entry(one.ledger_id, one.entry_id)
            else:
                acks.add(one.ledger_id, one.entry_id, one.batch_index, one.batch_size)
            if has_nacks:
                redelivery.discard(one.ledger_id, one.entry_id)
        self._after_ack()

    def add_cumulative(self, what: Acknowledgeable) -> None:
        """Acknowledge everything up to and including `what`."""
        self._acks.add_cumulative(what if isinstance(what, MessageId) else what.message_id)
        self._after_ack()

    @property
    def has_waiting(self) -> bool:
        """Whether there are acknowledgements to be sent."""
        return len(self._acks) > 0

    def flush(self) -> None:
        """Send the collected acknowledgements now, if we are attached."""
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

    async def flush_confirmed(self, connection: Connection) -> None:
        """Send the collected acknowledgements now, and wait for the broker's answers.

        Raises:
            SdkError: not known to be carried out.
        """
        for command in self._acks.take(self._id).commands(self._id):
            command.request_id = connection.next_request_id()
            answer = await connection.request(command.request_id, ack_frame(command))
            if answer.ackResponse.HasField("error"):
                response = answer.ackResponse
                raise service_error(response.error, str(response.message))

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

    # -- once more

    def add_negative(self, what: Acknowledgeable) -> None:
        """Ask for a message again, after `nack_delay_ms`; of a batch, for the whole entry."""
        now_s = self._clock.monotonic_s()
        self._redelivery.add(what.ledger_id, what.entry_id, now_s=now_s)
        self._arm_redelivery(now_s)

    def redeliver(self, what: Iterable[Acknowledgeable]) -> None:
        """Ask for messages again, at once; of batches, for whole entries."""
        entries = sorted({(one.ledger_id, one.entry_id) for one in what})
        if entries:
            self.flush()
            self._send_redeliver(entries)

    def redeliver_all(self) -> None:
        """Ask for everything again that was delivered and not acknowledged."""
        self.flush()
        self._redelivery.clear()
        self._send_redeliver([])

    def _arm_redelivery(self, now_s: float) -> None:
        next_s = self._redelivery.next_s
        if self._redelivery_timer is None and next_s is not None:
            self._redelivery_timer = self._loop.call_later(
                max(0.0, next_s - now_s), self._on_redelivery_timer
            )

    def _on_redelivery_timer(self) -> None:
        self._redelivery_timer = None
        now_s = self._clock.monotonic_s()
        # A timer may fire a hair too early by this clock: a millisecond does not matter.
        due = self._redelivery.take_due(now_s=now_s + 0.001)
        if due:
            self.flush()
            self._send_redeliver(due)
        self._arm_redelivery(now_s)

    def _send_redeliver(self, entries: list[tuple[int, int]]) -> None:
        """Ask for entries again; none means all. Nothing to do unless attached: all comes again."""
        connection = self._connection()
        if connection is None:
            return
        keeps_order = self._settings.subscription_type.keeps_order
        if keeps_order:
            # The broker goes back to the first unacknowledged message: what lies here, or is on
            # its way with the old epoch, comes again.
            self._queue.epoch += 1
            self._queue.drop()
        connection.send(
            BaseCommand(
                type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
                redeliverUnacknowledgedMessages=CommandRedeliverUnacknowledgedMessages(
                    consumer_id=self._id,
                    message_ids=[
                        MessageIdData(ledgerId=ledger_id, entryId=entry_id)
                        for ledger_id, entry_id in entries
                    ],
                    consumer_epoch=self._queue.epoch if keeps_order else None,
                ),
            )
        )

    # -- the ends

    def reset(self) -> None:
        """Send what waits and forget the rest: the subscription is about to be moved."""
        self.flush()
        self._acks.clear()
        self._redelivery.clear()

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._flush_timer, self._redelivery_timer):
            if timer is not None:
                timer.cancel()
