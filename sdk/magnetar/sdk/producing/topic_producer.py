"""Producer of one topic (or one partition): messages in, SEND frames out, receipts back.

A message is encoded when it is sent, stays pending until its receipt, and is sent again in the same
order after a reconnect. This module has the calls, the limits, and the session: PRODUCER and
CLOSE_PRODUCER, over reconnects (`ProducerAttachment`). `SendLane` sends the messages, and
`SendsUnderWay` handles their outcomes.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from magnetar.sdk.connection import Connection, ProducerListener
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    PendingLimitError,
    SdkError,
    ServiceError,
    service_error,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent
from magnetar.sdk.producer import Producer
from magnetar.sdk.producing.outgoing import OutgoingMessage, TransactionId
from magnetar.sdk.producing.send_lane import SendLane
from magnetar.sdk.producing.send_room import SendRoom, Turn
from magnetar.sdk.producing.under_way import SendsUnderWay
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schema import Schema, SchemaInfo, T
from magnetar.sdk.session import Session
from magnetar.sdk.settings import AccessMode, ProducerSettings
from magnetar.sdk.stats import ProducerStats
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.errors import (
    MessageChecksumError,
    NotAllowedError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    KeyValue,
    MessageMetadata,
)
from magnetar.sdk.wire.topic_name import TopicName

_PAYLOADS_AT_ONCE = 64
"""Messages encoded before they are written, if each is sent alone: the broker works on these while
the next ones are encoded."""


class TopicProducer(Producer[T]):
    """Sends to one topic or partition; see `Producer`."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        producer_id: int,
        settings: ProducerSettings,
        schema: Schema[T] | None = None,
        *,
        entry_buckets: Sequence[int] = (),
    ) -> None:
        """Create the producer without connecting.

        `schema` is the producer's own copy of it; None: messages are bytes. `entry_buckets`: for a
        segment of a scalable topic, the first hashes of all buckets but the first.

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
            self.topic,
            settings,
            context.clock,
            self._under_way,
            write=self._write,
            entry_buckets=entry_buckets,
        )
        self._room = SendRoom(settings, context.memory)
        self._payloads_at_once = sys.maxsize if settings.batching else _PAYLOADS_AT_ONCE
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
        """Send a message for a caller that has its turn; `has_room`: without checking the
        limits."""
        self._check_usable()
        if self._values.interceptors is not None:
            message, on_sent = self._values.intercept(
                message, on_sent, unwatched=self._under_way.keep_error
            )
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
        """Send messages without callbacks, one after the other."""
        for message in messages:
            await turn.wait(partial(self.is_full, len(message.payload)))
            self.give(message, None)

    async def send_payloads(self, payloads: Sequence[bytes], turn: Turn) -> None:
        """Send messages that have a payload and nothing else, without callbacks."""
        pending = self._under_way.pending
        done, count = 0, len(payloads)
        while done < count:
            await turn.wait(self._has_none_left)
            self._lane.close_batches()  # other calls may have sent meanwhile
            room, bytes_left = self._room.left(pending.messages, pending.payload_bytes)
            stop = min(count, done + min(room, self._payloads_at_once))
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
            if flush:
                await self.flush()  # If the producer is lost, nothing is pending: it only raises.
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
        """Attach to the broker. The creator calls this once."""
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
        """Handle a producer closed by the broker, or a broken connection."""
        self._attachment.lose(connection)

    def _write(self, parts: Iterable[bytes]) -> None:
        connection = self._attachment.connection
        if connection is not None:
            connection.write(parts)

    def enter(self, room: SendRoom) -> None:
        """Use another room from now on, whose waiting calls continue here. No call may wait in the
        present room."""
        self._room.hold(0)
        self._room = room
        self._after_progress()

    # -- receipts and failures

    def on_receipts(self, receipts: list[CommandSendReceipt]) -> None:
        """Handle the receipts of one network read."""
        well = self._under_way.on_receipts(receipts, self.on_confirmed)
        if not well and self._attachment.connection is not None:
            self._attachment.connection.fail(
                BrokerUnavailableError(
                    f"{self.topic}: the receipt is not for the oldest unconfirmed message; "
                    "reconnecting"
                )
            )

    def on_send_error(self, error: CommandSendError) -> None:
        """Handle the broker's refusal of one message, or of all."""
        failure = service_error(error.error, str(error.message))
        if isinstance(failure, MessageChecksumError | NotAllowedError):
            self._under_way.fail_sequence(error.sequence_id, failure)
        elif isinstance(failure, TopicTerminatedError):
            self._fail_all(failure)
        else:
            # Nothing is known of the later messages: attach again and resend all without a receipt.
            self._attachment.renew()

    def _fail_all(self, error: SdkError) -> None:
        if self._lane.encoder.is_ready:
            self._lane.close_batches()
        self._under_way.fail_all(error)

    def _after_progress(self) -> None:
        """Wake calls that wait for room, after sends have left the queue."""
        self._room.hold(self.pending_bytes)
        if self._attachment.failure is not None:
            self._room.wake_all()
        else:
            self._room.wake(self.pending_messages)

    async def _wait_turn(self, size: int) -> None:
        """Wait for this call's turn and for room, which must be used before the next `await`."""
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
            SdkError: the producer has ended, so waiting is useless.
        """
        self._check_usable()
        return self._room.is_full(self.pending_messages, self.pending_bytes, size)

    def _limit_error(self) -> PendingLimitError:
        return PendingLimitError(
            f"{self.topic}: {self.pending_messages} unconfirmed messages of {self.pending_bytes} "
            "bytes: the producer's pending limit or the client's memory limit is reached"
        )


def settle(
    future: asyncio.Future[MessageId], message_id: MessageId | None, error: SdkError | None
) -> None:
    """Settle a waiting sender's future, as an `OnSent`."""
    if future.done():
        return  # the sender was cancelled
    if error is not None:
        future.set_exception(error)
    elif message_id is not None:
        future.set_result(message_id)


