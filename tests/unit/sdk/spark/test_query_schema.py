"""Columns of topics in Spark's types, and back."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, TimestampType

from magnetar.arrow.stored.column_types import METADATA_FIELDS, SCHEMA_TYPES, value_fields
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.sdk.spark.errors import OptionError
from magnetar.sdk.spark.query_schema import ArchivedColumns, arrow_schema, spark_schema

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
    ("string", "value:string", ""),
    ({"type": "string", "avro.java.string": "String"}, "value:string", ""),
    (["null", "long"], "value:bigint", ""),
    (["int", "long"], "value:bigint", "value:string"),
    (["float", "null", "double"], "value:double", "value:string"),
    (["null", "string", "int"], "value:struct<member0:string,member1:int>", "value:string"),
    ({"type": "array", "items": ["null", "int"]}, "value:array<int>", ""),
    ({"type": "map", "values": "double"}, "value:map<string,double>", ""),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "value:string", ""),
    ({"type": "fixed", "name": "F", "size": 4}, "value:binary", ""),
    (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 20},
        "value:decimal(20,0)",
        "value:binary",
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "value:decimal(9,2)",
        "value:binary",
    ),
    ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "value:binary", ""),
    ({"type": "int", "logicalType": "date"}, "value:date", "value:int"),
    ({"type": "long", "logicalType": "timestamp-millis"}, "value:timestamp", "value:bigint"),
    ({"type": "long", "logicalType": "timestamp-micros"}, "value:timestamp", "value:bigint"),
    ({"type": "long", "logicalType": "time-micros"}, "value:bigint", ""),
    ("null", "value:binary", ""),
    (
        _record(a="int", b=["null", "string"], c={"type": "array", "items": "string"}),
        "a:int,b:string,c:array<string>",
        "",
    ),
    (
        _record(a=PLACE, b="geo.Place", c=["null", "Place"]),
        "a:struct<name:string>,b:struct<name:string>,c:struct<name:string>",
        "",
    ),
    (_record(a="null", itself=["null", "R"], b="bytes"), "b:binary", ""),
    (_record(a="null"), "value:binary", ""),
    (_record(__key="string", __TOPIC="string", a="boolean"), "a:boolean", ""),
    (_record(__key="string"), "value:binary", ""),
    (_record(value="bytes"), "value:binary", ""),
]
"""Definition, and its columns in AVRO, and in JSON where these are others."""

METADATA = (
    "struct<__key:binary,__topic:string,__messageId:binary,__publishTime:timestamp,"
    "__eventTime:timestamp,__messageProperties:map<string,string>>"
)


def test_every_message_has_these_columns() -> None:
    columns = spark_schema(METADATA_FIELDS)
    assert columns.simpleString() == METADATA
    assert arrow_schema(columns) == pa.schema(METADATA_FIELDS)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("STRING", "string"),
        ("BOOLEAN", "boolean"),
        ("INT8", "tinyint"),
        ("INT16", "smallint"),
        ("INT32", "int"),
        ("INT64", "bigint"),
        ("FLOAT", "float"),
        ("DOUBLE", "double"),
        ("DATE", "timestamp"),
        ("TIMESTAMP", "timestamp"),
        ("INSTANT", "timestamp"),
        ("LOCAL_DATE", "date"),
        ("LOCAL_DATE_TIME", "timestamp_ntz"),
        ("TIME", "bigint"),
        ("LOCAL_TIME", "bigint"),
        ("BYTES", "binary"),
        ("of the future", "binary"),
    ],
)
def test_a_primitive_schema_is_a_column_of_this_type(kind: str, expected: str) -> None:
    assert kind in SCHEMA_TYPES or expected == "binary"
    fields = value_fields(ValueSchema(kind))
    columns = spark_schema(fields)
    assert columns.simpleString() == f"struct<value:{expected}>"
    assert arrow_schema(columns) == pa.schema(fields)


@pytest.mark.parametrize(("definition", "avro", "json_"), DEFINITIONS, ids=str)
def test_a_definition_is_these_columns_and_batches_have_their_types_to_the_letter(
    definition: Any, avro: str, json_: str
) -> None:
    """Spark takes no batch whose types are not those that it has for the columns."""
    for kind, expected in (("AVRO", avro), ("JSON", json_ or avro)):
        fields = value_fields(ValueSchema(kind, json.dumps(definition)))
        columns = spark_schema(fields)
        assert columns.simpleString() == f"struct<{expected}>"
        assert arrow_schema(columns) == pa.schema(fields)


def test_batches_have_the_schema_that_each_spark_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.1 takes no time zone."""
    schema = StructType([StructField("value", TimestampType())])
    expected = arrow_schema(schema)
    monkeypatch.setattr(
        "magnetar.sdk.spark.query_schema.to_arrow_schema",
        lambda each: to_arrow_schema(each, timezone="UTC"),
    )
    assert arrow_schema(schema) == expected


def test_scalable_topics_have_no_archive() -> None:
    servers = {"service.url": "pulsar://h:1", "admin.url": "http://h:1"}
    with pytest.raises(OptionError, match="option topics: scalable topics are not archived"):
        ArchivedColumns({**servers, "topics": "topic://public/default/t"})
