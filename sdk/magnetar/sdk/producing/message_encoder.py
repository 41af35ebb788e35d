"""Messages and batches as SEND frames: compressed, encrypted, chunked if necessary. Pure.

The order is: compress the whole, cut it into chunks, encrypt each piece. All chunks of a message
have its sequence id and metadata, a uuid (name and sequence id of the producer, as the C++ client
makes it), their number and index, and the size of the whole before it was cut.

`BulkSends` is the fast path for many plain payloads at once (`send_many`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX, encode_plain_batch
from magnetar.sdk.errors import MessageTooLargeError
from magnetar.sdk.pending_sends import ChunkedSend, OnSent, PendingSend, PendingSends
from magnetar.sdk.producing.batch_container import OpenBatch
from magnetar.sdk.producing.outgoing import (
    TransactionId,
    compression_fields,
    transaction_fields,
)
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.compression import Compression, check_installed, compress
from magnetar.sdk.wire.frames import FRAME_SLACK_BYTES, MESSAGE_BYTES_MAX
from magnetar.sdk.wire.hot_commands import SendEncoder, publish_time_field
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from magnetar.sdk.encryption import MessageEncryptor


_CHUNK_FIELDS_BYTES_MAX = 128
"""Most bytes of a chunk's metadata beside names, keys and properties."""


