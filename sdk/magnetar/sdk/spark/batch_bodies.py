"""Splitting the body of a batch into payloads, as fast as Python can. Pure.

Layout: docs/formats/pulsar-frame.md, "Batch body": per message a size (u32), a
`SingleMessageMetadata`, the payload. Three ways, by what the batch looks like:

- all messages have one size and nothing but it and a sequence id: the whole body is cut by a few
  operations on columns of bytes, whatever the number of messages;
- a message has nothing but these two: its metadata is read byte by byte, about 0.4 us;
- it has a key, properties or a time: by protobuf.
"""

import struct
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

_u32_at = struct.Struct(">I").unpack_from
_parse_single = SingleMessageMetadata.FromString

_PAYLOAD_SIZE = 0x18
_SEQUENCE_ID = 0x40
"""Tags of the two fields that every message has."""

_UNIFORM_MIN = 8
"""Smaller batches are not worth the look."""


class SplitBatch(NamedTuple):
    """The messages of a batch."""

    parts: list[memoryview]
    """Payloads; all of them in one if the batch is uniform."""
    lengths: list[int]
    """Size of each payload."""
    singles: dict[int, SingleMessageMetadata]
    """Metadata of the messages that have more than a size and a sequence id, by index."""
    is_uniform: bool


def split_batch(body: bytes | memoryview, count: int) -> SplitBatch:
    """Split the body of a batch of `count` messages.

    Raises:
        MalformedPayloadError: truncated, bytes left over, or metadata that cannot be read.
    """
    if count >= _UNIFORM_MIN:
        uniform = _split_uniform(body, count)
        if uniform is not None:
            return uniform
    return _split_each(body, count)


def _split_uniform(body: bytes | memoryview, count: int) -> SplitBatch | None:
    stride, left = divmod(len(body), count)
    if left or stride < 8:
        return None
    (header_bytes,) = _u32_at(body, 0)
    data_at = 4 + header_bytes
    if not 6 <= header_bytes <= 16 or data_at >= stride or body[4] != _PAYLOAD_SIZE:
        return None
    at, size, shift = 5, 0, 0
    while True:
        byte = body[at]
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
        if at >= data_at:
            return None
    if data_at + size != stride or at + 1 >= data_at or body[at] != _SEQUENCE_ID:
        return None
    # What must be the same in all messages: sizes and tags. Compared a column at a time.
    for column in range(at + 1):
        if bytes(body[column::stride]) != bytes((body[column],)) * count:
            return None
    # The sequence ids are varints of one width: all but their last bytes have the top bit.
    for column in range(at + 1, data_at - 1):
        if min(body[column::stride]) < 128:
            return None
    if max(body[data_at - 1 :: stride]) >= 128:
        return None
    rows = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(stride), count, [None, pa.py_buffer(body)]
    )
    payloads = pc.binary_slice(rows, data_at, stride)
    data = memoryview(payloads.buffers()[1])[: size * count]
    return SplitBatch([data], [size] * count, {}, True)


def _split_each(body: bytes | memoryview, count: int) -> SplitBatch:
    view = memoryview(body)
    parts: list[memoryview] = []
    lengths: list[int] = []
    singles: dict[int, SingleMessageMetadata] = {}
    add_part, add_length = parts.append, lengths.append
    at, end = 0, len(view)
    try:
        for index in range(count):
            start = at + 4
            data = start + _u32_at(view, at)[0]
            size = -1
            if view[start] == _PAYLOAD_SIZE:
                after = start + 2
                size = view[start + 1]
                if size >= 128:
                    high = view[after]
                    size = (size & 127 | high << 7) if high < 128 else -1
                    after += 1
                if after != data:
                    # Nothing may follow the sequence id: some producers put other fields there.
                    last = after + 1
                    while view[last] >= 128:
                        last += 1
                    if view[after] != _SEQUENCE_ID or last + 1 != data:
                        size = -1
            if size < 0:
                single = _parse_single(bytes(view[start:data]))
                singles[index] = single
                size = single.payload_size
            at = data + size
            if at > end or size < 0:
                raise MalformedPayloadError(
                    f"message {index} of a batch of {count} ends beyond the body"
                )
            add_part(view[data:at])
            add_length(size)
    except (struct.error, IndexError, DecodeError) as error:
        raise MalformedPayloadError(
            f"message {len(parts)} of a batch of {count}: {error}"
        ) from error
    if at != end:
        raise MalformedPayloadError(f"{end - at} bytes behind the last message of a batch")
    return SplitBatch(parts, lengths, singles, False)
