from typing import Any

import pytest

from magnetar.deploy.migration.schema_copies import comparable

SCHEMA: dict[str, Any] = {
    "version": 0,
    "type": "AVRO",
    "timestamp": 5,
    "data": "{}",
    "properties": {"__alwaysAllowNull": "true"},
}


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", 1), ("type", "JSON"), ("data", "[]"), ("properties", {"a": "b"})],
)
def test_schemas_that_differ_in_anything_but_the_time_are_different(
    field: str, value: object
) -> None:
    assert comparable([SCHEMA]) != comparable([{**SCHEMA, field: value}])
    assert comparable([SCHEMA]) == comparable([{**SCHEMA, "timestamp": 6}])


def test_no_properties_are_the_same_as_empty_ones() -> None:
    without = {name: value for name, value in SCHEMA.items() if name != "properties"}
    assert comparable([without]) == comparable([{**without, "properties": {}}])
    assert comparable([without]) == comparable([{**without, "properties": None}])
