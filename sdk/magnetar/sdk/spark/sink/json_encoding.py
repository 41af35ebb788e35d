"""Columns as JSON objects, a column at a time.

Numbers that JSON has no form for are strings, as Spark's own to_json writes them. Times are
microseconds since 1970, dates are days, as the registered schema says.
"""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.spark.sink.varints import as_binary, constant, join

_NEEDS_CARE = r"[\x00-\x1f\"\\]"
_NULL = pa.scalar("null")


def encode_json(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """One object for each row, with all fields, in their order: binary."""
    parts: list[pa.Array | pa.Scalar] = []
    for at, (name, column) in enumerate(columns):
        head = ("," if at else "{") + json.dumps(name) + ":"
        parts += [constant(head.encode()), as_binary(_text(column))]
    return join(*parts, constant(b"}"))


def _text(column: pa.Array) -> pa.Array:
    """Each value as JSON: string, no nulls."""
    kind = column.type
    if pa.types.is_boolean(kind):
        text = pc.if_else(column, "true", "false")
    elif pa.types.is_floating(kind):
        text = _floating(column)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _quoted(column.cast(pa.string()))
    else:
        text = whole_numbers(column).cast(pa.string())
    return pc.fill_null(text, _NULL) if text.null_count else text


def whole_numbers(column: pa.Array) -> pa.Array:
    """Integers as they are; dates as days, times as microseconds."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return column


def _floating(column: pa.Array) -> pa.Array:
    text = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return text
    names = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    for found, name in names.items():
        text = pc.if_else(pc.equal(text, found), name, text)
    return text


def _quoted(column: pa.Array) -> pa.Array:
    quote = pa.scalar('"')
    if pc.any(pc.match_substring_regex(column, _NEEDS_CARE)).as_py():
        return pa.array(
            [None if each is None else json.dumps(each) for each in column.to_pylist()],
            pa.string(),
        )
    return pc.binary_join_element_wise(quote, column, quote, "")
