"""Fields encoded by columns: read back by a plain JSON and a plain Avro reader."""

import datetime
import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from magnetar.sdk.spark.errors import OptionError, SchemaMismatchError
from magnetar.sdk.spark.sink.field_encoding import encode_avro, encode_json, schema_definition
from magnetar.sdk.spark.sink.options import Encoding

_DAY = datetime.date(2013, 1, 1)
_TIME = datetime.datetime(2013, 1, 1, 5, 15, 0, 123_456, datetime.UTC)
_FIELDS: list[tuple[str, DataType, pa.Array]] = [
    ("flag", BooleanType(), pa.array([True, None, False])),
    ("small", IntegerType(), pa.array([-1, None, 2**31 - 1], pa.int32())),
    ("large", LongType(), pa.array([-(2**63), None, 2**63 - 1], pa.int64())),
    ("single", FloatType(), pa.array([0.5, None, -1.25], pa.float32())),
    ("ratio", DoubleType(), pa.array([0.1, None, 1e300])),
    ("text", StringType(), pa.array(['a "quoted"\n\\ü', None, ""])),
    ("day", DateType(), pa.array([_DAY, None, _DAY])),
    ("at", TimestampType(), pa.array([_TIME, None, _TIME], pa.timestamp("us", "UTC"))),
]
_MICROS = int(_TIME.timestamp()) * 1_000_000 + 123_456


def test_json_is_what_a_plain_reader_reads() -> None:
    found = [json.loads(each) for each in encode_json([(n, c) for n, _, c in _FIELDS]).to_pylist()]
    plain = {name: column.to_pylist() for name, _, column in _FIELDS}
    plain["day"] = [15706, None, 15706]
    plain["at"] = [_MICROS, None, _MICROS]
    assert found == [{name: plain[name][row] for name, _, _ in _FIELDS} for row in range(3)]


def test_numbers_without_a_form_in_json_are_strings() -> None:
    column = pa.array([float("nan"), float("inf"), float("-inf"), 1.0])
    found = [json.loads(each) for each in encode_json([("x", column)]).to_pylist()]
    assert [each["x"] for each in found] == ["NaN", "Infinity", "-Infinity", 1.0]


def test_avro_is_what_a_plain_reader_reads_by_the_schema() -> None:
    fields = [*_FIELDS, ("raw", BinaryType(), pa.array([b"\x00\xff", None, b""]))]
    schema = json.loads(
        schema_definition("Row", [(name, kind) for name, kind, _ in fields], Encoding.AVRO)
    )
    parsed = fastavro.parse_schema(schema)
    sliced = [(name, column[1:]) for name, _, column in fields]
    for columns, rows in (([(n, c) for n, _, c in fields], range(3)), (sliced, range(1, 3))):
        encoded = encode_avro(columns).to_pylist()
        found = [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in encoded]
        assert found == [
            {name: column.to_pylist()[row] for name, _, column in fields} for row in rows
        ]


def test_types_and_names_without_a_form_are_refused_at_the_start() -> None:
    with pytest.raises(SchemaMismatchError, match="column list is array<int>"):
        schema_definition("Row", [("list", ArrayType(IntegerType()))], Encoding.AVRO)
    with pytest.raises(SchemaMismatchError, match="column raw is binary"):
        schema_definition("Row", [("raw", BinaryType())], Encoding.JSON)
    with pytest.raises(SchemaMismatchError, match="letters, digits"):
        schema_definition("Row", [("a b", IntegerType())], Encoding.JSON)
    with pytest.raises(OptionError, match="schemaName"):
        schema_definition("my row", [("a", IntegerType())], Encoding.JSON)
