"""Schemas that may follow one another, by strategy and type."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from magnetar.broker.policies.model import SchemaCompatibility as Strategy
from magnetar.broker.schemas import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaData,
    SchemaType,
)
from magnetar.broker.schemas.compatibility import asks_for_all, check, for_consumers
from magnetar.broker.schemas.definitions import parse
from magnetar.broker.schemas.key_value import joined

_Field = descriptor_pb2.FieldDescriptorProto


def avro(*fields: Any, kind: SchemaType = SchemaType.AVRO, name: str = "R") -> SchemaData:
    definition = {"type": "record", "name": name, "fields": list(fields)}
    return SchemaData(kind, json.dumps(definition).encode())


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_0 = {"name": "b", "type": "int", "default": 0}
NEW = Strategy.BACKWARD
OLD = Strategy.FORWARD


def fits(existing: Sequence[SchemaData], new: SchemaData, strategy: Strategy) -> bool:
    try:
        check([parse(each) for each in existing], parse(new), strategy)
    except IncompatibleSchemaError:
        return False
    return True


STRUCTURED = [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF]


@pytest.mark.parametrize("kind", STRUCTURED)
@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        # A field more without a default: who has the new one cannot read the old one.
        ([A], [A, B], {Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE}),
        # A field less: who has the old one cannot read the new one.
        ([A, B], [A], {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE}),
        (
            [A],
            [A, B_OR_0],
            {
                Strategy.BACKWARD,
                Strategy.BACKWARD_TRANSITIVE,
                Strategy.FORWARD,
                Strategy.FORWARD_TRANSITIVE,
                Strategy.FULL,
                Strategy.FULL_TRANSITIVE,
            },
        ),
        ([A], [{"name": "a", "type": "string"}], set()),
    ],
)
def test_every_strategy_says_what_may_follow(
    kind: SchemaType, old: list[Any], new: list[Any], allowed: set[Strategy]
) -> None:
    found = {
        each
        for each in Strategy
        if each is not Strategy.UNDEFINED
        and fits([avro(*old, kind=kind)], avro(*new, kind=kind), each)
    }
    assert found == {Strategy.ALWAYS_COMPATIBLE, *allowed}


@pytest.mark.parametrize(
    "strategy",
    [Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE],
)
def test_transitive_strategies_ask_about_all_and_the_others_about_the_last(
    strategy: Strategy,
) -> None:
    as_text = [{"name": "a", "type": "string", "default": ""}]
    as_nothing: list[Any] = []
    as_number = [{"name": "a", "type": "int", "default": 0}]
    existing = [avro(*as_text), avro(*as_nothing)]
    assert not fits(existing, avro(*as_number), strategy)
    assert fits(existing, avro(*as_number), Strategy(strategy.removesuffix("_TRANSITIVE")))
    assert asks_for_all(strategy)
    assert not asks_for_all(Strategy.FULL)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_first_schema_and_one_that_is_there_always_fit(strategy: Strategy) -> None:
    assert fits([], avro(A), strategy)
    assert fits([avro(A), avro(B)], avro(A), strategy)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (avro(A), avro(A, kind=SchemaType.JSON)),
        (SchemaData(SchemaType.STRING), SchemaData(SchemaType.INT32)),
        (avro(A), SchemaData(SchemaType.STRING)),
    ],
)
def test_another_type_fits_only_where_everything_does(old: SchemaData, new: SchemaData) -> None:
    text = f"exists schema type {old.type}, new schema type {new.type}"
    with pytest.raises(IncompatibleSchemaError, match=text):
        check([parse(old)], parse(new), Strategy.FULL)
    assert fits([old], new, Strategy.ALWAYS_COMPATIBLE)
    assert not fits([old], new, Strategy.ALWAYS_INCOMPATIBLE)


def test_a_refusal_says_who_cannot_read_what() -> None:
    with pytest.raises(IncompatibleSchemaError) as refused:
        check([parse(avro(A))], parse(avro(A, B)), Strategy.FULL)
    assert str(refused.value) == (
        "Incompatible schema by FULL: the new one cannot read the old one: "
        "/b: it is not written, and has no default"
    )


def test_consumers_have_to_read_the_last_schema_under_most_strategies() -> None:
    assert {each: for_consumers(each) for each in Strategy if for_consumers(each) != each} == {
        Strategy.FORWARD: Strategy.BACKWARD,
        Strategy.FORWARD_TRANSITIVE: Strategy.BACKWARD,
        Strategy.FULL: Strategy.BACKWARD,
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            b'{"type": "record", "name": "R", "fields": []}',
            b'{"name":"R","fields":[],"type":"record"}',
        ),
        (
            b'{"type": "record", "name": "R", "fields": [], "doc": "x"}',
            b'{"type": "record", "name": "R", "fields": []}',
        ),
    ],
)
def test_what_is_written_differently_is_the_same(one: bytes, other: bytes) -> None:
    found = [parse(SchemaData(SchemaType.AVRO, each)).fingerprint for each in (one, other)]
    assert found[0] == found[1]
    assert found[0] != parse(SchemaData(SchemaType.JSON, one)).fingerprint


@pytest.mark.parametrize("data", [b"", b"null", b"anything"])
def test_a_string_has_a_definition_that_says_nothing(data: bytes) -> None:
    assert (
        parse(SchemaData(SchemaType.STRING, data)).fingerprint
        == parse(SchemaData(SchemaType.STRING)).fingerprint
    )


@pytest.mark.parametrize(
    "schema",
    [
        SchemaData(SchemaType.AVRO, b""),
        SchemaData(SchemaType.AVRO, b"{"),
        SchemaData(SchemaType.AVRO, b"\xff"),
        SchemaData(SchemaType.AVRO, b"[" * 100_000),
        SchemaData(SchemaType.JSON, b"3"),
        SchemaData(SchemaType.INT32, b"something"),
        SchemaData(SchemaType.STRING, b"\xff"),
        SchemaData(SchemaType.KEY_VALUE, b""),
        SchemaData(SchemaType.KEY_VALUE, b"\x00\x00\x00\x05abc"),
        SchemaData(SchemaType.KEY_VALUE, joined(b"", b"") + b"x"),
        SchemaData(SchemaType.KEY_VALUE, joined(b"", b""), {"key.schema.type": "WHAT"}),
        SchemaData(SchemaType.KEY_VALUE, joined(b"", b""), {"key.schema.type": "KEY_VALUE"}),
        SchemaData(SchemaType.KEY_VALUE, joined(b"", b""), {"value.schema.type": "AVRO"}),
        SchemaData(SchemaType.KEY_VALUE, joined(b"", b""), {"kv.encoding.type": "MIXED"}),
        SchemaData(SchemaType.PROTOBUF_NATIVE, b"3"),
        SchemaData(SchemaType.PROTOBUF_NATIVE, b"{"),
        SchemaData(SchemaType.PROTOBUF_NATIVE, b"{}"),
        SchemaData(
            SchemaType.PROTOBUF_NATIVE,
            b'{"fileDescriptorSet":"!","rootMessageTypeName":"M","rootFileDescriptorName":"f"}',
        ),
        SchemaData(
            SchemaType.PROTOBUF_NATIVE,
            b'{"fileDescriptorSet": "", "rootMessageTypeName": "M", "rootFileDescriptorName": "f"}',
        ),
    ],
)
def test_what_is_no_definition_of_its_type_is_refused(schema: SchemaData) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(schema)


def pair(key: SchemaData, value: SchemaData, encoding: str = "SEPARATED") -> SchemaData:
    return SchemaData(
        SchemaType.KEY_VALUE,
        joined(key.data, value.data),
        {
            "key.schema.type": key.type.value,
            "value.schema.type": value.type.value,
            "kv.encoding.type": encoding,
        },
    )


STRING = SchemaData(SchemaType.STRING)


def test_of_a_pair_both_parts_have_to_fit() -> None:
    existing = [pair(STRING, avro(A))]
    assert fits(existing, pair(STRING, avro(A, B_OR_0)), Strategy.FULL)
    assert not fits(existing, pair(STRING, avro(A, B)), Strategy.FULL)
    assert fits(existing, pair(STRING, avro(A, B)), Strategy.FORWARD)
    assert not fits(existing, pair(SchemaData(SchemaType.INT32), avro(A)), Strategy.FULL)
    assert not fits(existing, pair(STRING, avro(A), "INLINE"), Strategy.FULL)
    with pytest.raises(IncompatibleSchemaError, match="value: /b: it is not written"):
        check([parse(existing[0])], parse(pair(STRING, avro(A, B))), Strategy.BACKWARD)


def test_json_schemas_of_old_clients_may_be_followed_by_definitions() -> None:
    def old(name: str) -> SchemaData:
        return SchemaData(SchemaType.JSON, json.dumps({"type": "object", "id": name}).encode())

    new = avro(A, kind=SchemaType.JSON)
    assert fits([old("x")], new, Strategy.BACKWARD)
    assert not fits([new], old("x"), Strategy.BACKWARD)
    assert not fits([old("x")], old("y"), Strategy.FULL)


def proto(
    *fields: descriptor_pb2.FieldDescriptorProto, root: str = "M", **inner: Any
) -> SchemaData:
    """A message M, and messages beside it."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    for name, parts in {root: fields, **inner}.items():
        file.message_type.add(name=name).field.extend(parts)
    encoded = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return SchemaData(
        SchemaType.PROTOBUF_NATIVE,
        json.dumps(
            {
                "fileDescriptorSet": base64.b64encode(encoded).decode(),
                "rootMessageTypeName": f"p.{root}",
                "rootFileDescriptorName": "f.proto",
            }
        ).encode(),
    )


