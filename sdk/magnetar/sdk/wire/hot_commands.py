"""Hand-written codec of the commands that are sent once per message.

Encoded are SEND_RECEIPT and MESSAGE on the broker's side, SEND, ACK and FLOW on the client's. The
bytes are exactly those of protobuf (tests compare). Constant parts are cached, so a frame costs a
few concatenations and no message object. All integers may be given signed: -1 is sent as 2^64-1.

Parsed are SEND, and an ACK of one whole entry. A broker gets one of each per message, and making
protobuf objects of them takes longer than the rest of the work. Only the usual form is recognized:
the fields that clients send, each once and in the order of their numbers. For anything else the
result is None, and protobuf decides (tests compare both on arbitrary bytes).

Most of these bytes are base-128 varints. They are encoded 14 bits at a time from two tables: a
sequence id costs two look-ups and no loop.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import google_crc32c

from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandMessage, CommandSend, MessageIdData

_SIZES = struct.Struct(">II")
_pack_u32 = struct.Struct(">I").pack
_crc32c = google_crc32c.value
_crc32c_extend = google_crc32c.extend
_pack_sizes = _SIZES.pack
_MASK_64 = (1 << 64) - 1

PING_FRAME = bytes.fromhex("00000009 00000005 0812920100")
PONG_FRAME = bytes.fromhex("00000009 00000005 08139a0100")

SEND_START = b"\x08\x06\x32"
"""First bytes of a SEND: its type, and the tag of the command's field."""

ACK_START = b"\x08\x0a\x52"
"""First bytes of an ACK: its type, and the tag of the command's field."""

_PARTS_MAX = 2048
"""Cached beginnings of frames: one per producer or consumer, ledger, and width of its numbers. Each
takes 0.4 KB, and is dropped as the least recently used."""
_VARINT_BITS_MAX = 63
"""Bits of a varint of nine bytes. One of ten bytes is a negative number or an error, which is left
to protobuf."""

_LOW_14 = (1 << 14) - 1

LAST_14 = [bytes((n,)) for n in range(128)]
LAST_14 += [bytes((n & 127 | 128, n >> 7)) for n in range(128, 1 << 14)]
"""Varints of one and two bytes, by value."""

MORE_14 = [bytes((n & 127 | 128, n >> 7 | 128)) for n in range(1 << 14)]
"""Two bytes of a longer varint for its low 14 bits, by their value."""


def encode_varint(value: int) -> bytes:
    """Encode a varint of one to ten bytes. Negative values are taken modulo 2^64, as by
    protobuf."""
    if 0 <= value < 16_384:
        return LAST_14[value]
    if 0 <= value < 268_435_456:
        return MORE_14[value & _LOW_14] + LAST_14[value >> 14]
    value &= _MASK_64
    return MORE_14[value & _LOW_14] + encode_varint(value >> 14)


def encode_send_receipts(
    producer_id: int,
    sequence_ids: Sequence[int],
    *,
    ledger_id: int,
    entry_ids: Sequence[int],
    highest_sequence_ids: Sequence[int] | None = None,
) -> bytes:
    """Encode SEND_RECEIPT frames for messages of one producer in one ledger, in order, in one
    buffer.

    `entry_ids` is as long as `sequence_ids` (a range will do), and so is `highest_sequence_ids`, if
    given. A highest id of 0 means that the SEND had none, and the receipt omits the field.
    Duplicates get ledger and entry id -1.
    """
    varint = encode_varint
    if highest_sequence_ids is None and len(sequence_ids) == 1:  # nothing to share
        sequence, entry = varint(sequence_ids[0]), varint(entry_ids[0])
        head, middle = _receipt_parts(producer_id, ledger_id, len(sequence), len(entry), 0)
        return head + sequence + middle + entry
    parts: list[bytes] = []
    append = parts.append
    sequence_width = entry_width = highest_width = -1
    head = middle = b""
    if highest_sequence_ids is None:
        for sequence_id, entry_id in zip(sequence_ids, entry_ids, strict=True):
            sequence, entry = varint(sequence_id), varint(entry_id)
            if len(sequence) != sequence_width or len(entry) != entry_width:
                sequence_width, entry_width = len(sequence), len(entry)
                head, middle = _receipt_parts(
                    producer_id, ledger_id, sequence_width, entry_width, 0
                )
            append(head + sequence + middle + entry)
        return b"".join(parts)
    for sequence_id, entry_id, highest_id in zip(
        sequence_ids, entry_ids, highest_sequence_ids, strict=True
    ):
        sequence, entry = varint(sequence_id), varint(entry_id)
        highest = b"\x20" + varint(highest_id) if highest_id else b""
        if (
            len(sequence) != sequence_width
            or len(entry) != entry_width
            or len(highest) != highest_width
        ):
            sequence_width, entry_width, highest_width = len(sequence), len(entry), len(highest)
            head, middle = _receipt_parts(
                producer_id, ledger_id, sequence_width, entry_width, highest_width
            )
        append(head + sequence + middle + entry + highest)
    return b"".join(parts)


