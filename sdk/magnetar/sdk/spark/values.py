"""Columns of messages' values: the bytes, or what their schema makes of them.

Here are values of primitive schemas as a column (layouts: `magnetar.sdk.schemas.primitives`), and
those of KEY_VALUE schemas as two columns, `key` and `value`: INLINE, the payload is both, each
behind its size (int32, big-endian; -1: none); SEPARATED, it is the value, and the key is the
message's own. Values of JSON and AVRO are in `structured_values.py`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from magnetar.arrow.stored.column_names import KEY, KEY_PART, VALUE
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredColumn, StoredValues, ValueColumns
from magnetar.sdk.spark.columns import (
    ERROR_FIELD,
    METADATA_FIELDS,
    METADATA_NAMES,
    TEXT_KINDS,
    arrow_schema,
    check_field,
    has_field,
    is_record,
    value_fields,
    value_type,
    wants_bytes_only,
)
from magnetar.sdk.spark.errors import SchemaMismatchError


def value_columns(schema: StructType, value_schema: ValueSchema) -> ValueColumns:
    """For the columns of the query that are no metadata.

    Raises:
        SchemaMismatchError: columns that these values do not have, or of another type.
    """
    _check_metadata(schema)
    wanted = [each for each in schema.fields if each.name not in METADATA_NAMES]
    try:
        known = {each.name: each.dataType for each in value_fields(value_schema)}
    except SchemaMismatchError:
        if not wants_bytes_only(schema):
            raise
        value_schema, known = ValueSchema(), {}
    is_pair = value_schema.key is not None and any(each.name == KEY_PART for each in wanted)
    if is_pair:
        return KeyValueColumns(StructType(wanted), value_schema)
    made: list[ValueColumns] = []
    fields: list[StructField] = []
    for each in wanted:
        if is_stored(each, value_schema, known):
            made.append(_stored_column(each.dataType))
        elif is_whole_record(each, value_schema, known):
            made.append(_whole_record(each, value_schema, known))
        else:
            check_field(each, known, value_schema)
            fields.append(each)
    if fields:
        made.append(_decoded(StructType(fields), value_schema))
    return made[0] if len(made) == 1 else _Joined(made)


def is_stored(each: StructField, schema: ValueSchema, known: Mapping[str, DataType]) -> bool:
    """Whether it is the bytes as they are, and no column of the schema's."""
    if each.name != VALUE:
        return False
    if isinstance(each.dataType, StringType):
        is_decoded = schema.kind == "JSON" and known.get(VALUE) == each.dataType
        return schema.kind in TEXT_KINDS and not is_decoded
    # A record may have a field of this name and type, which it is then.
    return isinstance(each.dataType, BinaryType) and not has_field(schema, each)


def is_whole_record(each: StructField, schema: ValueSchema, known: Mapping[str, DataType]) -> bool:
    """Whether it is all fields as one column, and no column of the schema's."""
    is_struct = each.name == VALUE and isinstance(each.dataType, StructType)
    return is_struct and VALUE not in known and schema.kind in ("JSON", "AVRO")


def _check_metadata(schema: StructType) -> None:
    types = {each.name: each.dataType for each in (*METADATA_FIELDS, ERROR_FIELD)}
    for each in schema.fields:
        known = types.get(each.name)
        if known is None or each.dataType == known:
            continue
        if each.name == KEY and isinstance(each.dataType, StringType):
            continue
        raise SchemaMismatchError(
            f"column {each.name} of type {each.dataType.simpleString()}: it is "
            f"{known.simpleString()}{' or string' if each.name == KEY else ''}"
        )


def _decoded(wanted: StructType, value_schema: ValueSchema) -> ValueColumns:
    # Here, not above: what reads bytes does not load it.
    if value_schema.kind in ("JSON", "AVRO"):
        from magnetar.arrow.stored.structured_values import StructuredValues

        return StructuredValues(
            arrow_schema(wanted),
            value_schema,
            is_record=is_record(value_type(value_schema), value_schema),
        )
    if value_schema.key is not None:
        return KeyValueColumns(wanted, value_schema)
    return PrimitiveValues(value_schema.kind, wanted.fields[0].dataType)


def _whole_record(
    column: StructField, schema: ValueSchema, known: Mapping[str, DataType]
) -> ValueColumns:
    from magnetar.arrow.stored.structured_values import WholeRecord

    assert isinstance(column.dataType, StructType)
    for each in column.dataType.fields:
        check_field(each, known, schema)
    return WholeRecord(arrow_schema(column.dataType), schema)


