"""Spark types of Avro definitions, in which topics describe JSON and AVRO values. Pure.

As Spark's own `from_avro` has them: a union with null may be null, int with long is long, float
with double is double, and any other union is a struct of its members, of which one is set. What
Spark has no type for is left out: null, a record within itself, and what is made of these.
"""

import json
from collections.abc import Mapping
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
_DIGITS_MAX = 38


def type_of(definition: str, *, is_json: bool) -> DataType | None:
    """The type of a value; None if Spark has none. In JSON, logical types are what they are written
    as, and a union of types is its text.

    Raises:
        SchemaMismatchError: the definition is no JSON, or no Avro.
    """
    try:
        schema = json.loads(definition)
    except ValueError as error:
        raise SchemaMismatchError(f"the topic's schema is no JSON: {error}") from None
    try:
        return _Types(is_json).of(schema, 0)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaMismatchError(f"the topic's schema is no Avro: {error!r}") from None


def members_of(union: list[Any]) -> list[Any]:
    """The types of a union that are members of its struct; empty if it is a column of one type."""
    others = [each for each in union if each != "null"]
    return [] if len(others) < 2 or _widest(others) is not None else others


def is_decimal(schema: Mapping[str, Any]) -> bool:
    """Whether it is a number that Spark has room for; else it is its bytes."""
    return schema.get("logicalType") == "decimal" and 0 < schema.get("precision", 0) <= _DIGITS_MAX


def _widest(types: list[Any]) -> DataType | None:
    names = {each for each in types if isinstance(each, str)}
    if len(types) == 2 and names == {"int", "long"}:
        return LongType()
    if len(types) == 2 and names == {"float", "double"}:
        return DoubleType()
    return None


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
        return _widest(others) or (StructType(fields) if len(fields) == len(types) else None)

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
