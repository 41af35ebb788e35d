"""Classes as Avro records: the definition, and values there and back by AVRO and JSON."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum

import pytest
from pydantic import BaseModel, Field

from magnetar.sdk.errors import SchemaDefinitionError, SchemaValueError, SchemaVersionError
from magnetar.sdk.schemas import (
    AvroObjectSchema,
    AvroSchema,
    Float32,
    Int32,
    JsonSchema,
    SchemaInfo,
    SchemaType,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: Int32
    y: Float32 = 0.5


@dataclass
class Everything:
    flag: bool
    number: int
    ratio: float
    text: str
    raw: bytes
    at: datetime
    day: date
    colour: Colour
    points: list[Point]
    named: dict[str, Point]
    again: Point | None = None
    note: str | None = "none"
    nested: "Everything | None" = None


@dataclass
class Link:
    value: int
    next: "Link | None" = None


class Model(BaseModel):
    name: str
    points: list[Point] = field(default_factory=list)
    age: int | None = None


VALUE = Everything(
    flag=True,
    number=1 << 40,
    ratio=0.25,
    text="ä",
    raw=b"raw",
    at=datetime(2001, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC),
    day=date(2001, 2, 3),
    colour=Colour.BLUE,
    points=[Point(1), Point(2, 1.5)],
    named={"a": Point(3)},
    nested=Everything(
        False,
        0,
        0.0,
        "",
        b"",
        datetime(1970, 1, 1, tzinfo=UTC),
        date(1970, 1, 1),
        Colour.RED,
        [],
        {},
    ),
)


def definition_of(info: SchemaInfo | None) -> dict[str, object]:
    assert info is not None
    found: dict[str, object] = json.loads(info.definition)
    return found


def test_a_class_becomes_a_record() -> None:
    point = {
        "type": "record",
        "name": "Point",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "float", "default": 0.5}],
    }
    assert definition_of(AvroSchema(Everything).info) == {
        "type": "record",
        "name": "Everything",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "number", "type": "long"},
            {"name": "ratio", "type": "double"},
            {"name": "text", "type": "string"},
            {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "colour",
                "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]},
            },
            {"name": "points", "type": {"type": "array", "items": point}},
            {"name": "named", "type": {"type": "map", "values": "Point"}},
            {"name": "again", "type": ["null", "Point"], "default": None},
            {"name": "note", "type": ["string", "null"], "default": "none"},
            {"name": "nested", "type": ["null", "Everything"], "default": None},
        ],
    }


def test_avro_and_json_give_back_what_was_sent() -> None:
    for schema in (AvroSchema(Everything), JsonSchema(Everything)):
        assert schema.decode(schema.encode(VALUE)) == VALUE
    model = Model(name="n", points=[Point(1)], age=3)
    for other in (AvroSchema(Model), JsonSchema(Model)):
        assert other.decode(other.encode(model)) == model


class Renamed(BaseModel):
    own: int = Field(alias="outside")


@dataclass
class Holder:
    inner: Renamed


@pytest.mark.parametrize("schema_of", [AvroSchema, JsonSchema])
def test_a_field_with_an_alias_goes_by_that(schema_of: type[JsonSchema[Holder]]) -> None:
    schema, value = schema_of(Holder), Holder(Renamed(outside=1))
    assert schema.info is not None
    assert b'"outside"' in schema.info.definition
    assert schema.decode(schema.encode(value)) == value


def test_a_namespace_is_part_of_all_names() -> None:
    found = definition_of(AvroSchema(Model, namespace="a.b").info)
    assert found["namespace"] == "a.b"
    assert AvroSchema(Model, namespace="a.b").decode(
        AvroSchema(Model, namespace="a.b").encode(Model(name="n"))
    ) == Model(name="n")


@pytest.mark.parametrize("kind", [int, dict, object])
def test_what_is_no_record_is_refused(kind: type) -> None:
    with pytest.raises(SchemaDefinitionError):
        AvroSchema(kind)


def test_a_field_that_avro_cannot_hold_is_named() -> None:
    @dataclass
    class Odd:
        good: int
        bad: set[int]

    with pytest.raises(SchemaDefinitionError, match=r"Odd\.bad"):
        JsonSchema(Odd)


def test_a_value_of_another_class_is_refused() -> None:
    for schema in (AvroSchema(Point), JsonSchema(Point)):
        with pytest.raises(SchemaValueError):
            schema.encode(VALUE)  # type: ignore[arg-type]  # That is the point.


@pytest.mark.parametrize("raw", [b"", b"\xff" * 20, b"{", b"\x02"])
def test_bytes_that_are_no_value_are_told(raw: bytes) -> None:
    for schema in (AvroSchema(Everything), JsonSchema(Everything)):
        with pytest.raises(SchemaValueError):
            schema.decode(raw)


def test_avro_reads_older_versions_with_the_definition_they_were_written_with() -> None:
    old = AvroObjectSchema(
        {"type": "record", "name": "Elsewhere", "fields": [{"name": "x", "type": "int"}]}
    )
    assert old.info is not None
    schema = AvroSchema(Point).for_topic()
    version = bytes(8)
    assert schema.is_missing(version)
    with pytest.raises(SchemaVersionError, match=version.hex()):
        schema.decode(old.encode({"x": 7}), version)
    schema.add_version(version, old.info)
    assert not schema.is_missing(version)
    assert schema.decode(old.encode({"x": 7}), version) == Point(7, 0.5)


def test_avro_reads_what_a_class_of_another_name_has_written_also_within_itself() -> None:
    old = AvroObjectSchema(
        {
            "type": "record",
            "name": "Formerly",
            "namespace": "elsewhere",
            "fields": [
                {"name": "value", "type": "long"},
                {"name": "next", "type": ["null", "Formerly"]},
            ],
        }
    )
    assert old.info is not None
    schema = AvroSchema(Link)
    schema.add_version(bytes(8), old.info)
    written = old.encode({"value": 1, "next": {"value": 2, "next": None}})
    assert schema.decode(written, bytes(8)) == Link(1, Link(2))


def test_versions_that_are_kept_are_bounded() -> None:
    schema = AvroSchema(Point)
    assert schema.info is not None
    schema.VERSIONS_MAX = 2
    for number in range(3):
        schema.add_version(bytes([number]), schema.info)
    assert [schema.is_missing(bytes([number])) for number in range(3)] == [True, True, False]


def test_a_version_of_another_type_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        AvroSchema(Point).add_version(bytes(8), SchemaInfo(SchemaType.STRING))
