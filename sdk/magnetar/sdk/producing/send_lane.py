"""Send path of one producer: messages are numbered, batched, encoded, written, and kept as pending.

Batching collects messages until a batch is full or its delay is over; with the default delay of 0
that is the end of the event loop's turn. A message sent by itself closes the open batches first, so
messages are sent in the order of the calls.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX
from magnetar.sdk.errors import SdkError
from magnetar.sdk.pending_sends import OnSent, PendingSend
from magnetar.sdk.ports import Clock
from magnetar.sdk.producing.batch_container import BatchContainer
from magnetar.sdk.producing.message_encoder import BulkSends, MessageEncoder
from magnetar.sdk.producing.outgoing import (
    OutgoingMessage,
    TransactionId,
    entry_hash_fields_of,
)
from magnetar.sdk.producing.under_way import SendsUnderWay
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

_SEQUENCE_ID_MAX = (1 << 63) - 1
"""Largest sequence id: other clients and servers read it as a signed number."""


class SendLane:
    """The send path of one producer of one topic."""

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        clock: Clock,
        under_way: SendsUnderWay,
        *,
        write: Callable[[Iterable[bytes]], None],
        entry_buckets: Sequence[int] = (),
    ) -> None:
        """Create an empty send path.

        `write` writes to the broker if there is a connection, and drops the bytes otherwise:
        `attach` sends again. `entry_buckets`: see `BatchContainer`.

        Raises:
            CryptoKeyError: an encryption key is missing or cannot be used.
        """
        self.encoder = MessageEncoder(topic, settings, settings.encryptor(clock))
        self.next_sequence_id = 0
        self._topic = topic
        self._settings = settings
        self._clock = clock
        self._under_way = under_way
        self._pending = under_way.pending
        self._write = write
        self._batches = BatchContainer(
            messages_max=settings.batch_messages_max,
            bytes_max=settings.batch_bytes_max,
            by_key=settings.batch_by_key,
            entry_buckets=entry_buckets,
        )
        self._says_hashes = bool(entry_buckets)
        self._loop = asyncio.get_running_loop()
        self._batch_timer: asyncio.Handle | None = None

    @property
    def messages(self) -> int:
        """Number of messages without a receipt, including those of the open batches."""
        return self._pending.messages + self._batches.messages

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of the messages without a receipt, including those of the open batches."""
        return self._pending.payload_bytes + self._batches.payload_bytes

    def attach(
        self, producer_id: int, name: str, schema_version: bytes, message_bytes_max: int
    ) -> Iterable[bytes]:
        """Take the broker's answer to PRODUCER, and its limit; return the frames to send again."""
        self.encoder.attach(producer_id, name, schema_version, message_bytes_max)
        self._batches.bytes_max = min(self._settings.batch_bytes_max, message_bytes_max)
        return [part for send in self._pending for part in (send.prefix, send.body)]

    def give(
        self,
        message: OutgoingMessage,
        on_sent: OnSent | None,
        transaction: TransactionId | None = None,
    ) -> None:
        """Add a message to the open batch, or send it by itself.

        Raises:
            MessageTooLargeError, CryptoKeyError, ValueError: see `Producer.send_nowait`.
        """
        size = len(message.payload)
        self.encoder.check_size(size)
        if message.sequence_id is not None:
            self._use_sequence_id(message.sequence_id)
        extra = message.metadata()
        raw = b"" if extra is None else extra.SerializePartialToString()
        if self._says_hashes and extra is not None:
            raw += entry_hash_fields_of(extra)
        most = self.encoder.message_bytes_max
        if (
            self._settings.batching
            and message.deliver_at_ms is None
            and not message.replicate_to
            and message.schema_version is None
            and size + len(raw) + ITEM_HEADER_BYTES_MAX <= most
        ):
            self._add_to_batch(message.payload, extra, len(raw), on_sent, transaction)
        else:
            self.close_batches()
            self._send_single(
                message.payload,
                raw,
                on_sent,
                has_version=message.schema_version is not None,
                transaction=transaction,
            )

    def give_encoded(self, body: bytes, metadata: MessageMetadata, on_sent: OnSent | None) -> None:
        """Send an encoded message; see `Producer.send_encoded_nowait`."""
        self.encoder.check_size(len(body))
        self.close_batches()
        has_version = metadata.HasField("schema_version")
        if has_version and not metadata.schema_version:
            given, metadata = metadata, MessageMetadata()
            metadata.CopyFrom(given)
            metadata.ClearField("schema_version")
        raw = metadata.SerializePartialToString()
        self._send_single(body, raw, on_sent, is_encoded=True, has_version=has_version)

    def give_entry(self, body: bytes, messages: int, sequence_id: int, extra: bytes) -> None:
        """Send an encoded entry; see `Producer.send_entry`."""
        self._under_way.begin_entry()
        self.encoder.check_size(len(body))
        self.close_batches()
        self._use_sequence_id(sequence_id)
        if not messages:
            self._send_single(body, extra, None)
            return
        send = self.encoder.raw_batch(
            body,
            messages,
            len(body),
            sequence_id,
            extra=extra,
            sent_at_s=self._clock.monotonic_s(),
            publish_time_ms=self._clock.wall_ms(),
        )
        self.next_sequence_id += messages
        self._add(send)
        self._under_way.arm_timer()

    def give_payloads(
        self, payloads: Sequence[bytes], start: int, stop: int, *, bytes_left: int
    ) -> int:
        """Send `payloads[start:stop]`, or as many as `bytes_left` allows; return the index of the
        next one.

        The batches must be closed.

        Raises:
            MessageTooLargeError, CryptoKeyError: the payloads before the failing one were sent.
        """
        bulk = BulkSends(self._settings, self.encoder, self._pending)
        parts: list[bytes] = []
        try:
            return bulk.add(
                payloads,
                start,
                stop,
                bytes_left=bytes_left,
                sequence_id=self.next_sequence_id,
                now_s=self._clock.monotonic_s(),
                publish_time_ms=self._clock.wall_ms(),
                parts=parts,
            )[0]
        finally:
            self.next_sequence_id = bulk.next_sequence_id
            self._write(parts)
            self._under_way.arm_timer()

    def close_batches(self) -> None:
        """Send the messages in the open batches."""
        if not self._batches.messages:
            return
        assert self._batch_timer is not None
        self._batch_timer.cancel()
        transaction = self._batches.transaction
        was_refused = False
        for batch in self._batches.take():
            sequence_id = self.next_sequence_id
            self.next_sequence_id += len(batch)
            try:
                now_ms = self._clock.wall_ms()
                send = self.encoder.batch(
                    batch, sequence_id, transaction=transaction, publish_time_ms=now_ms
                )
            except SdkError as error:  # No key to encrypt it, or too large.
                self._under_way.refuse(len(batch), batch.on_sent, error)
                was_refused = True
                continue
            self._add(send)
        self._under_way.arm_timer()
        if was_refused:
            self._under_way.after_progress()  # their room is free

    # -- internal

    def _use_sequence_id(self, sequence_id: int) -> None:
        """Give the next message this sequence id."""
        if sequence_id > _SEQUENCE_ID_MAX:
            raise ValueError(
                f"{self._topic}: sequence id {sequence_id} must be at most {_SEQUENCE_ID_MAX}"
            )
        if self._batches.has_several:
            # Several open batches are numbered one after the other, not message by message.
            self.close_batches()
        if sequence_id == self.next_sequence_id + self._batches.messages:
            return
        self.close_batches()
        newest = self._pending.newest_sequence_id
        if sequence_id <= newest or sequence_id < 0:
            raise ValueError(
                f"{self._topic}: sequence id {sequence_id} must be above {newest}, the last one "
                "sent"
            )
        self.next_sequence_id = sequence_id

    def _add_to_batch(
        self,
        payload: bytes,
        extra: MessageMetadata | None,
        raw_bytes: int,
        on_sent: OnSent | None,
        transaction: TransactionId | None,
    ) -> None:
        batches = self._batches
        if not batches.has_room(len(payload) + raw_bytes + ITEM_HEADER_BYTES_MAX, transaction):
            self.close_batches()
        if not batches.messages:
            delay_ms = self._settings.batch_delay_ms
            self._batch_timer = (
                self._loop.call_later(delay_ms / 1000, self.close_batches)
                if delay_ms
                else self._loop.call_soon(self.close_batches)
            )
        now_s = self._clock.monotonic_s()
        batches.add(payload, extra, on_sent, now_s=now_s, transaction=transaction)
        if batches.is_full:
            self.close_batches()

    def _send_single(
        self,
        payload: bytes,
        extra: bytes,
        on_sent: OnSent | None,
        *,
        is_encoded: bool = False,
        has_version: bool = False,
        transaction: TransactionId | None = None,
    ) -> None:
        sends = self.encoder.single(
            payload,
            extra,
            self.next_sequence_id,
            on_sent=on_sent,
            sent_at_s=self._clock.monotonic_s(),
            publish_time_ms=self._clock.wall_ms(),
            is_encoded=is_encoded,
            has_version=has_version,
            transaction=transaction,
        )
        self.next_sequence_id += 1
        for send in sends:
            self._add(send)
        self._under_way.arm_timer()

    def _add(self, send: PendingSend) -> None:
        self._pending.add(send)
        self._write((send.prefix, send.body))