class MessageEncoder:
    """Makes the sends of one producer. Call `attach` first, and again after each reconnect."""

    def __init__(
        self, topic: str, settings: ProducerSettings, encryptor: "MessageEncryptor | None"
    ) -> None:
        """Create the encoder of a producer.

        Raises:
            MissingPackageError: the package of the compression is not installed.
        """
        check_installed(settings.compression)
        self.message_bytes_max = MESSAGE_BYTES_MAX
        """Most bytes of a message that the broker accepts."""
        self._topic = topic
        self._codec = settings.compression
        self._chunking = settings.chunking
        self._chunk_bytes_max = settings.chunk_bytes_max
        self._encryptor = encryptor
        self._name = ""
        self._frames: SendEncoder | None = None
        self._frames_without_version: SendEncoder | None = None

    @property
    def frames(self) -> SendEncoder:
        """Encoder for the frames of bodies that are neither compressed nor encrypted."""
        assert self._frames is not None
        return self._frames

    @property
    def is_ready(self) -> bool:
        """Whether the producer was attached before."""
        return self._frames is not None

    @property
    def is_plain(self) -> bool:
        """Whether payloads are sent without compression or encryption."""
        return self._codec is Compression.NONE and self._encryptor is None

    def attach(
        self, producer_id: int, name: str, schema_version: bytes, message_bytes_max: int
    ) -> None:
        """Take the broker's answer to PRODUCER, and its message limit."""
        version = MessageMetadata(schema_version=schema_version or None)
        self._frames = SendEncoder(producer_id, name, fields=version.SerializePartialToString())
        self._frames_without_version = SendEncoder(producer_id, name)
        self._name = name
        self.message_bytes_max = message_bytes_max

    def check_size(self, size: int) -> None:
        """Refuse a message that the broker would refuse.

        With compression the size is known only later.

        Raises:
            MessageTooLargeError: the message is above the broker's limit.
        """
        if size > self.message_bytes_max and self._codec is Compression.NONE and not self._chunking:
            raise self._too_large(size)

    def _too_large(self, size: int) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"{self._topic}: the message has {size} bytes; the broker accepts "
            f"{self.message_bytes_max}; with `chunking` the producer sends larger ones in chunks"
        )

    def _check_frame(self, prefix: bytes, body: bytes) -> None:
        """Refuse a frame above the broker's limit: each resend would break the connection."""
        size = len(prefix) + len(body)
        if size > self.message_bytes_max + FRAME_SLACK_BYTES:
            raise self._too_large(size)

    def batch(
        self,
        batch: OpenBatch,
        sequence_id: int,
        *,
        transaction: TransactionId | None,
        publish_time_ms: int,
    ) -> PendingSend:
        """Return the send of a closed batch.

        Raises:
            CryptoKeyError: the batch cannot be encrypted.
        """
        extra, of_command = batch.metadata, b""
        if transaction is not None:
            of_metadata, of_command = transaction_fields(transaction)
            extra += of_metadata
        return self.raw_batch(
            batch.body(sequence_id),
            len(batch),
            batch.payload_bytes,
            sequence_id,
            extra=extra,
            of_command=of_command,
            on_sent=batch.on_sent,
            sent_at_s=batch.since_s,
            publish_time_ms=publish_time_ms,
        )

    def raw_batch(
        self,
        body: bytes,
        count: int,
        payload_bytes: int,
        sequence_id: int,
        *,
        extra: bytes = b"",
        of_command: bytes = b"",
        on_sent: Sequence[OnSent | None] = (),
        sent_at_s: float,
        publish_time_ms: int,
    ) -> PendingSend:
        """Return the send of a batch whose body is encoded already.

        Raises:
            CryptoKeyError: the batch cannot be encrypted.
            MessageTooLargeError: the batch is larger than the broker accepts.
        """
        if self._codec is not Compression.NONE:
            extra += compression_fields(self._codec, len(body))
            body = compress(self._codec, body)
        if self._encryptor is not None:
            body, crypto = self._encryptor.encrypt(body)
            extra += crypto.SerializePartialToString()
        prefix = self.frames.encode_batch_prefix(
            body,
            sequence_id=sequence_id,
            count=count,
            publish_time=publish_time_field(publish_time_ms),
            extra=extra,
            of_command=of_command,
        )
        self._check_frame(prefix, body)
        last = sequence_id + count - 1
        return PendingSend(
            sequence_id, last, prefix, body, count, True, payload_bytes, sent_at_s, on_sent
        )

    def single(
        self,
        payload: bytes,
        extra: bytes,
        sequence_id: int,
        *,
        on_sent: OnSent | None,
        sent_at_s: float,
        publish_time_ms: int,
        is_encoded: bool = False,
        has_version: bool = False,
        transaction: TransactionId | None = None,
    ) -> list[PendingSend]:
        """Return the send of a message by itself, or the sends of its chunks.

        `is_encoded`: the payload is compressed and encrypted already, as `extra` says.
        `has_version`: `extra` decides about the schema version, too, and may have none.

        Raises:
            CryptoKeyError: the message cannot be encrypted.
            MessageTooLargeError: with its metadata the message is larger than the broker accepts.
        """
        encryptor = None if is_encoded else self._encryptor
        frames = self._frames_for(has_version=has_version)
        of_command = b""
        if transaction is not None:
            of_metadata, of_command = transaction_fields(transaction)
            extra += of_metadata
        body, extra = (payload, extra) if is_encoded else self._compressed(payload, extra)
        pieces = self._pieces(body, extra, may_cut=not is_encoded)
        publish_time = publish_time_field(publish_time_ms)
        chunked = ChunkedSend() if len(pieces) > 1 else None
        sends: list[PendingSend] = []
        left = len(payload)
        for at, piece in enumerate(pieces):
            fields = extra
            if len(pieces) > 1:
                fields += self._chunk_fields(sequence_id, at, len(pieces), len(body))
            taken = min(left, len(piece)) if at + 1 < len(pieces) else left
            left -= taken
            if encryptor is not None:
                piece, crypto = encryptor.encrypt(piece)
                fields += crypto.SerializePartialToString()
            prefix = frames.encode_prefix(
                piece,
                sequence_id=sequence_id,
                publish_time=publish_time,
                extra=fields,
                is_chunk=len(pieces) > 1,
                of_command=of_command,
            )
            self._check_frame(prefix, piece)
            is_last = at + 1 == len(pieces)
            callbacks = (on_sent,) if is_last and on_sent is not None else ()
            # The message counts with its last chunk, whose receipt confirms the whole message.
            sends.append(
                PendingSend(
                    sequence_id,
                    sequence_id,
                    prefix,
                    piece,
                    1 if is_last else 0,
                    False,
                    taken,
                    sent_at_s,
                    callbacks,
                    chunked,
                )
            )
        return sends

    def _compressed(self, payload: bytes, extra: bytes) -> tuple[bytes, bytes]:
        """Return the body, compressed if required, and the metadata fields that describe it."""
        if self._codec is Compression.NONE:
            return payload, extra
        extra += compression_fields(self._codec, len(payload))
        return compress(self._codec, payload), extra

    def _pieces(self, body: bytes, extra: bytes, *, may_cut: bool) -> list[bytes]:
        """Return the body, or its chunks if it is too large for one message.

        Raises:
            MessageTooLargeError: the body is too large, and may not be cut.
        """
        pieces = self._cut(body, extra) if self._chunking and may_cut else [body]
        if len(pieces) == 1 and len(body) > self.message_bytes_max:
            raise self._too_large(len(body))
        return pieces

    def _frames_for(self, *, has_version: bool) -> SendEncoder:
        """Return the encoder for messages that do or do not name a schema version themselves."""
        if not has_version:
            return self.frames
        assert self._frames_without_version is not None
        return self._frames_without_version

    def _cut(self, body: bytes, extra: bytes) -> list[bytes]:
        fixed = len(extra) + 2 * len(self._name) + _CHUNK_FIELDS_BYTES_MAX
        if self._encryptor is not None:
            fixed += self._encryptor.fields_bytes_max
        size = self.message_bytes_max - fixed
        if self._chunk_bytes_max:
            size = min(size, self._chunk_bytes_max)
        if size <= 0:
            raise MessageTooLargeError(
                f"{self._topic}: metadata of {fixed} bytes leave no room for a chunk; the broker "
                f"accepts {self.message_bytes_max}"
            )
        if len(body) <= size:
            return [body]
        return [body[at : at + size] for at in range(0, len(body), size)]

    def _chunk_fields(self, sequence_id: int, chunk_id: int, chunks: int, total: int) -> bytes:
        return MessageMetadata(
            uuid=f"{self._name}-{sequence_id}",
            num_chunks_from_msg=chunks,
            total_chunk_msg_size=total,
            chunk_id=chunk_id,
        ).SerializePartialToString()


