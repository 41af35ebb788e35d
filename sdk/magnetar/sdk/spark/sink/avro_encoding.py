"""Columns as Avro records in the binary encoding, a column at a time.

Every field is the union of null and its type: index 0 or 1 as a zigzag number, then the value.
"""

import sys
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk.spark.sink.json_encoding import whole_numbers
from magnetar.sdk.spark.sink.varints import as_binary, constant, join, lengths, where, zigzags

_NULL, _VALUE = b"\x00", b"\x02"


def encode_avro(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """One record for each row, fields in their order: binary."""
    parts = [_field(column) for _, column in columns]
    return join(*parts) if len(parts) > 1 else parts[0]


def _field(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        encoded = pc.if_else(pc.fill_null(column, False), constant(b"\x01"), constant(b"\x00"))
    elif pa.types.is_floating(kind):
        encoded = _floating(pc.fill_null(column, 0.0))
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        encoded = zigzags(pc.fill_null(whole_numbers(column), 0))
    else:
        data = pc.fill_null(as_binary(column), b"")
        encoded = join(zigzags(lengths(data)), data)
    encoded = join(constant(_VALUE), encoded)
    return where(column.is_valid(), encoded, _NULL) if column.null_count else encoded


def _floating(column: pa.Array) -> pa.Array:
    """IEEE 754, little-endian: the bytes of the column's own buffer."""
    assert sys.byteorder == "little", "Arrow buffers are read as Avro writes them"
    width = column.type.bit_width // 8
    data = column.buffers()[1].slice(column.offset * width, len(column) * width)
    raw = pa.Array.from_buffers(pa.binary(width), len(column), [None, data])
    return raw.cast(pa.binary())
