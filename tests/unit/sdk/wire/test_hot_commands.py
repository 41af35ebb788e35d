"""Hand-made encodings against what protobuf writes."""

from magnetar.sdk.wire import (
    PING_FRAME,
    PONG_FRAME,
    BaseCommand,
    FrameDecoder,
    encode_command,
    encode_message_prefix,
    encode_send_receipts,
)
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandPing,
    CommandPong,
    CommandSendReceipt,
    MessageIdData,
)


def receipt(producer_id: int, sequence_id: int, ledger_id: int, entry_id: int) -> bytes:
    return encode_command(
        BaseCommand(
            type=BaseCommand.SEND_RECEIPT,
            send_receipt=CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=MessageIdData(ledgerId=ledger_id, entryId=entry_id),
            ),
        )
    )


def test_ping_and_pong_are_what_protobuf_writes() -> None:
    assert encode_command(BaseCommand(type=BaseCommand.PING, ping=CommandPing())) == PING_FRAME
    assert encode_command(BaseCommand(type=BaseCommand.PONG, pong=CommandPong())) == PONG_FRAME


def test_receipts_change_width_within_a_run() -> None:
    sequences = range(16_300, 16_500)
    entries = range(100, 300)
    expected = b"".join(receipt(7, s, 99, e) for s, e in zip(sequences, entries, strict=True))
    assert encode_send_receipts(7, sequences, ledger_id=99, entry_ids=entries) == expected


def test_receipt_of_a_duplicate_has_minus_one_ids() -> None:
    all_ones = (1 << 64) - 1
    encoded = encode_send_receipts(0, [5], ledger_id=-1, entry_ids=[-1])
    assert encoded == receipt(0, 5, all_ones, all_ones)


def test_no_receipts_are_no_bytes() -> None:
    assert encode_send_receipts(0, [], ledger_id=1, entry_ids=[]) == b""


def test_message_prefix_leaves_room_for_its_payload() -> None:
    prefix = encode_message_prefix(3, ledger_id=1 << 40, entry_id=129, payload_bytes=4)
    ((command, payload),) = FrameDecoder().feed(prefix + b"\x0e\x01ab")
    assert payload == b"\x0e\x01ab"
    message = command.message
    assert (message.consumer_id, message.message_id.ledgerId) == (3, 1 << 40)
    assert not message.message_id.HasField("partition")
    assert not message.HasField("redelivery_count")
