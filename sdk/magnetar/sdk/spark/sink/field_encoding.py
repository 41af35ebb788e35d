"""Columns as JSON objects or Avro records, a column at a time, and the schema registered for both.

JSON: numbers that JSON cannot represent are strings, as Spark's own to_json writes them. Times are
microseconds since 1970, dates are days, as the registered schema says.

AVRO: the binary encoding. Every field is the union of null and its type: index 0 or 1 as a zigzag
number, then the value.
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.sdk.spark.errors import OptionError, SchemaMismatchError
from magnetar.sdk.spark.sink.items import as_binary, constant, join, lengths, where, zigzags
from magnetar.sdk.spark.sink.options import Encoding

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_TYPES: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def schema_definition(name: str, fields: Sequence[tuple[str, DataType]], encoding: Encoding) -> str:
    """Return a record in which every field may be null: Spark guarantees for no column that it is
    not.

    Raises:
        SchemaMismatchError: Avro cannot represent the name or type of a column.
        OptionError: the record's name is not valid in Avro.
    """
    if not _NAME.fullmatch(name):
        raise OptionError("schemaName", f"{name!r} is not of letters, digits and underscores")
    described = []
    for field, kind in fields:
        if not _NAME.fullmatch(field):
            raise SchemaMismatchError(
                f"column {field!r}: a field of a schema has letters, digits and underscores only"
            )
        found = next((_TYPES[each] for each in type(kind).__mro__ if each in _TYPES), None)
        if found is None or (isinstance(kind, BinaryType) and encoding is Encoding.JSON):
            raise SchemaMismatchError(
                f"column {field} is {kind.simpleString()}, which the sink does not encode as "
                f"{encoding.value}: cast it, or make the value yourself"
            )
        described.append({"name": field, "type": ["null", found], "default": None})
    return json.dumps({"type": "record", "name": name, "fields": described})


_NEEDS_CARE = r"[\x00-\x1f\"\\]"
_JSON_NULL = pa.scalar("null")


def encode_json(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Return one object for each row, with all fields, in their order: binary."""
    parts: list[pa.Array | pa.Scalar] = []
    for at, (name, column) in enumerate(columns):
        head = ("," if at else "{") + json.dumps(name) + ":"
        parts += [constant(head.encode()), as_binary(_json_text(column))]
    return join(*parts, constant(b"}"))


def _json_text(column: pa.Array) -> pa.Array:
    """Return each value as JSON: string, no nulls."""
    kind = column.type
    if pa.types.is_boolean(kind):
        text = pc.if_else(column, "true", "false")
    elif pa.types.is_floating(kind):
        text = _json_floating(column)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _quoted(column.cast(pa.string()))
    else:
        text = whole_numbers(column).cast(pa.string())
    return pc.fill_null(text, _JSON_NULL) if text.null_count else text


def whole_numbers(column: pa.Array) -> pa.Array:
    """Return integers unchanged; dates as days, times as microseconds."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return column


def _json_floating(column: pa.Array) -> pa.Array:
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


_AVRO_NULL, _AVRO_VALUE = b"\x00", b"\x02"


def encode_avro(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Return one record for each row, fields in their order: binary."""
    parts = [_avro_field(column) for _, column in columns]
    return join(*parts) if len(parts) > 1 else parts[0]


def _avro_field(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        encoded = pc.if_else(pc.fill_null(column, False), constant(b"\x01"), constant(b"\x00"))
    elif pa.types.is_floating(kind):
        encoded = _avro_floating(pc.fill_null(column, 0.0))
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        encoded = zigzags(pc.fill_null(whole_numbers(column), 0))
    else:
        data = pc.fill_null(as_binary(column), b"")
        encoded = join(zigzags(lengths(data)), data)
    encoded = join(constant(_AVRO_VALUE), encoded)
    return where(column.is_valid(), encoded, _AVRO_NULL) if column.null_count else encoded


def _avro_floating(column: pa.Array) -> pa.Array:
    """Return IEEE 754, little-endian: the bytes of the column's own buffer."""
    assert sys.byteorder == "little", "Arrow buffers are read as Avro writes them"
    width = column.type.bit_width // 8
    data = column.buffers()[1].slice(column.offset * width, len(column) * width)
    raw = pa.Array.from_buffers(pa.binary(width), len(column), [None, data])
    return raw.cast(pa.binary())