@lru_cache(maxsize=_PARTS_MAX)
def _receipt_parts(
    producer_id: int, ledger_id: int, sequence_width: int, entry_width: int, highest_width: int
) -> tuple[bytes, bytes]:
    """Return the bytes before the sequence id, and those between it and the entry id."""
    producer = b"\x08" + encode_varint(producer_id) + b"\x10"
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    middle = b"\x1a" + encode_varint(len(ledger) + entry_width) + ledger
    receipt_size = len(producer) + sequence_width + len(middle) + entry_width + highest_width
    command = b"\x08\x07\x3a" + encode_varint(receipt_size)
    size = len(command) + receipt_size
    return _pack_sizes(4 + size, size) + command + producer, middle


def encode_message_prefix(
    consumer_id: int,
    *,
    ledger_id: int,
    entry_id: int,
    payload_bytes: int,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    partition: int = -1,
    consumer_epoch: int = -1,
) -> bytes:
    """Encode a MESSAGE frame up to its payload; the caller writes the stored entry right after it.

    `payload_bytes` is the size of that entry. `ack_set` holds the remaining indexes of a partly
    acknowledged batch. `partition` and `consumer_epoch` are sent if they are not negative.
    """
    if redelivery_count or ack_set:
        return _encode_rare_message_prefix(
            consumer_id,
            MessageIdData(
                ledgerId=ledger_id & _MASK_64,
                entryId=entry_id & _MASK_64,
                partition=partition if partition >= 0 else None,
            ),
            payload_bytes,
            redelivery_count,
            ack_set,
            consumer_epoch,
        )
    entry = encode_varint(entry_id)
    size, head, tail = _message_parts(consumer_id, ledger_id, len(entry), partition, consumer_epoch)
    return _pack_sizes(4 + size + payload_bytes, size) + head + entry + tail


def append_messages(
    parts: list[bytes],
    consumer_id: int,
    *,
    ledger_id: int,
    entry_ids: Sequence[int],
    payloads: Sequence[bytes],
    partition: int = -1,
    consumer_epoch: int = -1,
) -> None:
    """Append MESSAGE frames with their payloads, for entries of one ledger that are sent for the
    first time, as a whole.

    `payloads` is as long as `entry_ids`. For the other arguments see `encode_message_prefix`.
    """
    varint = encode_varint
    width = size = -1
    head = tail = b""
    for entry_id, payload in zip(entry_ids, payloads, strict=True):
        entry = varint(entry_id)
        if len(entry) != width:
            width = len(entry)
            size, head, tail = _message_parts(
                consumer_id, ledger_id, width, partition, consumer_epoch
            )
        sizes = _pack_sizes(4 + size + len(payload), size)
        parts += (sizes + head + entry + tail, payload)


@lru_cache(maxsize=_PARTS_MAX)
def _message_parts(
    consumer_id: int, ledger_id: int, entry_width: int, partition: int, consumer_epoch: int
) -> tuple[int, bytes, bytes]:
    """Return the size of the command, its bytes before the entry id, and those after it."""
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    index = b"\x18" + encode_varint(partition) if partition >= 0 else b""
    epoch = b"\x28" + encode_varint(consumer_epoch) if consumer_epoch >= 0 else b""
    consumer = b"\x08" + encode_varint(consumer_id)
    id_size = len(ledger) + entry_width + len(index)
    tail = index + epoch
    message_id = b"\x12" + encode_varint(id_size) + ledger
    message_size = len(consumer) + len(message_id) + entry_width + len(tail)
    head = b"\x08\x09\x4a" + encode_varint(message_size) + consumer + message_id
    return len(head) + entry_width + len(tail), head, tail