class ProducerAttachment:
    """The attachment of one producer to its broker."""

    def __init__(
        self,
        context: ClientContext,
        topic: TopicName,
        producer_id: int,
        settings: ProducerSettings,
        *,
        listener: ProducerListener,
        schema: SchemaInfo | None,
        on_attached: Callable[[Connection, CommandProducerSuccess], None],
        on_failed: Callable[[SdkError], None],
    ) -> None:
        """Take the producer's parts.

        `on_attached` is called before `connection` is set, `on_failed` when the session ends for
        good.
        """
        self.connection: Connection | None = None
        """The connection while the producer is attached; None otherwise."""
        self.name = settings.name
        """Name of the producer, given by the application or chosen by the broker."""
        self.id = producer_id
        self._topic, self._is_segment = str(topic), topic.is_segment
        self._settings = settings
        self._client_settings = context.settings
        self._listener = listener
        self._schema = schema
        self._on_attached, self._on_failed = on_attached, on_failed
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._waits = settings.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
        self._session = Session(
            f"producer {producer_id} on {self._topic}",
            find=partial(context.find, topic),
            attach=self._attach,
            detach=self._detach,
            on_failed=self._fail,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
            gives_up=not self._waits,
        )

    @property
    def failure(self) -> SdkError | None:
        """Why the session is over; None while it lives."""
        return self._session.failure

    @property
    def topic_epoch(self) -> int | None:
        """Number of producers that had exclusive access before this one; None without exclusive
        access."""
        return self._topic_epoch

    async def start(self) -> None:
        """Attach for the first time; with WAIT_FOR_EXCLUSIVE without a time limit.

        Raises:
            SdkError: the reason why the producer could not attach.
        """
        await self._session.start()

    async def close(self) -> None:
        """Close the producer at the broker, and end the session."""
        await self._session.close()

    def lose(self, connection: Connection) -> None:
        """Handle a producer closed by the broker, or a broken connection."""
        if connection is self.connection:
            self.connection = None
        self._session.lose(connection)

    def renew(self) -> None:
        """Close the producer at the broker and attach again, because the state of its pending
        messages is unclear."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.producers.pop(self.id, None)
            connection.send(self._close_command(connection.next_request_id()))
            self._session.lose(connection)

    async def _attach(self, connection: Connection) -> None:
        request_id = connection.next_request_id()
        connection.producers[self.id] = self._listener
        try:
            answer = await connection.request(
                request_id,
                self._producer_command(request_id),
                timeout_ms=0 if self._waits else None,
            )
        except ServiceError as error:
            connection.producers.pop(self.id, None)
            if self._is_segment and self._epoch and isinstance(error, TopicNotFoundError):
                # The segment was sealed while the producer was detached, and has left the layout
                # since.
                raise TopicTerminatedError(f"{self._topic} is gone: {error}") from error
            raise
        except BaseException:
            # The broker may have made the producer all the same: it must not keep the name taken.
            connection.producers.pop(self.id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        success = answer.producer_success
        self.name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        self._epoch += 1
        # The broker may have closed the producer in the very read that brought the answer.
        if connection.producers.get(self.id) is not self._listener:
            return
        self._on_attached(connection, success)
        self.connection = connection

    def _producer_command(self, request_id: int) -> BaseCommand:
        settings = self._settings
        return BaseCommand(
            type=BaseCommand.PRODUCER,
            producer=CommandProducer(
                topic=self._topic,
                producer_id=self.id,
                request_id=request_id,
                producer_name=self.name or None,
                encrypted=settings.encrypted or bool(settings.encryption_keys),
                metadata=[KeyValue(key=k, value=v) for k, v in settings.properties.items()],
                schema=None if self._schema is None else self._schema.to_wire(),
                epoch=self._epoch,
                user_provided_producer_name=bool(settings.name),
                producer_access_mode=settings.access_mode.wire,
                topic_epoch=self._topic_epoch,
                initial_subscription_name=settings.initial_subscription or None,
            ),
        )

    async def _detach(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        timeout_ms = self._client_settings.close_timeout_ms
        try:
            await connection.request(
                request_id, self._close_command(request_id), timeout_ms=timeout_ms
            )
        except SdkError:
            pass  # the broker drops the producer with the connection, or has done so already
        finally:
            connection.producers.pop(self.id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.CLOSE_PRODUCER,
            close_producer=CommandCloseProducer(producer_id=self.id, request_id=request_id),
        )

    def _fail(self, error: SdkError) -> None:
        self.connection = None
        self._on_failed(error)