def part(
    number: int,
    kind: "_Field.Type.ValueType",
    label: "_Field.Label.ValueType" = _Field.LABEL_OPTIONAL,
    type_name: str = "",
) -> descriptor_pb2.FieldDescriptorProto:
    return _Field(name=f"f{number}", number=number, type=kind, label=label, type_name=type_name)


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (proto(part(1, _Field.TYPE_INT32)), proto(), True, True),
        (proto(part(1, _Field.TYPE_INT32)), proto(part(1, _Field.TYPE_INT64)), True, True),
        (proto(part(1, _Field.TYPE_INT32)), proto(part(1, _Field.TYPE_SINT32)), False, False),
        (proto(part(1, _Field.TYPE_INT32)), proto(part(1, _Field.TYPE_STRING)), False, False),
        (proto(part(1, _Field.TYPE_STRING)), proto(part(1, _Field.TYPE_BYTES)), True, False),
        (
            proto(part(1, _Field.TYPE_INT32)),
            proto(part(1, _Field.TYPE_INT32, _Field.LABEL_REPEATED)),
            True,
            False,
        ),
        (
            proto(),
            proto(part(1, _Field.TYPE_INT32, _Field.LABEL_REQUIRED)),
            False,
            True,
        ),
        (
            proto(part(1, _Field.TYPE_MESSAGE, type_name=".p.In"), In=[part(1, _Field.TYPE_BOOL)]),
            proto(part(1, _Field.TYPE_MESSAGE, type_name=".p.In"), In=[part(1, _Field.TYPE_FLOAT)]),
            False,
            False,
        ),
        (
            proto(part(1, _Field.TYPE_MESSAGE, type_name=".p.M")),
            proto(part(1, _Field.TYPE_MESSAGE, type_name=".p.M"), part(2, _Field.TYPE_INT32)),
            True,
            True,
        ),
        (proto(), proto(root="N"), False, False),
    ],
)
def test_protobuf_fields_are_compared_by_their_numbers(
    old: SchemaData, new: SchemaData, backward: bool, forward: bool
) -> None:
    assert fits([old], new, Strategy.BACKWARD) is backward
    assert fits([old], new, Strategy.FORWARD) is forward
    assert fits([old], new, Strategy.FULL) is (backward and forward)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            proto(part(1, _Field.TYPE_MESSAGE, type_name=".p.Missing")),
            r"p\.M\.f1: there is no '\.p\.Missing'",
        ),
        (
            proto(part(1, _Field.TYPE_INT32), part(1, _Field.TYPE_INT32)),
            r"fields of the message p\.M share a number",
        ),
        (proto(part(0, _Field.TYPE_INT32)), r"p\.M\.f0 has the number 0; the least is 1"),
    ],
)
def test_protobuf_descriptors_that_make_no_sense_are_refused(
    schema: SchemaData, reason: str
) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        parse(schema)


def test_schemas_that_are_kept_elsewhere_are_taken_to_fit_each_other() -> None:
    one, other = (SchemaData(SchemaType.EXTERNAL, each) for each in (b"1", b"2"))
    assert parse(one).fingerprint != parse(other).fingerprint
    assert fits([one], other, Strategy.FULL)
    assert not fits([one], avro(A), Strategy.FULL)
