"""The payload of SEND and MESSAGE: checksum, metadata, body.

Layout: docs/formats/pulsar-frame.md. In order: optionally 0x0e02, size (u32), BrokerEntryMetadata;
optionally 0x0e01, CRC32C (u32) of all that follows; metadata size (u32); MessageMetadata; body.
The body of a batch is read by `magnetar.sdk.batch`.
"""

import struct

import google_crc32c
from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import MalformedPayloadError, PayloadChecksumError
from magnetar.sdk.wire.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata

CHECKSUM_MAGIC = b"\x0e\x01"
ENTRY_METADATA_MAGIC = b"\x0e\x02"

_U32 = struct.Struct(">I")
_two_u32_at = struct.Struct(">II").unpack_from
_crc32c = google_crc32c.value
_parse_metadata = MessageMetadata.FromString


def checksum(data: bytes) -> int:
    """CRC32C (Castagnoli) of the data."""
    value: int = _crc32c(data)
    return value


def check_checksum(payload: bytes) -> bool:
    """Whether the payload matches its checksum; true if it carries none."""
    at = 0
    if payload[:2] == ENTRY_METADATA_MAGIC:
        at = _after_entry_metadata(payload)
    if payload[at : at + 2] != CHECKSUM_MAGIC:
        return True
    if len(payload) < at + 6:
        return False
    expected: int = _U32.unpack_from(payload, at + 2)[0]
    return bool(_crc32c(payload[at + 6 :]) == expected)


def split_payload(payload: bytes) -> tuple[MessageMetadata, int]:
    """The metadata and the offset of the body. The checksum is not verified here.

    Raises:
        MalformedPayloadError: truncated, or no valid metadata.
    """
    at, body = _metadata_span(payload)
    try:
        metadata = _parse_metadata(payload[at:body])
    except DecodeError as error:
        raise MalformedPayloadError(f"no message metadata: {error}") from error
    return metadata, body


def open_payload(payload: bytes) -> tuple[MessageMetadata, int]:
    """`split_payload`, with the checksum verified first.

    Raises:
        PayloadChecksumError: the checksum does not match.
        MalformedPayloadError: truncated, or no valid metadata.
    """
    if payload[:2] == CHECKSUM_MAGIC and len(payload) >= 10:
        expected, size = _two_u32_at(payload, 2)
        if _crc32c(payload[6:]) != expected:
            raise PayloadChecksumError("the checksum does not match")
        body = 10 + size
        if body <= len(payload):
            try:
                return _parse_metadata(payload[10:body]), body
            except DecodeError as error:
                raise MalformedPayloadError(f"no message metadata: {error}") from error
    elif not check_checksum(payload):
        raise PayloadChecksumError("the checksum does not match")
    return split_payload(payload)


def broker_entry_metadata(payload: bytes) -> BrokerEntryMetadata | None:
    """What the broker put before the message, if it did.

    Raises:
        MalformedPayloadError: the prefix is truncated or not decodable.
    """
    if payload[:2] != ENTRY_METADATA_MAGIC:
        return None
    end = _after_entry_metadata(payload)
    try:
        return BrokerEntryMetadata.FromString(payload[6:end])
    except DecodeError as error:
        raise MalformedPayloadError(f"no broker entry metadata: {error}") from error


def encode_payload(metadata: bytes, body: bytes) -> bytes:
    """Magic, checksum, metadata size, serialized `MessageMetadata`, body."""
    checked = b"".join((_U32.pack(len(metadata)), metadata, body))
    return b"".join((CHECKSUM_MAGIC, _U32.pack(_crc32c(checked)), checked))


def extend_metadata(payload: bytes, added: MessageMetadata) -> bytes:
    """The payload with more fields in its metadata, under a checksum of its own.

    The caller has verified the former checksum; broker entry metadata are dropped. Nothing is
    encoded anew: fields may stand behind all others, where they count (protobuf), so that what the
    sender wrote stays, fields that are unknown here included.

    Raises:
        MalformedPayloadError: truncated.
    """
    at, body = _metadata_span(payload)
    return encode_payload(payload[at:body] + added.SerializePartialToString(), payload[body:])


def messages_in(payload: bytes) -> int:
    """How many messages an entry holds: what it costs in consumer credit (1 if it is no batch).

    Raises:
        MalformedPayloadError: see `split_payload`.
    """
    metadata, _ = split_payload(payload)
    return max(1, metadata.num_messages_in_batch)


def _metadata_span(payload: bytes) -> tuple[int, int]:
    """Offsets of the serialized metadata, and of the body behind them."""
    at = 0
    if payload[:2] == ENTRY_METADATA_MAGIC:
        at = _after_entry_metadata(payload)
    if payload[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    if len(payload) < at + 4:
        raise MalformedPayloadError(f"a payload of {len(payload)} bytes ends in its headers")
    size: int = _U32.unpack_from(payload, at)[0]
    at += 4
    body = at + size
    if body > len(payload):
        raise MalformedPayloadError(
            f"metadata of {size} bytes in a payload of {len(payload)} bytes"
        )
    return at, body


def _after_entry_metadata(payload: bytes) -> int:
    """Offset behind the broker entry metadata."""
    if len(payload) < 6:
        raise MalformedPayloadError("a payload that ends in its broker entry metadata")
    size: int = _U32.unpack_from(payload, 2)[0]
    if 6 + size > len(payload):
        raise MalformedPayloadError(
            f"broker entry metadata of {size} bytes in a payload of {len(payload)} bytes"
        )
    return 6 + size
