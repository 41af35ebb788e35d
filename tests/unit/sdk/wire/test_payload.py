"""Checksum, metadata and the broker's own prefix."""

import struct

import pytest

from magnetar.sdk.wire import (
    MalformedPayloadError,
    MessageMetadata,
    broker_entry_metadata,
    check_checksum,
    checksum,
    encode_payload,
    extend_metadata,
    messages_in,
    split_payload,
)
from magnetar.sdk.wire.pulsar_pb2 import BrokerEntryMetadata

METADATA = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
PAYLOAD = encode_payload(METADATA.SerializeToString(), b"body")
PREFIX = BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
PREFIXED = b"\x0e\x02" + struct.pack(">I", len(PREFIX)) + PREFIX + PAYLOAD


def test_crc32c_has_the_known_check_value() -> None:
    assert checksum(b"123456789") == 0xE3069283


@pytest.mark.parametrize("payload", [PAYLOAD, PREFIXED, PAYLOAD[6:]])
def test_payload_is_split_with_and_without_its_optional_headers(payload: bytes) -> None:
    metadata, body = split_payload(payload)
    assert metadata == METADATA
    assert payload[body:] == b"body"
    assert check_checksum(payload)


def test_broker_entry_metadata_is_read_where_present() -> None:
    prefix = broker_entry_metadata(PREFIXED)
    assert prefix is not None
    assert (prefix.broker_timestamp, prefix.index) == (5, 6)
    assert broker_entry_metadata(PAYLOAD) is None


@pytest.mark.parametrize("at", range(2, len(PAYLOAD)))
def test_any_flipped_byte_fails_the_checksum(at: int) -> None:
    damaged = PAYLOAD[:at] + bytes((PAYLOAD[at] ^ 1,)) + PAYLOAD[at + 1 :]
    assert not check_checksum(damaged)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0e\x01",
        b"\x0e\x01\0\0\0\0\0\0",
        b"\0\0\0\x05abcd",
        b"\0\0\0\x01\xff",
        b"\x0e\x02",
        b"\x0e\x02\0\0\0\xff",
    ],
)
def test_truncated_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedPayloadError):
        split_payload(payload)


def test_metadata_get_more_fields_and_keep_those_that_are_unknown() -> None:
    unknown = b"\xf8\x3f\x07"  # field 1023, a varint
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
    sent = encode_payload(metadata.SerializeToString() + unknown, b"body")
    for payload in (sent, sent[6:]):
        extended = extend_metadata(payload, MessageMetadata(txnid_least_bits=5, txnid_most_bits=0))
        assert check_checksum(extended)
        found, body = split_payload(extended)
        assert (found.txnid_least_bits, found.txnid_most_bits, found.sequence_id) == (5, 0, 3)
        assert unknown in extended
        assert extended[body:] == b"body"
    with pytest.raises(MalformedPayloadError):
        extend_metadata(sent[:12], MessageMetadata())


def test_messages_are_counted_by_the_metadata() -> None:
    assert messages_in(PAYLOAD) == 1
    batch = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=9
    )
    assert messages_in(encode_payload(batch.SerializeToString(), b"")) == 9
