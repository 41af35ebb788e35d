"""PROTOBUF_NATIVE values as columns, by the descriptors in the topic's schema. Pure.

The definition is JSON: `fileDescriptorSet` (base64 of a FileDescriptorSet with all files that the
message needs) and `rootMessageTypeName`. The protobuf package parses the values, and columns are
made a field at a time, for all rows of a batch. All versions are read by the newest definition: a
field has its number in each of them.

A field with presence (a message, a member of a oneof, `optional`) is null where it is absent; any
other field has its default. An enum is the name of its value, or the number if it has no name. A
message within itself, and a message without fields, has no type in Arrow, and is left out.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.ragged import spread
from magnetar.arrow.stored.stored_values import StoredValues

KIND = "PROTOBUF_NATIVE"
"""Pulsar's name for this schema type."""

FIELDS_MAX = 10_000
"""Most fields of one definition. Fields of nested messages count at each place of use."""

_DEPTH_MAX = 64
_DEFINITIONS_MAX = 16
"""Most definitions whose classes are kept."""

_SHOWN_BYTES_MAX = 100

_Field = FieldDescriptor
_SCALARS = {
    _Field.TYPE_DOUBLE: pa.float64(),
    _Field.TYPE_FLOAT: pa.float32(),
    _Field.TYPE_INT32: pa.int32(),
    _Field.TYPE_SINT32: pa.int32(),
    _Field.TYPE_SFIXED32: pa.int32(),
    _Field.TYPE_INT64: pa.int64(),
    _Field.TYPE_SINT64: pa.int64(),
    _Field.TYPE_SFIXED64: pa.int64(),
    _Field.TYPE_UINT32: pa.uint32(),
    _Field.TYPE_FIXED32: pa.uint32(),
    _Field.TYPE_UINT64: pa.uint64(),
    _Field.TYPE_FIXED64: pa.uint64(),
    _Field.TYPE_BOOL: pa.bool_(),
    _Field.TYPE_STRING: pa.string(),
    _Field.TYPE_BYTES: pa.binary(),
    _Field.TYPE_ENUM: pa.string(),
}


_SIGNED = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
"""The narrowest signed types that can hold all numbers of the unsigned ones."""


def protobuf_type(definition: str, *, is_signed: bool = False) -> pa.DataType | None:
    """Return the type of a value with this definition: a struct; None if Arrow has none.

    Args:
        is_signed: whether unsigned numbers get wider signed types.

    Raises:
        SchemaMismatchError: the definition cannot be read.
    """
    return _Types(is_signed).message(_descriptor_of(_class_of(definition)), frozenset())


@lru_cache(maxsize=_DEFINITIONS_MAX)
def _class_of(definition: str) -> type[Message]:
    try:
        found = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(
            base64.b64decode(found["fileDescriptorSet"], validate=True)
        )
        pool = _pool_of(files.file)
        root = pool.FindMessageTypeByName(found["rootMessageTypeName"])
        return message_factory.GetMessageClass(root)
    except (ValueError, TypeError, KeyError, DecodeError) as error:
        raise SchemaMismatchError(
            f"the topic's schema is no definition of a protobuf message: {error!r}"
        ) from error


def _descriptor_of(message: type[Message]) -> Descriptor:
    """Return the type of a message. The cast is for stubs that distinguish protobuf's
    implementations."""
    return cast("Descriptor", message.DESCRIPTOR)


