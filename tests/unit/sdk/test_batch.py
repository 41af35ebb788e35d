"""Batches: the recorded body, partial delivery, damaged bodies."""

import tracemalloc

import pytest

from magnetar.sdk.batch import (
    EntrySource,
    MessageBatch,
    encode_plain_batch,
    mask_from_words,
    words_from_mask,
)
from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, encode_payload
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX, decode_batch
from magnetar.sdk.wire.compression import Compression, compress
from magnetar.sdk.wire.errors import PayloadChecksumError
from magnetar.sdk.wire.pulsar_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    SingleMessageMetadata,
)

RECORDED_BODY = bytes.fromhex(
    "00000004 1802 4000 6d30 00000004 1802 4001 6d31 00000004 1802 4002 6d32"
)
SOURCE = EntrySource("persistent://public/default/t", 2)


def entry(count: int | None, body: bytes) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=count
    )
    return encode_payload(metadata.SerializeToString(), body)


def test_recorded_body_is_encoded_to_the_same_bytes() -> None:
    assert encode_plain_batch([b"m0", b"m1", b"m2"], 0) == RECORDED_BODY


def test_recorded_body_is_split() -> None:
    items = decode_batch(RECORDED_BODY, 3)
    assert [(single.sequence_id, data) for single, data in items] == [
        (0, b"m0"),
        (1, b"m1"),
        (2, b"m2"),
    ]


@pytest.mark.parametrize("end", range(len(RECORDED_BODY)))
def test_truncated_body_is_refused(end: int) -> None:
    with pytest.raises(MalformedPayloadError):
        decode_batch(RECORDED_BODY[:end], 3)


def test_bytes_behind_the_last_message_are_refused() -> None:
    with pytest.raises(MalformedPayloadError):
        decode_batch(RECORDED_BODY, 2)


EMPTY = bytes.fromhex("00000002 1800")
"""The smallest message of a batch."""


def test_a_batch_of_the_most_messages_is_read_and_one_more_is_refused() -> None:
    most = MessageBatch(entry(BATCH_MESSAGES_MAX, EMPTY * BATCH_MESSAGES_MAX), SOURCE, 3, 4)
    assert len(most.payloads()) == BATCH_MESSAGES_MAX
    count = BATCH_MESSAGES_MAX + 1
    more = entry(count, EMPTY * count)
    with pytest.raises(MalformedPayloadError, match="decompressed bytes to 67109888"):
        MessageBatch(more, SOURCE, 3, 4)
    with pytest.raises(MalformedPayloadError, match="a batch of 65537 messages"):
        decode_batch(EMPTY * count, count)
    # What the error says helps.
    generous = EntrySource("t", decompressed_bytes_max=67_109_888)
    assert len(MessageBatch(more, generous, 3, 4).payloads()) == count


def test_a_small_bound_on_bytes_does_not_make_batches_unreadable() -> None:
    batch = MessageBatch(entry(3, EMPTY * 3), EntrySource("t", decompressed_bytes_max=18), 3, 4)
    assert batch.payloads() == [b"", b"", b""]


def test_a_batch_of_millions_of_messages_costs_its_consumer_no_memory() -> None:
    body = EMPTY * 10_000_000
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=7,
        publish_time=1,
        num_messages_in_batch=10_000_000,
        compression=CompressionType.ZSTD,
        uncompressed_size=len(body),
    )
    payload = encode_payload(metadata.SerializeToString(), compress(Compression.ZSTD, body))
    assert len(payload) < 10_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPayloadError):
            MessageBatch(payload, SOURCE, 3, 4, 0, [1]).messages()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_batch_with_millions_of_properties_is_refused() -> None:
    head = SingleMessageMetadata(payload_size=0).SerializeToString()
    properties = SingleMessageMetadata(properties=[KeyValue(key="", value="")])
    head += properties.SerializePartialToString() * 3_000_000
    with pytest.raises(MalformedPayloadError, match="metadata of the batch are too large"):
        decode_batch(len(head).to_bytes(4, "big") + head, 1)


@pytest.mark.parametrize(("count", "size"), [(None, 0), (3, 3)])
def test_an_encrypted_entry_is_one_message_as_it_travelled(count: int | None, size: int) -> None:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=7,
        publish_time=1,
        num_messages_in_batch=count,
        compression=CompressionType.LZ4,
        uncompressed_size=100,
        encryption_keys=[EncryptionKeys(key="k", value=b"v")],
    )
    payload = encode_payload(metadata.SerializeToString(), b"nobody can read it")
    batch = MessageBatch(payload, SOURCE, 3, 4)
    (message,) = batch.messages()
    assert message.is_encrypted
    assert message.data == b"nobody can read it"
    # Acknowledging it acknowledges the whole entry.
    assert (message.batch_index, message.batch_size) == (-1, size)
    assert batch.payloads() == [message.data]
    batch.restrict(0)
    assert batch.messages() == []


def test_entry_without_batch_field_is_one_message() -> None:
    batch = MessageBatch(entry(None, b"body"), SOURCE, 3, 4, 5)
    (message,) = batch.messages()
    assert (message.data, message.sequence_id, message.redelivery_count) == (b"body", 7, 5)
    assert str(message.message_id) == "3:4:2"
    assert (batch.count, batch.batch_size, batch.payloads()) == (1, 0, [b"body"])


def test_batch_of_one_is_still_a_batch() -> None:
    batch = MessageBatch(entry(1, RECORDED_BODY[:10]), SOURCE, 3, 4)
    (message,) = batch.messages()
    assert (message.data, message.batch_index, message.batch_size) == (b"m0", 0, 1)


def test_ack_set_delivers_the_remaining_messages_only() -> None:
    batch = MessageBatch(entry(3, RECORDED_BODY), SOURCE, 3, 4, 0, [0b101])
    assert batch.count == 2
    assert [message.data for message in batch.messages()] == [b"m0", b"m2"]
    assert batch.payloads() == [b"m0", b"m2"]
    assert [message.message_id.batch_index for message in batch.messages()] == [0, 2]


def test_impossible_batch_size_is_refused() -> None:
    with pytest.raises(MalformedPayloadError):
        MessageBatch(entry(0, b""), SOURCE, 3, 4)


def test_checksum_is_verified_unless_the_source_says_no() -> None:
    damaged = entry(None, b"body")[:-1] + b"!"
    with pytest.raises(PayloadChecksumError):
        MessageBatch(damaged, SOURCE, 3, 4)
    trusting = EntrySource("t", verify_checksum=False)
    assert MessageBatch(damaged, trusting, 3, 4).payloads() == [b"bod!"]


@pytest.mark.parametrize(
    ("words", "mask"),
    [([6], 6), ([0, 32], 32 << 64), ([-1], (1 << 64) - 1), ([-(1 << 63)], 1 << 63), ([], 0)],
)
def test_ack_set_words(words: list[int], mask: int) -> None:
    assert mask_from_words(words) == mask
    assert words_from_mask(mask) == words


def test_ack_set_words_of_the_largest_batches_take_no_long_time() -> None:
    mask = (1 << (1 << 24)) - 2
    words = words_from_mask(mask)
    assert words == [-2] + [-1] * ((1 << 18) - 1)
    assert mask_from_words(words) == mask
