"""The columns of the source: those of every message, and those of a schema's values. Pure.

The first are named as the known Pulsar connector names them. The others are Spark types of Avro
definitions, in which topics describe JSON and AVRO values, as Spark's own `from_avro` has them: a
union with null may be null, int with long is long, float with double is double, and any other union
is a struct of its members, of which one is set. What Spark has no type for is left out: null, a
record within itself, and what is made of these.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.arrow.stored.column_names import (
    ERROR,
    EVENT_TIME,
    KEY,
    KEY_PART,
    MESSAGE_ID,
    PROPERTIES,
    PUBLISH_TIME,
    TOPIC,
    VALUE,
    is_decimal,
    widest_of,
)
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.sdk.spark.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_FIELDS = (
    StructField(KEY, BinaryType()),
    StructField(TOPIC, StringType()),
    StructField(MESSAGE_ID, BinaryType()),
    StructField(PUBLISH_TIME, TimestampType()),
    StructField(EVENT_TIME, TimestampType()),
    StructField(PROPERTIES, MapType(StringType(), StringType())),
)
"""What every message has beside its value. `__messageId` is a serialized `MessageIdData`."""

ERROR_FIELD = StructField(ERROR, StringType())
"""With `mode` PERMISSIVE: why the message has no value, or not all of it; else null."""

METADATA_NAMES = frozenset(each.name for each in (*METADATA_FIELDS, ERROR_FIELD))

RESERVED_NAMES = frozenset(name.lower() for name in METADATA_NAMES)
"""Names that no field of a record can have as a column: Spark knows columns without regard to
case."""

_PRIMITIVES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}

_DEPTH_MAX = 64


def type_of(definition: str, *, is_json: bool) -> DataType | None:
    """The type of a value; None if Spark has none. In JSON, logical types are what they are written
    as, and a union of types is its text.

    Raises:
        SchemaMismatchError: the definition is no JSON, or no Avro.
    """
    try:
        schema = json.loads(definition)
    except ValueError as error:
        raise SchemaMismatchError(f"the topic's schema is not JSON: {error}") from None
    try:
        return _Types(is_json).of(schema, 0)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaMismatchError(f"the topic's schema is not Avro: {error!r}") from None


_WIDEST: Mapping[str, DataType] = {"long": LongType(), "double": DoubleType()}


class _Types:
    """One definition: records and enums have names that later types refer to."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[str, DataType | None] = {}

    def of(self, schema: Any, depth: int) -> DataType | None:
        if depth > _DEPTH_MAX:
            return None
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            # A record that is not complete is none of the named ones: it is within itself.
            return _PRIMITIVES.get(schema) or self._named.get(schema)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, depth)
        if kind == "enum":
            return self._name(schema, StringType())
        if kind == "fixed":
            return self._name(schema, self._logical(schema) or BinaryType())
        if kind == "array":
            items = self.of(schema["items"], depth + 1)
            return None if items is None else ArrayType(items, True)
        if kind == "map":
            values = self.of(schema["values"], depth + 1)
            return None if values is None else MapType(StringType(), values, True)
        return self._logical(schema) or self.of(kind, depth + 1)

    def _union(self, union: list[Any], depth: int) -> DataType | None:
        others = [each for each in union if each != "null"]
        types = [self.of(each, depth + 1) for each in others]
        if len(types) < 2:
            return types[0] if types else None
        if self._is_json:
            return StringType()
        fields = [
            StructField(f"member{index}", each, True)
            for index, each in enumerate(types)
            if each is not None
        ]
        return _WIDEST.get(widest_of(others)) or (
            StructType(fields) if len(fields) == len(types) else None
        )

    def _record(self, schema: Mapping[str, Any], depth: int) -> DataType | None:
        types = {each["name"]: self.of(each["type"], depth + 1) for each in schema["fields"]}
        fields = [StructField(name, each, True) for name, each in types.items() if each is not None]
        return self._name(schema, StructType(fields) if fields else None)

    def _name(self, schema: Mapping[str, Any], made: DataType | None) -> DataType | None:
        name = str(schema["name"])
        self._named[name] = made
        if schema.get("namespace"):
            self._named[f"{schema['namespace']}.{name}"] = made
        return made

    def _logical(self, schema: Mapping[str, Any]) -> DataType | None:
        if self._is_json:
            return None
        logical = schema.get("logicalType")
        if logical == "date":
            return DateType()
        if logical in ("timestamp-millis", "timestamp-micros"):
            return TimestampType()
        if is_decimal(schema):
            return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
        return None


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
    if is_record(made, schema):
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
    return is_record(made, schema) and field in made.fields


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Columns as Spark wants batches to be, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)  # Spark 4.1 takes UTC without being told


def is_record(made: DataType, schema: ValueSchema) -> TypeGuard[StructType]:
    """Whether its fields are columns; the members of a union are not."""
    return isinstance(made, StructType) and not schema.definition.lstrip().startswith("[")


def check_field(each: StructField, known: Mapping[str, DataType], schema: ValueSchema) -> None:
    """Whether a column that a query wants is one of the `known` ones of the schema.

    Raises:
        SchemaMismatchError: it is not, or of another type.
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
