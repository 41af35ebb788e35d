"""Columns of values, of primitive schemas and of a key with a value."""

import json
import struct
from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.stored.values import value_columns

PLACE = json.dumps(
    {"type": "record", "name": "Place", "fields": [{"name": "name", "type": "string"}]}
)
LOW, HIGH = -(1 << 63), (1 << 63) - 1
NOW_MS = 1_700_000_000_000


def _stored(parts: Sequence[bytes], **more: Any) -> StoredValues:
    lengths = [len(each) for each in parts]
    return StoredValues(parts, lengths, versions=[(NO_VERSION, len(parts))], **more)


def _read(schema: ValueSchema, parts: Sequence[bytes], **more: Any) -> dict[str, list[Any]]:
    """The values of all columns, of their types; null are those that are unfit, and others."""
    fields = value_fields(schema)
    stored = _stored(parts, **more)
    made = value_columns([each.name for each in fields], schema).columns(stored)
    assert {name: each.type for name, each in made.items()} == {
        each.name: each.type for each in fields
    }
    shown = {name: each.cast(_plain(each.type)).to_pylist() for name, each in made.items()}
    assert all(values[row] is None for values in shown.values() for row in stored.unfit)
    return shown


def _plain(kind: pa.DataType) -> pa.DataType:
    """Python has no times as far away as Arrow has."""
    return pa.int64() if pa.types.is_timestamp(kind) else kind


@pytest.mark.parametrize(
    ("kind", "layout", "raw", "expected"),
    [
        ("BOOLEAN", "B", [0, 1, 2], [False, True, True]),
        ("INT8", "b", [-128, 127], [-128, 127]),
        ("INT16", "h", [-(1 << 15), 258], [-(1 << 15), 258]),
        ("INT32", "i", [-5, 0, (1 << 31) - 1], [-5, 0, (1 << 31) - 1]),
        ("INT64", "q", [LOW, 0, HIGH], [LOW, 0, HIGH]),
        ("FLOAT", "f", [0.5, -1024.0], [0.5, -1024.0]),
        ("DOUBLE", "d", [0.1, -1e300], [0.1, -1e300]),
        ("DATE", "q", [0, -1, NOW_MS, LOW, HIGH], [0, -1_000, NOW_MS * 1_000, None, None]),
        ("TIMESTAMP", "q", [0, NOW_MS, HIGH], [0, NOW_MS * 1_000, None]),
        ("INSTANT", "qi", [(1, 999_999), (-1, 5_000), (HIGH, 0)], [1_000_999, -999_995, None]),
        ("LOCAL_DATE", "q", [0, -3, HIGH], [date(1970, 1, 1), date(1969, 12, 29), None]),
        ("LOCAL_DATE_TIME", "qq", [(1, 1_999), (HIGH, 0)], [86_400_000_001, None]),
        ("TIME", "q", [86_399_999], [86_399_999]),
        ("LOCAL_TIME", "q", [86_399_999_999_999], [86_399_999_999_999]),
    ],
)
def test_a_primitive_value_is_read_by_its_layout(
    kind: str, layout: str, raw: list[Any], expected: list[Any]
) -> None:
    """Moments are microseconds; what is too far away for them is null."""
    schema = ValueSchema(kind)
    fields = [each if isinstance(each, tuple) else (each,) for each in raw]
    parts = [struct.pack(f">{layout}", *each) for each in fields]
    assert _read(schema, parts) == {"value": expected}
    assert _read(schema, [*parts, b""], nulls=[len(parts)]) == {"value": [*expected, None]}


@pytest.mark.parametrize(
    ("kind", "parts", "expected"),
    [
        ("BYTES", [b"a", b"", b"\xff" * 300], [b"a", b"", b"\xff" * 300]),
        ("of the future", [b"a"], [b"a"]),
        ("STRING", [b"a", b"", "ä€".encode()], ["a", "", "ä€"]),
    ],
)
def test_bytes_and_text_are_columns_as_they_are(
    kind: str, parts: list[bytes], expected: list[Any]
) -> None:
    schema = ValueSchema(kind)
    assert _read(schema, parts) == {"value": expected}
    assert _read(schema, [*parts, b""], nulls=[len(parts)]) == {"value": [*expected, None]}


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


