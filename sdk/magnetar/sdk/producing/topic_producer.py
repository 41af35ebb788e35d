"""The producer of one topic (or one partition): messages in, SEND frames out, receipts back.

A message is encoded when it is sent, stays pending until its receipt, and is sent again in the same
order after a reconnect. Here are the calls, the limits, and the life of the session: PRODUCER and
CLOSE_PRODUCER, over reconnects (`ProducerAttachment`). Messages leave by the `SendLane`, and what
becomes of them is for `SendsUnderWay`.
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
"""Messages that are encoded before they are written, where each is alone: the broker works on these
while the next ones are encoded."""


class TopicProducer(Producer[T]):
    """See the module's text."""

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
        """`schema` is the producer's own copy of it; None: what is sent is bytes. `entry_buckets`:
        of a segment of a scalable topic, first hashes but the first one.

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
                    f"{self.topic}: the receipt is not for the oldest unconfirmed message; "
                    "reconnecting"
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
            f"{self.topic}: {self.pending_messages} unconfirmed messages of {self.pending_bytes} "
            "bytes: the producer's pending limit or the client's memory limit is reached"
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


class ProducerAttachment:
    """Where one producer is attached."""

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
        """`on_attached` comes before `connection` is set, `on_failed` when all is over."""
        self.connection: Connection | None = None
        """The connection, while the broker knows of us."""
        self.name = settings.name
        """Ours, or the one that the broker made up."""
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
            on_failed=self._fail,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
            gives_up=not self._waits,
        )

    @property
    def failure(self) -> SdkError | None:
        """Why it is over; None while it lives."""
        return self._session.failure

    @property
    def topic_epoch(self) -> int | None:
        """Of the exclusive access that we have: it counts those who had it before."""
        return self._topic_epoch

    async def start(self) -> None:
        """Attach for the first time; with WAIT_FOR_EXCLUSIVE that takes as long as it takes.

        Raises:
            SdkError: the reason why it could not.
        """
        await self._session.start()

    async def close(self) -> None:
        """Tell the broker, and end the session."""
        try:
            await self._detach()
        finally:
            await self._session.close()

    def lose(self, connection: Connection) -> None:
        """The broker closed the producer, or the connection broke."""
        if connection is self.connection:
            self.connection = None
        self._session.lose(connection)

    def renew(self) -> None:
        """Leave, and attach afresh: what is known of the messages under way is not enough."""
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
                # It was sealed while we were away, and has left the layout since.
                raise TopicTerminatedError(f"{self._topic} is gone: {error}") from error
            raise
        except BaseException:
            # The broker may have made it all the same: it must not keep our name taken.
            connection.producers.pop(self.id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        success = answer.producer_success
        self.name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        self._epoch += 1
        # The broker may have dropped us in the very read that brought the answer.
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
