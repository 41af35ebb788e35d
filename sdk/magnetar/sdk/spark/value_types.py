"""The columns that values of a schema are. Pure."""

from collections.abc import Mapping

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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.sdk.spark.avro_types import type_of
from magnetar.sdk.spark.columns import METADATA_NAMES, RESERVED_NAMES, VALUE
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import ValueSchema

KEY_PART = "key"
"""Column of the key of a KEY_VALUE schema; `value` is the one of its value."""

PRIMITIVE_TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BOOLEAN": BooleanType(),
    "INT8": ByteType(),
    "INT16": ShortType(),
    "INT32": IntegerType(),
    "INT64": LongType(),
    "FLOAT": FloatType(),
    "DOUBLE": DoubleType(),
    "DATE": TimestampType(),
    "TIMESTAMP": TimestampType(),
    "INSTANT": TimestampType(),
    "LOCAL_DATE": DateType(),
    "LOCAL_DATE_TIME": TimestampNTZType(),
    "TIME": LongType(),
    "LOCAL_TIME": LongType(),
}
"""DATE is a moment, as Java's `Date` is. TIME is milliseconds of the day, LOCAL_TIME nanoseconds:
Spark has a type for them since 4.1, and few of what it writes to have one."""

TEXT_KINDS = ("BYTES", "STRING", "JSON")
"""Schemas whose values may be asked for as text."""


def value_type(schema: ValueSchema) -> DataType:
    """The type of a value; binary if Spark has none for it.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    if schema.kind in ("JSON", "AVRO"):
        return type_of(schema.definition, is_json=schema.kind == "JSON") or BinaryType()
    return PRIMITIVE_TYPES.get(schema.kind, BinaryType())


def value_fields(schema: ValueSchema) -> list[StructField]:
    """The columns of a topic: the fields of a record but those that have the name of a metadata
    column, key and value of KEY_VALUE, and else one column `value`.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    if schema.key is not None and schema.value is not None:
        return [
            StructField(KEY_PART, value_type(schema.key), True),
            StructField(VALUE, value_type(schema.value), True),
        ]
    made = value_type(schema)
    if isinstance(made, StructType) and not is_union(schema):
        fields = [each for each in made.fields if each.name.lower() not in RESERVED_NAMES]
        if fields:
            return fields
        made = BinaryType()
    return [StructField(VALUE, made, True)]


def wants_bytes_only(wanted: StructType) -> bool:
    """Whether the query wants of values nothing but what is stored."""
    return all(
        each.name in METADATA_NAMES
        or (each.name == VALUE and isinstance(each.dataType, (BinaryType, StringType)))
        for each in wanted.fields
    )


def has_field(schema: ValueSchema, field: StructField) -> bool:
    """Whether it is a record with a field of this name and type."""
    made = value_type(schema)
    if not isinstance(made, StructType) or is_union(schema):
        return False
    return any(each == field for each in made.fields)


def is_union(schema: ValueSchema) -> bool:
    """Whether it is an AVRO union, not a record: the struct of its members is one column."""
    return schema.definition.lstrip().startswith("[")


def check_field(each: StructField, known: Mapping[str, DataType], schema: ValueSchema) -> None:
    """Whether a column that a query wants is one of the `known` ones of the schema.

    Raises:
        SchemaMismatchError: it is not, or of another type.
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
