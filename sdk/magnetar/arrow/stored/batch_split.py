"""Splits the body of a batch into payloads, as fast as Python can. Pure.

Layout: docs/formats/pulsar-frame.md, "Batch body": per message a size (u32), a
`SingleMessageMetadata`, the payload. There are four ways, chosen by the content of the batch:

- all messages have one size, and only a payload size and a sequence id: a few operations on columns
  of bytes cut the whole body, whatever the number of messages;
- the messages have these two, and at most a short key or an event time: a few steps of Python per
  message find its beginning, and operations on columns do the rest: 0.2 to 0.4 us each;
- the batch has such messages, but few of them: metadata is read byte by byte, 0.4 us and as much
  again for key and time;
- a message has properties, or anything else: protobuf parses it.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from magnetar.arrow.stored.ragged import Places, pieces
from magnetar.arrow.stored.stored_values import Lengths, Part, cut
from magnetar.sdk.wire.batches import check_batch_size, metadata_bytes_max, too_much_metadata
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

_u32_at = struct.Struct(">I").unpack_from
_parse_single = SingleMessageMetadata.FromString

_PAYLOAD_SIZE = 0x18
_SEQUENCE_ID = 0x40
"""Tags of the two fields that every message has."""

_PARTITION_KEY = 0x12
_EVENT_TIME = 0x28
"""Tags of two fields that many messages have."""

_TIME_BYTES = 6
"""Width of a varint of milliseconds since 1970, in the years 1971 to 2109: 2^35 to 2^42."""

_TIMES_HIGH_MAX = 4096
"""Most entries of the table; each covers 16 s."""

_UNIFORM_MIN = 8
_COLUMNS_MIN = 300
"""Fewest messages for the column ways: operations on columns have a fixed cost."""

_SIZE_BYTES_MAX, _SEQUENCE_BYTES_MAX = 3, 10
"""Widths of varints; payloads of 2 MiB and more are read byte by byte."""

_BEYOND_BYTES = 512
"""Most bytes after the beginning of a message that are read: two keys of 127 bytes, and the
numbers."""

Flags = npt.NDArray[np.bool_]
Block = npt.NDArray[np.uint8]

T = TypeVar("T")


class _TimesHigh(dict[bytes, int]):
    """The last four bytes of a varint of six -> their part of its value; 0 if no varint ends there.

    They stay equal for 16 s, and most batches have times that are close to each other.
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

    parts: Sequence[Part]
    """Payloads: each by itself, or all of them in one."""
    lengths: Lengths
    """Size of each payload."""
    keys: dict[int, bytes]
    """Keys by index, without those of messages in `singles`; the same holds for `event_ms`."""
    event_ms: dict[int, int]
    singles: dict[int, SingleMessageMetadata]
    """Metadata of messages that have further fields, by index."""

    def payloads(self) -> list[Part]:
        """Return each payload by itself."""
        return cut(self.parts, self.lengths)


def split_batch(body: bytes | memoryview, count: int, *, memory_bytes_max: int = 0) -> SplitBatch:
    """Split the body of a batch of `count` messages.

    `memory_bytes_max`: memory for the messages beside their payloads, as in `decode_batch`.

    Raises:
        MalformedPayloadError: truncated, bytes left over, metadata that cannot be read; or messages
            or metadata that do not fit into the memory.
    """
    check_batch_size(count, memory_bytes_max=memory_bytes_max)
    found = None
    if count >= _UNIFORM_MIN:
        found = _split_uniform(body, count)
    if found is None and count >= _COLUMNS_MIN:
        found = _split_by_columns(bytes(body), count)
    return found if found is not None else _split_each(body, count, memory_bytes_max)


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
    messages = np.frombuffer(body, np.uint8).reshape(count, stride)
    for column in range(at + 1):
        if (messages[:, column] != body[column]).any():
            return None
    # The sequence ids are varints of one width: all but their last bytes have the top bit.
    for column in range(at + 1, data_at - 1):
        if (messages[:, column] < 128).any():
            return None
    if (messages[:, data_at - 1] >= 128).any():
        return None
    data = np.ascontiguousarray(messages[:, data_at:]).data.cast("B")
    return SplitBatch([data], array("q", (size,)) * count, {}, {}, {})


def _split_by_columns(body: bytes, count: int) -> SplitBatch | None:
    """Return the split batch; None if a message has other fields, or is damaged: `_split_each`
    finds out."""
    starts = _starts(body, count)
    if starts is None:
        return None
    block = np.frombuffer(body + bytes(_BEYOND_BYTES), np.uint8)
    heads = _Heads(block, starts[:-1])
    try:
        heads.read()
    except _UnusualError:
        return None
    buffer = pa.py_buffer(body)
    data_at, ends = heads.ends, starts[1:]
    sizes = ends - data_at
    parts = []
    if sizes.any():
        payloads = pieces(buffer, data_at, ends)
        parts.append(memoryview(payloads.buffers()[2])[: int(sizes.sum())])
    keys: dict[int, bytes] = {}
    if heads.has_key.any():
        at = heads.key_at[heads.has_key]
        found = pieces(buffer, at, at + heads.key_bytes[heads.has_key]).to_pylist()
        keys = _at_flags(heads.has_key, found)
    event_ms = _at_flags(heads.has_time, heads.event_ms[heads.has_time].tolist())
    return SplitBatch(parts, array("q", sizes.tobytes()), keys, event_ms, {})


