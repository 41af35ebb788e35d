"""The columns that messages' values become: the bytes, or what their schema makes of them."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from magnetar.sdk.spark.columns import ERROR_FIELD, KEY, METADATA_FIELDS, METADATA_NAMES, VALUE
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema
from magnetar.sdk.spark.value_types import (
    KEY_PART,
    TEXT_KINDS,
    has_field,
    value_fields,
    wants_bytes_only,
)

Part = bytes | memoryview


@dataclass(slots=True)
class StoredValues:
    """The values of some rows as they were stored, one behind the other."""

    parts: Sequence[Part]
    """Cut in any way."""
    lengths: Sequence[int]
    """Of the values."""
    nulls: Sequence[int] = ()
    """Rows without a value."""
    versions: Sequence[tuple[int, int]] = ()
    """Runs of rows: version of the schema, number of rows."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """Row -> key of the message; only for what has `needs_keys`."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Row -> why its value is none of its schema: filled while columns are made. It has null."""

    def cut(self) -> list[Part]:
        """Each value by itself."""
        if len(self.parts) == len(self.lengths):
            return list(self.parts)
        whole = memoryview(b"".join(self.parts))
        values: list[Part] = []
        at = 0
        for length in self.lengths:
            values.append(whole[at : at + length])
            at += length
        return values


class ValueColumns(Protocol):
    """Makes the columns of the values of some rows."""

    needs_keys: bool

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """By name; adds to `stored.unfit`."""
        ...


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark wants batches to be, to the letter."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)  # Spark 4.1 takes UTC without being told


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
        from magnetar.sdk.spark.key_value_columns import KeyValueColumns

        return KeyValueColumns(StructType(wanted), value_schema)
    made: list[ValueColumns] = []
    fields: list[StructField] = []
    for each in wanted:
        if is_stored(each, value_schema, known):
            made.append(StoredColumn(each.dataType))
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


def check_field(each: StructField, known: Mapping[str, DataType], schema: ValueSchema) -> None:
    """
    Raises:
        SchemaMismatchError
    """
    asked = f"column {each.name} of type {each.dataType.simpleString()}"
    if schema.kind == "BYTES":
        raise SchemaMismatchError(
            f"{asked}: the topic's values are bytes, which are a column value of type binary or "
            f"string"
        )
    if each.name not in known:
        raise SchemaMismatchError(
            f"{asked}: the topic's schema has no such field, or none with a type that Spark has; "
            f"it has {', '.join(known)}. A column value of type binary is the bytes"
        )
    if each.dataType != known[each.name]:
        raise SchemaMismatchError(
            f"{asked}: in the topic's schema it is {known[each.name].simpleString()}"
        )


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
    # Here, not above: what reads bytes loads neither.
    if value_schema.kind in ("JSON", "AVRO"):
        from magnetar.sdk.spark.structured_values import StructuredValues

        return StructuredValues(wanted, value_schema)
    if value_schema.key is not None:
        from magnetar.sdk.spark.key_value_columns import KeyValueColumns

        return KeyValueColumns(wanted, value_schema)
    from magnetar.sdk.spark.primitive_values import PrimitiveValues

    return PrimitiveValues(value_schema.kind, wanted.fields[0].dataType)


def _whole_record(
    column: StructField, schema: ValueSchema, known: Mapping[str, DataType]
) -> ValueColumns:
    from magnetar.sdk.spark.structured_values import WholeRecord

    assert isinstance(column.dataType, StructType)
    for each in column.dataType.fields:
        check_field(each, known, schema)
    return WholeRecord(column.dataType, schema)


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


class StoredColumn:
    """Values as they are, as bytes or text."""

    needs_keys = False

    def __init__(self, kind: DataType) -> None:
        self._kind = pa.string() if isinstance(kind, StringType) else pa.binary()

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        rows = len(stored.lengths)
        validity = None
        if stored.nulls:
            bits = bytearray(b"\xff" * ((rows + 7) // 8))
            for row in stored.nulls:
                bits[row // 8] &= ~(1 << row % 8)
            validity = pa.py_buffer(bytes(bits))
        offsets = array("i", accumulate(stored.lengths, initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(stored.parts))]
        made = pa.Array.from_buffers(self._kind, rows, buffers)
        if self._kind == pa.string():
            try:
                made.validate(full=True)
            except pa.ArrowInvalid:
                return {VALUE: self._valid_only(stored)}
        return {VALUE: made}

    def _valid_only(self, stored: StoredValues) -> pa.Array:
        nulls = set(stored.nulls)
        found: list[str | None] = []
        for row, value in enumerate(stored.cut()):
            try:
                found.append(None if row in nulls else bytes(value).decode())
            except UnicodeDecodeError as error:
                stored.unfit[row] = f"a value is no valid UTF-8: {error}"
                found.append(None)
        return pa.array(found, self._kind)
