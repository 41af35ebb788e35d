"""Spark types of an Avro record, in which topics describe JSON and AVRO values. Pure.

A union with null makes a column that may be null; any other union has no type in Spark.
"""

import json
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.sdk.spark.errors import SchemaMismatchError

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


def fields_of(definition: str, *, is_json: bool) -> list[StructField]:
    """The columns of a record. In JSON, logical types are what they are written as.

    Raises:
        SchemaMismatchError: no record, or types that Spark does not have.
    """
    try:
        schema = json.loads(definition)
    except ValueError as error:
        raise SchemaMismatchError(f"the topic's schema is no JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaMismatchError("the topic's schema is no record, whose fields could be columns")
    made = _Types(is_json).of(schema, "", 0)
    assert isinstance(made, StructType)
    return [StructField(each.name, each.dataType, True) for each in made.fields]


class _Types:
    """One definition: records and enums have names that later types refer to."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._named: dict[str, DataType] = {}

    def of(self, schema: Any, where: str, depth: int) -> DataType:
        if depth > _DEPTH_MAX:
            raise SchemaMismatchError(f"field {where}: types within types beyond {_DEPTH_MAX}")
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            if len(others) != 1:
                raise SchemaMismatchError(f"field {where}: a union of {len(others)} types")
            return self.of(others[0], where, depth + 1)
        if isinstance(schema, str):
            found = _PRIMITIVES.get(schema) or self._named.get(schema)
            if found is None:
                raise SchemaMismatchError(f"field {where}: Spark has no column for type {schema!r}")
            return found
        kind = schema.get("type")
        if kind == "record":
            return self._record(schema, where, depth)
        if kind == "enum":
            return self._name(schema, StringType())
        if kind == "fixed":
            return self._name(schema, self._logical(schema) or BinaryType())
        if kind == "array":
            return ArrayType(self.of(schema["items"], where, depth + 1), True)
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"], where, depth + 1), True)
        return self._logical(schema) or self.of(kind, where, depth + 1)

    def _record(self, schema: dict[str, Any], where: str, depth: int) -> DataType:
        fields = [
            StructField(
                each["name"],
                self.of(each["type"], f"{where}.{each['name']}".lstrip("."), depth + 1),
                True,
            )
            for each in schema.get("fields", ())
        ]
        return self._name(schema, StructType(fields))

    def _name(self, schema: dict[str, Any], made: DataType) -> DataType:
        name = str(schema.get("name", ""))
        self._named[name] = made
        if schema.get("namespace"):
            self._named[f"{schema['namespace']}.{name}"] = made
        return made

    def _logical(self, schema: dict[str, Any]) -> DataType | None:
        if self._is_json:
            return None
        logical = schema.get("logicalType")
        if logical == "date":
            return DateType()
        if logical in ("timestamp-millis", "timestamp-micros"):
            return TimestampType()
        if logical == "decimal":
            return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
        return None
