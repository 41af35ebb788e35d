"""Any bytes give commands or one of our errors; what is encoded comes back."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.wire import (
    BaseCommand,
    FrameDecoder,
    FrameError,
    MalformedPayloadError,
    MessageMetadata,
    TopicName,
    TopicNameError,
    append_messages,
    broker_entry_metadata,
    check_checksum,
    encode_command,
    encode_message_prefix,
    encode_payload,
    encode_send_receipts,
    split_payload,
)
from magnetar.sdk.wire.hot_commands import encode_varint
from magnetar.sdk.wire.pulsar_pb2 import CommandMessage, CommandSendReceipt, MessageIdData

U64 = st.integers(0, (1 << 64) - 1)
SIGNED_ID = st.integers(-1, (1 << 63) - 1)
SIZES = st.integers(0, 64).map(lambda n: n.to_bytes(4, "big"))


@given(st.lists(st.one_of(st.binary(max_size=64), SIZES), max_size=8))
def test_arbitrary_bytes_give_commands_or_our_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(4096)
    try:
        for piece in pieces:
            for command, _ in decoder.feed(piece):
                assert command.IsInitialized()
    except FrameError:
        pass


@given(st.binary(max_size=200))
def test_arbitrary_command_bytes_give_a_command_or_our_error(raw: bytes) -> None:
    frame = (len(raw) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw
    try:
        ((command, _),) = FrameDecoder().feed(frame)
    except FrameError:
        return
    assert command.IsInitialized()


@given(st.binary(max_size=40), U64, st.integers(0, 127))
def test_send_is_never_let_through_incomplete(tail: bytes, sequence_id: int, head: int) -> None:
    send = bytes((0x08, head, 0x10)) + encode_varint(sequence_id)[: len(tail)] + tail
    raw = b"\x08\x06\x32" + encode_varint(len(send)) + send
    frame = (len(raw) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw
    try:
        ((command, _),) = FrameDecoder().feed(frame)
    except FrameError:
        return
    assert command.IsInitialized()


@given(st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda b: b"\x0e\x02" + b)))
def test_arbitrary_payloads_are_split_or_refused(payload: bytes) -> None:
    for read in (split_payload, check_checksum, broker_entry_metadata):
        try:
            read(payload)
        except MalformedPayloadError:
            pass


@given(st.text(max_size=20), U64, st.binary(max_size=50))
def test_payload_round_trip(name: str, sequence_id: int, body: bytes) -> None:
    metadata = MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)
    payload = encode_payload(metadata.SerializeToString(), body)
    assert check_checksum(payload)
    decoded, at = split_payload(payload)
    assert decoded == metadata
    assert payload[at:] == body


@given(
    st.integers(0, 1 << 20),
    SIGNED_ID,
    st.lists(st.tuples(U64, SIGNED_ID, st.one_of(st.just(0), U64)), max_size=20),
)
def test_receipts_are_what_protobuf_writes(
    producer_id: int, ledger_id: int, receipts: list[tuple[int, int, int]]
) -> None:
    mask = (1 << 64) - 1
    expected = b"".join(
        encode_command(
            BaseCommand(
                type=BaseCommand.SEND_RECEIPT,
                send_receipt=CommandSendReceipt(
                    producer_id=producer_id,
                    sequence_id=sequence_id,
                    message_id=MessageIdData(ledgerId=ledger_id & mask, entryId=entry_id & mask),
                    highest_sequence_id=highest_id or None,
                ),
            )
        )
        for sequence_id, entry_id, highest_id in receipts
    )
    encoded = encode_send_receipts(
        producer_id,
        [sequence_id for sequence_id, _, _ in receipts],
        ledger_id=ledger_id,
        entry_ids=[entry_id for _, entry_id, _ in receipts],
        highest_sequence_ids=[highest_id for _, _, highest_id in receipts],
    )
    assert encoded == expected


@given(
    st.integers(0, 1 << 20),
    SIGNED_ID,
    SIGNED_ID,
    st.integers(0, 300),
    st.one_of(st.just(0), st.integers(0, 1000)),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    st.integers(-1, 300),
    st.integers(-1, 3),
)
def test_message_prefix_is_what_protobuf_writes(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    payload_bytes: int,
    redelivery_count: int,
    ack_set: list[int],
    partition: int,
    consumer_epoch: int,
) -> None:
    mask = (1 << 64) - 1
    command = BaseCommand(
        type=BaseCommand.MESSAGE,
        message=CommandMessage(
            consumer_id=consumer_id,
            message_id=MessageIdData(
                ledgerId=ledger_id & mask,
                entryId=entry_id & mask,
                partition=partition if partition >= 0 else None,
            ),
            redelivery_count=redelivery_count or None,
            ack_set=ack_set,
            consumer_epoch=consumer_epoch if consumer_epoch >= 0 else None,
        ),
    ).SerializeToString()
    prefix = encode_message_prefix(
        consumer_id,
        ledger_id=ledger_id,
        entry_id=entry_id,
        payload_bytes=payload_bytes,
        redelivery_count=redelivery_count,
        ack_set=ack_set,
        partition=partition,
        consumer_epoch=consumer_epoch,
    )
    size = len(command)
    assert prefix == (4 + size + payload_bytes).to_bytes(4, "big") + size.to_bytes(4, "big") + (
        command
    )


@given(
    consumer_id=U64,
    ledger_id=st.integers(-1, (1 << 63) - 1),
    entries=st.lists(st.tuples(st.integers(-1, (1 << 63) - 1), st.binary(max_size=20))),
    partition=st.integers(-1, 1000),
    consumer_epoch=st.integers(-1, (1 << 63) - 1),
)
def test_many_messages_are_the_single_ones_behind_each_other(
    consumer_id: int,
    ledger_id: int,
    entries: list[tuple[int, bytes]],
    partition: int,
    consumer_epoch: int,
) -> None:
    expected = b"".join(
        encode_message_prefix(
            consumer_id,
            ledger_id=ledger_id,
            entry_id=entry_id,
            payload_bytes=len(payload),
            partition=partition,
            consumer_epoch=consumer_epoch,
        )
        + payload
        for entry_id, payload in entries
    )
    parts: list[bytes] = []
    append_messages(
        parts,
        consumer_id,
        ledger_id=ledger_id,
        entry_ids=[entry_id for entry_id, _ in entries],
        payloads=[payload for _, payload in entries],
        partition=partition,
        consumer_epoch=consumer_epoch,
    )
    assert b"".join(parts) == expected


@given(U64)
def test_varints_are_read_back(value: int) -> None:
    encoded = encode_varint(value)
    assert sum((byte & 127) << (7 * at) for at, byte in enumerate(encoded)) == value
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]


@given(st.text(max_size=60))
def test_any_topic_name_is_parsed_to_a_stable_form_or_refused(name: str) -> None:
    try:
        topic = TopicName.parse(name)
    except TopicNameError:
        return
    assert TopicName.parse(str(topic)) == topic
