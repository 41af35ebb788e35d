"""Batches: many messages in one entry.

Layout: docs/formats/pulsar-frame.md, "Batch body". Plain payloads are encoded for a whole run at
once, by C loops of the interpreter: about 0.1 us per message. Decoding is lazy: a `MessageBatch`
knows its count from the metadata, and splits its body on demand.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import Schema
from magnetar.sdk.wire.batches import check_batch_size, decode_batch
from magnetar.sdk.wire.compression import decompress
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.frames import open_payload, split_payload
from magnetar.sdk.wire.hot_commands import LAST_14, MORE_14, encode_varint
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_U32 = struct.Struct(">I")

ITEM_HEADER_BYTES_MAX = 21
"""Most bytes of a plain message of a batch beside its payload: two sizes, a sequence id."""


class _Heads(dict[int, bytes]):
    """Maps payload sizes to the bytes of an item up to its sequence id, for one width of sequence
    ids."""

    def __init__(self, sequence_width: int) -> None:
        self._sequence_width = sequence_width

    def __missing__(self, payload_size: int) -> bytes:
        size = b"\x18" + encode_varint(payload_size)
        head = _U32.pack(len(size) + 1 + self._sequence_width) + size + b"\x40"
        if len(self) < 4096:
            self[payload_size] = head
        return head


_HEADS = [_Heads(width) for width in range(11)]


def encode_plain_batch(payloads: Sequence[bytes], first_sequence_id: int) -> bytes:
    """Return the body of a batch of messages that have only a payload and a sequence id."""
    parts: list[bytes] = []
    done, count = 0, len(payloads)
    while done < count:
        # Within a run only the last 14 bits of the sequence id change, and its width does not.
        sequence_id = first_sequence_id + done
        if sequence_id < 128:
            stop, high = 128, b""
        elif sequence_id < 1 << 14:
            stop, high = 1 << 14, b""
        else:
            stop = (sequence_id | (1 << 14) - 1) + 1
            high = encode_varint(sequence_id >> 14)
        run = min(count - done, stop - sequence_id)
        low_at = sequence_id & (1 << 14) - 1
        low = (MORE_14 if high else LAST_14)[low_at : low_at + run]
        heads = _HEADS[len(low[0]) + len(high)]
        some = payloads if run == count else payloads[done : done + run]
        items = [b""] * (4 * run)
        items[0::4] = map(heads.__getitem__, map(len, some))
        items[1::4] = low
        if high:
            items[2::4] = [high] * run
        items[3::4] = some
        parts += items
        done += run
    return b"".join(parts)


def encode_batch(
    payloads: Sequence[bytes], extras: Sequence[bytes], first_sequence_id: int
) -> bytes:
    """Return the body of a batch whose messages have keys, properties or times.

    `extras` holds for each message the serialized other fields of its `SingleMessageMetadata`
    (without payload_size and sequence_id); empty for none.
    """
    parts: list[bytes] = []
    for at, (payload, extra) in enumerate(zip(payloads, extras, strict=True)):
        sequence = encode_varint(first_sequence_id + at)
        single = b"\x18" + encode_varint(len(payload)) + b"\x40" + sequence + extra
        parts += (_U32.pack(len(single)), single, payload)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class EntrySource:
    """Properties shared by all entries of a consumer."""

    topic: str
    partition: int = -1
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    """Most bytes of a payload after decompression, and of the objects of a batch beside it."""
    schema: Schema[object] | None = None
    """Schema by which `Message.value` decodes payloads; None: values are bytes."""
    on_compacted: Callable[[int, int, int, int], None] | None = None
    """Called when compaction turns out to have removed messages of a batch: ledger id, entry id,
    batch size, and bits of the messages that are left."""


class MessageBatch:
    """The messages of one entry as delivered, decoded on demand.

    An entry that is no batch is a `MessageBatch` of one, with a `batch_size` of 0. `count` is the
    number of messages in this delivery, without those acknowledged earlier (by batch index).
    """

    __slots__ = (
        "_body_at",
        "_payload",
        "_remaining",
        "_source",
        "batch_size",
        "count",
        "entry_id",
        "first_chunk",
        "ledger_id",
        "metadata",
        "redelivery_count",
        "round",
    )

    def __init__(
        self,
        payload: bytes,
        source: EntrySource,
        ledger_id: int,
        entry_id: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> None:
        """Read the metadata of an entry.

        `payload` is the payload of the MESSAGE command, `ack_set` its words of unacknowledged
        indexes.

        Raises:
            PayloadChecksumError: the checksum does not match, and the source verifies it.
            MalformedPayloadError: the payload has no readable metadata, or states more messages
                than the source's bound allows.
        """
        self._payload = payload
        self._source = source
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.first_chunk: MessageId | None = None
        """Id of the first chunk of a chunked message that was put together; None otherwise."""
        self.redelivery_count = redelivery_count
        self.round: object = None
        """Identity of the delivery round, changed each time that everything is redelivered; see
        `ReceiverQueue.is_current`."""
        split = open_payload if source.verify_checksum else split_payload
        metadata, self._body_at = split(payload)
        self.metadata: MessageMetadata = metadata
        self._remaining: int | None = None
        if not metadata.HasField("num_messages_in_batch"):
            self.batch_size = 0
            self.count = 1
            return
        size = metadata.num_messages_in_batch
        if size < 1:
            raise MalformedPayloadError(f"a batch of {size} messages")
        # Before anything else: a false size would make bit masks of hundreds of megabytes.
        check_batch_size(size, memory_bytes_max=source.decompressed_bytes_max)
        self.batch_size = size
        self.count = size
        if ack_set:
            self._remaining = mask_from_words(ack_set) & ((1 << size) - 1)
            self.count = self._remaining.bit_count()

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def schema(self) -> Schema[object] | None:
        """Schema by which `Message.value` decodes the payloads; None: values are bytes."""
        return self._source.schema

    @property
    def partition(self) -> int:
        """Index of the partition; -1 if the topic is not one."""
        return self._source.partition

    @property
    def message_id(self) -> MessageId:
        """Id of the entry; acknowledging it acknowledges all of its messages."""
        return MessageId(
            self.ledger_id, self.entry_id, -1, self.partition, first_chunk=self.first_chunk
        )

    def restrict(self, mask: int) -> None:
        """Deliver only messages whose bit is set; a message that is no batch has bit 0."""
        whole = (1 << max(1, self.batch_size)) - 1
        self._remaining = (whole if self._remaining is None else self._remaining) & mask & whole
        self.count = self._remaining.bit_count()

    @property
    def remaining(self) -> int | None:
        """Bit mask of the unacknowledged messages, bit i for message i; None: all of them."""
        return self._remaining

    @property
    def entry_bytes(self) -> int:
        """Size of the entry as received, in bytes."""
        return len(self._payload)

    @property
    def payload_bytes(self) -> int:
        """Size of the body before compression, in bytes; for a batch, with the metadata of its
        messages."""
        metadata = self.metadata
        return metadata.uncompressed_size or len(self._payload) - self._body_at

    @property
    def travelled_body(self) -> bytes:
        """The body as received: compressed, encrypted, perhaps one chunk of a message."""
        return self._payload[self._body_at :]

    def body(self) -> bytes:
        """Return the body after decompression.

        Raises:
            MalformedPayloadError: the body is damaged, or larger than the bound.
        """
        metadata = self.metadata
        return decompress(
            metadata.compression,
            self._payload[self._body_at :],
            size=metadata.uncompressed_size,
            bytes_max=self._source.decompressed_bytes_max,
        )

    def with_body(self, body: bytes) -> "MessageBatch":
        """Return a decrypted copy of this entry, with the given body and without encryption
        fields."""
        metadata = MessageMetadata()
        metadata.CopyFrom(self.metadata)
        for name in ("encryption_keys", "encryption_algo", "encryption_param"):
            metadata.ClearField(name)
        head = metadata.SerializeToString()
        opened = MessageBatch(
            b"".join((_U32.pack(len(head)), head, body)),
            self._source,
            self.ledger_id,
            self.entry_id,
            self.redelivery_count,
        )
        opened.round = self.round
        if self._remaining is not None:
            opened.restrict(self._remaining)
        return opened

    @property
    def is_encrypted(self) -> bool:
        """Whether the producer encrypted the entry and it was not decrypted."""
        return bool(self.metadata.encryption_keys)

    def messages(self) -> list[Message]:
        """Return the messages to deliver, in order.

        An entry that is still encrypted is one message, whatever it holds: its data is the body as
        received.

        Raises:
            MalformedPayloadError: the body cannot be read.
        """
        if self.metadata.encryption_keys:
            return [Message(self._payload[self._body_at :], self, -1, None)] if self.count else []
        if self.batch_size == 0:
            return [Message(self.body(), self, -1, None)] if self.count else []
        remaining = self._remaining
        messages = [
            Message(data, self, index, single)
            for index, (single, data) in enumerate(self._items())
            if (remaining is None or remaining >> index & 1) and not single.compacted_out
        ]
        if len(messages) < self.count:
            self._leave_out_compacted(sum(1 << message.batch_index for message in messages))
        return messages

    def _leave_out_compacted(self, left: int) -> None:
        self.restrict(left)
        if self._source.on_compacted is not None:
            self._source.on_compacted(self.ledger_id, self.entry_id, self.batch_size, left)

    def payloads(self) -> list[bytes]:
        """Return only the payloads, which is faster than making messages.

        Raises:
            MalformedPayloadError: the body cannot be read.
        """
        if self._remaining is not None or self.metadata.encryption_keys:
            return [message.data for message in self.messages()]
        if self.batch_size == 0:
            return [self.body()]
        return [data for single, data in self._items() if not single.compacted_out]

    def _items(self) -> list[tuple[SingleMessageMetadata, bytes]]:
        bytes_max = self._source.decompressed_bytes_max
        return decode_batch(self.body(), self.batch_size, memory_bytes_max=bytes_max)


_WORD_MASK = (1 << 64) - 1


def mask_from_words(words: Sequence[int]) -> int:
    """Return one integer from the 64-bit words of an ack set, word 0 lowest; words may be
    signed."""
    # Shifting word by word would take quadratic time: hours for the largest batches.
    unsigned = [word & _WORD_MASK for word in words]
    return int.from_bytes(struct.pack(f"<{len(unsigned)}Q", *unsigned), "little")


def words_from_mask(mask: int) -> list[int]:
    """Return the signed 64-bit words of an ack set, without trailing zero words."""
    count = (mask.bit_length() + 63) // 64
    return list(struct.unpack(f"<{count}q", mask.to_bytes(8 * count, "little")))
