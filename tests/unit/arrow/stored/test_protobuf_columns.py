"""Protobuf values are the columns that the protobuf package decodes, message by message."""

import base64
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.arrow.errors import SchemaMismatchError
from magnetar.arrow.stored import protobuf_columns
from magnetar.arrow.stored.column_names import KEY
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.protobuf_columns import FIELDS_MAX, KIND
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.stored_values import StoredValues
from magnetar.arrow.stored.values import value_columns

_Field = descriptor_pb2.FieldDescriptorProto
_SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

VALUES: dict[int, st.SearchStrategy[Any]] = {
    _Field.TYPE_DOUBLE: st.floats(allow_nan=False),
    _Field.TYPE_FLOAT: st.floats(allow_nan=False, width=32),
    _Field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    _Field.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    _Field.TYPE_SFIXED32: st.integers(-(2**31), 2**31 - 1),
    _Field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    _Field.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    _Field.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
    _Field.TYPE_UINT32: st.integers(0, 2**32 - 1),
    _Field.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    _Field.TYPE_UINT64: st.integers(0, 2**64 - 1),
    _Field.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    _Field.TYPE_BOOL: st.booleans(),
    _Field.TYPE_STRING: st.text(max_size=5),
    _Field.TYPE_BYTES: st.binary(max_size=5),
}
KEYS = [kind for kind in VALUES if kind not in (_Field.TYPE_DOUBLE, _Field.TYPE_FLOAT)]
KEYS.remove(_Field.TYPE_BYTES)
SIZES = {"SMALL": 0, "LARGE": 1, "HUGE": -5}


def definition_of(file: descriptor_pb2.FileDescriptorProto, *others: Any, root: str = "p.M") -> str:
    encoded = descriptor_pb2.FileDescriptorSet(file=[file, *others]).SerializeToString()
    return json.dumps(
        {
            "fileDescriptorSet": base64.b64encode(encoded).decode(),
            "rootMessageTypeName": root,
            "rootFileDescriptorName": file.name,
        }
    )


