"""Classes as Avro records: the definition, and values there and back by AVRO and JSON."""

import itertools
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any

import pydantic.dataclasses
import pytest
from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field

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


class Written(BaseModel):
    user_name: str = Field(serialization_alias="userName")


class ReadBy(BaseModel):
    user_name: str = Field(validation_alias="theName")


class ReadByChoice(BaseModel):
    user_name: str = Field(validation_alias=AliasChoices(AliasPath("names", 0), "n", "name"))


class BothWays(BaseModel):
    user_name: str = Field(alias="a", validation_alias="in", serialization_alias="out")


class ByPathOrName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    user_name: str = Field(validation_alias=AliasPath("names", 0))


class Generated(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=str.upper))
    user_name: str


class Swapped(BaseModel):
    user_name: str = Field(serialization_alias="other")
    other: str = Field("o", serialization_alias="user_name")


class Nested(BaseModel):
    one: Written = Field(serialization_alias="ONE")
    some: list[Written] = []
    named: dict[str, Written] = Field({}, alias="byName")
    maybe: Written | None = None
    again: "Nested | None" = Field(None, serialization_alias="AGAIN")


@dataclass
class Annotating:
    user_name: Annotated[str, Field(alias="userName")]


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    user_name: str = Field(validation_alias="in", serialization_alias="out")


ONE = Written(user_name="one")
NESTED = Nested.model_construct(
    one=ONE,
    some=[ONE],
    named={"k": ONE},
    maybe=ONE,
    again=Nested.model_construct(one=ONE, some=[], named={}),
)
ALIASED: list[object] = [
    Renamed(outside=1),
    Written.model_construct(user_name="u"),
    ReadBy.model_construct(user_name="u"),
    ReadByChoice.model_construct(user_name="u"),
    BothWays.model_construct(user_name="u"),
    ByPathOrName.model_construct(user_name="u"),
    Generated.model_construct(user_name="u"),
    Swapped(user_name="u", other="v"),
    NESTED,
    Annotating("u"),
    PydanticDataclass(**{"in": "u"}),
]


@pytest.mark.parametrize("value", ALIASED, ids=lambda value: type(value).__name__)
def test_json_is_written_defined_and_read_by_the_same_names(value: object) -> None:
    schema = JsonSchema(type(value))
    payload = schema.encode(value)
    fields = definition_of(schema.info)["fields"]
    assert isinstance(fields, list)
    assert list(json.loads(payload)) == [each["name"] for each in fields]
    assert schema.decode(payload) == value


@pytest.mark.parametrize("value", ALIASED[:5], ids=lambda value: type(value).__name__)
def test_avro_is_read_whatever_the_alias(value: object) -> None:
    schema = AvroSchema(type(value))
    assert schema.decode(schema.encode(value)) == value


def test_json_reads_what_others_write_by_the_names_that_a_class_reads() -> None:
    assert JsonSchema(Written).decode(b'{"user_name": "u"}').user_name == "u"
    assert JsonSchema(ReadBy).decode(b'{"theName": "u"}').user_name == "u"
    assert JsonSchema(ReadByChoice).decode(b'{"names": ["u"]}').user_name == "u"


def test_json_reads_what_is_below_any_name_that_a_class_reads() -> None:
    class Outer(BaseModel):
        inner: Written = Field(validation_alias=AliasChoices("a", "b"), serialization_alias="out")
        some: list[Written] = Field([], validation_alias="these")

    payload = b'{"b": {"userName": "u"}, "these": [{"userName": "v"}]}'
    outer = JsonSchema(Outer).decode(payload)
    assert (outer.inner.user_name, outer.some[0].user_name) == ("u", "v")


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b'{"ONE": 3}', b'{"ONE": {}, "some": {}}', b"\xff"]
)
def test_json_with_aliases_that_does_not_fit_is_told(payload: bytes) -> None:
    with pytest.raises(SchemaValueError, match="not a Nested"):
        JsonSchema(Nested).decode(payload)


def test_json_refuses_what_it_would_not_read_again() -> None:
    class ByPath(BaseModel):
        user_name: str = Field(validation_alias=AliasPath("names", 0))

    class Twice(BaseModel):
        a: str = Field(serialization_alias="b")
        b: str

    with pytest.raises(SchemaDefinitionError, match=r"ByPath\.user_name.*AliasPath"):
        JsonSchema(ByPath)
    with pytest.raises(SchemaDefinitionError, match="two fields are written by 'b'"):
        JsonSchema(Twice)


def test_a_definition_may_have_null_for_its_aliases() -> None:
    fields = [{"name": "x", "type": "int"}]
    schema = AvroObjectSchema({"type": "record", "name": "A", "aliases": None, "fields": fields})
    other = AvroObjectSchema({"type": "record", "name": "B", "fields": fields})
    assert other.info is not None
    schema.add_version(b"1", other.info)
    assert schema.decode(other.encode({"x": 1}), b"1") == {"x": 1}


_count = itertools.count().__next__


@dataclass
class MadeDefaults:
    x: int
    points: list[Point] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = field(default_factory=lambda: ("a",))
    colours: list[Colour] = field(default_factory=lambda: [Colour.BLUE])
    best: Point = field(default_factory=lambda: Point(7))
    maybe: list[int] | None = field(default_factory=list)


