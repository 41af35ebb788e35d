"""Rows to messages: an Arrow batch in its wire format.

Each row becomes an *item*, as in the body of an entry: u32 size, then `SingleMessageMetadata`, then
the payload (docs/formats/pulsar-frame.md, "Batch body"). Items carry no sequence id: that of the
entry counts. The body of an entry is a slice of the column of items, so nothing is done per row
here or later.

Messages that are sent by themselves have *extras* instead: fields of `MessageMetadata`.

The building blocks below make columns of bytes without a Python operation per row. Everything is a
call into Arrow for a whole column. Numbers below 2^14 are looked up in tables of their encodings;
larger ones are put together from two look-ups.
"""

import base64
import struct
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.wire.hot_commands import LAST_14, MORE_14


@dataclass(frozen=True, slots=True)
class Messages:
    """Columns of messages to send, all of one length."""

    value: pa.Array
    """Binary; null if the message has no value, as a tombstone in a compacted topic."""
    key: pa.Array | None = None
    """Binary."""
    event_time_ms: pa.Array | None = None
    properties: pa.Array | None = None
    """map<string, string>."""

    def take(self, indices: pa.Array) -> "Messages":
        def taken(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else column.take(indices)

        return Messages(
            self.value.take(indices),
            taken(self.key),
            taken(self.event_time_ms),
            taken(self.properties),
        )


@dataclass(frozen=True, slots=True)
class _Tags:
    """The first bytes of fields, by number and type."""

    properties: bytes
    key: bytes
    event_time: bytes
    key_is_base64: bytes
    null_value: bytes


_SINGLE = _Tags(b"\x0a", b"\x12", b"\x28", b"\x30\x01", b"\x48\x01")
"""Tags of SingleMessageMetadata."""
_ALONE = _Tags(b"\x22", b"\x32", b"\x60", b"\x88\x01\x01", b"\xc8\x01\x01")
"""Tags of MessageMetadata."""


def items(messages: Messages) -> pa.Array:
    """Return the item of each message: binary, no nulls."""
    value = payloads(messages)
    head = join(constant(b"\x18"), varints(lengths(value)))
    fields = _fields(messages, _SINGLE)
    single = join(head, *fields) if fields else head
    return join(u32s(lengths(single)), single, value)


def extras(messages: Messages) -> pa.Array:
    """Return the `MessageMetadata` fields of messages that are sent by themselves: binary, no
    nulls."""
    fields = _fields(messages, _ALONE)
    if not fields:
        return pa.array([b""] * len(messages.value), pa.binary())
    return join(*fields) if len(fields) > 1 else fields[0]


def payloads(messages: Messages) -> pa.Array:
    """Return the bytes of each value; empty where there is no value."""
    value = messages.value
    return pc.fill_null(value, b"") if value.null_count else value


def wire_key(key: bytes) -> tuple[bytes, bool]:
    """Return a key in its wire form, and whether that is base64: a string field holds UTF-8
    only."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key), True
    return key, False


def _fields(messages: Messages, tags: _Tags) -> list[pa.Array]:
    found: list[pa.Array] = []
    if messages.properties is not None:
        properties = _properties(messages.properties, tags.properties)
        if properties is not None:
            found.append(properties)
    if messages.key is not None and messages.key.null_count < len(messages.key):
        found.append(_keys(messages.key, tags))
    times = messages.event_time_ms
    if times is not None and times.null_count < len(times):
        if pc.any(pc.less(times, pa.scalar(0, times.type))).as_py():
            raise SchemaMismatchError("__eventTime: a time before 1970 cannot be told in a message")
        encoded = join(constant(tags.event_time), varints(pc.fill_null(times, 0)))
        found.append(where(times.is_valid(), encoded))
    if messages.value.null_count:
        none = pa.array([b""], pa.binary()).take(pa.array([0] * len(messages.value)))
        found.append(where(messages.value.is_valid(), none, tags.null_value))
    return found


def _keys(key: pa.Array, tags: _Tags) -> pa.Array:
    filled = pc.fill_null(key, b"")
    try:
        filled.cast(pa.string())  # validates UTF-8
        encoded = join(constant(tags.key), prefixed(filled))
    except pa.ArrowInvalid:
        travelling = [wire_key(each) for each in filled.to_pylist()]
        wired = pa.array([each for each, _ in travelling], pa.binary())
        marks = pa.array([tags.key_is_base64 if b64 else b"" for _, b64 in travelling], pa.binary())
        encoded = join(constant(tags.key), prefixed(wired), marks)
    return where(key.is_valid(), encoded) if key.null_count else encoded


def _properties(column: pa.Array, tag: bytes) -> pa.Array | None:
    """Return all properties of each row, one after the other; None if no row has any."""
    if column.null_count == len(column) or not len(column.keys):
        return None
    names, values = as_binary(column.keys), as_binary(column.items)
    if values.null_count:
        raise SchemaMismatchError("__messageProperties: a property without a value (null)")
    pair = join(constant(b"\x0a"), prefixed(names), constant(b"\x12"), prefixed(values))
    listed = pa.ListArray.from_arrays(column.offsets, join(constant(tag), prefixed(pair)))
    return pc.fill_null(pc.binary_join(listed, b""), b"")


_TABLE = 1 << 14
_EMPTY = pa.scalar(b"", pa.binary())
_pack_u32 = struct.Struct(">I").pack


@cache
def _last() -> pa.Array:
    return pa.array(LAST_14, pa.binary())


@cache
def _more() -> pa.Array:
    return pa.array(MORE_14, pa.binary())


@cache
def _sizes() -> pa.Array:
    return pa.array(map(_pack_u32, range(_TABLE)), pa.binary())


def varints(numbers: pa.Array) -> pa.Array:
    """Return the varint of each number: unsigned, no nulls."""
    top = pc.max(numbers).as_py()
    if top is None or top < _TABLE:
        return _last().take(numbers)
    low = pc.bit_wise_and(numbers, pa.scalar(_TABLE - 1, numbers.type))
    high = pc.shift_right(numbers, pa.scalar(14, numbers.type))
    long = join(_more().take(low), varints(high))
    is_short = pc.equal(high, pa.scalar(0, numbers.type))
    if not pc.any(is_short).as_py():
        return long
    return pc.if_else(is_short, _last().take(low), long)


def zigzags(numbers: pa.Array) -> pa.Array:
    """Return the zigzag varint of each int64 (no nulls): Avro's int and long."""
    signed = pc.cast(numbers, pa.int64())
    doubled = pc.shift_left(signed, pa.scalar(1, pa.int64()))
    sign = pc.if_else(pc.less(signed, pa.scalar(0, pa.int64())), -1, 0)
    mixed = pc.bit_wise_xor(doubled, pc.cast(sign, pa.int64()))
    return varints(mixed.view(pa.uint64()))


def u32s(numbers: pa.Array) -> pa.Array:
    """Return each number as four bytes, big-endian."""
    top = pc.max(numbers).as_py()
    if top is None or top < _TABLE:
        return _sizes().take(numbers)
    return pa.array(map(_pack_u32, numbers.to_pylist()), pa.binary())


def lengths(column: pa.Array) -> pa.Array:
    """Return the size of each value in bytes."""
    return pc.binary_length(column)


def join(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate the columns row by row."""
    return pc.binary_join_element_wise(*columns, _EMPTY)


def constant(data: bytes) -> pa.Scalar:
    return pa.scalar(data, pa.binary())


def prefixed(column: pa.Array) -> pa.Array:
    """Return each value preceded by the varint of its size."""
    return join(varints(lengths(column)), column)


def as_binary(column: pa.Array) -> pa.Array:
    """Return a string or binary column, of any width, as plain binary."""
    return column if column.type == pa.binary() else pc.cast(column, pa.binary())


def where(valid: pa.Array, column: pa.Array, otherwise: bytes = b"") -> pa.Array:
    return pc.if_else(valid, column, constant(otherwise))
