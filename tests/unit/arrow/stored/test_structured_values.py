"""Values are read by what they were written with, or not at all."""

import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.slices import NO_VERSION, ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.stored.structured_values import StructuredValues
from magnetar.sdk.spark.sink.field_encoding import encode_json

WANTED = pa.schema([pa.field("b", pa.string())])


def _record(*names: str) -> str:
    fields = [{"name": name, "type": "string"} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


VERSIONS = ((1, _record("b")), (3, _record("a", "b")))
VALUES = StructuredValues(WANTED, ValueSchema("AVRO", _record("a", "b"), VERSIONS))


def _written(definition: str, **fields: Any) -> bytes:
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
    columns = VALUES.columns(StoredValues(parts, [len(each) for each in parts], versions=runs))
    assert columns["b"].to_pylist() == ["old", "new", "of no version"]


LONG_AGO = -(1 << 62)


@pytest.mark.parametrize(
    ("base", "logical", "raw", "expected"),
    [
        ("int", "date", 1, date(1970, 1, 2)),
        ("int", "date", (1 << 31) - 1, None),
        ("long", "timestamp-millis", 1_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("long", "timestamp-millis", LONG_AGO, None),
        ("long", "timestamp-micros", 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("long", "timestamp-micros", -LONG_AGO, None),
        ("bytes", "decimal", b"\x01\x00", Decimal("2.56")),
        ("int", "time-millis", 5, 5),
        ("long", "time-micros", 5, 5),
        ("long", "local-timestamp-millis", LONG_AGO, LONG_AGO),
        ("string", "uuid", "no uuid", "no uuid"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_logical_type_is_a_column_or_what_it_is_written_as(
    base: str, logical: str, raw: Any, expected: Any, is_nested: bool
) -> None:
    """A time that Python does not have is null; producers write what they like."""

    def of(kind: Any) -> str:
        kind = {"type": "map", "values": ["null", kind]} if is_nested else kind
        fields = [{"name": "f", "type": kind}]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    schema = of({"type": base, "logicalType": logical, "precision": 9, "scale": 2})
    value = _written(of(base), f={"x": raw} if is_nested else raw)
    columns = StructuredValues(
        pa.schema(value_fields(ValueSchema("AVRO", schema))), ValueSchema("AVRO", schema)
    )
    stored = StoredValues([value], [len(value)], versions=[(NO_VERSION, 1)])
    (found,) = columns.columns(stored)["f"].to_pylist()
    assert found == ([("x", expected)] if is_nested else expected)


def test_a_version_that_the_topic_does_not_have_is_no_guess() -> None:
    part = _written(VERSIONS[1][1], a="x", b="new")
    stored = StoredValues([part], [len(part)], versions=[(2, 1)])
    assert VALUES.columns(stored)["b"].to_pylist() == [None]
    assert (
        "version 2 of the topic's schema, which the topic does not have; it has 1, 3"
        in (stored.unfit[0])
    )


@pytest.mark.parametrize(
    "values",
    [
        [b"", b'{"b":"1"}{"b":"2"}'],
        [b'{"b":"1"}\n{"b":"2"}', b""],
        [b'{"b":', b'"1"}{"b":"2"}'],
        [b'{"b":"1"}', b" ", b'{"b":"2"}\n{"b":"3"}'],
        [b"\n", b'{"b":"1"}\n{"b":"2"}\n'],
        [b'{"b":"1"}\n{"b":"2"}\n', b" "],
    ],
)
def test_json_values_that_are_not_an_object_each_are_refused(values: list[bytes]) -> None:
    """Together they are as many objects as values, and would be the rows of others."""
    columns = StructuredValues(WANTED, ValueSchema("JSON", _record("b")))
    stored = StoredValues(values, [len(each) for each in values])
    found = columns.columns(stored)["b"].to_pylist()
    assert len(found) == len(values)
    for row, problem in stored.unfit.items():
        assert problem.startswith("a value is no JSON")
        assert found[row] is None
    assert stored.unfit


@pytest.mark.parametrize(
    "values",
    [
        [b'{"b":"1"}\n', b'{"b":"2"}\n'],
        [b'{"b":"1"}', b' \t{"b":"2"}\r\n', b'\n{"b":"3"}'],
    ],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_white_space_around_json_values_keeps_them_in_one_batch(
    values: list[bytes], is_cut: bool
) -> None:
    """Line-oriented producers write it; one by one they take twenty times as long."""
    columns = StructuredValues(WANTED, ValueSchema("JSON", _record("b")))
    parts = [memoryview(each) for each in values] if is_cut else values
    fast = columns._fast_json(parts)
    assert fast is not None
    stored = StoredValues(values, [len(each) for each in values])
    assert fast.to_pylist() == columns._slow_json(values, stored).to_pylist()
    assert not stored.unfit


def test_json_numbers_as_the_sink_and_the_java_client_write_them_are_read() -> None:
    odd = [float("nan"), float("inf"), float("-inf"), 1.5, None]
    values = encode_json(
        [("x", pa.array(odd)), ("y", pa.array(odd, pa.float32())), ("n", pa.array(["NaN"] * 5))]
    ).to_pylist()
    nullable = [
        {"name": name, "type": ["null", kind]}
        for name, kind in (("x", "double"), ("y", "float"), ("n", "string"))
    ]
    inner = {"type": "record", "name": "I", "fields": nullable[:1]}
    nested = [
        {"name": "list", "type": {"type": "array", "items": "double"}},
        {"name": "inner", "type": inner},
    ]
    definition = json.dumps({"type": "record", "name": "R", "fields": [*nullable, *nested]})
    values.append(b'{"x":"-INF","list":["NaN",2,"Infinity"],"inner":{"x":"INF"}}')
    values.append(b'{"x":"many"}')
    schema = ValueSchema("JSON", definition)
    stored = StoredValues(values, [len(each) for each in values], versions=[(-1, len(values))])
    columns = StructuredValues(pa.schema(value_fields(schema)), schema).columns(stored)
    for name in ("x", "y"):
        assert str(columns[name].to_pylist()[:5]) == str(odd)
    assert columns["x"][5].as_py() == -math.inf
    assert columns["n"].to_pylist() == ["NaN"] * 5 + [None] * 2
    assert str(columns["list"][5].as_py()) == "[nan, 2.0, inf]"
    assert columns["inner"][5].as_py() == {"x": math.inf}
    assert set(stored.unfit) == {6}
