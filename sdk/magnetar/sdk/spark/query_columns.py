"""Makers of the columns that a query selects.

A query may select columns of the topic's schema, all or some of them; the bytes or the text of
values; and a record as one struct.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from magnetar.arrow.stored import protobuf_columns, values
from magnetar.arrow.stored.column_names import KEY, KEY_PART, VALUE
from magnetar.arrow.stored.column_types import (
    ERROR_FIELD,
    METADATA_FIELDS,
    METADATA_NAMES,
    NULL_VALUE_FIELD,
    is_record,
    value_fields,
    value_type,
)
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredColumn, StoredValues, ValueColumns
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.query_schema import arrow_schema, spark_schema

_METADATA_TYPES: Mapping[str, DataType] = {
    each.name: each.dataType
    for each in spark_schema([*METADATA_FIELDS, NULL_VALUE_FIELD, ERROR_FIELD]).fields
}

_RECORD_KINDS = ("JSON", "AVRO", protobuf_columns.KIND)
"""Schemas whose values may be records."""

_TEXT_KINDS = ("BYTES", "STRING", "JSON")
"""Schemas whose values may be selected as text."""


def value_columns(wanted: StructType, schema: ValueSchema) -> ValueColumns:
    """Return a maker of the query's columns that are not metadata.

    Raises:
        SchemaMismatchError: a column that these values do not have, or of another type.
    """
    _check_metadata(wanted)
    asked = [each for each in wanted.fields if each.name not in METADATA_NAMES]
    try:
        known = {each.name: each.dataType for each in spark_schema(value_fields(schema)).fields}
    except SchemaMismatchError:
        if not wants_bytes_only(wanted):
            raise
        schema, known = ValueSchema(), {}
    if schema.key is not None and any(each.name == KEY_PART for each in asked):
        return _key_and_value(asked, schema, known)
    made: list[ValueColumns] = []
    names: list[str] = []
    for each in asked:
        if _is_stored(each, schema, known):
            made.append(StoredColumn(arrow_schema(StructType([each])).field(0).type))
        elif (record := _whole_record(each, schema, known)) is not None:
            made.append(values.RecordColumn(arrow_schema(record), schema))
        else:
            _check_field(each, known, schema)
            names.append(each.name)
    if names:
        made.append(values.value_columns(names, schema))
    return made[0] if len(made) == 1 else _Joined(made)


def wants_bytes_only(wanted: StructType) -> bool:
    """Return whether the query selects of the values only the stored bytes or text."""
    return all(
        each.name in METADATA_NAMES
        or (each.name == VALUE and isinstance(each.dataType, (BinaryType, StringType)))
        for each in wanted.fields
    )


def _is_stored(each: StructField, schema: ValueSchema, known: Mapping[str, DataType]) -> bool:
    """Return whether a column has the stored bytes or text, and is not a column of the schema."""
    if each.name != VALUE:
        return False
    is_known = known.get(VALUE) == each.dataType
    if isinstance(each.dataType, StringType):
        return schema.kind in _TEXT_KINDS and not (schema.kind == "JSON" and is_known)
    # If a record has a field of this name and type, the column is that field.
    is_field = is_known and is_record(schema, value_type(schema))
    return isinstance(each.dataType, BinaryType) and not is_field


def _whole_record(
    each: StructField, schema: ValueSchema, known: Mapping[str, DataType]
) -> StructType | None:
    """Return the fields of a column that is a whole record; None if it is a column of the schema.

    Raises:
        SchemaMismatchError: a field that the schema does not have, or of another type.
    """
    if each.name != VALUE or VALUE in known or schema.kind not in _RECORD_KINDS:
        return None
    if not isinstance(each.dataType, StructType):
        return None
    for field in each.dataType.fields:
        _check_field(field, known, schema)
    return each.dataType


def _key_and_value(
    asked: Sequence[StructField], schema: ValueSchema, known: Mapping[str, DataType]
) -> ValueColumns:
    """Return a maker of both columns of a KEY_VALUE, or of the key; decoded, or as bytes."""
    parts = {KEY_PART: schema.key or ValueSchema(), VALUE: schema.value or ValueSchema()}
    for each in asked:
        if each.name in parts and isinstance(each.dataType, BinaryType):
            parts[each.name] = ValueSchema()
        else:
            _check_field(each, known, schema)
    names = [each.name for each in asked]
    return values.KeyValueColumns(names, parts[KEY_PART], parts[VALUE], schema.has_separate_key)


def _check_metadata(schema: StructType) -> None:
    for each in schema.fields:
        known = _METADATA_TYPES.get(each.name)
        if known is None or each.dataType == known:
            continue
        if each.name == KEY and isinstance(each.dataType, StringType):
            continue
        raise SchemaMismatchError(
            f"column {each.name} of type {each.dataType.simpleString()}: it is "
            f"{known.simpleString()}{' or string' if each.name == KEY else ''}"
        )


def _check_field(each: StructField, known: Mapping[str, DataType], schema: ValueSchema) -> None:
    """Check that a column of the query is one of the `known` ones of the schema.

    Raises:
        SchemaMismatchError: the column is unknown, or has another type.
    """
    asked = f"column {each.name} of type {each.dataType.simpleString()}"
    if schema.kind == "BYTES":
        raise SchemaMismatchError(
            f"{asked}: the topic's values are bytes: use a column value of type binary or string"
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


class _Joined:
    """Columns of several makers, or of none."""

    def __init__(self, made: Sequence[ValueColumns]) -> None:
        self._made = made
        self.needs_keys = any(each.needs_keys for each in made)

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for each in self._made:
            found.update(each.columns(stored))
        return found
