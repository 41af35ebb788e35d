"""Frames against recorded bytes of the original clients, and bad input."""

import pytest

from magnetar.sdk.wire import (
    COMMAND_FIELDS,
    BaseCommand,
    FrameDecoder,
    FrameTooLargeError,
    MalformedFrameError,
    UnknownCommandError,
    check_checksum,
    encode_command,
    encode_payload_command,
    split_payload,
)
from magnetar.sdk.wire.frames import KNOWN_MAX
from magnetar.sdk.wire.hot_commands import encode_varint

CONNECT = bytes.fromhex(
    "00000029 00000025 0802 1221 0a11 50756c7361722d4350502d76342e322e30 2014 2a04 6e6f6e65"
    "5204 0801 1001"
)
CONNECTED = bytes.fromhex("00000012 0000000e 0803 1a0a 0a0178 1014 188080c002")
CLOSE_PRODUCER = bytes.fromhex("0000000c 00000008 080f 7a04 0800 1001")
FLOW = bytes.fromhex("0000000d 00000009 080b 5a05 0800 10e807")
SEND = bytes.fromhex(
    "00000037 00000008 0806 3204 0800 1000 0e01 e60870a8 0000001f"
    "0a08 66616b652d302d30 1000 1889dceddd9f34 2206 0a0161 120162 3202 6b30 6d30"
)
BATCH = bytes.fromhex(
    "0000004b 0000000a 0806 3206 0800 1000 1803 0e01 2856086b 00000015 0a08 66616b652d302d30"
    "1000 1894f5eddd9f34 5803 00000004 1802 4000 6d30 00000004 1802 4001 6d31"
    "00000004 1802 4002 6d32"
)
ACK_WITH_BATCH_INDEX = bytes.fromhex("00000014 00000010 080a 520c 0800 1000 1a06 080a 1000 2806")
SEEK_EARLIEST = bytes.fromhex(
    "00000025 00000021 081c e2011c 0800 1002 1a16 08ffffffffffffffffff01 10ffffffffffffffffff01"
)
RECORDED = [
    CONNECT,
    CONNECTED,
    CLOSE_PRODUCER,
    FLOW,
    SEND,
    BATCH,
    ACK_WITH_BATCH_INDEX,
    SEEK_EARLIEST,
]


def decode_one(data: bytes) -> tuple[BaseCommand, bytes]:
    (result,) = FrameDecoder().feed(data)
    return result


def test_recorded_connect_is_read() -> None:
    connect = decode_one(CONNECT)[0].connect
    assert connect.client_version == "Pulsar-CPP-v4.2.0"
    assert (connect.auth_method_name, connect.protocol_version) == ("none", 20)
    assert connect.feature_flags.supports_auth_refresh


def test_recorded_send_is_split_into_metadata_and_body() -> None:
    command, payload = decode_one(SEND)
    assert command.type == BaseCommand.SEND
    assert check_checksum(payload)
    metadata, body = split_payload(payload)
    assert (metadata.producer_name, metadata.partition_key) == ("fake-0-0", "k0")
    assert [(p.key, p.value) for p in metadata.properties] == [("a", "b")]
    assert payload[body:] == b"m0"


def test_recorded_batch_index_ack_is_read() -> None:
    (message_id,) = decode_one(ACK_WITH_BATCH_INDEX)[0].ack.message_id
    assert (message_id.ledgerId, message_id.entryId, list(message_id.ack_set)) == (10, 0, [6])


def test_packed_ack_set_is_accepted_too() -> None:
    packed = bytes.fromhex("00000015 00000011 080a 520d 0800 1000 1a07 080a 1000 2a0106")
    assert list(decode_one(packed)[0].ack.message_id[0].ack_set) == [6]


@pytest.mark.parametrize("recorded", RECORDED)
def test_recorded_frames_are_encoded_to_the_same_bytes(recorded: bytes) -> None:
    command, payload = decode_one(recorded)
    assert encode_payload_command(command, payload) == recorded
    if not payload:
        assert encode_command(command) == recorded


def test_frames_come_out_whole_however_the_bytes_arrive() -> None:
    stream = b"".join(RECORDED)
    whole = FrameDecoder().feed(stream)
    assert len(whole) == len(RECORDED)
    for size in (1, 2, 3, 7, 8, 9, 60, len(stream) - 1):
        decoder = FrameDecoder()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in decoder.feed(piece)] == whole
        assert decoder.pending_bytes == 0


def test_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    total = len(SEND) - 4
    assert len(FrameDecoder(total).feed(SEND)) == 1
    with pytest.raises(FrameTooLargeError):
        FrameDecoder(total - 1).feed(SEND)


def test_too_large_frame_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(FrameTooLargeError):
        FrameDecoder().feed(bytes.fromhex("7fffffff00000005"))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("00000009 00000006 0812920100", MalformedFrameError),  # command larger than the frame
        ("00000002 00000000", MalformedFrameError),  # total too small for the command size
        ("00000009 00000005 ffffffffff", MalformedFrameError),  # no protobuf
        ("00000006 00000002 0806", MalformedFrameError),  # SEND without its field
        ("0000000a 00000006 0806 3202 0801", MalformedFrameError),  # SEND without sequence id
        ("0000000a 00000006 0806 3202 1001", MalformedFrameError),  # SEND without producer id
        ("00000006 00000002 0864", UnknownCommandError),
        ("00000004 00000000", UnknownCommandError),
    ],
)
def test_bad_frames_are_refused(data: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        FrameDecoder().feed(bytes.fromhex(data))


def test_unknown_fields_are_tolerated() -> None:
    command, _ = decode_one(bytes.fromhex("0000000b 00000007 0812 920100 787b"))
    assert command.type == BaseCommand.PING


def test_every_command_type_has_its_field() -> None:
    assert set(COMMAND_FIELDS) == set(BaseCommand.Type.values())


def _send(producer_id: int, fields: bytes) -> bytes:
    """A SEND whose command has the producer id, and these bytes behind it."""
    send = b"\x08" + encode_varint(producer_id) + fields
    command = b"\x08\x06\x32" + encode_varint(len(send)) + send
    return (4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def test_with_more_producers_than_are_remembered_incomplete_commands_are_still_found() -> None:
    decoder = FrameDecoder()
    for producer_id in range(KNOWN_MAX + 100):
        ((command, _),) = decoder.feed(_send(producer_id, b"\x10\x07"))
        assert (command.send.producer_id, command.send.sequence_id) == (producer_id, 7)
    assert len(decoder._known) <= KNOWN_MAX
    with pytest.raises(MalformedFrameError, match="lacks a required field"):
        decoder.feed(_send(KNOWN_MAX + 99, b"\x18\x01"))
