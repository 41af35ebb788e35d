"""What the broker needs to know of a stored entry: how many messages it holds.

An entry is what a producer sent, from the 0x0e01 magic to the end of the frame (docs/formats/
pulsar-frame.md). The broker never changes it and looks only into the metadata.
"""

import struct

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload

MARKER = 0
"""Number of messages in an entry that is broker-internal and never delivered."""

MESSAGES_PER_ENTRY_MAX = 1 << 20
"""A producer that claims more is not believed: its entry must not eat a consumer's credit."""

_CHECKSUM_MAGIC = b"\x0e\x01"
_METADATA_SIZE = struct.Struct(">I")
_parse_metadata = MessageMetadata.FromString


def messages_of(entry: bytes) -> int:
    """Messages in the entry: what it costs in consumer credit; `MARKER` for internal entries.

    Entries that cannot be read count as one message: they are delivered as they are, and the
    client, which sees the same damage, discards and acknowledges them.
    """
    try:
        if entry[:2] == _CHECKSUM_MAGIC and len(entry) >= 10:
            size: int = _METADATA_SIZE.unpack_from(entry, 6)[0]
            metadata = _parse_metadata(entry[10 : 10 + size])
        else:
            metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return 1
    count = metadata.num_messages_in_batch
    if metadata.HasField("marker_type"):
        return MARKER
    return min(count, MESSAGES_PER_ENTRY_MAX) if count > 1 else 1


def last_batch_index_of(entry: bytes) -> int:
    """Index of the last message of a batch; -1 if the entry is no batch.

    The presence of the field, not its value, makes a batch: a batch of one has index 0.
    """
    try:
        metadata, _ = split_payload(entry)
    except MalformedPayloadError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    return max(0, metadata.num_messages_in_batch - 1)


def publish_time_ms_of(entry: bytes) -> int:
    """When the producer says it published the entry, ms since the epoch; 0 if it cannot be read."""
    try:
        metadata, _ = split_payload(entry)
    except MalformedPayloadError:
        return 0
    return metadata.publish_time
