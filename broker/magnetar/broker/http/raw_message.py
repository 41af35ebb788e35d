"""An entry as Pulsar's HTTP interface sends it: the payload as body, the metadata in headers. Pure.

The body is the decompressed payload. For a batch it is the whole batch, which clients split. An
encrypted payload is sent as it is. Source: HTTP sheet, section 9.2.
"""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import (
    MESSAGE_BYTES_MAX,
    MalformedPayloadError,
    MessageMetadata,
    broker_entry_metadata,
    split_payload,
)
from magnetar.sdk.wire.compression import decompress
from magnetar.sdk.wire.pulsar_pb2 import CompressionType

_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
_PLAIN = (
    ("partition_key", "partition-key"),
    ("producer_name", "producer-name"),
    ("sequence_id", "sequence-id"),
    ("highest_sequence_id", "highest-sequence-id"),
    ("replicated_from", "replicated-from"),
    ("uncompressed_size", "uncompressed-size"),
    ("encryption_algo", "encryption-algo"),
    ("marker_type", "marker-type"),
    ("txnid_least_bits", "txnid-least-bits"),
    ("txnid_most_bits", "txnid-most-bits"),
    ("uuid", "uuid"),
    ("num_chunks_from_msg", "num-chunks-from-msg"),
    ("total_chunk_msg_size", "total-chunk-msg-size"),
    ("chunk_id", "chunk-id"),
)
_TIMES = (
    ("publish_time", "publish-time"),
    ("event_time", "event-time"),
    ("deliver_at_time", "deliver-at-time"),
)
_FLAGS = (
    ("null_value", "null-value"),
    ("null_partition_key", "null-partition-key"),
    ("partition_key_b64_encoded", "partition-key-b64-encoded"),
)
_BYTES = (
    ("ordering_key", "Base64-ordering-key"),
    ("schema_version", "Base64-schema-version-b64encoded"),
    ("encryption_param", "Base64-encryption-param"),
)


def raw_message(position: Position, entry: bytes) -> tuple[dict[str, str], bytes]:
    """Return headers and body.

    Raises:
        BrokerPersistenceError: the entry is not a readable message.
    """
    try:
        metadata, at = split_payload(entry)
        broker_metadata = broker_entry_metadata(entry)
        body = entry[at:]
        if not metadata.encryption_keys:
            body = decompress(
                metadata.compression, body, size=metadata.uncompressed_size, bytes_max=_BYTES_MAX
            )
    except MalformedPayloadError as error:
        raise BrokerPersistenceError(f"the entry at {position} is no message: {error}") from error
    headers = {"Message-ID": f"{position.ledger_id}:{position.entry_id}"}
    headers.update(_of_metadata(metadata))
    if metadata.HasField("num_messages_in_batch"):
        headers["num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["batch-size"] = str(len(body))
    if broker_metadata is not None:
        if broker_metadata.HasField("broker_timestamp"):
            headers["Broker-Entry-METADATA-timestamp"] = _time(broker_metadata.broker_timestamp)
        if broker_metadata.HasField("index"):
            headers["Broker-Entry-METADATA-index"] = str(broker_metadata.index)
    return {f"X-Pulsar-{name}": _header(value) for name, value in headers.items()}, body


def _of_metadata(metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    yield "Is-Encrypted", _flag(bool(metadata.encryption_keys))
    properties = {each.key: each.value for each in metadata.properties}
    if properties:
        yield "PROPERTY", json.dumps(properties)
    for field, name in _TIMES:
        if metadata.HasField(field) and getattr(metadata, field):
            yield name, _time(getattr(metadata, field))
    for field, name in _FLAGS:
        if metadata.HasField(field):
            yield name, _flag(getattr(metadata, field))
    for field, name in _PLAIN:
        if metadata.HasField(field):
            yield name, str(getattr(metadata, field))
    for field, name in _BYTES:
        if metadata.HasField(field):
            yield name, base64.b64encode(getattr(metadata, field)).decode()
    if metadata.HasField("num_chunks_from_msg"):  # Java looks for them in properties.
        yield "PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    if metadata.HasField("compression"):
        yield "compression", CompressionType.Name(metadata.compression)
    if metadata.replicate_to:
        yield "replicated-to", json.dumps(list(metadata.replicate_to))
    if metadata.encryption_keys:
        keys = {
            each.key: {
                "keyValue": base64.b64encode(each.value).decode(),
                "metadata": {pair.key: pair.value for pair in each.metadata},
            }
            for each in metadata.encryption_keys
        }
        yield "Base64-encryption-keys", base64.b64encode(json.dumps(keys).encode()).decode()


def _time(ms: int) -> str:
    """Format a time as ISO 8601 with offset; a time beyond the calendar as its number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return str(ms)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _header(value: str) -> str:
    """Return a header value. Text that is not printable ASCII is percent-encoded as UTF-8."""
    safe = value.isprintable() and value.isascii()
    return value if safe else "".join(_escaped(each) for each in value)


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable() and character != "%":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
