"""Entries as headers and bodies."""

import json
from typing import Any

import pytest

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.http.raw_message import raw_message
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, encode_payload
from magnetar.sdk.wire.compression import Compression, compress

AT = Position(3, 4)


def entry(body: bytes = b"body", **fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    return encode_payload(metadata.SerializeToString(), body)


def test_properties_and_times_are_headers() -> None:
    found, body = raw_message(
        AT, entry(properties=[{"key": "a", "value": "ü"}], event_time=1_700_000_000_000)
    )
    assert body == b"body"
    assert found["X-Pulsar-Message-ID"] == "3:4"
    assert json.loads(found["X-Pulsar-PROPERTY"]) == {"a": "ü"}
    assert found["X-Pulsar-event-time"] == "2023-11-14T22:13:20.000+00:00"
    assert found["X-Pulsar-Is-Encrypted"] == "false"
    assert "X-Pulsar-num-batch-message" not in found


def test_a_compressed_batch_goes_out_decompressed_and_whole() -> None:
    packed = compress(Compression.ZLIB, b"x" * 100)
    found, body = raw_message(
        AT,
        entry(
            packed,
            compression=Compression.ZLIB.wire,
            uncompressed_size=100,
            num_messages_in_batch=2,
        ),
    )
    assert body == b"x" * 100
    assert found["X-Pulsar-num-batch-message"] == "2"


def test_what_is_encrypted_goes_out_as_it_is() -> None:
    keys = [{"key": "k", "value": b"secret"}]
    found, body = raw_message(AT, entry(b"?", compression=1, encryption_keys=keys))
    assert body == b"?"
    assert found["X-Pulsar-Is-Encrypted"] == "true"
    assert found["X-Pulsar-Base64-encryption-keys"]


def test_headers_stay_on_their_line() -> None:
    found, _ = raw_message(AT, entry(partition_key="a\r\nX-Evil: 1"))
    assert found["X-Pulsar-partition-key"] == "a%0D%0AX-Evil: 1"


def test_a_time_beyond_every_calendar_is_a_number() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1 << 63)
    found, _ = raw_message(AT, encode_payload(metadata.SerializeToString(), b""))
    assert found["X-Pulsar-publish-time"] == str(1 << 63)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(BrokerPersistenceError):
        raw_message(AT, b"\x0e\x01nothing")
    with pytest.raises(BrokerPersistenceError):
        raw_message(AT, entry(b"junk", compression=Compression.ZLIB.wire, uncompressed_size=9))


def test_a_part_of_a_chunked_message_says_so_where_tools_look() -> None:
    found, _ = raw_message(AT, entry(num_chunks_from_msg=3, chunk_id=0, total_chunk_msg_size=9))
    assert found["X-Pulsar-PROPERTY-TOTAL-CHUNKS"] == found["X-Pulsar-num-chunks-from-msg"] == "3"
    assert found["X-Pulsar-PROPERTY-CHUNK-ID"] == found["X-Pulsar-chunk-id"] == "0"
