"""The producer: messages in, SEND frames out, receipts back.

A message is encoded when it is sent, stays pending until its receipt, and is sent again in the same
order after a reconnect. The order of receipts is the order of sends. Batching collects messages
until a batch is full or its delay is over; with the default delay of 0 that is the end of the event
loop's turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Self

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX, encode_batch, encode_plain_batch
from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    PendingLimitError,
    SdkError,
    SendTimeoutError,
    ServiceError,
    service_error,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.pending_sends import OnSent, PendingSend, PendingSends, receipt_id
from magnetar.sdk.session import Session
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.compression import Compression, compress
from magnetar.sdk.wire.errors import MessageChecksumError, NotAllowedError, TopicTerminatedError
from magnetar.sdk.wire.frames import MESSAGE_BYTES_MAX
from magnetar.sdk.wire.hot_commands import SendEncoder, publish_time_field
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandSendError,
    CommandSendReceipt,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar.sdk.wire.topic_name import TopicName

OnConfirmed = Callable[[Sequence[PendingSend], float], None]
"""Called with the sends that receipts arrived for in one network read, and the monotonic time."""


class Producer:
    """Sends messages to one topic. Made by `Client.producer`."""

    def __init__(
        self, context: ClientContext, topic: TopicName, producer_id: int, settings: ProducerSettings
    ) -> None:
        self.topic = str(topic)
        self.on_confirmed: OnConfirmed | None = None
        """For measuring: see `OnConfirmed`. Must not raise."""
        self._partition = topic.partition_index
        self._context = context
        self._settings = settings
        self._id = producer_id
        self._loop = asyncio.get_running_loop()
        self._clock = context.clock
        self._name = settings.name
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._encoder: SendEncoder | None = None
        self._connection: Connection | None = None
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._next_sequence_id = 0
        self._pending = PendingSends()
        # The open batch. `_extras` stays empty as long as all messages are plain payloads.
        self._batch: list[bytes] = []
        self._batch_extras: list[bytes] = []
        self._batch_on_sent: list[OnSent | None] = []
        self._batch_bytes = 0
        self._batch_since_s = 0.0
        self._batch_first: MessageMetadata | None = None
        self._batch_timer: asyncio.Handle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unreported: SdkError | None = None
        self._closing = False
        self._session = Session(
            f"producer {producer_id} on {self.topic}",
            find=partial(context.find, topic),
            attach=self._attach,
            on_failed=self._on_failed,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
        )

    # -- public

    @property
    def name(self) -> str:
        """The producer's name: ours, or the one that the broker made up."""
        return self._name

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def last_sequence_id(self) -> int:
        """Sequence id of the last message that was sent; -1 before the first."""
        return self._next_sequence_id - 1

    @property
    def pending_messages(self) -> int:
        """Messages without receipt, those of the open batch included."""
        return self._pending.messages + len(self._batch)

    @property
    def pending_bytes(self) -> int:
        """Payload bytes without receipt."""
        return self._pending.payload_bytes + self._batch_bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Send a message and wait until it is stored; waits for room first if need be.

        A cancelled call takes nothing back: the message may be stored all the same.

        Raises:
            SendTimeoutError: no receipt in time; the outcome is unknown.
            MessageTooLargeError, AlreadyClosedError, ServiceError
        """
        while self._is_full(len(payload)):
            await self._wait_room()
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self.send_nowait(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms,
            on_sent=partial(_settle, future),
        )
        return await future

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at_ms: int | None = None,
        on_sent: OnSent | None = None,
    ) -> None:
        """Send a message without waiting.

        `on_sent` is called with its id, or with the error; without it, an error is raised by the
        next `flush`.

        Raises:
            PendingLimitError: too much is under way already.
            MessageTooLargeError, AlreadyClosedError
        """
        self._check_usable()
        size = len(payload)
        if self._is_full(size):
            raise PendingLimitError(
                f"{self.topic}: {self.pending_messages} messages of {self.pending_bytes} bytes are "
                "under way"
            )
        self._check_size(size)
        plain = key is None and ordering_key is None and properties is None
        extra: MessageMetadata | None = None
        if not (plain and event_time_ms is None and deliver_at_ms is None):
            extra = _extra_metadata(key, ordering_key, properties, event_time_ms, deliver_at_ms)
        raw = b"" if extra is None else extra.SerializePartialToString()
        in_batch_bytes = size + len(raw) + ITEM_HEADER_BYTES_MAX
        if (
            self._settings.batching
            and deliver_at_ms is None
            and in_batch_bytes <= self._message_bytes_max
        ):
            self._add_to_batch(payload, extra, on_sent)
            return
        self._close_batch()
        self._send_single(payload, raw, on_sent, self._clock.monotonic_s())
        self._arm_send_timer()

    def send_encoded_nowait(
        self, body: bytes, metadata: MessageMetadata, *, on_sent: OnSent | None = None
    ) -> None:
        """Send a body that is compressed or encrypted already, as `metadata` says, by itself.

        What a producer adds (its name, sequence id, publish time) must not be in `metadata`.

        Raises:
            PendingLimitError, MessageTooLargeError, AlreadyClosedError: as `send_nowait`.
        """
        self._check_usable()
        if self._is_full(len(body)):
            raise PendingLimitError(f"{self.topic}: too much is under way")
        self._check_size(len(body))
        self._close_batch()
        raw = metadata.SerializePartialToString()
        self._send_single(body, raw, on_sent, self._clock.monotonic_s(), is_encoded=True)
        self._arm_send_timer()

    async def send_many(self, payloads: Sequence[bytes]) -> None:
        """Send many payloads, in order, and return when all are under way: the fastest way.

        With batching they go into batches of `batch_messages_max`, the last one shorter. Waits
        for room as needed. Receipts are waited for, and errors raised, by `flush`.

        Raises:
            MessageTooLargeError: of the payloads, those before the large one were sent.
            AlreadyClosedError
        """
        self._close_batch()
        done, count = 0, len(payloads)
        settings = self._settings
        while done < count:
            self._check_usable()
            room = settings.pending_messages_max - self._pending.messages
            if room <= 0 or self._pending.payload_bytes >= settings.pending_bytes_max:
                await self._wait_room()
                continue
            stop = min(count, done + room)
            if settings.batching:
                stop = self._send_batches(payloads, done, stop)
            else:
                stop = self._send_singles(payloads, done, stop)
            done = stop
            self._arm_send_timer()

    async def flush(self) -> None:
        """Wait until everything that was sent so far has its receipt or its error.

        Raises:
            SdkError: the first error, since the last flush, of a message that nobody watched.
        """
        self._close_batch()
        if len(self._pending):
            future: asyncio.Future[None] = self._loop.create_future()
            self._flush_waiters.append((self._next_sequence_id - 1, future))
            await future
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    async def close(self, *, flush: bool = True) -> None:
        """Flush, tell the broker, and end. Without `flush` what is pending fails at once.

        Raises:
            SdkError: as `flush`; the producer is closed all the same.
        """
        if self._closing:
            return
        try:
            if flush and self._session.failure is None:
                await self.flush()
        finally:
            self._closing = True
            try:
                await self._detach()
            finally:
                await self._session.close()
                self._fail_all(AlreadyClosedError(f"the producer on {self.topic} is closed"))
                self._context.forget(self)

    # -- life of the session

    async def start(self) -> None:
        """Called once by the client."""
        await self._session.start()

    async def _attach(self, connection: Connection) -> None:
        settings = self._settings
        request_id = connection.next_request_id()
        connection.producers[self._id] = self
        try:
            answer = await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.PRODUCER,
                    producer=CommandProducer(
                        topic=self.topic,
                        producer_id=self._id,
                        request_id=request_id,
                        producer_name=self._name or None,
                        encrypted=settings.encrypted,
                        epoch=self._epoch,
                        user_provided_producer_name=bool(settings.name),
                        producer_access_mode=settings.access_mode.wire,
                        topic_epoch=self._topic_epoch,
                    ),
                ),
            )
        except ServiceError:
            connection.producers.pop(self._id, None)
            raise
        except BaseException:
            # The broker may have made it all the same: it must not keep our name taken.
            connection.producers.pop(self._id, None)
            connection.send(self._close_command(connection.next_request_id()))
            raise
        success = answer.producer_success
        if self._encoder is None:
            self._name = success.producer_name
            self._encoder = SendEncoder(self._id, self._name)
            first = settings.initial_sequence_id
            self._next_sequence_id = success.last_sequence_id + 1 if first is None else first
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        self._epoch += 1
        # The broker may have dropped us in the very read that brought the answer.
        if connection.producers.get(self._id) is not self:
            return
        self._message_bytes_max = connection.message_bytes_max
        self._connection = connection
        for send in self._pending:
            connection.write((send.prefix, send.body))

    async def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or not connection.is_open:
            return
        request_id = connection.next_request_id()
        timeout_ms = self._context.settings.close_timeout_ms
        try:
            await connection.request(
                request_id, self._close_command(request_id), timeout_ms=timeout_ms
            )
        except SdkError:
            pass  # the broker drops the producer with the connection, or has done so already
        finally:
            connection.producers.pop(self._id, None)

    def _close_command(self, request_id: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.CLOSE_PRODUCER,
            close_producer=CommandCloseProducer(producer_id=self._id, request_id=request_id),
        )

    def on_session_lost(self, connection: Connection) -> None:
        """From the connection: the broker closed the producer, or the connection broke."""
        if connection is self._connection:
            self._connection = None
        self._session.lose(connection)

    def _on_failed(self, error: SdkError) -> None:
        self._connection = None
        self._fail_all(error)

    # -- encoding

    def _add_to_batch(
        self, payload: bytes, extra: MessageMetadata | None, on_sent: OnSent | None
    ) -> None:
        settings = self._settings
        size = len(payload)
        raw = b"" if extra is None else _single_metadata(extra)
        limit = min(settings.batch_bytes_max, self._message_bytes_max)
        taken = size + len(raw) + ITEM_HEADER_BYTES_MAX
        if self._batch and self._batch_bytes + taken > limit:
            self._close_batch()
        if not self._batch:
            self._batch_since_s = self._clock.monotonic_s()
            self._batch_first = extra
            delay_ms = settings.batch_delay_ms
            self._batch_timer = (
                self._loop.call_later(delay_ms / 1000, self._close_batch)
                if delay_ms
                else self._loop.call_soon(self._close_batch)
            )
        self._batch.append(payload)
        self._batch_bytes += taken
        if raw or self._batch_extras:
            self._batch_extras += [b""] * (len(self._batch) - 1 - len(self._batch_extras))
            self._batch_extras.append(raw)
        if on_sent is not None or self._batch_on_sent:
            self._batch_on_sent += [None] * (len(self._batch) - 1 - len(self._batch_on_sent))
            self._batch_on_sent.append(on_sent)
        if len(self._batch) >= settings.batch_messages_max or self._batch_bytes >= limit:
            self._close_batch()

    def _close_batch(self) -> None:
        payloads = self._batch
        if not payloads:
            return
        assert self._batch_timer is not None
        self._batch_timer.cancel()
        extras, on_sent, first = self._batch_extras, self._batch_on_sent, self._batch_first
        self._batch, self._batch_extras, self._batch_on_sent = [], [], []
        self._batch_bytes = 0
        sequence_id = self._next_sequence_id
        if extras:
            extras += [b""] * (len(payloads) - len(extras))
            body = encode_batch(payloads, extras, sequence_id)
        else:
            body = encode_plain_batch(payloads, sequence_id)
        if on_sent:
            on_sent += [None] * (len(payloads) - len(on_sent))
        self._send_batch(
            body,
            len(payloads),
            sum(map(len, payloads)),
            extra=b"" if first is None else _outer_metadata(first),
            on_sent=on_sent,
            sent_at_s=self._batch_since_s,
        )
        self._arm_send_timer()

    def _send_batches(self, payloads: Sequence[bytes], start: int, stop: int) -> int:
        """Send `payloads[start:stop]` as batches; returns where it came to: perhaps not so far."""
        settings = self._settings
        now_s = self._clock.monotonic_s()
        body_max = min(settings.batch_bytes_max, self._message_bytes_max)
        while start < stop:
            some = payloads[start : min(stop, start + settings.batch_messages_max)]
            payload_bytes = sum(map(len, some))
            while len(some) > 1 and payload_bytes + len(some) * ITEM_HEADER_BYTES_MAX > body_max:
                some = some[: len(some) // 2]
                payload_bytes = sum(map(len, some))
            if len(some) == 1:
                self._check_size(payload_bytes)
                if payload_bytes + ITEM_HEADER_BYTES_MAX > self._message_bytes_max:
                    self._send_single(some[0], b"", None, now_s)
                    start += 1
                    continue
            body = encode_plain_batch(some, self._next_sequence_id)
            self._send_batch(body, len(some), payload_bytes, sent_at_s=now_s)
            start += len(some)
            if self._pending.payload_bytes >= settings.pending_bytes_max:
                break
        return start

    def _send_batch(
        self,
        body: bytes,
        count: int,
        payload_bytes: int,
        *,
        extra: bytes = b"",
        on_sent: Sequence[OnSent | None] = (),
        sent_at_s: float,
    ) -> None:
        assert self._encoder is not None
        codec = self._settings.compression
        if codec is not Compression.NONE:
            extra += _compression_fields(codec, len(body))
            body = compress(codec, body)
        first = self._next_sequence_id
        self._next_sequence_id = first + count
        prefix = self._encoder.encode_batch_prefix(
            body,
            sequence_id=first,
            count=count,
            publish_time=publish_time_field(self._clock.wall_ms()),
            extra=extra,
        )
        self._pending.add(
            PendingSend(
                first,
                first + count - 1,
                prefix,
                body,
                count,
                True,
                payload_bytes,
                sent_at_s,
                on_sent,
            )
        )
        if self._connection is not None:
            self._connection.write((prefix, body))

    def _send_singles(self, payloads: Sequence[bytes], start: int, stop: int) -> int:
        """Send `payloads[start:stop]` one by one; returns where it came to."""
        assert self._encoder is not None
        settings = self._settings
        if settings.compression is not Compression.NONE:
            now_s = self._clock.monotonic_s()
            for payload in islice(payloads, start, stop):
                self._check_size(len(payload))
                self._send_single(payload, b"", None, now_s)
            return stop
        encode, add = self._encoder.encode_prefix, self._pending.add
        now_s = self._clock.monotonic_s()
        publish_time = publish_time_field(self._clock.wall_ms())
        size_max = self._message_bytes_max
        bytes_left = settings.pending_bytes_max - self._pending.payload_bytes
        sequence_id = self._next_sequence_id
        parts: list[bytes] = []
        try:
            for payload in payloads[start:stop]:
                size = len(payload)
                if size > size_max:
                    self._check_size(size)
                prefix = encode(payload, sequence_id=sequence_id, publish_time=publish_time)
                add(PendingSend(sequence_id, sequence_id, prefix, payload, 1, False, size, now_s))
                parts += (prefix, payload)
                sequence_id += 1
                bytes_left -= size
                if bytes_left <= 0:
                    break
        finally:
            sent = sequence_id - self._next_sequence_id
            self._next_sequence_id = sequence_id
            if self._connection is not None and parts:
                self._connection.write(parts)
        return start + sent

    def _send_single(
        self,
        payload: bytes,
        extra: bytes,
        on_sent: OnSent | None,
        sent_at_s: float,
        *,
        is_encoded: bool = False,
    ) -> None:
        assert self._encoder is not None
        codec = Compression.NONE if is_encoded else self._settings.compression
        body = payload
        if codec is not Compression.NONE:
            extra += _compression_fields(codec, len(payload))
            body = compress(codec, payload)
        sequence_id = self._next_sequence_id
        self._next_sequence_id = sequence_id + 1
        prefix = self._encoder.encode_prefix(
            body,
            sequence_id=sequence_id,
            publish_time=publish_time_field(self._clock.wall_ms()),
            extra=extra,
        )
        callbacks = () if on_sent is None else (on_sent,)
        self._pending.add(
            PendingSend(
                sequence_id,
                sequence_id,
                prefix,
                body,
                1,
                False,
                len(payload),
                sent_at_s,
                callbacks,
            )
        )
        if self._connection is not None:
            self._connection.write((prefix, body))

    # -- receipts and failures

    def on_receipts(self, receipts: list[CommandSendReceipt]) -> None:
        """From the connection: a run of receipts of one network read."""
        taken, well = self._pending.take(receipts)
        partition = self._partition
        for send, receipt in taken:
            if send.on_sent:
                send.finish(receipt_id(receipt, partition), None)
        if taken:
            if self.on_confirmed is not None:
                self.on_confirmed([send for send, _ in taken], self._clock.monotonic_s())
            self._after_progress()
        if not well and self._connection is not None:
            self._connection.fail(
                BrokerUnavailableError(
                    f"{self.topic}: a receipt for a message that is not next; connecting again"
                )
            )

    def on_send_error(self, error: CommandSendError) -> None:
        """From the connection: the broker refused one message, or all of them."""
        failure = service_error(error.error, str(error.message))
        if isinstance(failure, MessageChecksumError | NotAllowedError):
            send = self._pending.take_sequence(error.sequence_id)
            if send is not None:
                self._fail([send], failure)
                self._after_progress()
        elif isinstance(failure, TopicTerminatedError):
            self._fail_all(failure)
        elif self._connection is not None:
            # Nothing is known of what follows: attach afresh and send again what has no receipt.
            connection, self._connection = self._connection, None
            connection.producers.pop(self._id, None)
            connection.send(self._close_command(connection.next_request_id()))
            self._session.lose(connection)

    def _fail(self, sends: Sequence[PendingSend], error: SdkError) -> None:
        for send in sends:
            if send.on_sent:
                send.finish(None, error)
            elif self._unreported is None:
                self._unreported = error

    def _fail_all(self, error: SdkError) -> None:
        if self._encoder is not None:
            self._close_batch()
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
        if self._room_waiters:
            self._wake_room()

    def _wake_room(self) -> None:
        room = self._settings.pending_messages_max - self.pending_messages
        if self._session.failure is not None:
            room = len(self._room_waiters)
        waiters = self._room_waiters
        while waiters and room > 0:
            future = waiters.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1

    async def _wait_room(self) -> None:
        self._check_usable()
        future: asyncio.Future[None] = self._loop.create_future()
        self._room_waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # We may have been woken already: the turn goes to the next one.
            if future.done() and not future.cancelled():
                self._wake_room()
            raise

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
            state = "connected" if self._connection is not None else "not connected"
            error = SendTimeoutError(
                f"{self.topic}: no receipt within {timeout_ms} ms ({state}); "
                "the message may or may not be stored"
            )
            self._fail(expired, error)
            self._after_progress()
        self._arm_send_timer()

    def _check_usable(self) -> None:
        failure = self._session.failure
        if failure is not None:
            raise failure
        if self._closing:
            raise AlreadyClosedError(f"the producer on {self.topic} is closed")

    def _check_size(self, size: int) -> None:
        # A compressing producer knows only after compression, and has no smaller message to offer.
        if size > self._message_bytes_max and self._settings.compression is Compression.NONE:
            raise MessageTooLargeError(
                f"{self.topic}: a message of {size} bytes; "
                f"the broker accepts {self._message_bytes_max}"
            )

    def _is_full(self, size: int) -> bool:
        self._check_usable()
        settings = self._settings
        if self.pending_messages >= settings.pending_messages_max:
            return True
        pending_bytes = self.pending_bytes
        return pending_bytes > 0 and pending_bytes + size > settings.pending_bytes_max


def _settle(
    future: asyncio.Future[MessageId], message_id: MessageId | None, error: SdkError | None
) -> None:
    if future.done():
        return  # the sender was cancelled
    if error is not None:
        future.set_exception(error)
    elif message_id is not None:
        future.set_result(message_id)


def _extra_metadata(
    key: str | None,
    ordering_key: bytes | None,
    properties: Mapping[str, str] | None,
    event_time_ms: int | None,
    deliver_at_ms: int | None,
) -> MessageMetadata:
    """What a message has beyond its payload; the required fields are added by the encoder."""
    return MessageMetadata(
        partition_key=key,
        ordering_key=ordering_key,
        properties=[KeyValue(key=k, value=v) for k, v in (properties or {}).items()],
        event_time=event_time_ms,
        deliver_at_time=deliver_at_ms,
    )


def _single_metadata(extra: MessageMetadata) -> bytes:
    """The same for a message within a batch; payload size and sequence id are added there."""
    return SingleMessageMetadata(
        partition_key=extra.partition_key if extra.HasField("partition_key") else None,
        ordering_key=extra.ordering_key if extra.HasField("ordering_key") else None,
        properties=extra.properties,
        event_time=extra.event_time if extra.HasField("event_time") else None,
    ).SerializePartialToString()


def _outer_metadata(first: MessageMetadata) -> bytes:
    """What a batch says of its messages: the keys of the first one, by which brokers route."""
    return MessageMetadata(
        partition_key=first.partition_key if first.HasField("partition_key") else None,
        ordering_key=first.ordering_key if first.HasField("ordering_key") else None,
    ).SerializePartialToString()


def _compression_fields(codec: Compression, uncompressed_bytes: int) -> bytes:
    return MessageMetadata(
        compression=codec.wire, uncompressed_size=uncompressed_bytes
    ).SerializePartialToString()
