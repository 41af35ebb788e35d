"""Columns have the types that definitions say."""

import json
from typing import Any

import pyarrow as pa
import pytest

from magnetar.arrow.errors import SchemaMismatchError
from magnetar.arrow.stored.column_types import type_of, value_fields, value_type
from magnetar.arrow.stored.slices import ValueSchema

PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "geo",
    "fields": [{"name": "name", "type": "string"}],
}


def _record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": each} for name, each in types.items()]
    return {"type": "record", "name": "R", "fields": fields}


DEFINITIONS: list[tuple[Any, str, str]] = [
    ("string", "value: string", ""),
    ({"type": "string", "avro.java.string": "String"}, "value: string", ""),
    (["null", "long"], "value: int64", ""),
    (["int", "long"], "value: int64", "value: string"),
    (["float", "null", "double"], "value: double", "value: string"),
    (["null", "string", "int"], "value: struct<member0: string, member1: int32>", "value: string"),
    ({"type": "array", "items": ["null", "int"]}, "value: list<element: int32>", ""),
    ({"type": "map", "values": "double"}, "value: map<string, double>", ""),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "value: string", ""),
    ({"type": "fixed", "name": "F", "size": 4}, "value: binary", ""),
    (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 20},
        "value: decimal128(20, 0)",
        "value: binary",
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "value: decimal128(9, 2)",
        "value: binary",
    ),
    ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "value: binary", ""),
    ({"type": "int", "logicalType": "date"}, "value: date32[day]", "value: int32"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        "value: timestamp[us, tz=UTC]",
        "value: int64",
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        "value: timestamp[us, tz=UTC]",
        "value: int64",
    ),
    ({"type": "long", "logicalType": "time-micros"}, "value: int64", ""),
    ("null", "value: binary", ""),
    (
        _record(a="int", b=["null", "string"], c={"type": "array", "items": "string"}),
        "a: int32, b: string, c: list<element: string>",
        "",
    ),
    (
        _record(a=PLACE, b="geo.Place", c=["null", "Place"]),
        "a: struct<name: string>, b: struct<name: string>, c: struct<name: string>",
        "",
    ),
    (_record(a="null", itself=["null", "R"], b="bytes"), "b: binary", ""),
    (_record(a="null"), "value: binary", ""),
    (_record(__key="string", __TOPIC="string", a="boolean"), "a: bool", ""),
    (_record(__key="string"), "value: binary", ""),
    (_record(value="bytes"), "value: binary", ""),
]
"""Definition, and its columns in AVRO, and in JSON where these are others."""


@pytest.mark.parametrize(("definition", "avro", "json_"), DEFINITIONS, ids=str)
def test_a_definition_is_these_columns(definition: Any, avro: str, json_: str) -> None:
    assert _columns(ValueSchema("AVRO", json.dumps(definition))) == avro
    assert _columns(ValueSchema("JSON", json.dumps(definition))) == (json_ or avro)


def _columns(schema: ValueSchema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in value_fields(schema))


@pytest.mark.parametrize("kind", ["BYTES", "of the future"])
def test_a_schema_without_columns_is_the_bytes(kind: str) -> None:
    assert value_fields(ValueSchema(kind)) == [pa.field("value", pa.binary())]


def test_a_key_with_a_value_is_two_columns() -> None:
    schema = ValueSchema(
        "KEY_VALUE", key=ValueSchema("STRING"), value=ValueSchema("AVRO", json.dumps(PLACE))
    )
    assert _columns(schema) == "key: string, value: struct<name: string>"


@pytest.mark.parametrize("definition", ["no JSON", '{"fields": []}', "[1]", "{}"])
def test_a_definition_that_is_none_is_an_error_with_a_reason(definition: str) -> None:
    with pytest.raises(SchemaMismatchError, match="the topic's schema is not"):
        type_of(definition, is_json=False)


def test_what_is_nested_without_end_is_bytes() -> None:
    deep: Any = "int"
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert value_type(ValueSchema("AVRO", json.dumps(deep))) == pa.binary()
