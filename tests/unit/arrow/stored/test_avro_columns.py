"""Columns decoded for all rows at once are what reading value by value gives."""

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.arrow.stored.avro_columns import AvroColumns
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.stored.values import structured_values

PLACE = {
    "type": "record",
    "name": "Place",
    "fields": [{"name": "name", "type": "string"}, {"name": "height", "type": ["null", "double"]}],
}
TYPES: dict[str, Any] = {
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "double": "double",
    "data": "bytes",
    "text": "string",
    "nothing": "null",
    "perhaps": ["null", "string"],
    "perhaps_too": ["long", "null"],
    "one": ["int"],
    "kind": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
    "hash": {"type": "fixed", "name": "Hash", "size": 5},
    "day": {"type": "int", "logicalType": "date"},
    "millis": {"type": "long", "logicalType": "timestamp-millis"},
    "micros": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
    "time": {"type": "int", "logicalType": "time-millis"},
    "place": PLACE,
    "maybe_place": ["null", "Place"],
}
"""Everything that is decoded by columns."""


def _record(types: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": name, "type": each} for name, each in types.items()]
    return {"type": "record", "name": "R", "fields": fields}


ALL = _record(TYPES)
RAW = json.loads(json.dumps(ALL).replace('"logicalType"', '"written"'))
"""Without logical types, so that values are written as they are given."""

PLACES = st.fixed_dictionaries({"name": st.text(), "height": st.none() | st.floats(width=64)})
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": INT32,
        "large": INT64,
        "single": st.floats(width=32),
        "double": st.floats(width=64),
        "data": st.binary(max_size=300),
        "text": st.text(max_size=100),
        "nothing": st.none(),
        "perhaps": st.none() | st.text(),
        "perhaps_too": st.none() | INT64,
        "one": INT32,
        "kind": st.sampled_from("ABC"),
        "hash": st.binary(min_size=5, max_size=5),
        "day": INT32,
        "millis": INT64,
        "micros": st.none() | INT64,
        "time": INT32,
        "place": PLACES,
        "maybe_place": st.none() | PLACES,
    }
)


class _Refuses:
    """Stands for reading value by value, which must not be needed."""

    needs_keys = False

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        raise AssertionError("it was left to the slow way")


def _written(definition: Any, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), row)
    return out.getvalue()


def _stored(parts: Sequence[bytes], **more: Any) -> StoredValues:
    more.setdefault("versions", [(NO_VERSION, len(parts))])
    return StoredValues(parts, [len(each) for each in parts], **more)


def _wanted(schema: ValueSchema, *names: str) -> pa.Schema:
    return pa.schema([each for each in value_fields(schema) if not names or each.name in names])


def _both(schema: ValueSchema, stored: StoredValues) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """By columns, and value by value."""
    wanted = _wanted(schema)
    made = AvroColumns(wanted, schema, _Refuses()).columns(stored)
    slowly = structured_values(wanted, schema).columns(stored)
    return (
        pa.RecordBatch.from_arrays([made[name] for name in wanted.names], schema=wanted),
        pa.RecordBatch.from_arrays([slowly[name] for name in wanted.names], schema=wanted),
    )


def _shown(batch: pa.RecordBatch) -> str:
    """Text that tells any two batches apart; numbers that are none are equal to themselves."""
    return repr(batch.to_pylist())


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=20), st.sets(st.integers(0, 19)))
def test_all_types_are_read_as_value_by_value(rows: list[dict[str, Any]], nulls: set[int]) -> None:
    parts = [_written(RAW, row) for row in rows]
    without = sorted(row for row in nulls if row < len(rows))
    for row in without:
        parts[row] = b""
    fast, slow = _both(ValueSchema("AVRO", json.dumps(ALL)), _stored(parts, nulls=without))
    assert _shown(fast) == _shown(slow)


