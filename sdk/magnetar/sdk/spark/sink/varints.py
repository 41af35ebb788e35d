"""Columns of bytes made without a Python operation per row: varints, sizes, joins.

Everything is a call into Arrow for a whole column. Numbers below 2^14 are looked up in tables of
their encodings; larger ones are put together from two look-ups.
"""

import struct
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.wire.hot_commands import LAST_14, MORE_14

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
    """The varint of each number: unsigned, no nulls."""
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
    """The zigzag varint of each int64 (no nulls): Avro's int and long."""
    signed = pc.cast(numbers, pa.int64())
    doubled = pc.shift_left(signed, pa.scalar(1, pa.int64()))
    sign = pc.if_else(pc.less(signed, pa.scalar(0, pa.int64())), -1, 0)
    mixed = pc.bit_wise_xor(doubled, pc.cast(sign, pa.int64()))
    return varints(mixed.view(pa.uint64()))


def u32s(numbers: pa.Array) -> pa.Array:
    """Each number as four bytes, big-endian."""
    top = pc.max(numbers).as_py()
    if top is None or top < _TABLE:
        return _sizes().take(numbers)
    return pa.array(map(_pack_u32, numbers.to_pylist()), pa.binary())


def lengths(column: pa.Array) -> pa.Array:
    """Bytes of each value."""
    return pc.binary_length(column)


def join(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """The columns side by side: for each row its bytes in a row."""
    return pc.binary_join_element_wise(*columns, _EMPTY)


def constant(data: bytes) -> pa.Scalar:
    return pa.scalar(data, pa.binary())


def prefixed(column: pa.Array) -> pa.Array:
    """Each value behind the varint of its size."""
    return join(varints(lengths(column)), column)


def as_binary(column: pa.Array) -> pa.Array:
    """A string or binary column, of whatever width, as plain binary."""
    return column if column.type == pa.binary() else pc.cast(column, pa.binary())


def where(valid: pa.Array, column: pa.Array, otherwise: bytes = b"") -> pa.Array:
    return pc.if_else(valid, column, constant(otherwise))
