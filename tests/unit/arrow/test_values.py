"""Columns of values are those that the Spark source makes of the same bytes."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from magnetar.arrow.column_types import value_fields
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.values import value_columns
from magnetar.sdk.spark import columns as of_spark
from magnetar.sdk.spark import values as by_spark

PLACE = json.dumps(
    {"type": "record", "name": "Place", "fields": [{"name": "name", "type": "string"}]}
)
LOW, HIGH = -(1 << 63), (1 << 63) - 1


def _stored(parts: Sequence[bytes], **more: Any) -> StoredValues:
    lengths = [len(each) for each in parts]
    return StoredValues(parts, lengths, versions=[(NO_VERSION, len(parts))], **more)


def _same(schema: ValueSchema, parts: Sequence[bytes], **more: Any) -> dict[str, list[Any]]:
    """The values of all columns, which Spark's source makes as well; as is what is unfit."""
    fields = value_fields(schema)
    stored, beside = _stored(parts, **more), _stored(parts, **more)
    made = value_columns([each.name for each in fields], schema).columns(stored)
    spark_schema = StructType(of_spark.value_fields(schema))
    expected = by_spark.value_columns(spark_schema, schema).columns(beside)
    assert {name: each.type for name, each in made.items()} == {
        each.name: each.type for each in fields
    }
    assert stored.unfit.keys() == beside.unfit.keys()
    shown = {name: each.cast(_plain(each.type)).to_pylist() for name, each in made.items()}
    assert shown == {
        name: expected[name].cast(_plain(expected[name].type)).to_pylist() for name in made
    }
    return shown


def _plain(kind: pa.DataType) -> pa.DataType:
    """Python has no times as far away as Arrow has."""
    return pa.int64() if pa.types.is_timestamp(kind) else kind


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("BYTES", [b"a", b"", b"\xff" * 300]),
        ("of the future", [b"a"]),
        ("STRING", [b"a", b"", "ä€".encode()]),
        ("BOOLEAN", [b"\x00", b"\x01", b"\x02"]),
        ("INT8", [b"\x80", b"\x7f"]),
        ("INT16", [b"\x80\x00", b"\x01\x02"]),
        ("INT32", [struct.pack(">i", each) for each in (-5, 0, (1 << 31) - 1)]),
        ("INT64", [struct.pack(">q", each) for each in (LOW, 0, HIGH)]),
        ("FLOAT", [struct.pack(">f", each) for each in (0.5, -1e30)]),
        ("DOUBLE", [struct.pack(">d", each) for each in (0.1, -1e300)]),
        ("DATE", [struct.pack(">q", each) for each in (0, -1, 1_700_000_000_000, LOW, HIGH)]),
        ("TIMESTAMP", [struct.pack(">q", each) for each in (0, 1_700_000_000_000, HIGH)]),
        ("INSTANT", [struct.pack(">qi", *each) for each in ((1, 999_999), (-1, 5_000), (HIGH, 0))]),
        ("LOCAL_DATE", [struct.pack(">q", each) for each in (0, -3, HIGH)]),
        ("LOCAL_DATE_TIME", [struct.pack(">qq", *each) for each in ((1, 1_999), (HIGH, 0))]),
        ("TIME", [struct.pack(">q", 86_399_999)]),
        ("LOCAL_TIME", [struct.pack(">q", 86_399_999_999_999)]),
    ],
)
def test_a_primitive_value_is_what_spark_has(kind: str, parts: list[bytes]) -> None:
    schema = ValueSchema(kind)
    _same(schema, parts)
    with_null = _same(schema, [*parts, b""], nulls=[len(parts)])
    assert with_null["value"][-1] is None


@pytest.mark.parametrize("kind", ["INT32", "INT64", "BOOLEAN", "INSTANT"])
def test_a_value_of_another_size_is_told_of_and_null(kind: str) -> None:
    schema = ValueSchema(kind)
    stored = _stored([bytes(12), b"x" * 300, b"", bytes(4), bytes(8), b"\x01"])
    made = value_columns(["value"], schema).columns(stored)["value"]
    assert {row for row in range(6) if made[row].as_py() is None} == stored.unfit.keys()
    assert len(stored.unfit) == 5
    assert f"a value of 300 bytes is no {kind}" in stored.unfit[1]