class MadeDefaultsModel(BaseModel):
    x: int
    points: list[Point] = Field(default_factory=list)
    best: Point = Field(default_factory=lambda: Point(7))


@pydantic.dataclasses.dataclass
class MadeDefaultsPydantic:
    x: int
    points: list[Point] = Field(default_factory=list)
    given: int = Field(default=3)
    best: Point = field(default_factory=lambda: Point(7))


@pytest.mark.parametrize("kind", [MadeDefaults, MadeDefaultsModel, MadeDefaultsPydantic])
def test_defaults_that_a_factory_makes_are_defaults_of_the_schema(kind: type[Any]) -> None:
    old = AvroObjectSchema(
        {"type": "record", "name": "Old", "fields": [{"name": "x", "type": "long"}]}
    )
    assert old.info is not None
    for schema in (AvroSchema(kind), JsonSchema(kind)):
        fields = definition_of(schema.info)["fields"]
        assert isinstance(fields, list)
        defaults = {each["name"]: each.get("default") for each in fields}
        assert defaults["points"] == []
        assert defaults["best"] == {"x": 7, "y": 0.5}
        if kind is MadeDefaults:
            assert (defaults["named"], defaults["maybe"]) == ({}, [])
            assert (defaults["tags"], defaults["colours"]) == (["a"], ["BLUE"])
    schema = AvroSchema(kind).for_topic()
    schema.add_version(b"old", old.info)
    raw = old.encode({"x": 1})
    found = schema.decode(raw, b"old")
    if kind is not MadeDefaults:  # Avro's array is a list, whatever the class says.
        assert found == kind(x=1)
    # Who changes what is read changes nothing that is read later.
    found.points.append(Point(5))
    found.best.x = 9
    assert (again := schema.decode(raw, b"old")).points == []
    assert again.best == Point(7)


def test_a_default_that_is_no_constant_or_no_json_is_none_of_the_schema() -> None:
    @dataclass
    class Odd:
        number: int = field(default_factory=lambda: 7)  # Such are clocks and random numbers.
        counted: list[int] = field(default_factory=lambda: [_count()])
        raw: list[bytes] = field(default_factory=lambda: [b"x"])
        ratio: float = math.inf
        at: list[datetime] = field(default_factory=lambda: [datetime(2001, 2, 3, tzinfo=UTC)])

    class Derived(BaseModel):
        a: list[int]
        b: list[int] = Field(default_factory=lambda data: data["a"])

    for kind in (Odd, Derived):
        for schema in (AvroSchema(kind), JsonSchema(kind)):
            fields = definition_of(schema.info)["fields"]
            assert isinstance(fields, list)
            assert [each for each in fields if "default" in each] == []


def test_what_is_read_with_a_default_shares_it_with_nobody() -> None:
    old = AvroObjectSchema(
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
    )
    names = {"name": "names", "type": {"type": "array", "items": "string"}, "default": []}
    fields = [{"name": "x", "type": "long"}, names]
    schema = AvroObjectSchema({"type": "record", "name": "R", "fields": fields})
    assert old.info is not None
    schema.add_version(b"old", old.info)
    for _ in range(2):
        found = schema.decode(old.encode({"x": 1}), b"old")
        assert found == {"x": 1, "names": []}
        found["names"].append("more")


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


@dataclass
class Narrow:
    small: Int32 = 0
    large: int = 0
    ratio: Float32 = 0.0
    many: list[Int32] = field(default_factory=list)
    maybe: int | None = None


@pytest.mark.parametrize(
    "value",
    [
        Narrow(small=1 << 31),
        Narrow(small=-(1 << 31) - 1),
        Narrow(large=1 << 63),
        Narrow(many=[0, 1 << 40]),
        Narrow(maybe=-(1 << 70)),
        Narrow(large=1.5),  # type: ignore[arg-type]  # That is the point.
    ],
)
def test_a_number_that_the_definition_has_no_room_for_is_refused(value: Narrow) -> None:
    for schema in (AvroSchema(Narrow), JsonSchema(Narrow)):
        with pytest.raises(SchemaValueError):
            schema.encode(value)


def test_numbers_at_the_bounds_of_their_types_pass() -> None:
    value = Narrow(-(1 << 31), -(1 << 63), 3.4028234663852886e38, [(1 << 31) - 1], (1 << 63) - 1)
    for schema in (AvroSchema(Narrow), JsonSchema(Narrow)):
        assert schema.decode(schema.encode(value)) == value
    avro = AvroSchema(Narrow)
    assert math.isnan(avro.decode(avro.encode(Narrow(ratio=math.nan))).ratio)
    with pytest.raises(SchemaValueError, match="32 bits of a float"):
        avro.encode(Narrow(ratio=1e300))


@pytest.mark.parametrize("value", [1.5, 1 << 63, "1"])
def test_a_dict_is_written_as_it_is_or_not_at_all(value: object) -> None:
    fields = [{"name": "x", "type": "long"}]
    schema = AvroObjectSchema({"type": "record", "name": "R", "fields": fields})
    assert schema.decode(schema.encode({"x": 1})) == {"x": 1}
    with pytest.raises(SchemaValueError, match="x"):
        schema.encode({"x": value})


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
