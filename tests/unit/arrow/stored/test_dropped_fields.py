"""Fields that only older messages have stay readable."""

import json
from typing import Any

import pytest

from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.dropped_fields import with_dropped_fields
from magnetar.arrow.stored.slices import ValueSchema


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