NUMBERS = [0, 1, -1, 63, 64, -64, -65, 1 << 20, 1 << 27, (1 << 27) - 1, 1 << 34, 1 << 41, 1 << 48]
NUMBERS += [(1 << 55) - 1, 1 << 55, -(1 << 55), -(1 << 55) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63)]


def test_numbers_of_every_width_are_read() -> None:
    definition = _record({"x": "long"})
    parts = [_written(definition, {"x": number}) for number in NUMBERS]
    fast, _ = _both(ValueSchema("AVRO", json.dumps(definition)), _stored(parts))
    assert fast.column("x").to_pylist() == NUMBERS


def test_values_are_read_however_they_are_cut() -> None:
    definition = _record({"x": "string"})
    schema = ValueSchema("AVRO", json.dumps(definition))
    parts = [_written(definition, {"x": text}) for text in ("a", "", "long" * 50)]
    whole = StoredValues(
        [memoryview(b"".join(parts))], list(map(len, parts)), versions=[(NO_VERSION, 3)]
    )
    made = AvroColumns(_wanted(schema), schema, _Refuses()).columns(whole)
    assert made["x"].to_pylist() == ["a", "", "long" * 50]


def test_only_the_columns_that_are_wanted_are_made() -> None:
    definition = _record({"a": "string", "b": "int", "c": "string"})
    schema = ValueSchema("AVRO", json.dumps(definition))
    parts = [_written(definition, {"a": "x", "b": 7, "c": "y"})]
    made = AvroColumns(_wanted(schema, "b"), schema, _Refuses()).columns(_stored(parts))
    assert {name: each.to_pylist() for name, each in made.items()} == {"b": [7]}


OLD = _record({"gone": "string", "name": "string", "count": "int", "ratio": "float"})
NEW = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "ratio", "type": "double"},
        {"name": "title", "aliases": ["name"], "type": ["null", "string"]},
        {"name": "count", "type": "long"},
        {"name": "note", "type": "string", "default": "none"},
        {"name": "more", "type": ["null", "int"], "default": None},
        {"name": "flag", "type": "boolean", "default": True},
    ],
}


def test_versions_with_new_renamed_and_wider_fields_are_read() -> None:
    schema = ValueSchema("AVRO", json.dumps(NEW), ((0, json.dumps(OLD)), (4, json.dumps(NEW))))
    old = {"gone": "x", "name": "old", "count": 1, "ratio": 0.5}
    new = {"ratio": 0.1, "title": None, "count": 1 << 40, "note": "n", "more": 3, "flag": False}
    parts = [_written(OLD, old), _written(NEW, new), _written(OLD, old), _written(OLD, old)]
    runs = [(0, 1), (4, 1), (NO_VERSION, 1), (0, 1)]
    fast, slow = _both(schema, _stored(parts, versions=runs))
    assert fast.to_pylist() == slow.to_pylist()
    assert fast.to_pylist()[0] == {
        "ratio": 0.5, "title": "old", "count": 1, "note": "none", "more": None, "flag": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "definition",
    [
        _record({"a": {"type": "array", "items": "int"}}),
        _record({"a": {"type": "map", "values": "int"}}),
        _record({"a": ["null", "string", "int"]}),
        _record({"a": {"type": "bytes", "logicalType": "decimal", "precision": 9}}),
        _record({"a": ["null", "R"], "b": "int"}),
    ],
    ids=["array", "map", "union", "decimal", "within itself"],
)
def test_what_is_not_read_by_columns_is_read_value_by_value(definition: Any) -> None:
    schema = ValueSchema("AVRO", json.dumps(definition))
    wanted = _wanted(schema)
    rows: list[dict[str, Any]] = [{"a": None, "b": 1}]
    if isinstance(definition["fields"][0]["type"], dict):
        rows = [{"a": {"array": [1], "map": {"k": 1}, "bytes": b"\x01"}[
            definition["fields"][0]["type"]["type"]
        ]}]  # fmt: skip
    plain = json.loads(json.dumps(definition).replace('"logicalType"', '"written"'))
    parts = [_written(plain, row) for row in rows]
    slowly = structured_values(wanted, schema)
    made = AvroColumns(wanted, schema, slowly).columns(_stored(parts))
    assert made == slowly.columns(_stored(parts))


