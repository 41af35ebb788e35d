"""Which columns messages' values become: the bytes, or what their schema makes of them."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from magnetar.sdk.spark.columns import ERROR_FIELD, KEY, METADATA_FIELDS, METADATA_NAMES, VALUE
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema
from magnetar.sdk.spark.stored_values import StoredColumn, StoredValues, ValueColumns
from magnetar.sdk.spark.value_types import (
    KEY_PART,
    TEXT_KINDS,
    check_field,
    has_field,
    value_fields,
    wants_bytes_only,
)


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
