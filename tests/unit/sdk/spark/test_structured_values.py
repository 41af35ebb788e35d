"""AVRO values are read by what they were written with, or not at all."""

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