def _at_flags(flags: Flags, values: list[T]) -> dict[int, T]:
    """Map rows with the flag to their values, which are given in the order of the rows."""
    return dict(zip(np.flatnonzero(flags).tolist(), values, strict=True))


def _starts(body: bytes, count: int) -> Places | None:
    """Return the beginnings of the messages and the end of the last; None if they are not regular.

    The bytes read here may be anything: `_Heads` checks all of them again.
    """
    starts: list[int] = []
    add = starts.append
    at = 0
    try:
        for _ in range(count):
            add(at)
            size_at = at + 5
            if body[at + 4] == _PARTITION_KEY:
                size_at = at + 7 + body[at + 5]
            size = body[size_at]
            if size >= 1 << 7:
                size += (body[size_at + 1] << 7) - (1 << 7)
                if size >= 1 << 14:
                    size += (body[size_at + 2] << 14) - (1 << 14)
            at += 4 + body[at + 3] + size
    except IndexError:
        return None
    if at != len(body):
        return None
    add(at)
    return np.array(starts, np.int64)


class _UnusualError(Exception):
    """A message has fields that cannot be read by columns."""


class _Heads:
    """The metadata of all messages of a batch, read side by side, field by field.

    Encoders that write in the order of the fields give key, size, time and sequence id. This
    service's own encoder gives size, sequence id, key and time. A message has at most one key and
    one time.
    """

    def __init__(self, block: Block, at: Places) -> None:
        """`block` is the body, followed by `_BEYOND_BYTES`; `at` is where messages begin."""
        rows = len(at)
        self._block = block
        self._at = at
        self._place = at + 4
        self.ends = self._place + block[at + 3]
        """Positions where metadata ends, and payloads begin."""
        self.has_key = np.zeros(rows, np.bool_)
        self.key_at = np.zeros(rows, np.int64)
        self.key_bytes = np.zeros(rows, np.int64)
        self.has_time = np.zeros(rows, np.bool_)
        self.event_ms = np.zeros(rows, np.int64)

    def read(self) -> None:
        """Read the fields in both orders.

        Raises:
            _UnusualError: the metadata is of another form.
        """
        block, at = self._block, self._at
        if (block[at] | block[at + 1] | block[at + 2]).any():
            raise _UnusualError  # more than 255 bytes of metadata
        self._keys()
        self._pass(_PAYLOAD_SIZE, _SIZE_BYTES_MAX)
        self._times()
        self._pass(_SEQUENCE_ID, _SEQUENCE_BYTES_MAX)
        self._keys()
        self._times()
        if (self._place != self.ends).any():
            raise _UnusualError

    def _pass(self, tag: int, bytes_max: int) -> None:
        """Skip a number that all messages must have next."""
        if not self._are_at(tag).all():
            raise _UnusualError
        self._place += 1 + self._varint_bytes(self._place + 1, bytes_max)

    def _keys(self) -> None:
        """Read the keys of messages that have one next."""
        found = self._are_at(_PARTITION_KEY)
        if not found.any():
            return
        place = self._place[found]
        size = self._block[place + 1]
        if (size >= 128).any() or (found & self.has_key).any():
            raise _UnusualError
        self.has_key |= found
        self.key_at[found] = place + 2
        self.key_bytes[found] = size
        self._place[found] = place + 2 + size

    def _times(self) -> None:
        """Read the times of messages that have one next."""
        found = self._are_at(_EVENT_TIME)
        if not found.any():
            return
        at = self._place[found] + 1
        is_wide = self._varint_bytes(at, _TIME_BYTES) == _TIME_BYTES
        if not is_wide.all() or (found & self.has_time).any():
            raise _UnusualError
        self.has_time |= found
        value = np.zeros(len(at), np.int64)
        for byte in range(_TIME_BYTES):
            value |= (self._block[at + byte].astype(np.int64) & 127) << 7 * byte
        self.event_ms[found] = value
        self._place[found] = at + _TIME_BYTES

    def _are_at(self, tag: int) -> Flags:
        are_at: Flags = (self._block[self._place] == tag) & (self._place < self.ends)
        return are_at

    def _varint_bytes(self, at: Places, bytes_max: int) -> Places:
        """Return the widths of the varints at these positions."""
        widths = np.ones(len(at), np.int64)
        for byte in range(bytes_max):
            goes_on = (widths > byte) & (self._block[at + byte] >= 128)
            if not goes_on.any():
                return widths
            widths += goes_on
        raise _UnusualError


def _split_each(body: bytes | memoryview, count: int, memory_bytes_max: int = 0) -> SplitBatch:
    view = memoryview(body)
    parts: list[memoryview] = []
    lengths: list[int] = []
    keys: dict[int, bytes] = {}
    event_ms: dict[int, int] = {}
    singles: dict[int, SingleMessageMetadata] = {}
    times_high = _TIMES_HIGH
    add_part, add_length = parts.append, lengths.append
    metadata_left = metadata_bytes_max(memory_bytes_max)
    at, end = 0, len(view)
    try:
        for index in range(count):
            start = after = at + 4
            data = start + _u32_at(view, at)[0]
            size = -1
            if view[start] == _PARTITION_KEY and (length := view[start + 1]) < 128:
                # Encoders that write in the order of the fields write the key first.
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
                metadata_left -= data - start  # protobuf's objects are much larger than that
                if metadata_left < 0:
                    raise too_much_metadata(index, count)
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
    return SplitBatch(parts, array("q", lengths), keys, event_ms, singles)
