"""Values of KEY_VALUE schemas as two columns, `key` and `value`.

INLINE, the payload is both, each behind its size (int32, big-endian; -1: none); SEPARATED, it is
the value, and the key is the message's own.
"""

import struct
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.sdk.spark.columns import VALUE
from magnetar.sdk.spark.slices import ValueSchema
from magnetar.sdk.spark.stored_values import StoredColumn, StoredValues
from magnetar.sdk.spark.value_types import (
    KEY_PART,
    check_field,
    is_union,
    value_fields,
    value_type,
)

_SIZE = struct.Struct(">i")

MakeColumn = Callable[[StoredValues], pa.Array]


class KeyValueColumns:
    """Both columns, or one of them; each as its schema says, or as its bytes."""

    def __init__(self, wanted: StructType, schema: ValueSchema) -> None:
        """
        Raises:
            SchemaMismatchError: other columns, or of another type.
        """
        assert schema.key is not None
        assert schema.value is not None
        self._is_separate = self.needs_keys = schema.has_separate_key
        known = {each.name: each.dataType for each in value_fields(schema)}
        parts = {KEY_PART: schema.key, VALUE: schema.value}
        self._columns: dict[str, MakeColumn] = {}
        for each in wanted.fields:
            if each.name in parts and isinstance(each.dataType, BinaryType):
                self._columns[each.name] = _stored
            else:
                check_field(each, known, schema)
                self._columns[each.name] = _column(parts[each.name])

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        parts = _with_keys(stored) if self._is_separate else _taken_apart(stored)
        made = {}
        for name, make in self._columns.items():
            part = parts[name]
            made[name] = make(part)
            for row, problem in part.unfit.items():
                stored.unfit.setdefault(row, f"{name}: {problem}")
        return made


def _with_keys(stored: StoredValues) -> dict[str, StoredValues]:
    rows = range(len(stored.lengths))
    keys = [stored.keys.get(row, b"") for row in rows]
    without = [row for row in rows if row not in stored.keys]
    value = StoredValues(stored.parts, stored.lengths, stored.nulls, stored.versions)
    return {
        KEY_PART: StoredValues(keys, list(map(len, keys)), without, stored.versions),
        VALUE: value,
    }


def _taken_apart(stored: StoredValues) -> dict[str, StoredValues]:
    nulls = set(stored.nulls)
    found: dict[str, list[bytes | None]] = {KEY_PART: [], VALUE: []}
    for row, payload in enumerate(stored.cut()):
        key = value = None
        if row not in nulls:
            try:
                key, at = _cut(bytes(payload), 0)
                value, at = _cut(bytes(payload), at)
                if at != len(payload):
                    raise ValueError(f"{len(payload) - at} bytes behind it")
            except (ValueError, struct.error) as error:
                key = value = None
                stored.unfit[row] = (
                    f"a value is no key with a value: {error}: {bytes(payload[:100])!r}"
                )
        found[KEY_PART].append(key)
        found[VALUE].append(value)
    return {
        name: StoredValues(
            [each or b"" for each in parts],
            [len(each or b"") for each in parts],
            [row for row, each in enumerate(parts) if each is None],
            stored.versions,
        )
        for name, parts in found.items()
    }


def _cut(payload: bytes, at: int) -> tuple[bytes | None, int]:
    """A part with its size before it, and where the next one begins."""
    (size,) = _SIZE.unpack_from(payload, at)
    at += _SIZE.size
    if size == -1:
        return None, at
    if not 0 <= size <= len(payload) - at:
        raise ValueError(f"a part of {size} bytes at {at} of {len(payload)}")
    return payload[at : at + size], at + size


def _stored(stored: StoredValues) -> pa.Array:
    return StoredColumn(BinaryType()).columns(stored)[VALUE]


def _column(schema: ValueSchema) -> MakeColumn:
    """What makes one column of a part: a struct of a record."""
    kind = value_type(schema)
    if isinstance(kind, BinaryType):
        return _stored
    if schema.kind == "STRING":
        text = StoredColumn(kind)
        return lambda stored: text.columns(stored)[VALUE]
    if schema.kind not in ("JSON", "AVRO"):
        from magnetar.sdk.spark.primitive_values import PrimitiveValues

        number = PrimitiveValues(schema.kind, kind)
        return lambda stored: number.columns(stored)[VALUE]
    from magnetar.sdk.spark.structured_values import StructuredValues

    if not isinstance(kind, StructType) or is_union(schema):
        single = StructuredValues(StructType([StructField(VALUE, kind)]), schema)
        return lambda stored: single.columns(stored)[VALUE]
    return StructuredValues(kind, schema).struct
