"""Columns that a topic's schema gives, and its values in them."""

import io
import json
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.arrow.stored.avro_columns import AvroColumns
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.sdk.schemas import INT32, STRING, KeyValue, KeyValueEncoding, KeyValueSchema
from magnetar.sdk.schemas.primitives import PRIMITIVES
from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.query_columns import value_columns
from magnetar.sdk.spark.query_schema import spark_schema

RAW = StructType([StructField("value", BinaryType())])


def columns_of(schema: ValueSchema) -> StructType:
    """All columns that the values have."""
    return spark_schema(value_fields(schema))


def record(*fields: tuple[str, Any] | Mapping[str, Any], name: str = "R") -> str:
    made = [
        dict(each) if isinstance(each, Mapping) else {"name": each[0], "type": each[1]}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": made})


def written(definition: str, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(definition), value)
    return out.getvalue()


def stored(values: Sequence[bytes], version: int = 0, **more: Any) -> StoredValues:
    return StoredValues(
        values, [len(each) for each in values], versions=[(version, len(values))], **more
    )


def read(
    schema: ValueSchema,
    values: Sequence[bytes],
    wanted: StructType | None = None,
    version: int = 0,
    **more: Any,
) -> dict[str, list[Any]]:
    """The columns of values that are all of the schema."""
    kept = stored(values, version, **more)
    columns = value_columns(wanted or columns_of(schema), schema).columns(kept)
    assert not kept.unfit
    return {name: column.to_pylist() for name, column in columns.items()}


def test_avro_is_read_a_column_at_a_time() -> None:
    schema = ValueSchema("AVRO", record(("a", "int"), ("b", ["null", "string"])))
    assert isinstance(value_columns(columns_of(schema), schema), AvroColumns)


def test_an_older_avro_value_has_the_defaults_and_the_names_of_the_newest_version() -> None:
    place = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    old = record(("a", "int"), ("old", "string"), ("p", place))
    new = record(
        ("a", "long"),
        {"name": "new", "type": "string", "aliases": ["old"]},
        {
            "name": "p",
            "type": {
                **place,
                "fields": [*place["fields"], {"name": "y", "type": "int", "default": 7}],
            },
        },
        {"name": "n", "type": "int", "default": 42},
        {"name": "o", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "d", "type": amount, "default": "\u0001\u0000"},
        {"name": "many", "type": {"type": "array", "items": "P"}, "default": [{"x": 1}]},
        {"name": "u", "type": ["string", "int"], "default": "none"},
        name="Renamed",
    )
    schema = ValueSchema("AVRO", new, ((0, old), (1, new)))
    value = written(old, {"a": 1, "old": "was", "p": {"x": 3}})
    assert read(schema, [value, value], version=0) == {
        "a": [1, 1],
        "new": ["was", "was"],
        "p": [{"x": 3, "y": 7}] * 2,
        "n": [42, 42],
        "o": [None, None],
        "raw": [b"\xff"] * 2,
        "on": [date(1970, 1, 2)] * 2,
        "d": [Decimal("2.56")] * 2,
        "many": [[{"x": 1, "y": 7}]] * 2,
        "u": [{"member0": "none", "member1": None}] * 2,
    }


@pytest.mark.parametrize("extra", [[], [("e", "float")]], ids=["read", "resolved"])
def test_an_older_avro_value_is_the_same_whether_it_has_to_be_resolved(
    extra: list[tuple[str, str]],
) -> None:
    """Fields came, went and have other names, which needs none; a long as float needs it."""
    place = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    old = record(
        ("gone", "int"), ("p", place), ("u", ["string", "int"]), ("old", "string"),
        ("l", "int"), ("f", ["null", "float"]), ("b", "string"), ("s", "bytes"), ("e", "long"),
    )  # fmt: skip
    new = record(
        {"name": "n", "type": "int", "default": 42},
        {"name": "new", "type": "string", "aliases": ["other", "old"]},
        ("u", ["string", "int"]),
        *([] if extra else [("bare", "int")]),
        ("p", place),
        {"name": "d", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1000},
        ("l", ["null", "long"]),
        ("f", "double"),
        ("b", "bytes"),
        ("s", "string"),
        *extra,
        name="Renamed",
    )
    schema = ValueSchema("AVRO", new, ((0, old), (1, new)))
    value = written(
        old,
        {"gone": 1, "p": {"x": 3}, "u": 5, "old": "was", "l": 7, "f": 1.5, "b": "b", "s": b"s",
         "e": 16_777_217},
    )  # fmt: skip
    more = {"e": [16_777_216.0]} if extra else {}
    assert read(schema, [value], version=0) == {
        "n": [42],
        "new": ["was"],
        "u": [{"member0": None, "member1": 5}],
        **({} if extra else {"bare": [None]}),
        "p": [{"x": 3}],
        "d": [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
        "l": [7],
        "f": [1.5],
        "b": [b"b"],
        "s": ["s"],
        **more,
    }


def test_avro_versions_that_do_not_resolve_are_read_as_they_were_written() -> None:
    """As a new symbol, or what a query that runs does not know yet."""
    old = record(("a", {"type": "enum", "name": "E", "symbols": ["x"]}), ("b", "int"))
    new = record(("a", {"type": "enum", "name": "E", "symbols": ["x", "y"]}), ("c", "string"))
    schema = ValueSchema("AVRO", old, ((0, old), (1, new)))
    value = written(new, {"a": "y", "c": "!"})
    assert read(schema, [value], version=1) == {"a": ["y"], "b": [None]}


def test_an_avro_union_is_a_struct_of_its_members_as_in_from_avro() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    old = record(("u", ["null", "string", "int"]), ("n", ["int", "long"]), ("f", ["null", "int"]))
    new = record(
        ("u", ["null", inner, "int", "string"]), ("n", ["int", "long"]), ("f", ["null", "int"])
    )
    schema = ValueSchema("AVRO", new, ((0, old), (1, new)))
    members = StructType(
        [
            StructField("member0", StructType([StructField("x", IntegerType())])),
            StructField("member1", IntegerType()),
            StructField("member2", StringType()),
        ]
    )
    assert columns_of(schema).fields == [
        StructField("u", members),
        StructField("n", LongType()),
        StructField("f", IntegerType()),
    ]
    values = [{"u": each, "n": 1 << 40, "f": None} for each in ({"x": 5}, 6, "seven", None)]
    found = read(schema, [written(new, each) for each in values], version=1)
    none = dict.fromkeys(members.names)
    assert found["u"] == [{**none, "member0": {"x": 5}}, {**none, "member1": 6},
                          {**none, "member2": "seven"}, None]  # fmt: skip
    assert found["n"] == [1 << 40] * 4
    # The member has another number there.
    value = written(old, {"u": "text", "n": 1, "f": 2})
    assert read(schema, [value], version=0)["u"] == [{**none, "member2": "text"}]


NODE = record(("v", "int"), ("next", ["null", "R"]))


@pytest.mark.parametrize(
    ("definition", "value", "columns"),
    [
        (NODE, {"v": 1, "next": {"v": 2, "next": None}}, {"v": [1]}),
        (
            record(("list", json.loads(NODE.replace('"R"', '"N"'))), ("x", "string")),
            {"list": {"v": 1, "next": None}, "x": "y"},
            {"list": [{"v": 1}], "x": ["y"]},
        ),
        (record(("n", "null"), ("x", "int")), {"n": None, "x": 1}, {"x": [1]}),
        (
            record(("n", {"type": "array", "items": "null"}), ("x", "int")),
            {"n": [None], "x": 1},
            {"x": [1]},
        ),
        (
            record(("__key", "string"), ("__TOPIC", "string"), ("__error", "int"), ("x", "int")),
            {"__key": "k", "__TOPIC": "t", "__error": 3, "x": 1},
            {"x": [1]},
        ),
        ('"string"', "text", {"value": ["text"]}),
        ('{"type": "array", "items": "int"}', [1, 2], {"value": [[1, 2]]}),
        ('["null", "int", "string"]', "s", {"value": [{"member0": None, "member1": "s"}]}),
    ],
    ids=["recursive", "within", "null", "nulls", "reserved", "string", "array", "union"],
)
def test_what_has_no_column_takes_no_other_along(
    definition: str, value: Any, columns: dict[str, list[Any]]
) -> None:
    schema = ValueSchema("AVRO", definition)
    data = written(definition, value)
    assert read(schema, [data]) == columns
    assert read(schema, [data], RAW) == {"value": [data]}, "and its bytes by a schema of one's own"


@pytest.mark.parametrize("definition", ['"null"', record(("n", "null")), record(("r", "R"))])
def test_a_value_without_any_column_is_its_bytes(definition: str) -> None:
    schema = ValueSchema("AVRO", definition)
    assert columns_of(schema) == RAW
    assert read(schema, [b"\x01\x02"]) == {"value": [b"\x01\x02"]}


@pytest.mark.parametrize("definition", ["no json", "{}", '{"type": "record", "name": "R"}'])
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_definition_that_cannot_be_read_leaves_the_bytes(kind: str, definition: str) -> None:
    schema = ValueSchema(kind, definition)
    with pytest.raises(SchemaMismatchError, match="the topic's schema is not"):
        columns_of(schema)
    assert read(schema, [b"bytes"], RAW) == {"value": [b"bytes"]}


def test_bytes_come_beside_fields_and_a_field_of_that_name_is_the_field() -> None:
    schema = ValueSchema("JSON", record(("x", "int")))
    wanted = StructType([StructField("x", IntegerType()), StructField("value", StringType())])
    text = b'{"x": 1,  "other": 2}'
    assert read(schema, [text], wanted) == {"x": [1], "value": [text.decode()]}
    named = ValueSchema("AVRO", record(("value", "bytes")))
    data = written(named.definition, {"value": b"inner"})
    assert read(named, [data], RAW) == {"value": [b"inner"]}


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_message_without_a_value_is_a_row_of_nulls_and_a_null_struct(kind: str) -> None:
    """A record whose fields are all null is another thing, and one column tells."""
    definition = record(("x", ["null", "int"]), ("y", ["null", "string"]))
    schema = ValueSchema(kind, definition, ((0, definition),))
    values = [{"x": 1, "y": "a"}, {"x": None, "y": None}]
    is_json = kind == "JSON"
    bodies = [
        json.dumps(each).encode() if is_json else written(definition, each) for each in values
    ]
    bodies.append(b"")
    fields = [StructField("x", IntegerType()), StructField("y", StringType())]
    assert read(schema, bodies, nulls=[2]) == {"x": [1, None, None], "y": ["a", None, None]}
    whole = StructField("value", StructType(fields))
    assert read(schema, bodies, StructType([whole]), nulls=[2]) == {"value": [*values, None]}
    found = read(schema, bodies, StructType([fields[0], *RAW.fields]), nulls=[2])
    assert found == {"x": [1, None, None], "value": [*bodies[:2], None]}
    some = StructType([StructField("value", StructType(fields[1:])), fields[0]])
    assert read(schema, bodies, some, nulls=[2]) == {
        "value": [{"y": "a"}, {"y": None}, None],
        "x": [1, None, None],
    }


def test_all_fields_as_one_column_have_the_types_of_the_schema() -> None:
    schema = ValueSchema("JSON", record(("x", "int")))
    for field in (StructField("x", LongType()), StructField("z", IntegerType())):
        wanted = StructType([StructField("value", StructType([field]))])
        with pytest.raises(SchemaMismatchError, match=f"column {field.name} of type"):
            value_columns(wanted, schema)
    inner = record(("x", "int"), name="Inner")
    own = ValueSchema("JSON", record(("value", json.loads(inner)), ("x", "string")))
    field = StructField("value", StructType([StructField("x", IntegerType())]))
    assert read(own, [b'{"value": {"x": 3}, "x": "a"}'], StructType([field])) == {
        "value": [{"x": 3}]
    }


def test_what_is_no_text_is_in_a_text_column_as_it_is_in_the_json() -> None:
    """As in from_json: an enum that Python writes as its number, a BigDecimal of Java."""
    enum = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
    definition = record(
        ("e", enum), ("d", "string"), ("many", {"type": "array", "items": "string"}),
        ("u", ["null", "int", "string"]), ("x", "double"), ("m", {"type": "map", "values": enum}),
    )  # fmt: skip
    values = [
        b'{"e": 1, "d": 12.340, "many": [1, true, {"a": [null]}], "u": 5, "x": "NaN",'
        b' "m": {"k": 2}}',
        b'{"e": "b", "d": "1", "many": ["x"], "u": "five", "x": 2, "m": {"k": "a"}}',
    ]
    found = read(ValueSchema("JSON", definition), values)
    assert str(found["x"].pop(0)) == "nan"
    assert found == {
        "e": ["1", "b"],
        "d": ["12.340", "1"],
        "many": [["1", "true", '{"a":[null]}'], ["x"]],
        "u": ["5", "five"],
        "x": [2.0],
        "m": [[("k", "2")], [("k", "a")]],
    }


def test_one_value_that_does_not_fit_is_null_and_told_of_by_its_row() -> None:
    definition = record(("x", "int"), ("y", "string"))
    bad = [b'{"x": "one", "y": "kept"}', b"no json", b'{"x": 1, "y": "good"}', b"[]"]
    kept = stored(bad)
    schema = ValueSchema("JSON", definition)
    columns = value_columns(columns_of(schema), schema).columns(kept)
    assert columns["x"].to_pylist() == [None, None, 1, None]
    assert columns["y"].to_pylist() == ["kept", None, "good", None], "what can be read is"
    assert sorted(kept.unfit) == [0, 1, 3]
    assert "field x" in kept.unfit[0]

    schema = ValueSchema("AVRO", definition)
    kept = stored([written(definition, {"x": 1, "y": "a"}), b"\xff", b""])
    columns = value_columns(columns_of(schema), schema).columns(kept)
    assert columns["y"].to_pylist() == ["a", None, None]
    assert list(kept.unfit) == [1, 2]


NOW = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("STRING", "text", "text"),
        ("BOOLEAN", True, True),
        ("INT8", -5, -5),
        ("INT16", -500, -500),
        ("INT32", 1 << 20, 1 << 20),
        ("INT64", -(1 << 50), -(1 << 50)),
        ("FLOAT", 1.5, 1.5),
        ("DOUBLE", 0.1, 0.1),
        ("DATE", NOW, NOW),
        ("TIMESTAMP", NOW, NOW),
        ("INSTANT", NOW, NOW),
        ("LOCAL_DATE", date(2026, 3, 1), date(2026, 3, 1)),
        ("LOCAL_DATE_TIME", NOW.replace(tzinfo=None), NOW.replace(tzinfo=None)),
        ("TIME", NOW.time(), 43_200_123),
        ("LOCAL_TIME", NOW.time(), 43_200_123_000_000),
    ],
)
def test_a_primitive_schema_is_a_column_of_its_type(kind: str, value: Any, expected: Any) -> None:
    data = next(each for name, each in PRIMITIVES.items() if name.value == kind).encode(value)
    schema = ValueSchema(kind)
    assert read(schema, [data, b"", data], nulls=[1]) == {"value": [expected, None, expected]}
    assert read(schema, [data], RAW) == {"value": [data]}
    kept = stored([data, b"\xff\xff\xff"])
    columns = value_columns(columns_of(schema), schema).columns(kept)
    assert (columns["value"].to_pylist(), list(kept.unfit)) == ([expected, None], [1])


