"""What the broker says of protobuf's descriptors, against protobuf, which really reads."""

import base64
import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.schemas.protobuf_native import ProtobufDefinition, parse, why_unreadable

_Field = descriptor_pb2.FieldDescriptorProto
_SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    _Field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    _Field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    _Field.TYPE_UINT32: st.integers(0, 2**32 - 1),
    _Field.TYPE_BOOL: st.booleans(),
    _Field.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    _Field.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    _Field.TYPE_DOUBLE: st.floats(allow_nan=False),
    _Field.TYPE_STRING: st.text("ab", max_size=3),
    _Field.TYPE_BYTES: st.binary(max_size=3),
}
_LABELS = [_Field.LABEL_OPTIONAL] * 4 + [_Field.LABEL_REPEATED, _Field.LABEL_REQUIRED]


@st.composite
def files(draw: st.DrawFn) -> descriptor_pb2.FileDescriptorProto:
    """A message M with up to four fields, of which some hold a message In."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto2")
    for name in ("M", "In"):
        message = file.message_type.add(name=name)
        for number in draw(st.lists(st.integers(1, 4), max_size=4, unique=True)):
            kind = draw(st.sampled_from([*_VALUES, _Field.TYPE_MESSAGE]))
            if name == "In" and kind == _Field.TYPE_MESSAGE:
                continue
            message.field.add(
                name=f"f{number}",
                number=number,
                type=kind,
                label=draw(st.sampled_from(_LABELS)),
                type_name=".p.In" if kind == _Field.TYPE_MESSAGE else None,
            )
    return file


def definition_of(file: descriptor_pb2.FileDescriptorProto) -> ProtobufDefinition:
    encoded = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    schema = {
        "fileDescriptorSet": base64.b64encode(encoded).decode(),
        "rootMessageTypeName": "p.M",
        "rootFileDescriptorName": "f.proto",
    }
    return parse(json.dumps(schema).encode())


def message_of(file: descriptor_pb2.FileDescriptorProto) -> type[Message]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


def fill(data: st.DataObject, message: Message) -> None:
    """Give a message everything it must have, and some of what it may have."""
    for field in message.DESCRIPTOR.fields:
        is_many = field.is_repeated
        if not field.is_required and not data.draw(st.booleans()):
            continue
        if field.type == field.TYPE_MESSAGE:
            place = getattr(message, field.name)
            part = place.add() if is_many else place
            part.SetInParent()
            fill(data, part)
        elif is_many:
            values = data.draw(st.lists(_VALUES[field.type], max_size=2))
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, data.draw(_VALUES[field.type]))


@_SETTINGS
@given(files())
def test_a_definition_reads_itself(file: descriptor_pb2.FileDescriptorProto) -> None:
    definition = definition_of(file)
    assert why_unreadable(reader=definition, writer=definition_of(file)) is None


@_SETTINGS
@given(st.data())
def test_what_is_called_readable_can_be_read(data: st.DataObject) -> None:
    writer, reader = data.draw(files()), data.draw(files())
    if why_unreadable(reader=definition_of(reader), writer=definition_of(writer)) is not None:
        return
    written = message_of(writer)()
    fill(data, written)
    found = message_of(reader)()
    found.ParseFromString(written.SerializeToString())
    for field in found.DESCRIPTOR.fields:
        before = written.DESCRIPTOR.fields_by_number.get(field.number)
        if before is None or field.type == field.TYPE_MESSAGE:
            continue
        if (before.type, before.is_repeated) == (field.type, field.is_repeated):
            assert getattr(found, field.name) == getattr(written, before.name)
