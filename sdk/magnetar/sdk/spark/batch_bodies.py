"""Splitting the body of a batch into payloads, as fast as Python can. Pure.

Layout: docs/formats/pulsar-frame.md, "Batch body": per message a size (u32), a
`SingleMessageMetadata`, the payload. Three ways, by what the batch looks like:

- all messages have one size and nothing but it and a sequence id: the whole body is cut by a few
  operations on columns of bytes, whatever the number of messages;
- a message has nothing but these two and a short key or an event time: its metadata is read byte
  by byte, 0.4 us and as much for each of these;
- it has properties, or anything else: by protobuf.
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

_PARTITION_KEY = 0x12
_EVENT_TIME = 0x28
"""Tags of two that many have."""

_TIME_BYTES = 6
"""Width of a varint of milliseconds since 1970, in the years 1971 to 2109: 2^35 to 2^42."""

_TIMES_HIGH_MAX = 4096
"""Entries of a table: as many stretches of 16 s."""

_UNIFORM_MIN = 8
"""Smaller batches are not worth the look."""


class _TimesHigh(dict[bytes, int]):
    """The last four bytes of a varint of six -> their part of its value; 0 if they are no end.

    They are the same for 16 s, and most batches have times that are close to each other.
    """

    def __missing__(self, varint_end: bytes) -> int:
        (raw,) = _u32_at(varint_end) if len(varint_end) == 4 else (0,)
        value: int = 0
        if raw & 0x8080_8080 == 0x8080_8000:
            for byte in reversed(varint_end):
                value = (value | byte & 127) << 7
            value <<= 7
        if len(self) >= _TIMES_HIGH_MAX:
            self.clear()
        self[varint_end] = value
        return value


_TIMES_HIGH = _TimesHigh()


class SplitBatch(NamedTuple):
    """The messages of a batch."""

    parts: list[memoryview]
    """Payloads; all of them in one if the batch is uniform."""
    lengths: list[int]
    """Size of each payload."""
    keys: dict[int, bytes]
    """By index, of the messages that are not in `singles`; as are the times."""
    event_ms: dict[int, int]
    singles: dict[int, SingleMessageMetadata]
    """Metadata of the messages that have more than these fields, by index."""
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
    return SplitBatch([data], [size] * count, {}, {}, {}, True)


def _split_each(body: bytes | memoryview, count: int) -> SplitBatch:
    view = memoryview(body)
    parts: list[memoryview] = []
    lengths: list[int] = []
    keys: dict[int, bytes] = {}
    event_ms: dict[int, int] = {}
    singles: dict[int, SingleMessageMetadata] = {}
    times_high = _TIMES_HIGH
    add_part, add_length = parts.append, lengths.append
    at, end = 0, len(view)
    try:
        for index in range(count):
            start = after = at + 4
            data = start + _u32_at(view, at)[0]
            size = -1
            if view[start] == _PARTITION_KEY and (length := view[start + 1]) < 128:
                # Encoders in the order of the fields write the key first.
                after = start + 2 + length
                keys[index] = bytes(view[start + 2 : after])
            if view[after] == _PAYLOAD_SIZE:
                size = view[after + 1]
                after += 2
                if size >= 128:
                    high = view[after]
                    size = (size & 127 | high << 7) if high < 128 else -1
                    after += 1
            while after < data and size >= 0:
                tag = view[after]
                if tag == _SEQUENCE_ID:
                    after += 1
                    while view[after] >= 128:
                        after += 1
                    after += 1
                elif tag == _PARTITION_KEY and (length := view[after + 1]) < 128:
                    keys[index] = bytes(view[after + 2 : after + 2 + length])
                    after += 2 + length
                elif (
                    tag == _EVENT_TIME
                    and (low := view[after + 1]) >= 128
                    and (middle := view[after + 2]) >= 128
                    and (high_ms := times_high[bytes(view[after + 3 : after + 7])])
                ):
                    event_ms[index] = high_ms | (middle & 127) << 7 | low & 127
                    after += 1 + _TIME_BYTES
                else:
                    size = -1
            if size < 0 or after != data:
                keys.pop(index, None)
                event_ms.pop(index, None)
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
    return SplitBatch(parts, lengths, keys, event_ms, singles, False)
