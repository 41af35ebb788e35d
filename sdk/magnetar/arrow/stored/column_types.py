"""The columns of a topic as Arrow types: those of its schema, and those of every message. Pure.

The columns of every message have the names of the Pulsar connector for Spark. Types match Spark's
exactly. JSON and AVRO values are described by Avro definitions. As in Spark's own `from_avro`, a
union with null may be null, int with long is long, float with double is double, and any other union
is a struct of its members, of which one is set; in JSON it is its text. Types without a column are
left out: null, a record within itself, and types made of these. PROTOBUF_NATIVE:
`protobuf_columns.py`.
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.column_names import (
    ERROR,
    EVENT_TIME,
    KEY,
    KEY_PART,
    MESSAGE_ID,
    NULL_VALUE,
    PROPERTIES,
    PUBLISH_TIME,
    TOPIC,
    VALUE,
    is_decimal,
    widest_of,
)
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import PERMISSIVE, ValueSchema

INSTANT = pa.timestamp("us", tz="UTC")
"""Times are instants, with Spark's precision."""

METADATA_FIELDS = (
    pa.field(KEY, pa.binary()),
    pa.field(TOPIC, pa.string()),
    pa.field(MESSAGE_ID, pa.binary()),
    pa.field(PUBLISH_TIME, INSTANT),
    pa.field(EVENT_TIME, INSTANT),
    pa.field(PROPERTIES, pa.map_(pa.string(), pa.string())),
)
"""Columns of every message beside its value. `__messageId` is a serialized `MessageIdData`."""

ERROR_FIELD = pa.field(ERROR, pa.string())
"""Why a message has no value, or only a part of it; else null. Only with mode PERMISSIVE."""

NULL_VALUE_FIELD = pa.field(NULL_VALUE, pa.bool_())
"""Whether a message has no value, as a tombstone. The columns of a record are null for it, but they
may be null for a record, too. Only in queries that ask for it."""

CHANGE = "__change"
UPSERT, DELETE = "upsert", "delete"
CHANGE_FIELD = pa.field(CHANGE, pa.string())
"""Effect of a message on the table of newest values: it sets the value of its key, or removes it.
Only in a change feed."""

METADATA_NAMES = frozenset(each.name for each in (*METADATA_FIELDS, NULL_VALUE_FIELD, ERROR_FIELD))
_RESERVED = frozenset(name.lower() for name in METADATA_NAMES)
"""Names that a field of a record cannot have as a column. Spark ignores case in column names."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

SCHEMA_TYPES: Mapping[str, pa.DataType] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": INSTANT,
    "TIMESTAMP": INSTANT,
    "INSTANT": INSTANT,
    "LOCAL_DATE": pa.date32(),
    "LOCAL_DATE_TIME": pa.timestamp("us"),
    "TIME": pa.int64(),
    "LOCAL_TIME": pa.int64(),
}
"""Types of primitive schemas. DATE is an instant, as Java's `Date` is. TIME is milliseconds of the
day, LOCAL_TIME nanoseconds."""

_DEPTH_MAX = 64


def all_columns(schema: ValueSchema, mode: str) -> pa.Schema:
    """Return all columns: those of the values, then those of every message.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    error = [ERROR_FIELD] if mode == PERMISSIVE else []
    return pa.schema([*value_fields(schema), *METADATA_FIELDS, *error])


