"""Avro definitions: what is one, and which reads which."""

from typing import Any

import pytest

from magnetar.broker.schemas import InvalidSchemaError
from magnetar.broker.schemas.avro import parse, why_unreadable
from magnetar.broker.schemas.avro.parsing import DEPTH_MAX, TYPES_MAX
from magnetar.broker.schemas.avro.resolution import STEPS_MAX


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def why(reader: Any, writer: Any) -> str | None:
    return why_unreadable(reader=parse(reader), writer=parse(writer))


_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_LARGER_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("long", "int"),
        ("double", "float"),
        ("bytes", "string"),
        ("string", "bytes"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
        (["null", "string"], "string"),
        (["null", "long"], "int"),
        ("long", ["int", "long"]),
        (["int", "string", "null"], ["null", "int"]),
        ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
        (_LARGER_ENUM, _ENUM),
        ({**_ENUM, "default": "A"}, _LARGER_ENUM),
        (record(field("a", "int")), record(field("a", "int"), field("b", "string"))),
        (record(field("a", "int", default=1)), record()),
        (record(field("a", "int", aliases=["was"])), record(field("was", "int"))),
        (
            record(field("b", "int"), field("a", "int")),
            record(field("a", "int"), field("b", "int")),
        ),
        # The record at the top has any name; inside, namespaces do not count.
        (record(name="New"), record(name="Old")),
        (record(field("a", record(name="x.In"))), record(field("a", record(name="y.In")))),
        (
            record(field("a", record(name="In", aliases=["Was"]))),
            record(field("a", record(name="Was"))),
        ),
    ],
)
def test_what_can_be_read(reader: Any, writer: Any) -> None:
    assert why(reader, writer) is None


@pytest.mark.parametrize(
    ("reader", "writer", "problem"),
    [
        ("int", "long", "/: int cannot read long"),
        ("int", ["int", "null"], "/: int cannot read null"),
        (["null", "string"], "int", "/: no type of the union reads int"),
        (_ENUM, _LARGER_ENUM, "/: enum E does not know C, and has no default"),
        (record(field("a", "int")), record(), "/a: it is not written, and has no default"),
        (
            record(field("a", ["null", "string"])),
            record(),
            "/a: it is not written, and has no default",
        ),
        (
            record(field("a", {"type": "array", "items": record(field("b", "int"), name="In")})),
            record(field("a", {"type": "array", "items": record(name="In")})),
            "/a/items/b: it is not written, and has no default",
        ),
        (
            record(field("a", record(name="In"))),
            record(field("a", record(name="Out"))),
            "/a: record In cannot read record Out",
        ),
        (
            {"type": "fixed", "name": "F", "size": 3},
            {"type": "fixed", "name": "F", "size": 4},
            "/: fixed F has 3 bytes, not 4",
        ),
        (
            ["null", record(field("b", "int"))],
            record(),
            "/b: it is not written, and has no default",
        ),
    ],
)
def test_what_cannot_be_read_says_where(reader: Any, writer: Any, problem: str) -> None:
    assert why(reader, writer) == problem


def test_definitions_may_hold_themselves() -> None:
    node = record(field("next", ["null", "Node"], default=None), name="Node")
    with_value = record(
        field("next", ["null", "Node"], default=None), field("value", "int"), name="Node"
    )
    assert why(node, node) is None
    assert why(node, with_value) is None
    assert why(with_value, node) == "/value: it is not written, and has no default"


def test_what_an_attempt_at_a_union_took_for_granted_is_forgotten() -> None:
    """The first branch fails late: what it concluded about its parts must not count after it."""

    back = field("back", ["null", "In"])
    part = record(back, name="Part")
    writer = record(field("part", part), name="In", namespace="w")
    first = record(field("part", part), field("x", "int"), name="In", namespace="a")
    second = record(field("part", "a.Part"), name="In", namespace="b")
    assert why([first, second], writer) == "/part/back/x: it is not written, and has no default"


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (5, "a type must be text"),
        ("nothing", "unknown type nothing"),
        ([], "a union has no types"),
        ([["int"]], "directly in a union"),
        (["int", "int"], "int twice"),
        ({}, "without a type"),
        ({"type": 3}, "without a type"),
        ({"type": "array"}, "array: no items"),
        ({"type": "map"}, "map: no values"),
        ({"type": "fixed", "name": "F"}, "fixed: no size"),
        ({"type": "fixed", "name": "F", "size": -1}, "no number of bytes"),
        ({"type": "fixed", "name": "F", "size": True}, "no number of bytes"),
        ({"type": "enum", "name": "E", "symbols": "A"}, "no list of texts"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["A B"]}, "which is none"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "none of its symbols"),
        ({"type": "record", "fields": []}, "which is none"),
        ({"type": "record", "name": "int", "fields": []}, "a primitive type"),
        ({"type": "record", "name": "R"}, "record: no fields"),
        ({"type": "record", "name": "R", "fields": 3}, "no list"),
        ({"type": "record", "name": "R", "namespace": 3, "fields": []}, "no text"),
        (record(3), "a field is no object"),
        (record({"name": "a"}), "no type"),
        (record({"type": "int"}), "which is none"),
        (record(field("a", "int"), field("a", "int")), "a twice"),
        (record(field("a", "int", aliases="b")), "no list of texts"),
        (record(field("a", record()), field("b", record())), "defined twice"),
    ],
)
def test_what_is_no_definition_says_why(definition: Any, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        parse(definition)


def test_clients_may_give_defaults_that_do_not_fit() -> None:
    parse(record(field("a", ["null", "int"], default=5), field("b", "int", default="x")))


def nested(depth: int) -> Any:
    definition: Any = "int"
    for _ in range(depth):
        definition = {"type": "array", "items": definition}
    return definition


def test_definitions_nest_only_so_deep() -> None:
    parse(nested(DEPTH_MAX))
    with pytest.raises(InvalidSchemaError, match=f"more than {DEPTH_MAX} deep"):
        parse(nested(DEPTH_MAX + 1))


def test_definitions_have_only_so_many_types() -> None:
    parse(record(*(field(f"f{each}", "int") for each in range(TYPES_MAX - 1))))
    with pytest.raises(InvalidSchemaError, match=f"more than {TYPES_MAX} types"):
        parse(record(*(field(f"f{each}", "int") for each in range(TYPES_MAX))))


def test_comparing_ends_even_if_everything_has_to_be_compared_with_everything() -> None:
    size = 600

    union = [{"type": "fixed", "name": f"f{each}", "size": 1} for each in range(size)]
    assert size * size // 2 > STEPS_MAX
    assert "too large to be compared" in str(why(union, union[::-1]))


def test_types_that_refer_to_each_other_in_a_long_row_are_not_followed_for_ever() -> None:
    chain = [record(field("f", "null"), name="n0.X")]
    for each in range(1, 2000):
        chain.append(record(field("f", f"n{each - 1}.X"), name=f"n{each}.X"))
    writer = record(*(field(f"a{at}", kind) for at, kind in enumerate(chain)), name="Top")
    reader = record(field("a1999", record(field("f", ["null", "X"]), name="X")), name="Top")
    assert "too deep to be compared" in str(why(reader, writer))
