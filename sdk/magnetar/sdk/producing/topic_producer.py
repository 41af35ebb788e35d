"""The producer of one topic (or one partition): messages in, SEND frames out, receipts back.

A message is encoded when it is sent, stays pending until its receipt, and is sent again in the same
order after a reconnect. The order of receipts is the order of sends. Batching collects messages
until a batch is full or its delay is over; with the default delay of 0 that is the end of the event
loop's turn.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX
from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    PendingLimitError,
    SdkError,
    SendTimeoutError,
    service_error,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent, PendingSend, PendingSends, receipt_id
from magnetar.sdk.producer import Producer
from magnetar.sdk.producing.batch_container import BatchContainer
from magnetar.sdk.producing.bulk_sends import BulkSends
from magnetar.sdk.producing.message_encoder import MessageEncoder
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.producer_attachment import ProducerAttachment
from magnetar.sdk.producing.producer_stats import ProducerCounters, ProducerStats
from magnetar.sdk.producing.send_room import SendRoom
from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schema import Schema, T
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.transaction import Transaction
from magnetar.sdk.wire.errors import MessageChecksumError, NotAllowedError, TopicTerminatedError
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandProducerSuccess,
    CommandSend,
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
        self._partition = topic.partition_index
        self._context = context
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = context.clock
        self._values = ValueEncoder(self.topic, schema, settings.interceptors)
        self._encoder = MessageEncoder(self.topic, settings, settings.encryptor(context.clock))
        self._pending = PendingSends()
        self._batches = BatchContainer(
            messages_max=settings.batch_messages_max,
            bytes_max=settings.batch_bytes_max,
            by_key=settings.batch_by_key,
        )
        self._room = SendRoom(settings, context.memory)
        self._counters = ProducerCounters()
        self._next_sequence_id = 0
        self._last_stored_sequence_id = -1
        self._batch_timer: asyncio.Handle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unreported: SdkError | None = None
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
        return self._next_sequence_id - 1

    @property
    def last_stored_sequence_id(self) -> int:
        return self._last_stored_sequence_id

    @property
    def pending_messages(self) -> int:
        return self._pending.messages + self._batches.messages

    @property
    def pending_bytes(self) -> int:
        return self._pending.payload_bytes + self._batches.payload_bytes

    @property
    def topic_epoch(self) -> int | None:
        return self._attachment.topic_epoch

    def stats(self) -> ProducerStats:
        return self._counters.snapshot(
            messages_pending=self.pending_messages, bytes_pending=self.pending_bytes
        )

    async def send(
        self,
        value: T,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        message = self._values.message(
            value, key, ordering_key, properties, event_time_ms, deliver_at_ms, sequence_id
        )
        return await self.send_message(message, transaction)

    async def _send_in(self, transaction: Transaction, message: OutgoingMessage) -> MessageId:
        await transaction.join_topic(self.topic)
        while self._is_full(len(message.payload)):
            await self._wait_room()
        self._check_usable()
        future: asyncio.Future[MessageId] = self._loop.create_future()
        on_sent: OnSent | None = partial(settle, future)
        if self._values.interceptors is not None:
            message, on_sent = self._values.intercept(message, on_sent)
        self._encoder.check_size(len(message.payload))
        if message.sequence_id is not None:
            self._use_sequence_id(message.sequence_id)
        self._close_batches()
        most, least = transaction.id
        extra = message.metadata() or MessageMetadata()
        extra.txnid_most_bits, extra.txnid_least_bits = most, least
        of_command = CommandSend(txnid_most_bits=most, txnid_least_bits=least)
        self._send_single(
            message.payload,
            extra.SerializePartialToString(),
            on_sent,
            of_command=of_command.SerializePartialToString(),
        )
        self._room.hold(self.pending_bytes)
        return await future

    async def send_message(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> MessageId:
        """`send` of a message that is encoded already."""
        if transaction is not None:
            return await asyncio.shield(transaction.start(self._send_in(transaction, message)))
        while self._is_full(len(message.payload)):
            await self._wait_room()
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self.send_message_nowait(message, partial(settle, future))
        return await future

    def send_nowait(
        self,
        value: T,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
        on_sent: OnSent | None = None,
    ) -> None:
        message = self._values.message(
            value, key, ordering_key, properties, event_time_ms, deliver_at_ms, sequence_id
        )
        self.send_message_nowait(message, on_sent)

    def send_message_nowait(self, message: OutgoingMessage, on_sent: OnSent | None) -> None:
        """`send_nowait` of a message that is encoded already."""
        self._check_usable()
        if self._values.interceptors is not None:
            message, on_sent = self._values.intercept(message, on_sent)
        size = len(message.payload)
        if self._is_full(size):
            raise self._limit_error()
        encoder = self._encoder
        encoder.check_size(size)
        if message.sequence_id is not None:
            self._use_sequence_id(message.sequence_id)
        extra = message.metadata()
        raw = b"" if extra is None else extra.SerializePartialToString()
        if (
            self._settings.batching
            and message.deliver_at_ms is None
            and size + len(raw) + ITEM_HEADER_BYTES_MAX <= encoder.message_bytes_max
        ):
            self._add_to_batch(message.payload, extra, len(raw), on_sent)
        else:
            self._close_batches()
            self._send_single(message.payload, raw, on_sent)
        self._room.hold(self.pending_bytes)

    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        self._check_usable()
        if self._is_full(len(body)):
            raise self._limit_error()
        self._encoder.check_size(len(body))
        self._close_batches()
        raw = metadata.SerializePartialToString()
        self._send_single(body, raw, on_sent, is_encoded=True)
        self._room.hold(self.pending_bytes)

    async def send_entry(
        self, body: bytes, *, messages: int, sequence_id: int, extra: bytes = b""
    ) -> None:
        while self._is_full(len(body)):
            await self._wait_room()
        self._encoder.check_size(len(body))
        self._close_batches()
        self._use_sequence_id(sequence_id)
        if messages:
            send = self._encoder.raw_batch(
                body,
                messages,
                len(body),
                sequence_id,
                extra=extra,
                sent_at_s=self._clock.monotonic_s(),
                publish_time_ms=self._clock.wall_ms(),
            )
            self._next_sequence_id += messages
            self._add(send)
            self._arm_send_timer()
        else:
            self._send_single(body, extra, None)
        self._room.hold(self.pending_bytes)

    async def send_many(self, values: Sequence[T]) -> None:
        payloads = self._values.payloads(values)
        if payloads is None:
            for value in values:
                await self.send_message_when_room(self._values.message(value))
            return
        await self.send_payloads(payloads)

    async def send_message_when_room(self, message: OutgoingMessage) -> None:
        """`send_nowait` that waits for room first."""
        while self._is_full(len(message.payload)):
            await self._wait_room()
        self.send_message_nowait(message, None)

    async def send_payloads(self, payloads: Sequence[bytes]) -> None:
        """`send_many` of messages that are their payloads and nothing else."""
        self._close_batches()
        done, count = 0, len(payloads)
        bulk = BulkSends(self._settings, self._encoder, self._pending)
        while done < count:
            self._check_usable()
            room, bytes_left = self._room.left(self._pending.messages, self._pending.payload_bytes)
            if not room or not bytes_left:
                await self._wait_room()
                continue
            parts: list[bytes] = []
            try:
                done, self._next_sequence_id = bulk.add(
                    payloads,
                    done,
                    min(count, done + room),
                    bytes_left=bytes_left,
                    sequence_id=self._next_sequence_id,
                    now_s=self._clock.monotonic_s(),
                    publish_time_ms=self._clock.wall_ms(),
                    parts=parts,
                )
            finally:
                self._next_sequence_id = bulk.next_sequence_id
                if parts and self._attachment.connection is not None:
                    self._attachment.connection.write(parts)
                self._room.hold(self.pending_bytes)
                self._arm_send_timer()

    async def flush(self) -> None:
        self._close_batches()
        if len(self._pending):
            future: asyncio.Future[None] = self._loop.create_future()
            self._flush_waiters.append((self._pending.newest_sequence_id, future))
            await future
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

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
        encoder = self._encoder
        if not encoder.is_ready:
            first = self._settings.initial_sequence_id
            self._next_sequence_id = success.last_sequence_id + 1 if first is None else first
            self._last_stored_sequence_id = success.last_sequence_id
        encoder.attach(
            self._attachment.id,
            success.producer_name,
            success.schema_version,
            connection.message_bytes_max,
        )
        self._batches.bytes_max = min(self._settings.batch_bytes_max, connection.message_bytes_max)
        for send in self._pending:
            connection.write((send.prefix, send.body))

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the producer, or the connection broke."""
        self._attachment.lose(connection)

    # -- sending

    def _use_sequence_id(self, sequence_id: int) -> None:
        """The next message has this one."""
        if sequence_id == self._next_sequence_id + self._batches.messages:
            return
        self._close_batches()
        newest = self._pending.newest_sequence_id if len(self._pending) else -1
        if sequence_id <= newest or sequence_id < 0:
            raise ValueError(
                f"{self.topic}: sequence id {sequence_id}; {newest} is under way before it"
            )
        self._next_sequence_id = sequence_id

    def _add_to_batch(
        self, payload: bytes, extra: MessageMetadata | None, raw_bytes: int, on_sent: OnSent | None
    ) -> None:
        batches = self._batches
        if not batches.has_room(len(payload) + raw_bytes + ITEM_HEADER_BYTES_MAX):
            self._close_batches()
        if not batches.messages:
            delay_ms = self._settings.batch_delay_ms
            self._batch_timer = (
                self._loop.call_later(delay_ms / 1000, self._close_batches)
                if delay_ms
                else self._loop.call_soon(self._close_batches)
            )
        batches.add(payload, extra, on_sent, now_s=self._clock.monotonic_s())
        if batches.is_full:
            self._close_batches()

    def _close_batches(self) -> None:
        if not self._batches.messages:
            return
        assert self._batch_timer is not None
        self._batch_timer.cancel()
        for batch in self._batches.take():
            sequence_id = self._next_sequence_id
            self._next_sequence_id += len(batch)
            try:
                now_ms = self._clock.wall_ms()
                send = self._encoder.batch(batch, sequence_id, publish_time_ms=now_ms)
            except SdkError as error:  # No key to encrypt it with.
                self._refuse(len(batch), batch.on_sent, error)
                continue
            self._add(send)
        self._arm_send_timer()

    def _send_single(
        self,
        payload: bytes,
        extra: bytes,
        on_sent: OnSent | None,
        *,
        is_encoded: bool = False,
        of_command: bytes = b"",
    ) -> None:
        sends = self._encoder.single(
            payload,
            extra,
            self._next_sequence_id,
            on_sent=on_sent,
            sent_at_s=self._clock.monotonic_s(),
            publish_time_ms=self._clock.wall_ms(),
            is_encoded=is_encoded,
            of_command=of_command,
        )
        self._next_sequence_id += 1
        for send in sends:
            self._add(send)
        self._arm_send_timer()

    def _add(self, send: PendingSend) -> None:
        self._pending.add(send)
        if self._attachment.connection is not None:
            self._attachment.connection.write((send.prefix, send.body))

    # -- receipts and failures

    def on_receipts(self, receipts: list[CommandSendReceipt]) -> None:
        """From the connection: a run of receipts of one network read."""
        taken, well = self._pending.take(receipts)
        partition = self._partition
        for send, receipt in taken:
            if send.on_sent or send.chunked is not None:
                send.finish(receipt_id(receipt, partition), None)
        if taken:
            sends = [send for send, _ in taken]
            now_s = self._clock.monotonic_s()
            self._last_stored_sequence_id = sends[-1].highest_sequence_id
            self._counters.on_stored(sends, now_s)
            if self.on_confirmed is not None:
                self.on_confirmed(sends, now_s)
            self._after_progress()
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
            sends = self._pending.take_sequence(error.sequence_id)
            if sends:
                self._fail(sends, failure)
                self._after_progress()
        elif isinstance(failure, TopicTerminatedError):
            self._fail_all(failure)
        else:
            # Nothing is known of what follows: attach afresh and send again what has no receipt.
            self._attachment.renew()

    def _fail(self, sends: Sequence[PendingSend], error: SdkError) -> None:
        for send in sends:
            self._refuse(send.messages, send.on_sent, error, send)

    def _refuse(
        self,
        messages: int,
        on_sent: Sequence[OnSent | None],
        error: SdkError,
        send: PendingSend | None = None,
    ) -> None:
        self._counters.on_failed(messages)
        if send is not None and on_sent:
            send.finish(None, error)
            return
        for each in on_sent:
            if each is not None:
                each(None, error)
        if not on_sent and messages and self._unreported is None:
            self._unreported = error

    def _fail_all(self, error: SdkError) -> None:
        if self._encoder.is_ready:
            self._close_batches()
        self._fail(self._pending.take_older(float("inf")), error)
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        self._after_progress()

    def _after_progress(self) -> None:
        """Something left the queue: wake those who wait for room or for a flush."""
        oldest = self._pending.oldest
        flush_waiters = self._flush_waiters
        while flush_waiters and (oldest is None or flush_waiters[0][0] < oldest.sequence_id):
            future = flush_waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        self._room.hold(self.pending_bytes)
        if self._attachment.failure is not None:
            self._room.wake_all()
        else:
            self._room.wake(self.pending_messages)

    async def _wait_room(self) -> None:
        self._check_usable()
        await self._room.wait(self.pending_messages)

    def _arm_send_timer(self) -> None:
        timeout_ms = self._settings.send_timeout_ms
        if self._send_timer is None and timeout_ms and self._pending.oldest is not None:
            timeout_s = timeout_ms / 1000
            age_s = self._clock.monotonic_s() - self._pending.oldest.sent_at_s
            self._send_timer = self._loop.call_later(
                max(0.0, timeout_s - age_s), self._on_send_timer
            )

    def _on_send_timer(self) -> None:
        self._send_timer = None
        timeout_ms = self._settings.send_timeout_ms
        before_s = self._clock.monotonic_s() - timeout_ms / 1000
        # A timer may fire a hair too early by this clock: a millisecond does not matter.
        expired = self._pending.take_older(before_s + 0.001)
        if expired:
            state = "connected" if self.is_connected else "not connected"
            error = SendTimeoutError(
                f"{self.topic}: no receipt within {timeout_ms} ms ({state}); "
                "the message may or may not be stored"
            )
            self._fail(expired, error)
            self._after_progress()
        self._arm_send_timer()

    def _check_usable(self) -> None:
        failure = self._attachment.failure
        if failure is not None:
            raise failure
        if self._closing:
            raise AlreadyClosedError(f"the producer on {self.topic} is closed")

    def _is_full(self, size: int) -> bool:
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