def value_fields(schema: ValueSchema) -> list[pa.Field]:
    """Return the columns of a topic's values.

    These are the fields of a record, except those with the name of a metadata column; key and value
    of KEY_VALUE; otherwise one column `value`.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    if schema.key is not None and schema.value is not None:
        return [
            pa.field(KEY_PART, value_type(schema.key)),
            pa.field(VALUE, value_type(schema.value)),
        ]
    made = value_type(schema)
    if is_record(schema, made):
        fields = [each for each in made if each.name.lower() not in _RESERVED]
        if fields:
            return fields
        made = pa.binary()
    return [pa.field(VALUE, made)]


def value_type(schema: ValueSchema) -> pa.DataType:
    """Return the type of a value; binary if Arrow has none for it.

    Raises:
        SchemaMismatchError: a definition that cannot be read.
    """
    if schema.kind == protobuf_columns.KIND:
        made = protobuf_columns.protobuf_type(schema.definition, is_signed=schema.is_signed)
        return made or pa.binary()
    if schema.kind in ("JSON", "AVRO"):
        return type_of(schema.definition, is_json=schema.kind == "JSON") or pa.binary()
    return SCHEMA_TYPES.get(schema.kind, pa.binary())


def is_record(schema: ValueSchema, made: pa.DataType) -> bool:
    """Return whether the fields of a type are columns; the members of a union are not."""
    return pa.types.is_struct(made) and not schema.definition.lstrip().startswith("[")


def type_of(definition: str, *, is_json: bool) -> pa.DataType | None:
    """Return the type of a value with this Avro definition; None if Arrow has none.

    In JSON, a logical type is its base type, and a union of types is its text.

    Raises:
        SchemaMismatchError: the definition is not JSON, or not Avro.
    """
    schema = parsed_definition(definition)
    try:
        return _Types(is_json).of(schema, 0)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaMismatchError(f"the topic's schema is not Avro: {error!r}") from None


def parsed_definition(definition: str) -> Any:
    """Return the JSON of an Avro definition.

    Raises:
        SchemaMismatchError: the definition is not JSON.
    """
    try:
        return json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"the topic's schema is not JSON: {error}") from None


class _Types:
    """The types of one definition, whose records and enums have names that later types refer to."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, schema: Any, depth: int) -> pa.DataType | None:
        if depth > _DEPTH_MAX:
            return None
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            # A record that is not complete is not among the named ones: it is within itself.
            return _PRIMITIVES.get(schema) or self._named.get(schema)
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, depth)
        if kind == "enum":
            return self._name(schema, pa.string())
        if kind == "fixed":
            return self._name(schema, self._logical(schema) or pa.binary())
        if kind == "array":
            items = self.of(schema["items"], depth + 1)
            return None if items is None else pa.list_(pa.field("element", items))
        if kind == "map":
            values = self.of(schema["values"], depth + 1)
            return None if values is None else pa.map_(pa.string(), values)
        return self._logical(schema) or self.of(kind, depth + 1)

    def _union(self, union: list[Any], depth: int) -> pa.DataType | None:
        others = [each for each in union if each != "null"]
        types = [self.of(each, depth + 1) for each in others]
        if len(types) < 2:
            return types[0] if types else None
        if self._is_json:
            return pa.string()
        if widest := widest_of(others):
            return _PRIMITIVES[widest]
        fields = [
            pa.field(f"member{index}", each) for index, each in enumerate(types) if each is not None
        ]
        return pa.struct(fields) if len(fields) == len(types) else None

    def _record(self, schema: Mapping[str, Any], depth: int) -> pa.DataType | None:
        types = {each["name"]: self.of(each["type"], depth + 1) for each in schema["fields"]}
        fields = [pa.field(name, each) for name, each in types.items() if each is not None]
        return self._name(schema, pa.struct(fields) if fields else None)

    def _name(self, schema: Mapping[str, Any], made: pa.DataType | None) -> pa.DataType | None:
        name = str(schema["name"])
        self._named[name] = made
        if schema.get("namespace"):
            self._named[f"{schema['namespace']}.{name}"] = made
        return made

    def _logical(self, schema: Mapping[str, Any]) -> pa.DataType | None:
        if self._is_json:
            return None
        logical = schema.get("logicalType")
        if logical == "date":
            return pa.date32()
        if logical in ("timestamp-millis", "timestamp-micros"):
            return INSTANT
        if is_decimal(schema):
            return pa.decimal128(int(schema["precision"]), int(schema.get("scale", 0)))
        return None