def test_json_is_a_column_for_each_field() -> None:
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
    assert _read(schema, parts) == {
        "a": [1, None, None],
        "b": [["x"], None, []],
        "c": [[("k", 1.5)], None, None],
    }
    assert _read(schema, [*parts, b"poison", b"[]"], nulls=[1]) == {
        "a": [1, None, None, None, None],
        "b": [["x"], None, [], None, None],
        "c": [[("k", 1.5)], None, None, None, None],
    }


def _pair(key: bytes | None, value: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
             for each in (key, value)]  # fmt: skip
    return b"".join(parts)


AVRO_PLACE = b"\x06EWR"


@pytest.mark.parametrize(
    ("key", "value", "samples", "expected"),
    [
        (
            "STRING",
            ValueSchema("BYTES"),
            [(b"a", b"x"), (b"", b""), (None, b"y"), (b"k", None)],
            [("a", b"x"), ("", b""), (None, b"y"), ("k", None)],
        ),
        (
            "INT32",
            ValueSchema("STRING"),
            [(bytes(4), b"x"), (b"\x00\x00\x00\x07", b"longer")],
            [(0, "x"), (7, "longer")],
        ),
        (
            "STRING",
            ValueSchema("AVRO", PLACE),
            [(b"a", AVRO_PLACE), (b"b", None)],
            [("a", {"name": "EWR"}), ("b", None)],
        ),
        (
            "STRING",
            ValueSchema("JSON", PLACE),
            [(b"a", b'{"name": "EWR"}'), (b"b", None)],
            [("a", {"name": "EWR"}), ("b", None)],
        ),
    ],
)
def test_a_key_with_a_value_is_two_columns(
    key: str,
    value: ValueSchema,
    samples: list[tuple[bytes | None, bytes | None]],
    expected: list[tuple[Any, Any]],
) -> None:
    schema = ValueSchema("KEY_VALUE", key=ValueSchema(key), value=value)
    parts = [_pair(*each) for each in samples]
    found = _read(schema, parts)
    assert list(zip(found["key"], found["value"], strict=True)) == expected
    found = _read(schema, [*parts, b""], nulls=[len(parts)])
    assert list(zip(found["key"], found["value"], strict=True)) == [*expected, (None, None)]


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
    found = _read(schema, [bytes(4), b"\x00\x00\x00\x01"], keys={1: b"k"})
    assert found == {"key": [None, "k"], "value": [0, 1]}


def test_a_record_with_a_field_of_the_name_value_has_that_field() -> None:
    definition = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "value", "type": "bytes"}]}
    )
    assert _read(ValueSchema("AVRO", definition), [b"\x02x"]) == {"value": [b"x"]}


def test_a_record_without_a_column_is_its_bytes() -> None:
    definition = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}
    )
    assert _read(ValueSchema("AVRO", definition), [b"", b"x"]) == {"value": [b"", b"x"]}


def test_an_avro_value_that_is_no_record_is_one_column() -> None:
    schema = ValueSchema("AVRO", json.dumps({"type": "array", "items": "int"}))
    assert _read(schema, [b"\x02\x0e\x00"]) == {"value": [[7]]}


def _old_version(definition: str) -> ValueSchema:
    return ValueSchema("AVRO", PLACE, versions=((0, definition), (1, PLACE)))


@pytest.mark.parametrize("definition", ["", "no JSON", "[" * 100_000], ids=len)
def test_a_version_that_is_not_json_is_a_mismatch(definition: str) -> None:
    schema = _old_version(definition)
    with pytest.raises(SchemaMismatchError, match="the topic's schema is not JSON"):
        value_columns(["name"], schema)
    with pytest.raises(SchemaMismatchError, match="the topic's schema is not JSON"):
        value_fields(ValueSchema("AVRO", definition))


@pytest.mark.parametrize("definition", ["5", '{"type": "record"}'])
def test_a_version_that_is_not_avro_makes_its_values_unfit(definition: str) -> None:
    stored = _stored([b"\0"])
    value_columns(["name"], _old_version(definition)).columns(stored)
    assert "the topic's schema is not Avro" in stored.unfit[0]