def _encode_rare_message_prefix(
    consumer_id: int,
    message_id: MessageIdData,
    payload_bytes: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    consumer_epoch: int,
) -> bytes:
    command = BaseCommand(
        type=BaseCommand.MESSAGE,
        message=CommandMessage(
            consumer_id=consumer_id,
            message_id=message_id,
            redelivery_count=redelivery_count or None,
            ack_set=ack_set,
            consumer_epoch=consumer_epoch if consumer_epoch >= 0 else None,
        ),
    )
    raw = command.SerializeToString()
    return _pack_sizes(4 + len(raw) + payload_bytes, len(raw)) + raw


class SendEncoder:
    """Encodes SEND frames of one producer; the constant parts are made once."""

    def __init__(self, producer_id: int, producer_name: str, *, fields: bytes = b"") -> None:
        """Take the constant parts. `fields`: serialized fields of `MessageMetadata` for all
        messages."""
        name = producer_name.encode()
        self._fields = fields
        self._producer = b"\x08" + encode_varint(producer_id) + b"\x10"
        self._name = b"\x0a" + encode_varint(len(name)) + name + b"\x10"

    def encode_prefix(
        self,
        body: bytes,
        *,
        sequence_id: int,
        publish_time: bytes,
        extra: bytes = b"",
        is_chunk: bool = False,
        of_command: bytes = b"",
    ) -> bytes:
        """Encode the frame of a single message up to its body, which must be written right after
        it.

        `publish_time` comes from `publish_time_field`; `extra` holds the serialized other fields of
        the `MessageMetadata`.
        """
        sequence = encode_varint(sequence_id)
        metadata = self._name + sequence + publish_time + self._fields + extra
        checked = _pack_u32(len(metadata)) + metadata
        send = self._producer + sequence
        if is_chunk:
            send += b"\x38\x01"
        send += of_command
        command = b"\x08\x06\x32" + encode_varint(len(send)) + send
        size = len(command)
        return b"".join(
            (
                _pack_sizes(10 + size + len(checked) + len(body), size),
                command,
                b"\x0e\x01",
                _pack_u32(_crc32c_extend(_crc32c(checked), body)),
                checked,
            )
        )

    def encode_batch_prefix(
        self,
        body: bytes,
        *,
        sequence_id: int,
        count: int,
        publish_time: bytes,
        extra: bytes = b"",
        of_command: bytes = b"",
    ) -> bytes:
        """Encode the frame of a batch up to its body; its `count` messages are numbered from
        `sequence_id` on.

        The highest sequence id is sent, too: deduplication needs it. `extra` and `of_command` hold
        further serialized fields of `MessageMetadata` and of `CommandSend`.
        """
        sequence = encode_varint(sequence_id)
        highest = encode_varint(sequence_id + count - 1)
        number = encode_varint(count)
        metadata = b"".join(
            (
                self._name,
                sequence,
                publish_time,
                self._fields,
                extra,
                b"\x58",
                number,
                b"\xc0\x01",
                highest,
            )
        )
        checked = _pack_u32(len(metadata)) + metadata
        send = b"".join((self._producer, sequence, b"\x18", number, b"\x30", highest, of_command))
        command = b"\x08\x06\x32" + encode_varint(len(send)) + send
        size = len(command)
        return b"".join(
            (
                _pack_sizes(10 + size + len(checked) + len(body), size),
                command,
                b"\x0e\x01",
                _pack_u32(_crc32c_extend(_crc32c(checked), body)),
                checked,
            )
        )


def publish_time_field(time_ms: int) -> bytes:
    """Encode field 3 of `MessageMetadata`, once for all messages of a moment."""
    return b"\x18" + encode_varint(time_ms)


