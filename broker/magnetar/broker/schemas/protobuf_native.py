"""PROTOBUF_NATIVE schemas: parse protobuf's descriptors, and decide whether one reads another.
Pure.

The definition is JSON: fileDescriptorSet (base64 of a FileDescriptorSet), rootMessageTypeName,
rootFileDescriptorName. Compatibility follows protobuf's guide on updating a message type, except
for the changes that it calls compatible although they lose data: several values read as one, bytes
read as text or as a message.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final

from google.protobuf import descriptor_pb2 as descriptors
from google.protobuf.message import DecodeError

from magnetar.broker.schemas.errors import InvalidSchemaError

FIELDS_MAX = 10_000
"""Fields of all messages of one definition, at most."""

DEPTH_MAX = 200
"""Nesting depth of messages when two definitions are compared, at most."""

_Field = descriptors.FieldDescriptorProto
_INTEGERS: Final = frozenset(
    (_Field.TYPE_INT32, _Field.TYPE_INT64, _Field.TYPE_UINT32, _Field.TYPE_UINT64)
)
_SAME: Final = (
    _INTEGERS | {_Field.TYPE_BOOL},
    _INTEGERS | {_Field.TYPE_ENUM},
    frozenset((_Field.TYPE_SINT32, _Field.TYPE_SINT64)),
    frozenset((_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32)),
    frozenset((_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64)),
)
"""Groups of types that can read each other's data."""

_READS_AS_BYTES: Final = frozenset((_Field.TYPE_STRING, _Field.TYPE_MESSAGE))


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufDefinition:
    """A message type with all messages that it refers to."""

    root: str
    """Full name of the message, without a leading dot."""
    messages: dict[str, descriptors.DescriptorProto]
    """Messages by full name with a leading dot, as fields name them."""
    canonical: bytes
    """Bytes that are equal for equal definitions."""


