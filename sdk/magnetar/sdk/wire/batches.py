"""The body of a batch: its messages one after the other, each with a size and metadata of its own.

A decoded message takes far more memory than its bytes: six bytes become about 770. So the number of
messages is bounded as well as the bytes, before anything is decompressed: a batch of 10 million
empty messages has 6 KB with zstd, and would take 8 GB.

Layout: docs/formats/pulsar-frame.md. Pure.
"""

import struct

from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

_u32_at = struct.Struct(">I").unpack_from
_parse_single = SingleMessageMetadata.FromString

BATCH_MESSAGES_MAX = 1 << 16
"""Most messages of a batch that can be read with any settings."""

MESSAGE_MEMORY_BYTES = 1024
"""Memory that is counted for one message of a batch, beside its payload."""

_METADATA_SHARE = 4
"""The metadata of all messages may have a quarter of the memory as bytes on the wire: parsed, they
take up to ten times as much, and usually twice."""


def check_batch_size(count: int, *, memory_bytes_max: int) -> None:
    """Check the number of messages that a batch states.

    Up to `BATCH_MESSAGES_MAX` messages are always allowed, more only within `memory_bytes_max`.

    Raises:
        MalformedPayloadError: too many messages.
    """
    allowed = max(BATCH_MESSAGES_MAX, memory_bytes_max // MESSAGE_MEMORY_BYTES)
    if count > allowed:
        raise MalformedPayloadError(
            f"a batch of {count} messages; allowed are {allowed}: to read it, raise the bound on "
            f"decompressed bytes to {count * MESSAGE_MEMORY_BYTES}"
        )


def metadata_bytes_max(memory_bytes_max: int) -> int:
    """Return how many bytes the metadata of all messages of a batch may have on the wire."""
    memory = max(BATCH_MESSAGES_MAX * MESSAGE_MEMORY_BYTES, memory_bytes_max)
    return memory // _METADATA_SHARE


def too_much_metadata(index: int, count: int) -> MalformedPayloadError:
    """Return the error for metadata beyond `metadata_bytes_max`."""
    return MalformedPayloadError(
        f"message {index} of a batch of {count}: the metadata of the batch are too large; to read "
        "it, raise the bound on decompressed bytes"
    )


def decode_batch(
    body: bytes, count: int, *, memory_bytes_max: int = 0
) -> list[tuple[SingleMessageMetadata, bytes]]:
    """Split the body of a batch of `count` messages.

    `memory_bytes_max`: memory for the messages beside their payloads; at least 64 MiB are used.

    Raises:
        MalformedPayloadError: the body is truncated, too long, or has unreadable metadata; or its
            messages or their metadata do not fit into the memory.
    """
    check_batch_size(count, memory_bytes_max=memory_bytes_max)
    items: list[tuple[SingleMessageMetadata, bytes]] = []
    at, end = 0, len(body)
    metadata_left = metadata_bytes_max(memory_bytes_max)
    try:
        for _ in range(count):
            start = at + 4
            data = start + _u32_at(body, at)[0]
            metadata_left -= data - start
            if metadata_left < 0:
                raise too_much_metadata(len(items), count)
            single = _parse_single(body[start:data])
            size = single.payload_size
            at = data + size
            if at > end or size < 0:
                raise MalformedPayloadError(
                    f"message {len(items)} of a batch of {count} ends beyond the body"
                )
            items.append((single, body[data:at]))
    except (struct.error, DecodeError) as error:
        raise MalformedPayloadError(
            f"message {len(items)} of a batch of {count}: {error}"
        ) from error
    if at != end:
        raise MalformedPayloadError(f"{end - at} bytes behind the last message of a batch")
    return items