def test_a_time_beyond_those_of_spark_is_null() -> None:
    late = struct.pack(">q", 1 << 62)
    assert read(ValueSchema("TIMESTAMP"), [late]) == {"value": [None]}
    assert read(ValueSchema("LOCAL_DATE"), [late]) == {"value": [None]}


PAIR = record(("x", "int"), ("__key", "string"))


@pytest.mark.parametrize("encoding", list(KeyValueEncoding))
def test_a_key_with_a_value_is_two_columns(encoding: KeyValueEncoding) -> None:
    is_separate = encoding is KeyValueEncoding.SEPARATED
    pair = KeyValueSchema(STRING, INT32, encoding)
    values = [KeyValue("a", 1), KeyValue(None, 2)]
    payloads = [pair.encode(each) for each in values]
    keys = {0: b"a"} if is_separate else {}
    schema = ValueSchema(
        "KEY_VALUE",
        key=ValueSchema("STRING"),
        value=ValueSchema("INT32"),
        has_separate_key=is_separate,
    )
    assert read(schema, payloads, keys=keys) == {"key": ["a", None], "value": [1, 2]}
    assert read(schema, payloads, RAW) == {"value": payloads}, "as they are stored"
    both = StructType([StructField("key", BinaryType()), *RAW.fields])
    assert read(schema, payloads, both, keys=keys) == {
        "key": [b"a", None],
        "value": [struct.pack(">i", 1), struct.pack(">i", 2)],
    }


