"""The body of a batch: its messages one after the other, each with a size and metadata of its own.

Layout: docs/formats/pulsar-frame.md. Pure.
"""

import struct

from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

_u32_at = struct.Struct(">I").unpack_from
_parse_single = SingleMessageMetadata.FromString


def decode_batch(body: bytes, count: int) -> list[tuple[SingleMessageMetadata, bytes]]:
    """Split the body of a batch of `count` messages.

    Raises:
        MalformedPayloadError: the body is truncated, too long, or has unreadable metadata.
    """
    items: list[tuple[SingleMessageMetadata, bytes]] = []
    at, end = 0, len(body)
    try:
        for _ in range(count):
            start = at + 4
            data = start + _u32_at(body, at)[0]
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
