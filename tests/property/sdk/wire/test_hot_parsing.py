"""What is parsed by hand is what protobuf says, for whatever bytes come."""

from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.sdk.wire import (
    BaseCommand,
    Send,
    SingleAck,
    parse_send,
    parse_single_ack,
    send_of,
)
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.hot_commands import encode_varint

numbers = st.one_of(
    st.integers(0, 300), st.integers(0, (1 << 64) - 1), st.sampled_from([(1 << 63) - 1, 1 << 63])
)
rare = st.booleans()


@st.composite
def sends(draw: st.DrawFn) -> pb.CommandSend:
    send = pb.CommandSend(producer_id=draw(numbers), sequence_id=draw(numbers))
    if draw(st.booleans()):
        send.num_messages = draw(st.integers(-1, 1000))
    if draw(st.booleans()):
        send.highest_sequence_id = draw(numbers)
    if draw(rare):
        send.txnid_most_bits = draw(numbers)
    if draw(rare):
        send.txnid_least_bits = draw(numbers)
    if draw(rare):
        send.is_chunk = True
    return send


@st.composite
def acks(draw: st.DrawFn) -> pb.CommandAck:
    ack = pb.CommandAck(
        consumer_id=draw(numbers),
        ack_type=draw(st.sampled_from([pb.CommandAck.Individual] * 3 + [pb.CommandAck.Cumulative])),
    )
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        ack.message_id.add(ledgerId=draw(numbers), entryId=draw(numbers))
        if draw(rare):
            ack.message_id[-1].partition = draw(st.integers(-1, 5))
        if draw(rare):
            ack.message_id[-1].ack_set.append(3)
    if draw(rare):
        ack.request_id = draw(numbers)
    return ack


@st.composite
def spoiled(draw: st.DrawFn, raw: bytes) -> bytes:
    """Bytes with some of them changed, put in or taken out."""
    data = bytearray(raw)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(st.binary(max_size=2))
            case 1:
                data[at:at] = draw(st.binary(max_size=12))
            case 2:
                del data[at:]
            case _:
                data += draw(st.binary(max_size=12))
    return bytes(data)


commands = st.one_of(
    sends().map(lambda send: BaseCommand(type=BaseCommand.SEND, send=send)),
    acks().map(lambda ack: BaseCommand(type=BaseCommand.ACK, ack=ack)),
).map(lambda command: command.SerializePartialToString())

TYPE_TWICE = bytes.fromhex("080632 04 08011002 080a")
"""The last one counts: it is no SEND."""
LONG_VARINT = b"\x08\x06\x32\x0e\x08" + b"\x80" * 9 + b"\x01\x10\x02"


def looks(raw: bytes) -> tuple[Send | None, SingleAck | None]:
    """What protobuf says: a SEND, or an ACK of one entry, and nothing else in it that counts."""
    try:
        command = BaseCommand.FromString(raw)
    except DecodeError:
        return None, None
    if not command.IsInitialized():
        return None, None
    if command.type == BaseCommand.SEND and command.HasField("send"):
        return send_of(command.send), None
    if command.type == BaseCommand.ACK and command.HasField("ack"):
        ack = command.ack
        if ack.ack_type == pb.CommandAck.Individual and len(ack.message_id) == 1:
            (each,) = ack.message_id
            plain = pb.CommandAck(
                consumer_id=ack.consumer_id,
                ack_type=ack.ack_type,
                message_id=[pb.MessageIdData(ledgerId=each.ledgerId, entryId=each.entryId)],
            )
            if plain == ack:
                return None, SingleAck(ack.consumer_id, each.ledgerId, each.entryId)
    return None, None


@given(commands.flatmap(spoiled))
@example(b"")
@example(TYPE_TWICE)
@example(LONG_VARINT)
def test_what_is_understood_by_hand_is_what_protobuf_says(raw: bytes) -> None:
    send, ack = looks(raw)
    assert parse_send(raw) in (None, send)
    assert parse_single_ack(raw) in (None, ack)


@given(
    producer_id=st.integers(0, (1 << 63) - 1),
    sequence_id=st.integers(0, (1 << 63) - 1),
    highest=st.none() | st.integers(1, (1 << 63) - 1),
    count=st.none() | st.integers(0, 1000),
)
def test_every_usual_send_is_understood(
    producer_id: int, sequence_id: int, highest: int | None, count: int | None
) -> None:
    send = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=count,
        highest_sequence_id=highest,
    )
    raw = BaseCommand(type=BaseCommand.SEND, send=send).SerializeToString()
    assert parse_send(raw) == Send(producer_id, sequence_id, highest or 0) == send_of(send)


@given(
    consumer_id=st.integers(0, (1 << 63) - 1),
    ledger_id=st.integers(0, (1 << 63) - 1),
    entry_id=st.integers(0, (1 << 63) - 1),
)
def test_every_usual_ack_is_understood(consumer_id: int, ledger_id: int, entry_id: int) -> None:
    ack = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)],
    )
    raw = BaseCommand(type=BaseCommand.ACK, ack=ack).SerializeToString()
    assert parse_single_ack(raw) == SingleAck(consumer_id, ledger_id, entry_id)


def test_a_varint_of_ten_bytes_is_left_to_protobuf() -> None:
    for value in (1 << 63, (1 << 64) - 1):
        send = b"\x08" + encode_varint(value) + b"\x10\x01"
        assert parse_send(b"\x08\x06\x32" + bytes([len(send)]) + send) is None
