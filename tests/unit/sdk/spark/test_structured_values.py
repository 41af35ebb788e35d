"""Values are read by what they were written with, or not at all."""

import io
import json

import fastavro
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.slices import NO_VERSION, ValueSchema
from magnetar.sdk.spark.structured_values import StructuredValues

WANTED = StructType([StructField("b", StringType())])


def _record(*names: str) -> str:
    fields = [{"name": name, "type": "string"} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


VERSIONS = ((1, _record("b")), (3, _record("a", "b")))
VALUES = StructuredValues(WANTED, ValueSchema("AVRO", _record("a", "b"), VERSIONS))


def _written(definition: str, **fields: str) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(definition), fields)
    return out.getvalue()


def test_each_value_is_read_by_the_version_that_it_names() -> None:
    parts = [
        _written(VERSIONS[0][1], b="old"),
        _written(VERSIONS[1][1], a="x", b="new"),
        _written(VERSIONS[0][1], b="of no version"),
    ]
    runs = [(1, 1), (3, 1), (NO_VERSION, 1)]
    columns = VALUES.columns(parts, [len(each) for each in parts], [], runs)
    assert columns["b"].to_pylist() == ["old", "new", "of no version"]


def test_a_version_that_the_topic_does_not_have_is_no_guess() -> None:
    part = _written(VERSIONS[1][1], a="x", b="new")
    with pytest.raises(SchemaMismatchError, match=r"version 2 of the topic's schema.* it has 1, 3"):
        VALUES.columns([part], [len(part)], [], [(2, 1)])


@pytest.mark.parametrize(
    "values",
    [
        [b"", b'{"b":"1"}{"b":"2"}'],
        [b'{"b":"1"}\n{"b":"2"}', b""],
        [b'{"b":', b'"1"}{"b":"2"}'],
        [b'{"b":"1"}', b" ", b'{"b":"2"}\n{"b":"3"}'],
    ],
)
def test_json_values_that_are_not_an_object_each_are_refused(values: list[bytes]) -> None:
    """Together they are as many objects as values, and would be the rows of others."""
    columns = StructuredValues(WANTED, ValueSchema("JSON", _record("b")))
    with pytest.raises(SchemaMismatchError, match="a value is no JSON"):
        columns.columns(values, [len(each) for each in values], [], [(-1, len(values))])
