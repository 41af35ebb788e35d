"""Avro definitions of Python classes: dataclasses and pydantic models. Pure.

Shapes: bool boolean, int long, float double, str string, bytes bytes, datetime
long/timestamp-millis, date int/date, an Enum its names, list[T] array, dict[str, T] map, a class
a record (named the first time, by its name after that), `T | None` the union of null and T.
`Annotated[int, AvroType("int")]` asks for another type of the same kind: `Int32`, `Float32`.
A field's default goes along, so that messages without the field can be read.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from magnetar.sdk.errors import SchemaDefinitionError

Convert = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class AvroType:
    """Says in `Annotated[…]` which Avro type a field has."""

    name: str


Int32 = Annotated[int, AvroType("int")]
Float32 = Annotated[float, AvroType("float")]

_PLAIN: dict[object, object] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-millis"},
    date: {"type": "int", "logicalType": "date"},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A type in Avro's words, and its values between Python's and Avro's. None: as they are."""

    avro: object
    to_avro: Convert | None = None
    from_avro: Convert | None = None


def shape_of(kind: type, *, namespace: str = "") -> Shape:
    """The shape of a dataclass or pydantic model.

    Raises:
        SchemaDefinitionError: it has fields that Avro cannot hold, or is no such class.
    """
    if not is_record(kind):
        raise SchemaDefinitionError(f"{kind!r} is neither a dataclass nor a pydantic model")
    return _Shapes(namespace).of(kind, kind.__name__)


def is_record(kind: object) -> bool:
    """Whether a class can be a record."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel)
    )


class _Shapes:
    """One walk through a class and the classes in it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._named: dict[type, Shape] = {}
        self._names: dict[str, type] = {}

    def of(self, kind: object, where: str) -> Shape:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            asked = [each.name for each in arguments[1:] if isinstance(each, AvroType)]
            return Shape(asked[0]) if asked else self.of(arguments[0], where)
        if kind in _PLAIN:
            return Shape(_PLAIN[kind])
        if kind is type(None):
            return Shape("null")
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, where)
        if origin in (list, tuple) and arguments and arguments[1:] in ((), (...,)):
            item = self.of(arguments[0], where)
            return Shape(
                {"type": "array", "items": item.avro}, _each(item.to_avro), _each(item.from_avro)
            )
        if origin in (dict, Mapping) and arguments[0] is str:
            item = self.of(arguments[1], where)
            return Shape(
                {"type": "map", "values": item.avro},
                _each_value(item.to_avro),
                _each_value(item.from_avro),
            )
        if isinstance(kind, type) and (issubclass(kind, Enum) or is_record(kind)):
            return self._named_shape(kind, where)
        raise SchemaDefinitionError(
            f"{where}: {kind!r} has no Avro type; there are bool, int, float, str, bytes, "
            "datetime, date, Enum, list, dict with str keys, dataclasses and pydantic models"
        )

    def _named_shape(self, kind: type, where: str) -> Shape:
        known = self._named.get(kind)
        if known is not None:
            # A class within itself is converted when it is met: its converters are being made.
            return Shape(
                self._full_name(kind),
                lambda value: (found := self._named[kind].to_avro) and found(value),
                lambda value: (found := self._named[kind].from_avro) and found(value),
            )
        if self._names.setdefault(kind.__name__, kind) is not kind:
            raise SchemaDefinitionError(f"{where}: two classes are named {kind.__name__}")
        if issubclass(kind, Enum):
            names = list(kind.__members__)
            self._named[kind] = Shape(
                self._definition("enum", kind, symbols=names),
                lambda value: kind(value).name,
                lambda name: kind[str(name)],
            )
            return self._named[kind]
        self._named[kind] = Shape(None)
        fields = [
            (name, self.of(annotation, f"{where}.{name}"), default)
            for name, annotation, default in _fields_of(kind)
        ]
        definition = self._definition(
            "record", kind, fields=[_field(name, each, default) for name, each, default in fields]
        )
        self._named[kind] = Shape(definition, _to_record(kind, fields), _from_record(kind, fields))
        return self._named[kind]

    def _union(self, members: tuple[object, ...], where: str) -> Shape:
        others = [each for each in members if each is not type(None)]
        if len(others) != 1 or len(members) != 2:
            raise SchemaDefinitionError(f"{where}: of unions there is only `T | None`")
        one = self.of(others[0], where)
        return Shape(["null", one.avro], _unless_none(one.to_avro), _unless_none(one.from_avro))

    def _definition(self, what: str, kind: type, **more: object) -> dict[str, object]:
        named: dict[str, object] = {"type": what, "name": kind.__name__}
        if self._namespace:
            named["namespace"] = self._namespace
        return named | more

    def _full_name(self, kind: type) -> str:
        return f"{self._namespace}.{kind.__name__}" if self._namespace else kind.__name__


_NONE = object()


def _fields_of(kind: typing.Any) -> list[tuple[str, object, object]]:
    """Name, annotation and default (`_NONE`: there is none) of each field."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise SchemaDefinitionError(
            f"{kind.__name__}: a type that is not known: {error}"
        ) from error
    if issubclass(kind, BaseModel):
        return [
            (
                field.alias or name,
                hints[name],
                _NONE if field.default is PydanticUndefined else field.default,
            )
            for name, field in kind.model_fields.items()
        ]
    return [
        (
            each.name,
            hints[each.name],
            _NONE if each.default is dataclasses.MISSING else each.default,
        )
        for each in dataclasses.fields(kind)
        if each.init
    ]


def _field(name: str, shape: Shape, default: object) -> dict[str, object]:
    field: dict[str, object] = {"name": name, "type": shape.avro}
    if isinstance(shape.avro, list) and default is not None and default is not _NONE:
        field["type"] = shape.avro[::-1]  # Avro: a default is of the first type of its union
    if default is not _NONE:
        plain = default if shape.to_avro is None or default is None else shape.to_avro(default)
        if plain is None or isinstance(plain, bool | int | float | str | list | dict):
            field["default"] = plain
        else:
            field["type"] = shape.avro
    return field


def _to_record(kind: type, fields: list[tuple[str, Shape, object]]) -> Convert:
    names = [(name, _attribute(kind, name), each.to_avro) for name, each, _ in fields]

    def convert(value: object) -> object:
        if not isinstance(value, kind):
            raise TypeError(f"a {kind.__name__} was expected, not {type(value).__name__}")
        return {
            name: getattr(value, own) if to is None else to(getattr(value, own))
            for name, own, to in names
        }

    return convert


def _from_record(kind: type, fields: list[tuple[str, Shape, object]]) -> Convert:
    converted = [(name, each.from_avro) for name, each, _ in fields if each.from_avro is not None]

    def convert(value: object) -> object:
        assert isinstance(value, dict)
        for name, back in converted:
            value[name] = back(value[name])
        return kind(**value)

    return convert


def _attribute(kind: type, name: str) -> str:
    """The attribute that a field of this name lies in: a pydantic model may have aliases."""
    if issubclass(kind, BaseModel):
        for own, field in kind.model_fields.items():
            if (field.alias or own) == name:
                return own
    return name


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: [convert(item) for item in typing.cast("list[object]", items)]


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: {
        key: convert(item) for key, item in typing.cast("dict[str, object]", items).items()
    }


def _unless_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)