def encode_acks(consumer_id: int, entries: Sequence[tuple[int, int]]) -> bytes:
    """Encode one individual ACK of whole entries, given as (ledger id, entry id)."""
    head = b"\x08" + encode_varint(consumer_id) + b"\x10\x00"
    parts = [head]
    append = parts.append
    ledger_of, ledger = -1, b""
    for ledger_id, entry_id in entries:
        if ledger_id != ledger_of:
            ledger_of, ledger = ledger_id, b"\x08" + encode_varint(ledger_id) + b"\x10"
        entry = encode_varint(entry_id)
        # A message id of two numbers has at most 22 bytes, so that its length is one byte.
        append(b"\x1a" + LAST_14[len(ledger) + len(entry)] + ledger + entry)
    ack = b"".join(parts)
    command = b"\x08\x0a\x52" + encode_varint(len(ack)) + ack
    return _pack_sizes(4 + len(command), len(command)) + command


def encode_flow(consumer_id: int, permits: int) -> bytes:
    """Encode a FLOW frame."""
    flow = b"\x08" + encode_varint(consumer_id) + b"\x10" + encode_varint(permits)
    command = b"\x08\x0b\x5a" + encode_varint(len(flow)) + flow
    return _pack_sizes(4 + len(command), len(command)) + command


class Send(NamedTuple):
    """The fields of a SEND that a broker uses."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    """Highest sequence id of a batch; 0 if not set."""
    txn: tuple[int, int] | None = None
    """Most and least significant bits of the transaction's id; None if there is no transaction."""


class SingleAck(NamedTuple):
    """An individual ACK of one entry as a whole, without a request id and in no transaction."""

    consumer_id: int
    ledger_id: int
    entry_id: int


# Equal to calling the types, less 0.15 to 0.2 us: their `__new__` is a Python function.
_new_send: Callable[[tuple[int, int, int, None]], Send] = partial(tuple.__new__, Send)
_new_single_ack: Callable[[tuple[int, int, int]], SingleAck] = partial(tuple.__new__, SingleAck)


def parse_send(raw: bytes) -> Send | None:
    """Parse a SEND of the usual form; return None for anything else."""
    try:
        # 08 06 32 SIZE, 08 producer_id, 10 sequence_id, 18 num_messages?, 30 highest_sequence_id?
        size = len(raw)
        if raw[:3] != SEND_START or raw[3] != size - 4 or size > 131 or raw[4] != 0x08:
            return None
        producer_id, at = _read_varint(raw, 5)
        if raw[at] != 0x10:
            return None
        sequence_id, at = _read_varint(raw, at + 1)
        if at == size:
            return _new_send((producer_id, sequence_id, 0, None))
        highest_id = 0
        if raw[at] == 0x18:
            _, at = _read_varint(raw, at + 1)
        if at < size and raw[at] == 0x30:
            highest_id, at = _read_varint(raw, at + 1)
        return _new_send((producer_id, sequence_id, highest_id, None)) if at == size else None
    except (IndexError, _NotUsualError):
        return None


def send_of(command: CommandSend) -> Send:
    """Return the `Send` of a SEND that protobuf has parsed."""
    is_in_one = command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits")
    return Send(
        command.producer_id,
        command.sequence_id,
        command.highest_sequence_id,
        (command.txnid_most_bits, command.txnid_least_bits) if is_in_one else None,
    )


def parse_single_ack(raw: bytes) -> SingleAck | None:
    """Parse an individual ACK of one entry in the usual form; return None for anything else."""
    try:
        # 08 0a 52 SIZE, 08 consumer_id, 10 00 (individual), 1a SIZE, 08 ledger_id, 10 entry_id
        size = len(raw)
        if raw[:3] != ACK_START or raw[3] != size - 4 or size > 131 or raw[4] != 0x08:
            return None
        consumer_id, at = _read_varint(raw, 5)
        if raw[at : at + 3] != b"\x10\x00\x1a" or raw[at + 3] != size - at - 4:
            return None
        if raw[at + 4] != 0x08:
            return None
        ledger_id, at = _read_varint(raw, at + 5)
        if raw[at] != 0x10:
            return None
        entry_id, at = _read_varint(raw, at + 1)
        return _new_single_ack((consumer_id, ledger_id, entry_id)) if at == size else None
    except (IndexError, _NotUsualError):
        return None


class _NotUsualError(Exception):
    """A varint is too long for the usual form."""


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at`, and the offset after it."""
    byte = raw[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < _VARINT_BITS_MAX:
        at += 1
        byte = raw[at]
        if byte < 0x80:
            return value | byte << shift, at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    raise _NotUsualError