def test_text_that_is_none_is_told_of_and_null() -> None:
    stored = _stored([b"a", b"\xff", b"b"])
    made = value_columns(["value"], ValueSchema("STRING")).columns(stored)
    assert made["value"].to_pylist() == ["a", None, "b"]
    assert stored.unfit.keys() == {1}


def test_json_is_what_spark_has() -> None:
    definition = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": ["null", "int"]},
                {"name": "b", "type": {"type": "array", "items": "string"}},
                {"name": "c", "type": {"type": "map", "values": "double"}},
            ],
        }
    )
    parts = [b'{"a": 1, "b": ["x"], "c": {"k": 1.5}}', b'{"a": null}', b'{"b": []}']
    schema = ValueSchema("JSON", definition)
    assert _same(schema, parts)["a"] == [1, None, None]
    _same(schema, [*parts, b"poison", b"[]"], nulls=[1])


def _pair(key: bytes | None, value: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
             for each in (key, value)]  # fmt: skip
    return b"".join(parts)


AVRO_PLACE = b"\x06EWR"


@pytest.mark.parametrize(
    ("key", "value", "samples"),
    [
        ("STRING", ValueSchema("BYTES"), [(b"a", b"x"), (b"", b""), (None, b"y"), (b"k", None)]),
        ("INT32", ValueSchema("STRING"), [(bytes(4), b"x"), (b"\x00\x00\x00\x07", b"longer")]),
        ("STRING", ValueSchema("AVRO", PLACE), [(b"a", AVRO_PLACE), (b"b", None)]),
        ("STRING", ValueSchema("JSON", PLACE), [(b"a", b'{"name": "EWR"}'), (b"b", None)]),
    ],
)
def test_a_key_with_a_value_is_what_spark_has(
    key: str, value: ValueSchema, samples: list[tuple[bytes | None, bytes | None]]
) -> None:
    schema = ValueSchema("KEY_VALUE", key=ValueSchema(key), value=value)
    parts = [_pair(*each) for each in samples]
    _same(schema, parts)
    _same(schema, [*parts, b""], nulls=[len(parts)])


@pytest.mark.parametrize(
    "poison",
    [
        b"",
        b"\x00",
        _pair(b"a", b"b") + b"more",
        _pair(b"a", b"b")[:-1],
        struct.pack(">i", -2),
        struct.pack(">i", 1 << 30) + b"a",
        struct.pack(">ii", 0, -3),
        struct.pack(">i", 2) + b"ab" + b"\x00\x00\x00",
    ],
)
def test_a_payload_that_is_no_key_with_a_value_is_told_of_and_spoils_no_other(
    poison: bytes,
) -> None:
    schema = ValueSchema("KEY_VALUE", key=ValueSchema("STRING"), value=ValueSchema("STRING"))
    stored = _stored([_pair(b"a", b"1"), poison, _pair(b"b", b"2")])
    made = value_columns(["key", "value"], schema).columns(stored)
    assert made["key"].to_pylist() == ["a", None, "b"]
    assert made["value"].to_pylist() == ["1", None, "2"]
    assert stored.unfit.keys() == {1}


def test_a_key_of_its_own_is_a_column() -> None:
    schema = ValueSchema(
        "KEY_VALUE",
        key=ValueSchema("STRING"),
        value=ValueSchema("INT32"),
        has_separate_key=True,
    )
    found = _same(schema, [bytes(4), b"\x00\x00\x00\x01"], keys={1: b"k"})
    assert found == {"key": [None, "k"], "value": [0, 1]}


def test_a_record_with_a_field_of_the_name_value_has_that_field() -> None:
    definition = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "value", "type": "bytes"}]}
    )
    assert _same(ValueSchema("AVRO", definition), [b"\x02x"]) == {"value": [b"x"]}


def test_a_record_without_a_column_is_its_bytes() -> None:
    definition = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}
    )
    assert _same(ValueSchema("AVRO", definition), [b"", b"x"]) == {"value": [b"", b"x"]}


def test_an_avro_value_that_is_no_record_is_one_column() -> None:
    schema = ValueSchema("AVRO", json.dumps({"type": "array", "items": "int"}))
    assert _same(schema, [b"\x02\x0e\x00"]) == {"value": [[7]]}
