"""Fields that only older messages have stay readable."""

import io
import json
from array import array
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from magnetar.arrow.stored import dropped_fields
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.dropped_fields import with_dropped_fields
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.stored.values import value_columns


def record(*fields: tuple[str, Any]) -> ValueSchema:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return ValueSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": listed}))


def test_a_field_that_the_newest_version_dropped_has_a_column() -> None:
    found = with_dropped_fields(
        record(("a", "long")),
        [record(("a", "int"), ("b", "string")), record(("c", ["null", "int"]))],
    )
    assert [each.name for each in value_fields(found)] == ["a", "b", "c"]
    assert json.loads(found.definition)["fields"][1] == {
        "name": "b",
        "type": ["null", "string"],
        "default": None,
    }


def test_renamed_and_named_types_are_not_taken_over() -> None:
    newest = ValueSchema(
        "AVRO",
        json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "new", "type": "int", "aliases": ["old"]}],
            }
        ),
    )
    enum = {"type": "enum", "name": "E", "symbols": ["x"]}
    assert with_dropped_fields(newest, [record(("old", "int"), ("e", enum))]) == newest


@pytest.mark.parametrize(
    "newest", [ValueSchema(), ValueSchema("STRING"), ValueSchema("AVRO", '"int"')]
)
def test_what_is_no_record_stays_as_it_is(newest: ValueSchema) -> None:
    assert with_dropped_fields(newest, [record(("a", "int"))]) == newest


def test_a_dropped_field_takes_no_reserved_name() -> None:
    newest = record(("a", "int"))
    older = [record(("Day", "int"), ("b", "int"))]
    found = with_dropped_fields(newest, older, reserved={"day"})
    assert [each.name for each in value_fields(found)] == ["a", "b"]


MAP = {"type": "map", "values": "int"}
DATE = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize("is_newer_first", [True, False])
@pytest.mark.parametrize(
    ("one", "other", "wide"),
    [
        ("int", "long", "long"),
        (["null", "float"], "double", "double"),
        ("int", "double", "double"),
        ("string", {"type": "string", "avro.java.string": "String"}, "string"),
        (MAP, {"type": "map", "values": ["null", "long"]}, {**MAP, "values": ["null", "long"]}),
    ],
    ids=str,
)
def test_a_dropped_field_holds_the_values_of_all_its_versions(
    one: Any, other: Any, wide: Any, is_newer_first: bool
) -> None:
    kinds = (one, other) if is_newer_first else (other, one)
    older = [record(("a", "int"), ("b", kind)) for kind in kinds]
    found = with_dropped_fields(record(("a", "int")), [older[0], record(("a", "int")), older[1]])
    assert value_fields(found) == value_fields(record(("a", "int"), ("b", wide)))


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("int", "string"),
        ("int", "string", "int"),
        ("long", "double"),
        ("int", DATE),
        (MAP, {"type": "map", "values": "string"}),
        (MAP, {"type": "array", "items": "int"}),
        ("int", ["null", "int", "string"]),
        ("int", {"type": "enum", "name": "E", "symbols": ["x"]}),
    ],
    ids=str,
)
def test_a_dropped_field_whose_types_do_not_widen_is_left_out(
    kinds: tuple[Any, ...], kind: str
) -> None:
    """A column of one type would make the messages of the other version unreadable."""
    newest = replace(record(("a", "int")), kind=kind)
    older = [replace(record(("a", "int"), ("b", each)), kind=kind) for each in kinds]
    assert with_dropped_fields(newest, older) == newest


def test_a_dropped_field_that_is_left_out_is_named_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dropped_fields._tell_left_out.cache_clear()
    older = [record(("a", "int"), ("b", each), ("c", "int")) for each in ("int", "string")]
    for _ in range(2):
        with_dropped_fields(record(("a", "int")), older)
    assert [each.getMessage() for each in caplog.records] == [
        "record R: the newest schema has dropped field b, and it gets no column: no plain type "
        'holds its values in all older versions: ["int", "string"]'
    ]


@pytest.mark.parametrize(
    ("held", "expected"),
    [("int", "int"), ("double", "double"), ("string", "double")],
    ids=["newest", "widest", "none"],
)
def test_a_dropped_field_gets_the_type_that_its_column_has(held: str, expected: str) -> None:
    """A column of a table may not take the widest type: an older release made it int."""
    older = [record(("a", "int"), ("b", each)) for each in ("int", "double")]
    column = value_fields(record(("b", ["null", held])))
    found = with_dropped_fields(
        record(("a", "int")), older, suits=lambda one: value_fields(one) == column
    )
    assert value_fields(found) == value_fields(record(("a", "int"), ("b", ["null", expected])))


@pytest.mark.parametrize(
    ("newer", "older", "value", "expected"),
    [
        ("int", "string", "x", {"a": [1]}),
        ("int", "long", 1 << 40, {"a": [1], "b": [1 << 40]}),
        ("double", "int", 2, {"a": [1], "b": [2.0]}),
        (MAP, {"type": "map", "values": "long"}, {"k": 3}, {"a": [1], "b": [[("k", 3)]]}),
        (
            ["null", "int", "string"],
            ["null", "string", "int", "boolean"],
            "x",
            {"a": [1], "b": [{"member0": "x", "member1": None, "member2": None}]},
        ),
    ],
    ids=str,
)
def test_messages_of_every_version_of_a_dropped_field_are_read(
    newer: Any, older: Any, value: Any, expected: Any
) -> None:
    versions = [record(("a", "int"), ("b", older)), record(("a", "int"), ("b", newer))]
    versions.append(record(("a", "int")))
    schema = replace(
        with_dropped_fields(versions[-1], versions[::-1]),
        versions=tuple((at, each.definition) for at, each in enumerate(versions)),
    )
    written = io.BytesIO()
    fastavro.schemaless_writer(written, json.loads(versions[0].definition), {"a": 1, "b": value})
    payload = written.getvalue()
    stored = StoredValues([payload], array("q", [len(payload)]), [], [(0, 1)], {})
    names = [each.name for each in value_fields(schema)]
    found = value_columns(names, schema).columns(stored)
    assert not stored.unfit
    assert {name: column.to_pylist() for name, column in found.items()} == expected