def _text(size: int) -> bytes:
    return bytes([2 * size])


@pytest.mark.parametrize(
    ("types", "good", "bad"),
    [
        ({"x": "string"}, _text(1) + b"a", _text(2) + b"a"),
        ({"x": "string"}, _text(1) + b"a", _text(1) + b"\xff"),
        ({"x": "string"}, _text(1) + b"a", b"\x01"),  # a size below zero
        ({"x": "long"}, b"\x02", b""),
        ({"x": "long"}, b"\x02", b"\x80"),
        ({"x": "long"}, b"\x02", b"\xff" * 11),
        ({"x": "int"}, b"\x02", b"\xfe\xff\xff\xff\xff\x01"),
        ({"x": "double"}, bytes(8), bytes(7)),
        ({"x": "float"}, bytes(4), bytes(3)),
        ({"x": "boolean"}, b"\x01", b""),
        ({"x": ["null", "int"]}, b"\x00", b"\x04"),
        ({"x": ["null", "int"]}, b"\x00", b"\x02"),
        ({"x": {"type": "enum", "name": "E", "symbols": ["A"]}}, b"\x00", b"\x02"),
        ({"x": {"type": "fixed", "name": "F", "size": 3}}, bytes(3), bytes(2)),
    ],
)
@pytest.mark.parametrize("behind", [b"", bytes(40), b"\xff" * 40])
def test_a_value_that_is_not_of_the_schema_is_told_of_and_spoils_no_other(
    types: dict[str, Any], good: bytes, bad: bytes, behind: bytes
) -> None:
    """`behind`: the value that follows, so that there are bytes to run into."""
    schema = ValueSchema("AVRO", json.dumps(_record(types)))
    wanted = _wanted(schema)
    parts = [good, bad, good + behind, good]
    slowly = structured_values(wanted, schema)
    expected_of, stored = _stored(parts), _stored(parts)
    expected = slowly.columns(expected_of)
    made = AvroColumns(wanted, schema, slowly).columns(stored)
    assert made == expected
    assert stored.unfit.keys() == expected_of.unfit.keys()
    assert made["x"][0] == made["x"][2] == made["x"][3]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=10))
def test_bytes_of_any_kind_are_read_as_value_by_value_or_told_of(parts: list[bytes]) -> None:
    schema = ValueSchema("AVRO", json.dumps(_record({**TYPES})))
    wanted = _wanted(schema)
    slowly = structured_values(wanted, schema)
    stored, expected_of = _stored(parts), _stored(parts)
    made = AvroColumns(wanted, schema, slowly).columns(stored)
    expected = slowly.columns(expected_of)
    assert repr({name: each.to_pylist() for name, each in made.items()}) == repr(
        {name: expected[name].to_pylist() for name in made}
    )
    assert stored.unfit.keys() == expected_of.unfit.keys()


def test_a_version_that_the_topic_does_not_have_is_told_of() -> None:
    definition = _record({"x": "long"})
    schema = ValueSchema("AVRO", json.dumps(definition), ((0, json.dumps(definition)),))
    slowly = structured_values(_wanted(schema), schema)
    stored = _stored([b"\x02", b"\x04"], versions=[(0, 1), (9, 1)])
    made = AvroColumns(_wanted(schema), schema, slowly).columns(stored)
    assert made["x"].to_pylist() == [1, None]
    assert "version 9" in stored.unfit[1]


def test_no_rows_are_columns_without_rows() -> None:
    schema = ValueSchema("AVRO", json.dumps(ALL))
    made = AvroColumns(_wanted(schema), schema, _Refuses()).columns(_stored([], versions=[]))
    assert {name: (len(each), each.type) for name, each in made.items()} == {
        each.name: (0, each.type) for each in _wanted(schema)
    }
