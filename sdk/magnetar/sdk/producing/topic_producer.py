"""The producer of one topic (or one partition): messages in, SEND frames out, receipts back.

A message is encoded when it is sent, stays pending until its receipt, and is sent again in the same
order after a reconnect. Here are the calls, the limits, and the life of the session; messages leave
by the `SendLane`, and what becomes of them is for `SendsUnderWay`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    PendingLimitError,
    SdkError,
    service_error,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producer import Producer
from magnetar.sdk.producing.outgoing import OutgoingMessage, TransactionId
from magnetar.sdk.producing.producer_attachment import ProducerAttachment
from magnetar.sdk.producing.producer_stats import ProducerStats
from magnetar.sdk.producing.send_lane import SendLane
from magnetar.sdk.producing.send_room import SendRoom, Turn
from magnetar.sdk.producing.under_way import SendsUnderWay
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schema import Schema, T
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.errors import MessageChecksumError, NotAllowedError, TopicTerminatedError
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    MessageMetadata,
)
from magnetar.sdk.wire.topic_name import TopicName


class TopicProducer(Producer[T]):
    """See the module's text."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        producer_id: int,
        settings: ProducerSettings,
        schema: Schema[T] | None = None,
    ) -> None:
        """`schema` is the producer's own copy of it; None: what is sent is bytes.

        Raises:
            CryptoKeyError: an encryption key is missing or cannot be used.
        """
        self.topic = str(topic)
        self._context = context
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._values = ValueEncoder(self.topic, schema, settings.interceptors)
        self._under_way = SendsUnderWay(
            topic,
            context.clock,
            timeout_ms=settings.send_timeout_ms,
            on_progress=self._after_progress,
            is_connected=lambda: self.is_connected,
        )
        self._lane = SendLane(
            self.topic, settings, context.clock, self._under_way, write=self._write
        )
        self._room = SendRoom(settings, context.memory)
        self._closing = False
        self._attachment = ProducerAttachment(
            context,
            topic,
            producer_id,
            settings,
            listener=self,
            schema=None if schema is None else schema.info,
            on_attached=self._on_attached,
            on_failed=self._fail_all,
        )

    # -- public

    @property
    def name(self) -> str:
        return self._attachment.name

    @property
    def is_connected(self) -> bool:
        return self._attachment.connection is not None

    @property
    def last_sequence_id(self) -> int:
        return self._lane.next_sequence_id - 1

    @property
    def last_stored_sequence_id(self) -> int:
        return self._under_way.last_stored_sequence_id

    @property
    def pending_messages(self) -> int:
        return self._lane.messages

    @property
    def pending_bytes(self) -> int:
        return self._lane.payload_bytes

    @property
    def topic_epoch(self) -> int | None:
        return self._attachment.topic_epoch

    def stats(self) -> ProducerStats:
        return self._under_way.counters.snapshot(
            messages_pending=self.pending_messages, bytes_pending=self.pending_bytes
        )

    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        if transaction is not None:
            return await asyncio.shield(transaction.start(self._send_in(transaction, message)))
        await self._wait_turn(len(message.payload))
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self.give(message, partial(settle, future))
        return await future

    async def _send_in(self, transaction: Transaction, message: OutgoingMessage) -> MessageId:
        await transaction.join_topic(self.topic)
        await self._wait_turn(len(message.payload))
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self.give(message, partial(settle, future), transaction.id)
        return await future

    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        if self._room.is_waited_for:
            raise self._limit_error()
        self.give(message, on_sent)

    def give(
        self,
        message: OutgoingMessage,
        on_sent: OnSent | None,
        transaction: TransactionId | None = None,
        *,
        has_room: bool = False,
    ) -> None:
        """`send_message_nowait` of somebody whose turn it is; `has_room`: it waits for none."""
        self._check_usable()
        if self._values.interceptors is not None:
            message, on_sent = self._values.intercept(message, on_sent)
        if not has_room and self.is_full(len(message.payload)):
            raise self._limit_error()
        self._lane.give(message, on_sent, transaction)
        self._room.hold(self.pending_bytes)

    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        if self._room.is_waited_for or self.is_full(len(body)):
            raise self._limit_error()
        self._lane.give_encoded(body, metadata, on_sent)
        self._room.hold(self.pending_bytes)

    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        await self._wait_turn(len(body))
        self._lane.give_entry(body, messages, sequence_id, extra)
        self._room.hold(self.pending_bytes)

    async def send_many(self, values: Sequence[T | None]) -> None:
        payloads = self._values.payloads(values)
        with self._room.turn() as turn:
            if payloads is None:
                await self.send_messages([self._values.message(value) for value in values], turn)
            else:
                await self.send_payloads(payloads, turn)

    async def send_messages(self, messages: Iterable[OutgoingMessage], turn: Turn) -> None:
        """Send messages that nobody watches, one after the other."""
        for message in messages:
            await turn.wait(partial(self.is_full, len(message.payload)))
            self.give(message, None)

    async def send_payloads(self, payloads: Sequence[bytes], turn: Turn) -> None:
        """`send_messages` of messages that are their payloads and nothing else."""
        pending = self._under_way.pending
        done, count = 0, len(payloads)
        while done < count:
            await turn.wait(self._has_none_left)
            self._lane.close_batches()  # others may have sent meanwhile
            room, bytes_left = self._room.left(pending.messages, pending.payload_bytes)
            stop = min(count, done + room)
            try:
                done = self._lane.give_payloads(payloads, done, stop, bytes_left=bytes_left)
            finally:
                self._room.hold(self.pending_bytes)

    async def flush(self) -> None:
        self._lane.close_batches()
        await self._under_way.flush()

    async def close(self, *, flush: bool = True) -> None:
        if self._closing:
            return
        try:
            if flush and self._attachment.failure is None:
                await self.flush()
        finally:
            self._closing = True
            try:
                await self._attachment.close()
            finally:
                self._fail_all(AlreadyClosedError(f"the producer on {self.topic} is closed"))
                self._room.wake_all()
                self._context.forget(self)

    # -- life of the session

    async def start(self) -> None:
        """Called once, by who made it."""
        await self._attachment.start()

    def _on_attached(self, connection: Connection, success: CommandProducerSuccess) -> None:
        lane = self._lane
        if not lane.encoder.is_ready:
            first = self._settings.initial_sequence_id
            lane.next_sequence_id = success.last_sequence_id + 1 if first is None else first
            self._under_way.last_stored_sequence_id = success.last_sequence_id
        connection.write(
            lane.attach(
                self._attachment.id,
                success.producer_name,
                success.schema_version,
                connection.message_bytes_max,
            )
        )

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the producer, or the connection broke."""
        self._attachment.lose(connection)

    def _write(self, parts: Iterable[bytes]) -> None:
        connection = self._attachment.connection
        if connection is not None:
            connection.write(parts)

    def enter(self, room: SendRoom) -> None:
        """Use this room from now on: who waits there has its turn here. Nobody may wait in ours."""
        self._room.hold(0)
        self._room = room
        self._after_progress()

    # -- receipts and failures

    def on_receipts(self, receipts: list[CommandSendReceipt]) -> None:
        """From the connection: a run of receipts of one network read."""
        well = self._under_way.on_receipts(receipts, self.on_confirmed)
        if not well and self._attachment.connection is not None:
            self._attachment.connection.fail(
                BrokerUnavailableError(
                    f"{self.topic}: a receipt for a message that is not next; connecting again"
                )
            )

    def on_send_error(self, error: CommandSendError) -> None:
        """From the connection: the broker refused one message, or all of them."""
        failure = service_error(error.error, str(error.message))
        if isinstance(failure, MessageChecksumError | NotAllowedError):
            self._under_way.fail_sequence(error.sequence_id, failure)
        elif isinstance(failure, TopicTerminatedError):
            self._fail_all(failure)
        else:
            # Nothing is known of what follows: attach afresh and send again what has no receipt.
            self._attachment.renew()

    def _fail_all(self, error: SdkError) -> None:
        if self._lane.encoder.is_ready:
            self._lane.close_batches()
        self._under_way.fail_all(error)

    def _after_progress(self) -> None:
        """Something left the queue: wake those who wait for room."""
        self._room.hold(self.pending_bytes)
        if self._attachment.failure is not None:
            self._room.wake_all()
        else:
            self._room.wake(self.pending_messages)

    async def _wait_turn(self, size: int) -> None:
        """Wait for room; it is to be used before the next `await`."""
        if self._room.is_waited_for or self.is_full(size):
            await self._room.wait_turn(partial(self.is_full, size))

    def _has_none_left(self) -> bool:
        self._check_usable()
        return not all(self._room.left(self.pending_messages, self.pending_bytes))

    def _check_usable(self) -> None:
        failure = self._attachment.failure
        if failure is not None:
            raise failure
        if self._closing:
            raise AlreadyClosedError(f"the producer on {self.topic} is closed")

    def is_full(self, size: int) -> bool:
        """Whether a message of `size` bytes must wait.

        Raises:
            SdkError: it is over, and no waiting helps.
        """
        self._check_usable()
        return self._room.is_full(self.pending_messages, self.pending_bytes, size)

    def _limit_error(self) -> PendingLimitError:
        return PendingLimitError(
            f"{self.topic}: {self.pending_messages} messages of {self.pending_bytes} bytes are "
            "under way, or those of the whole client fill its memory limit"
        )


def settle(
    future: asyncio.Future[MessageId], message_id: MessageId | None, error: SdkError | None
) -> None:
    """An `OnSent` for somebody who waits."""
    if future.done():
        return  # the sender was cancelled
    if error is not None:
        future.set_exception(error)
    elif message_id is not None:
        future.set_result(message_id)