def parse(data: bytes) -> ProtobufDefinition:
    """Parse a PROTOBUF_NATIVE definition.

    Raises:
        InvalidSchemaError: it is not a valid one.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the PROTOBUF_NATIVE schema is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidSchemaError("the PROTOBUF_NATIVE schema must be a JSON object")
    names = ("fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName")
    encoded, root, file_name = (found.get(each) for each in names)
    if not (isinstance(encoded, str) and isinstance(root, str) and isinstance(file_name, str)):
        raise InvalidSchemaError(
            f"the PROTOBUF_NATIVE schema must have the texts {', '.join(names)}"
        )
    files = _files_of(encoded)
    messages = _messages_of(files)
    if all(each.name != file_name for each in files.file):
        raise InvalidSchemaError(f"there is no file {file_name[:100]!r} among its descriptors")
    if f".{root}" not in messages:
        raise InvalidSchemaError(f"there is no message {root[:100]!r} among its descriptors")
    _check_references(files, messages)
    parts = sorted(each.SerializeToString(deterministic=True) for each in files.file)
    return ProtobufDefinition(root, messages, root.encode() + b"\0" + b"\0".join(parts))


def why_unreadable(*, reader: ProtobufDefinition, writer: ProtobufDefinition) -> str | None:
    """Return the part of the writer's data that the reader cannot read; None if it reads all of
    it."""
    if reader.root != writer.root:
        return f"Protobuf root message isn't allow change: {writer.root}, then {reader.root}"
    return _Comparison(reader, writer).compare(f".{reader.root}", f".{writer.root}", "", 0)


def _files_of(encoded: str) -> descriptors.FileDescriptorSet:
    files = descriptors.FileDescriptorSet()
    try:
        files.ParseFromString(base64.b64decode(encoded, validate=True))
    except (ValueError, DecodeError) as error:
        raise InvalidSchemaError(f"its fileDescriptorSet cannot be read: {error}") from error
    for each in files.file:
        each.ClearField("source_code_info")  # Comments and positions in the source.
    return files


def _messages_of(
    files: descriptors.FileDescriptorSet,
) -> dict[str, descriptors.DescriptorProto]:
    messages: dict[str, descriptors.DescriptorProto] = {}
    fields = 0
    waiting = [
        (f".{each.package}" if each.package else "", message)
        for each in files.file
        for message in each.message_type
    ]
    while waiting:
        outer, message = waiting.pop()
        name = f"{outer}.{message.name}"
        if name in messages:
            raise InvalidSchemaError(f"the message {name[1:101]} is defined twice")
        messages[name] = message
        fields += len(message.field)
        waiting += [(name, each) for each in message.nested_type]
    if fields > FIELDS_MAX:
        raise InvalidSchemaError(f"there are {fields} fields in it; the limit is {FIELDS_MAX}")
    return messages


def _check_references(
    files: descriptors.FileDescriptorSet, messages: dict[str, descriptors.DescriptorProto]
) -> None:
    for name, message in messages.items():
        numbers = {field.number for field in message.field}
        if len(numbers) != len(message.field):
            raise InvalidSchemaError(f"fields of the message {name[1:101]} share a number")
        for field in message.field:
            if field.number < 1:
                raise InvalidSchemaError(
                    f"{name[1:101]}.{field.name[:100]} has the number {field.number}; the least "
                    "is 1"
                )
            if _is_message(field) and field.type_name not in messages:
                raise InvalidSchemaError(
                    f"{name[1:101]}.{field.name[:100]}: there is no {field.type_name[:100]!r}"
                )


class _Comparison:
    def __init__(self, reader: ProtobufDefinition, writer: ProtobufDefinition) -> None:
        self._reader = reader
        self._writer = writer
        self._compared: set[tuple[str, str]] = set()
        """Pairs that fit or are being compared. The first pair that does not fit ends the
        comparison."""

    def compare(self, reader_name: str, writer_name: str, path: str, depth: int) -> str | None:
        if (reader_name, writer_name) in self._compared:
            return None
        if depth > DEPTH_MAX:
            return f"they are too deep to be compared: more than {DEPTH_MAX} messages in a row"
        self._compared.add((reader_name, writer_name))
        written = {each.number: each for each in self._writer.messages[writer_name].field}
        for field in self._reader.messages[reader_name].field:
            here = f"{path}/{field.name}"
            before = written.get(field.number)
            if _is_required(field) and (before is None or not _is_required(before)):
                return f"{here}: required, and not in all that was written"
            problem = None if before is None else self._compare_field(field, before, here, depth)
            if problem is not None:
                return problem
        return None

    def _compare_field(
        self,
        reader: descriptors.FieldDescriptorProto,
        writer: descriptors.FieldDescriptorProto,
        path: str,
        depth: int,
    ) -> str | None:
        if writer.label == _Field.LABEL_REPEATED and reader.label != _Field.LABEL_REPEATED:
            return f"{path}: one value cannot be read where several were written"
        if _is_message(reader) and reader.type == writer.type:
            return self.compare(reader.type_name, writer.type_name, path, depth + 1)
        if reader.type == writer.type or any(
            reader.type in same and writer.type in same for same in _SAME
        ):
            return None
        if reader.type == _Field.TYPE_BYTES and writer.type in _READS_AS_BYTES:
            return None
        return f"{path}: {_type_name(reader)} cannot read {_type_name(writer)}"


def _is_message(field: descriptors.FieldDescriptorProto) -> bool:
    return field.type in (_Field.TYPE_MESSAGE, _Field.TYPE_GROUP)


def _is_required(field: descriptors.FieldDescriptorProto) -> bool:
    presence = field.options.features.field_presence
    return (
        field.label == _Field.LABEL_REQUIRED or presence == descriptors.FeatureSet.LEGACY_REQUIRED
    )


def _type_name(field: descriptors.FieldDescriptorProto) -> str:
    return _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