def test_records_in_a_key_with_a_value_are_structs_over_their_versions() -> None:
    old = record(("x", "int"))
    new = record(("x", "int"), {"name": "y", "type": "int", "default": 9})
    schema = ValueSchema(
        "KEY_VALUE",
        key=ValueSchema("JSON", PAIR),
        value=ValueSchema("AVRO", new, ((0, old), (1, new))),
    )
    key = b'{"x": 1, "__key": "k"}'
    value = written(old, {"x": 3})
    payload = struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    nothing = struct.pack(">ii", -1, -1)
    assert read(schema, [payload, nothing]) == {
        "key": [{"x": 1, "__key": "k"}, None],
        "value": [{"x": 3, "y": 9}, None],
    }
    kept = stored([payload[:-1], b""])
    columns = value_columns(columns_of(schema), schema).columns(kept)
    assert columns["value"].to_pylist() == [None, None]
    assert list(kept.unfit) == [0, 1]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("nothing", StringType()), "has no such field"),
        (StructField("x", StringType()), "in the topic's schema it is int"),
        (StructField("value", StringType()), "in the topic's schema it is|has no such field"),
        (StructField("__publishTime", LongType()), "__publishTime of type bigint: it is timestamp"),
        (StructField("__messageId", StringType()), "__messageId of type string: it is binary"),
        (StructField("__key", TimestampType()), "__key of type timestamp: it is binary or string"),
    ],
)
def test_a_column_that_is_not_there_is_told_of(field: StructField, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        value_columns(StructType([field]), ValueSchema("AVRO", record(("x", "int"))))
