"""Commands that come once per message, taken apart by hand: SEND, and an ACK of one whole entry.

A broker gets one of each per message, and making protobuf objects of them takes longer than what is
done with them. Only the usual shape is understood: the fields that clients send, each once and in
the order of their numbers. For anything else the answer is None, and protobuf decides (tests hold
both together on arbitrary bytes).
"""

from typing import NamedTuple

from magnetar.sdk.wire.pulsar_pb2 import CommandSend

SEND_START = b"\x08\x06\x32"
"""How a SEND begins: its type, and the tag of the command's field."""

ACK_START = b"\x08\x0a\x52"
"""The same of an ACK."""

_VARINT_BITS_MAX = 63
"""Nine bytes. A varint of ten is a negative number, or an error: protobuf knows."""


class Send(NamedTuple):
    """What a broker wants to know of a SEND."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    """0: not set."""
    txn: tuple[int, int] | None = None
    """Most and least significant bits of the id of its transaction, if it is in one."""


class SingleAck(NamedTuple):
    """An individual ACK of one entry as a whole, without a request id and in no transaction."""

    consumer_id: int
    ledger_id: int
    entry_id: int


def parse_send(raw: bytes) -> Send | None:
    """A SEND of the usual shape; None: something else, or nothing at all."""
    try:
        # 08 06 32 SIZE, 08 producer_id, 10 sequence_id, 18 num_messages?, 30 highest_sequence_id?
        size = len(raw)
        if raw[:3] != SEND_START or raw[3] != size - 4 or size > 131 or raw[4] != 0x08:
            return None
        producer_id, at = _varint(raw, 5)
        if raw[at] != 0x10:
            return None
        sequence_id, at = _varint(raw, at + 1)
        if at == size:
            return Send(producer_id, sequence_id, 0)
        highest_id = 0
        if raw[at] == 0x18:
            _, at = _varint(raw, at + 1)
        if at < size and raw[at] == 0x30:
            highest_id, at = _varint(raw, at + 1)
        return Send(producer_id, sequence_id, highest_id) if at == size else None
    except (IndexError, _NotUsualError):
        return None


def send_of(command: CommandSend) -> Send:
    """The same of any SEND that protobuf has parsed."""
    is_in_one = command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits")
    return Send(
        command.producer_id,
        command.sequence_id,
        command.highest_sequence_id,
        (command.txnid_most_bits, command.txnid_least_bits) if is_in_one else None,
    )


def parse_single_ack(raw: bytes) -> SingleAck | None:
    """An ACK of the usual shape; None: something else, or nothing at all."""
    try:
        # 08 0a 52 SIZE, 08 consumer_id, 10 00 (individual), 1a SIZE, 08 ledger_id, 10 entry_id
        size = len(raw)
        if raw[:3] != ACK_START or raw[3] != size - 4 or size > 131 or raw[4] != 0x08:
            return None
        consumer_id, at = _varint(raw, 5)
        if raw[at : at + 3] != b"\x10\x00\x1a" or raw[at + 3] != size - at - 4:
            return None
        if raw[at + 4] != 0x08:
            return None
        ledger_id, at = _varint(raw, at + 5)
        if raw[at] != 0x10:
            return None
        entry_id, at = _varint(raw, at + 1)
        return SingleAck(consumer_id, ledger_id, entry_id) if at == size else None
    except (IndexError, _NotUsualError):
        return None


class _NotUsualError(Exception):
    """A varint that is too long."""


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends."""
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