def _pool_of(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """Return a pool of all files, each added after those that it imports."""
    pool = descriptor_pool.DescriptorPool()
    waiting = {each.name: each for each in files}
    while waiting:
        ready = [each for each in waiting.values() if not waiting.keys() & set(each.dependency)]
        if not ready:
            raise ValueError(f"files import each other: {', '.join(sorted(waiting))}"[:300])
        for each in ready:
            pool.AddSerializedFile(each.SerializeToString())
            del waiting[each.name]
    return pool


class _Types:
    """The types of one definition."""

    def __init__(self, is_signed: bool) -> None:
        self._is_signed = is_signed
        self._fields_left = FIELDS_MAX

    def message(self, message: Descriptor, within: frozenset[str]) -> pa.DataType | None:
        """`within` has the full names of the enclosing messages."""
        inside = within | {message.full_name}
        made = ((each.name, self._field(each, inside)) for each in message.fields)
        fields = [pa.field(name, kind) for name, kind in made if kind is not None]
        return pa.struct(fields) if fields else None

    def _field(self, field: FieldDescriptor, within: frozenset[str]) -> pa.DataType | None:
        self._fields_left -= 1
        if self._fields_left < 0:
            raise SchemaMismatchError(
                f"the topic's schema has more than {FIELDS_MAX} fields, those of messages in "
                f"messages included: read its bytes, with decode=False"
            )
        if _is_map(field):
            assert field.message_type is not None
            key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
            kind = self._single(value, within)
            return None if kind is None else pa.map_(self._scalar(key), kind)
        kind = self._single(field, within)
        if kind is None or not field.is_repeated:
            return kind
        return pa.list_(pa.field("element", kind))

    def _single(self, field: FieldDescriptor, within: frozenset[str]) -> pa.DataType | None:
        message = field.message_type
        if message is None:
            return self._scalar(field)
        if message.full_name in within or len(within) >= _DEPTH_MAX:
            return None
        return self.message(message, within)

    def _scalar(self, field: FieldDescriptor) -> pa.DataType:
        kind = _SCALARS[field.type]
        return _SIGNED.get(kind, kind) if self._is_signed else kind


class ProtobufColumns:
    """The selected columns of a message."""

    needs_keys = False

    def __init__(self, wanted: pa.Schema, definition: str) -> None:
        """
        Args:
            wanted: fields of the message, with their types (`protobuf_type`).

        Raises:
            SchemaMismatchError: the definition cannot be read.
        """
        self._class = _class_of(definition)
        by_name = _descriptor_of(self._class).fields_by_name
        self._fields = [(by_name[name], wanted.field(name).type) for name in wanted.names]

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """Return the columns by name; add to `stored.unfit`."""
        parse = self._class.FromString
        is_there = np.ones(len(stored.lengths), dtype=np.bool_)
        is_there[list(stored.nulls)] = False
        messages: list[Message] = []
        values = stored.cut()
        for row in np.flatnonzero(is_there).tolist():
            try:
                messages.append(parse(bytes(values[row])))
            except DecodeError as error:
                shown = bytes(values[row][:_SHOWN_BYTES_MAX])
                name = self._class.DESCRIPTOR.name
                stored.unfit[row] = f"a value is no {name}: {error}: {shown!r}"
                is_there[row] = False
        try:
            made = self._columns(messages)
        except pa.ArrowException:
            rows = np.flatnonzero(is_there).tolist()
            for row, message in zip(rows, messages, strict=True):
                if problem := self._problem(message):
                    stored.unfit[row] = problem
                    is_there[row] = False
            fitting = [each for row, each in zip(rows, messages, strict=True) if is_there[row]]
            made = self._columns(fitting)
        return {name: spread(column, is_there) for name, column in made.items()}

    def _columns(self, messages: Sequence[Message]) -> dict[str, pa.Array]:
        return {field.name: _column(field, kind, messages) for field, kind in self._fields}

    def _problem(self, message: Message) -> str:
        """Return why a message cannot be a row; empty if it can. Text that is not UTF-8 comes as
        bytes."""
        try:
            self._columns([message])
        except pa.ArrowException as error:
            return f"a value has a field that is none: {error}"
        return ""


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return bool(message is not None and field.is_repeated and message.GetOptions().map_entry)


def _column(field: FieldDescriptor, kind: pa.DataType, messages: Sequence[Message]) -> pa.Array:
    """Return one field of all these messages as a column."""
    name = field.name
    if _is_map(field):
        return _map(field, kind, [getattr(each, name) for each in messages])
    if field.is_repeated:
        lists = [getattr(each, name) for each in messages]
        items = [item for each in lists for item in each]
        made = _values(field, kind.value_type, items)
        return pa.ListArray.from_arrays(_offsets(lists), made, type=kind)
    if field.has_presence:
        is_there = np.array([each.HasField(name) for each in messages], dtype=np.bool_)
        found = [getattr(each, name) for each in messages if each.HasField(name)]
        return spread(_values(field, kind, found), is_there)
    return _values(field, kind, [getattr(each, name) for each in messages])


def _map(field: FieldDescriptor, kind: pa.DataType, maps: Sequence[Any]) -> pa.Array:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
    keys = [sorted(each) for each in maps]
    items = [each[one] for each, names in zip(maps, keys, strict=True) for one in names]
    return pa.MapArray.from_arrays(
        _offsets(keys),
        _values(key, kind.key_type, [one for names in keys for one in names]),
        _values(value, kind.item_type, items),
        kind,
    )


def _offsets(lists: Sequence[Any]) -> pa.Array:
    offsets = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(each) for each in lists], out=offsets[1:])
    return pa.array(offsets)


def _values(field: FieldDescriptor, kind: pa.DataType, found: Sequence[Any]) -> pa.Array:
    """Return values of a field as one array."""
    if field.message_type is not None:
        by_name = field.message_type.fields_by_name
        columns = [_column(by_name[each.name], each.type, found) for each in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind))
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return pa.array([names.get(each) or str(each) for each in found], kind)
    return pa.array(found, kind)