class BulkSends:
    """Turns a run of payloads into pending sends."""

    def __init__(
        self, settings: ProducerSettings, encoder: MessageEncoder, pending: PendingSends
    ) -> None:
        self._settings, self._encoder, self._pending = settings, encoder, pending
        self.next_sequence_id = 0
        """Sequence id after the last message added, even if `add` has raised."""

    def add(
        self,
        payloads: Sequence[bytes],
        start: int,
        stop: int,
        *,
        bytes_left: int,
        sequence_id: int,
        now_s: float,
        publish_time_ms: int,
        parts: list[bytes],
    ) -> tuple[int, int]:
        """Add `payloads[start:stop]`, or as many of them as `bytes_left` allows.

        The bytes to write are appended to `parts`. Returns the index and the sequence id of the
        next payload.

        Raises:
            MessageTooLargeError, CryptoKeyError: the payloads before the failing one were added.
        """
        self.next_sequence_id = sequence_id
        before = self._pending.payload_bytes
        if not self._settings.batching and self._encoder.is_plain and not self._settings.chunking:
            return self._add_plain(payloads, start, stop, bytes_left, now_s, publish_time_ms, parts)
        while start < stop:
            if self._settings.batching:
                some = self._next_batch(payloads, start, stop)
            else:
                some = payloads[start : start + 1]
            size = sum(map(len, some))
            sends = self._encode(some, size, now_s, publish_time_ms)
            self.next_sequence_id += len(some)
            for send in sends:
                self._pending.add(send)
                parts += (send.prefix, send.body)
            start += len(some)
            if self._pending.payload_bytes - before >= bytes_left:
                break
        return start, self.next_sequence_id

    def _encode(
        self, some: Sequence[bytes], size: int, now_s: float, publish_time_ms: int
    ) -> list[PendingSend]:
        encoder, first = self._encoder, self.next_sequence_id
        if len(some) == 1:
            encoder.check_size(size)
        if self._settings.batching and size + ITEM_HEADER_BYTES_MAX <= encoder.message_bytes_max:
            body = encode_plain_batch(some, first)
            return [
                encoder.raw_batch(
                    body, len(some), size, first, sent_at_s=now_s, publish_time_ms=publish_time_ms
                )
            ]
        return encoder.single(
            some[0], b"", first, on_sent=None, sent_at_s=now_s, publish_time_ms=publish_time_ms
        )

    def _next_batch(self, payloads: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
        settings = self._settings
        body_max = min(settings.batch_bytes_max, self._encoder.message_bytes_max)
        some = payloads[start : min(stop, start + settings.batch_messages_max)]
        size = sum(map(len, some))
        while len(some) > 1 and size + len(some) * ITEM_HEADER_BYTES_MAX > body_max:
            some = some[: len(some) // 2]
            size = sum(map(len, some))
        return some

    def _add_plain(
        self,
        payloads: Sequence[bytes],
        start: int,
        stop: int,
        bytes_left: int,
        now_s: float,
        publish_time_ms: int,
        parts: list[bytes],
    ) -> tuple[int, int]:
        """Add plain payloads one by one, with as few calls per payload as possible."""
        encoder = self._encoder
        encode, add = encoder.frames.encode_prefix, self._pending.add
        publish_time = publish_time_field(publish_time_ms)
        size_max = encoder.message_bytes_max
        sequence_id = first = self.next_sequence_id
        try:
            for payload in payloads[start:stop]:
                size = len(payload)
                if size > size_max:
                    encoder.check_size(size)
                prefix = encode(payload, sequence_id=sequence_id, publish_time=publish_time)
                add(PendingSend(sequence_id, sequence_id, prefix, payload, 1, False, size, now_s))
                parts += (prefix, payload)
                sequence_id += 1
                bytes_left -= size
                if bytes_left <= 0:
                    break
        finally:
            self.next_sequence_id = sequence_id
        return start + sequence_id - first, sequence_id
