"""Columns have the types that the Spark source gives them, to the letter."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from magnetar.arrow.column_types import METADATA_FIELDS, type_of, value_fields, value_type
from magnetar.arrow.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.sdk.spark import columns as of_spark
from magnetar.sdk.spark.columns import arrow_schema

PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "geo",
    "fields": [{"name": "name", "type": "string"}],
}


def _record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": each} for name, each in types.items()]
    return {"type": "record", "name": "R", "fields": fields}


DEFINITIONS = [
    "string",
    {"type": "string", "avro.java.string": "String"},
    ["null", "long"],
    ["int", "long"],
    ["float", "null", "double"],
    ["null", "string", "int"],
    {"type": "array", "items": ["null", "int"]},
    {"type": "map", "values": "double"},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    {"type": "fixed", "name": "F", "size": 4},
    {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 20},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 77},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "time-micros"},
    "null",
    _record(a="int", b=["null", "string"], c={"type": "array", "items": "string"}),
    _record(a=PLACE, b="geo.Place", c=["null", "Place"]),
    _record(a="null", itself=["null", "R"], b="bytes"),
    _record(a="null"),
    _record(__key="string", __TOPIC="string", a="boolean"),
    _record(__key="string"),
    _record(value="bytes"),
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_definition_is_the_columns_that_spark_has(definition: Any, kind: str) -> None:
    schema = ValueSchema(kind, json.dumps(definition))
    expected = arrow_schema(StructType(of_spark.value_fields(schema)))
    assert pa.schema(value_fields(schema)) == expected


@pytest.mark.parametrize("kind", [*of_spark.PRIMITIVE_TYPES, "BYTES", "of the future"])
def test_a_primitive_schema_is_the_column_that_spark_has(kind: str) -> None:
    schema = ValueSchema(kind)
    expected = arrow_schema(StructType(of_spark.value_fields(schema)))
    assert pa.schema(value_fields(schema)) == expected


def test_a_key_with_a_value_is_the_columns_that_spark_has() -> None:
    schema = ValueSchema(
        "KEY_VALUE", key=ValueSchema("STRING"), value=ValueSchema("AVRO", json.dumps(PLACE))
    )
    expected = arrow_schema(StructType(of_spark.value_fields(schema)))
    assert pa.schema(value_fields(schema)) == expected


def test_every_message_has_the_columns_that_spark_has() -> None:
    expected = arrow_schema(StructType([*of_spark.METADATA_FIELDS]))
    assert pa.schema(METADATA_FIELDS) == expected


@pytest.mark.parametrize("definition", ["no JSON", '{"fields": []}', "[1]", "{}"])
def test_a_definition_that_is_none_is_an_error_with_a_reason(definition: str) -> None:
    with pytest.raises(SchemaMismatchError, match="the topic's schema is not"):
        type_of(definition, is_json=False)


def test_what_is_nested_without_end_is_bytes() -> None:
    deep: Any = "int"
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert value_type(ValueSchema("AVRO", json.dumps(deep))) == pa.binary()
