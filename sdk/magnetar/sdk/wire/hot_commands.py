"""Hand-made encodings of the commands that travel once per message.

SEND_RECEIPT and MESSAGE on the broker's side, SEND on the client's. The bytes are exactly what
protobuf would write (tests compare); the constant parts are cached, so that a frame costs a few
concatenations and no message object. All integers may be given signed: -1 travels as 2^64-1.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandMessage, MessageIdData
from magnetar.sdk.wire.varint import encode_varint

_SIZES = struct.Struct(">II")
_pack_sizes = _SIZES.pack
_MASK_64 = (1 << 64) - 1

PING_FRAME = bytes.fromhex("00000009 00000005 0812920100")
PONG_FRAME = bytes.fromhex("00000009 00000005 08139a0100")


def encode_send_receipts(
    producer_id: int,
    sequence_ids: Sequence[int],
    *,
    ledger_id: int,
    entry_ids: Sequence[int],
    highest_sequence_ids: Sequence[int] | None = None,
) -> bytes:
    """SEND_RECEIPT frames for messages of one producer in one ledger, in order, in one buffer.

    `entry_ids` is as long as `sequence_ids` (a range will do). `highest_sequence_ids`, if given, is
    too; 0 stands for "the SEND had none", and such a receipt does not carry the field either.
    Duplicates get ledger and entry id -1.
    """
    parts: list[bytes] = []
    append = parts.append
    varint = encode_varint
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


@lru_cache(maxsize=4096)
def _receipt_parts(
    producer_id: int, ledger_id: int, sequence_width: int, entry_width: int, highest_width: int
) -> tuple[bytes, bytes]:
    """The bytes before the sequence id, and those between it and the entry id."""
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
    """A MESSAGE frame up to its payload: write it, then the stored entry as it is.

    `payload_bytes` is the size of the entry that follows. `ack_set` holds the remaining indexes of
    a partly acknowledged batch; `partition` is sent if it is not negative, as is `consumer_epoch`.
    """
    if redelivery_count or ack_set or consumer_epoch >= 0:
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
    size, head, tail = _message_parts(consumer_id, ledger_id, len(entry), partition)
    return _pack_sizes(4 + size + payload_bytes, size) + head + entry + tail


@lru_cache(maxsize=4096)
def _message_parts(
    consumer_id: int, ledger_id: int, entry_width: int, partition: int
) -> tuple[int, bytes, bytes]:
    """Size of the command, its bytes before the entry id, and those after it."""
    ledger = b"\x08" + encode_varint(ledger_id) + b"\x10"
    tail = b"\x18" + encode_varint(partition) if partition >= 0 else b""
    consumer = b"\x08" + encode_varint(consumer_id)
    id_size = len(ledger) + entry_width + len(tail)
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