class _Joined:
    """Columns that are made in several ways, or none."""

    def __init__(self, made: Sequence[ValueColumns]) -> None:
        self._made = made
        self.needs_keys = any(each.needs_keys for each in made)

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for each in self._made:
            found.update(each.columns(stored))
        return found


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


def _stored_column(kind: DataType) -> StoredColumn:
    return StoredColumn(pa.string() if isinstance(kind, StringType) else pa.binary())


def _stored(stored: StoredValues) -> pa.Array:
    return StoredColumn(pa.binary()).columns(stored)[VALUE]


def _column(schema: ValueSchema) -> MakeColumn:
    """What makes one column of a part: a struct of a record."""
    kind = value_type(schema)
    if isinstance(kind, BinaryType):
        return _stored
    if schema.kind == "STRING":
        text = StoredColumn(pa.string())
        return lambda stored: text.columns(stored)[VALUE]
    if schema.kind not in ("JSON", "AVRO"):
        number = PrimitiveValues(schema.kind, kind)
        return lambda stored: number.columns(stored)[VALUE]
    from magnetar.arrow.stored.structured_values import StructuredValues

    if is_record(kind, schema):
        return StructuredValues(arrow_schema(kind), schema).struct
    wanted = arrow_schema(StructType([StructField(VALUE, kind)]))
    single = StructuredValues(wanted, schema, is_record=False)
    return lambda stored: single.columns(stored)[VALUE]


_INT64 = range(-(1 << 63), 1 << 63)
_INT32 = range(-(1 << 31), 1 << 31)
_DAY_MICROS = 86_400_000_000

Fields = tuple[int, ...]


def _first(fields: Fields) -> int | None:
    return fields[0]


def _micros(fields: Fields) -> int | None:
    micros = fields[0] * 1_000
    return micros if micros in _INT64 else None  # producers write what they like


def _instant(fields: Fields) -> int | None:
    micros = fields[0] * 1_000_000 + fields[1] // 1_000
    return micros if micros in _INT64 else None


def _day(fields: Fields) -> int | None:
    return fields[0] if fields[0] in _INT32 else None


def _local(fields: Fields) -> int | None:
    micros = fields[0] * _DAY_MICROS + fields[1] // 1_000
    return micros if micros in _INT64 else None


_LAYOUTS: dict[str, tuple[str, Callable[[Fields], int | None], pa.DataType | None]] = {
    "BOOLEAN": (">?", _first, None),
    "INT8": (">b", _first, None),
    "INT16": (">h", _first, None),
    "INT32": (">i", _first, None),
    "INT64": (">q", _first, None),
    "FLOAT": (">f", _first, None),
    "DOUBLE": (">d", _first, None),
    "DATE": (">q", _micros, pa.int64()),
    "TIMESTAMP": (">q", _micros, pa.int64()),
    "INSTANT": (">qi", _instant, pa.int64()),
    "LOCAL_DATE": (">q", _day, pa.int32()),
    "LOCAL_DATE_TIME": (">qq", _local, pa.int64()),
    "TIME": (">q", _first, None),
    "LOCAL_TIME": (">q", _first, None),
}
"""Layout, what it becomes, and as what Arrow takes it: it takes integers faster than times."""


class PrimitiveValues:
    """One column `value`; a time that Spark does not have is null."""

    needs_keys = False

    def __init__(self, kind: str, column: DataType) -> None:
        self._kind = kind
        layout, self._convert, self._as = _LAYOUTS[kind]
        self._layout = struct.Struct(layout)
        self._column = arrow_schema(StructType([StructField(VALUE, column)])).field(0).type

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        size = self._layout.size
        nulls = set(stored.nulls)
        if nulls or any(length != size for length in stored.lengths):
            data = self._fitting(stored, nulls)
        else:
            data = b"".join(stored.parts)
        unpacked = self._layout.iter_unpack(data)
        if self._convert is _first:
            values = [value for (value,) in unpacked]
        else:
            values = list(map(self._convert, unpacked))
        for row in nulls:
            values[row] = None
        for row in stored.unfit:
            values[row] = None
        made = pa.array(values, self._as or self._column)
        return {VALUE: made if self._as is None else made.view(self._column)}

    def _fitting(self, stored: StoredValues, nulls: set[int]) -> bytes:
        """The values, with zeros where there is none of this size."""
        size = self._layout.size
        parts = []
        for row, value in enumerate(stored.cut()):
            if row not in nulls and len(value) == size:
                parts.append(value)
                continue
            parts.append(bytes(size))
            if row not in nulls:
                stored.unfit[row] = (
                    f"a value of {len(value)} bytes is no {self._kind}, which has {size}: "
                    f"{bytes(value[:100])!r}"
                )
        return b"".join(parts)