@st.composite
def files(draw: st.DrawFn) -> descriptor_pb2.FileDescriptorProto:
    """Messages M > In > Leaf, with fields of every kind."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax=syntax)
    sizes = file.enum_type.add(name="Size")
    for name, number in SIZES.items():
        sizes.value.add(name=name, number=number)
    inner = {"M": [".p.In", ".p.Leaf", ".p.M"], "In": [".p.Leaf", ".p.M"], "Leaf": []}
    for name, others in inner.items():
        message = file.message_type.add(name=name)
        message.field.add(
            name="first", number=1, type=_Field.TYPE_INT32, label=_Field.LABEL_OPTIONAL
        )
        for number in range(2, 2 + draw(st.integers(0, 4))):
            _add_field(draw, message, number, others, is_proto3=syntax == "proto3")
    return file


def _add_field(
    draw: st.DrawFn,
    message: descriptor_pb2.DescriptorProto,
    number: int,
    others: list[str],
    *,
    is_proto3: bool,
) -> None:
    kinds = [*VALUES, _Field.TYPE_ENUM, *([_Field.TYPE_MESSAGE] * 4 if others else [])]
    kind = draw(st.sampled_from(kinds))
    type_name = ".p.Size" if kind == _Field.TYPE_ENUM else None
    if kind == _Field.TYPE_MESSAGE:
        type_name = draw(st.sampled_from(others))
    field = message.field.add(name=f"f{number}", number=number, type=kind, type_name=type_name)
    field.label = _Field.LABEL_OPTIONAL
    match draw(st.sampled_from(["one", "one", "optional", "several", "map", "oneof"])):
        case "several":
            field.label = _Field.LABEL_REPEATED
        case "map":
            _make_map(draw, message, field)
        case "oneof":
            message.oneof_decl.add(name=f"one_of_{number}")
            field.oneof_index = len(message.oneof_decl) - 1
        case "optional" if is_proto3:
            message.oneof_decl.add(name=f"_f{number}")
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl) - 1
    # Oneofs that stand for `optional` come last.
    if any(each.proto3_optional for each in message.field):
        _sort_oneofs(message)


def _sort_oneofs(message: descriptor_pb2.DescriptorProto) -> None:
    names = [each.name for each in message.oneof_decl]
    ordered = sorted(names, key=lambda name: name.startswith("_"))
    for each in message.field:
        if each.HasField("oneof_index"):
            each.oneof_index = ordered.index(names[each.oneof_index])
    del message.oneof_decl[:]
    for name in ordered:
        message.oneof_decl.add(name=name)


def _make_map(draw: st.DrawFn, message: descriptor_pb2.DescriptorProto, field: Any) -> None:
    name = f"F{field.number}Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    entry.field.add(
        name="key", number=1, type=draw(st.sampled_from(KEYS)), label=_Field.LABEL_OPTIONAL
    )
    entry.field.add(
        name="value",
        number=2,
        type=field.type,
        type_name=field.type_name or None,
        label=_Field.LABEL_OPTIONAL,
    )
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".p.{message.name}.{name}"
    field.label = _Field.LABEL_REPEATED


def fill(draw: Any, message: Message, depth: int = 0) -> None:
    """Set some fields of a message."""
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()) or depth > 3:
            continue
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            found = getattr(message, field.name)
            for key in draw(st.lists(VALUES[kind.fields_by_name["key"].type], max_size=3)):
                value = kind.fields_by_name["value"]
                if value.message_type is not None:
                    fill(draw, found[key], depth + 1)
                else:
                    found[key] = draw(_single(value))
        elif kind is not None:
            if field.is_repeated:
                for _ in range(draw(st.integers(0, 2))):
                    fill(draw, getattr(message, field.name).add(), depth + 1)
            else:
                getattr(message, field.name).SetInParent()
                fill(draw, getattr(message, field.name), depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_single(field), max_size=3)))
        else:
            setattr(message, field.name, draw(_single(field)))


def _single(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from(list(SIZES.values()))
    return VALUES[field.type]


def decoded(message: Message, kind: pa.DataType) -> dict[str, Any]:
    """A message as the protobuf package has it, without the fields that have no type."""
    return {each.name: _decoded_field(message, each) for each in kind}


def _decoded_field(message: Message, column: pa.Field) -> Any:
    field = message.DESCRIPTOR.fields_by_name[column.name]
    value, kind = getattr(message, field.name), column.type
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        of_value = entry.fields_by_name["value"]
        return {key: _plain(of_value, value[key], kind.item_type) for key in value}
    if field.is_repeated:
        return [_plain(field, each, kind.value_type) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(field, value, kind)


def _plain(field: Any, value: Any, kind: pa.DataType) -> Any:
    if field.message_type is not None:
        return decoded(value, kind)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


def columns_of(definition: str, values: list[bytes | None]) -> tuple[pa.Table, dict[int, str]]:
    """The columns of values, and what is wrong with some."""
    schema = ValueSchema(KIND, definition)
    fields = pa.schema(value_fields(schema))
    stored = StoredValues(
        [each or b"" for each in values],
        [len(each or b"") for each in values],
        [row for row, each in enumerate(values) if each is None],
        [(0, len(values))],
    )
    made = value_columns(fields.names, schema).columns(stored)
    return pa.table([made[name] for name in fields.names], schema=fields), stored.unfit


@_SETTINGS
@given(st.data())
def test_columns_are_what_the_protobuf_package_decodes(data: st.DataObject) -> None:
    definition = definition_of(data.draw(files()))
    message_class = protobuf_columns._class_of(definition)
    messages = [message_class() for _ in range(data.draw(st.integers(0, 4)))]
    for each in messages:
        fill(data.draw, each)
    values: list[bytes | None] = [each.SerializeToString() for each in messages]
    expected: list[dict[str, Any]] = []
    found, unfit = columns_of(definition, [*values, None])
    kind = pa.struct(list(found.schema))
    expected = [decoded(message_class.FromString(each or b""), kind) for each in values]
    expected.append(dict.fromkeys(found.column_names))
    found.validate(full=True)
    assert found.to_pylist(maps_as_pydicts="strict") == expected
    assert unfit == {}


@_SETTINGS
@given(st.data(), st.binary(max_size=20))
def test_any_bytes_are_a_message_or_unfit(data: st.DataObject, value: bytes) -> None:
    definition = definition_of(data.draw(files()))
    message_class: Any = protobuf_columns._class_of(definition)
    good = message_class(first=7).SerializeToString()
    found, unfit = columns_of(definition, [good, value, good])
    found.validate(full=True)
    assert found.column("first").to_pylist()[::2] == [7, 7]
    assert set(unfit) <= {1}


def test_text_that_is_no_text_is_unfit_and_harms_no_other_row() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto2")
    message = file.message_type.add(name="M")
    message.field.add(name="s", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    found, unfit = columns_of(definition_of(file), [b"\x0a\x01a", b"\x0a\x01\xff", b"\x0a\x01b"])
    assert found.column("s").to_pylist() == ["a", None, "b"]
    assert list(unfit) == [1]


def test_an_enum_value_without_a_name_is_its_number() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.enum_type.add(name="Size").value.add(name="SMALL", number=0)
    message = file.message_type.add(name="M")
    message.field.add(
        name="size",
        number=1,
        type=_Field.TYPE_ENUM,
        type_name=".p.Size",
        label=_Field.LABEL_OPTIONAL,
    )
    found, unfit = columns_of(definition_of(file), [b"", b"\x08\x07"])
    assert (found.column("size").to_pylist(), unfit) == (["SMALL", "7"], {})


def test_other_files_are_found_in_whatever_order_they_come() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="M")
    message.field.add(
        name="at",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=_Field.LABEL_OPTIONAL,
    )
    other = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(other)
    value = b"\x0a\x04\x08\x05\x10\x07"
    found, _ = columns_of(definition_of(file, other), [value])
    assert found.to_pylist() == [{"at": {"seconds": 5, "nanos": 7}}]
    with pytest.raises(SchemaMismatchError, match="no definition of a protobuf message"):
        columns_of(definition_of(file), [value])


def test_columns_of_the_same_name_as_metadata_are_left_out() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, name in enumerate(("value", KEY, "d"), 1):
        message.field.add(
            name=name, number=number, type=_Field.TYPE_BYTES, label=_Field.LABEL_OPTIONAL
        )
    found, _ = columns_of(definition_of(file), [b"\x0a\x01x\x12\x01y\x1a\x01z"])
    assert found.to_pylist() == [{"value": b"x", "d": b"z"}]


def test_a_message_without_fields_is_its_bytes() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.message_type.add(name="M")
    found, unfit = columns_of(definition_of(file), [b"\x08\x01", None])
    assert (found.to_pylist(), unfit) == ([{"value": b"\x08\x01"}, {"value": None}], {})


@pytest.mark.parametrize(
    "definition",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"fileDescriptorSet": "!", "rootMessageTypeName": "p.M"}',
        '{"fileDescriptorSet": "AAAA", "rootMessageTypeName": "p.M"}',
        '{"fileDescriptorSet": "", "rootMessageTypeName": "p.M"}',
        '{"fileDescriptorSet": "", "rootMessageTypeName": 7}',
    ],
)
def test_a_definition_that_cannot_be_read_is_said_to_be_one(definition: str) -> None:
    with pytest.raises(SchemaMismatchError, match="no definition of a protobuf message"):
        value_fields(ValueSchema(KIND, definition))


def test_messages_in_messages_end_at_a_number_of_fields() -> None:
    """Each message has the next one twice: of 20 of them, a million fields would come."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    names = ["M", *(f"M{number}" for number in range(1, 20))]
    for name, inner in zip(names, [*names[1:], ""], strict=True):
        message = file.message_type.add(name=name)
        for number in (1, 2):
            message.field.add(
                name=f"f{number}",
                number=number,
                type=_Field.TYPE_MESSAGE if inner else _Field.TYPE_INT32,
                type_name=f".p.{inner}" if inner else None,
                label=_Field.LABEL_OPTIONAL,
            )
    with pytest.raises(SchemaMismatchError, match=f"more than {FIELDS_MAX} fields"):
        value_fields(ValueSchema(KIND, definition_of(file)))
    del file.message_type[12:]
    del file.message_type[11].field[:]
    file.message_type[11].field.add(
        name="f1", number=1, type=_Field.TYPE_INT32, label=_Field.LABEL_OPTIONAL
    )
    assert len(value_fields(ValueSchema(KIND, definition_of(file)))) == 2


def test_numbers_are_as_wide_as_their_types() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, kind in enumerate((_Field.TYPE_FLOAT, _Field.TYPE_UINT64), 1):
        message.field.add(name=f"f{number}", number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    value = b"\x0d\x00\x00\x80\x7f\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    found, _ = columns_of(definition_of(file), [value])
    assert found.to_pylist() == [{"f1": math.inf, "f2": 2**64 - 1}]
    assert found.schema.types == [pa.float32(), pa.uint64()]
