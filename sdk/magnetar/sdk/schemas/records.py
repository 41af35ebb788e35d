"""Avro definitions of Python classes: dataclasses and pydantic models. Pure.

Mapping: bool boolean, int long, float double, str string, bytes bytes, datetime
long/timestamp-millis, date int/date, an Enum its names, list[T] array, dict[str, T] map, a class a
record (defined at its first use, then referred to by name), `T | None` the union of null and T.
`Annotated[int, AvroType("int")]` selects another type of the same kind: `Int32`, `Float32`.

The definition includes a field's default, so that messages without the field can be read. It also
includes what a default factory makes, if that is a list, tuple, dict or record and always the same.
Such a factory is called twice when a schema is created. Factories for other values exist because
the values change: a clock, a counter.

A field of a pydantic model with an alias is named by the alias. In JSON, pydantic writes a field by
its `serialization_alias`, so that is its name in JSON's definition. Where the class does not read
the field by that name, `Shape.renamed` converts it to a name that the class reads.
"""

import dataclasses
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from magnetar.sdk.errors import SchemaDefinitionError

Convert = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class AvroType:
    """Selects the Avro type of a field, in `Annotated[…]`."""

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


def _int32(value: object) -> int:
    number = operator.index(value)  # type: ignore[arg-type]  # Others are refused by that.
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{number} does not fit into the 32 bits of an int")
    return number


def _int64(value: object) -> int:
    number = operator.index(value)  # type: ignore[arg-type]  # Others are refused by that.
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit into the 64 bits of a long")
    return number


def _float32(value: object) -> object:
    if isinstance(value, float) and _FLOAT_MAX < abs(value) < math.inf:
        raise ValueError(f"{value} does not fit into the 32 bits of a float")
    return value


_FLOAT_MAX = float.fromhex("0x1.fffffep+127")
_NUMBERS: dict[str, Convert] = {"int": _int32, "long": _int64, "float": _float32}
"""Checks for numbers that are too large for an Avro type. Without them they would be read back as
another number, or not at all. fastavro itself cuts a fraction off where a whole number is expected.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """An Avro type, with converters between Python's values and Avro's. None: values stay as they
    are."""

    avro: object
    to_avro: Convert | None = None
    from_avro: Convert | None = None
    renamed: Convert | None = None
    """For JSON: converts parsed payloads to the names that the class reads."""


def shape_of(kind: type, *, namespace: str = "", as_json: bool = False) -> Shape:
    """Return the shape of a dataclass or pydantic model; `as_json`: with the field names of JSON.

    Raises:
        SchemaDefinitionError: Avro cannot hold a field, a field cannot be read by one name, or
            `kind` is no such class.
    """
    if not is_record(kind):
        raise SchemaDefinitionError(f"{kind!r} is neither a dataclass nor a pydantic model")
    shapes = _Shapes(namespace, as_json=as_json)
    shape = shapes.of(kind, kind.__name__)
    return shape if shapes.renames else dataclasses.replace(shape, renamed=None)


def is_record(kind: object) -> bool:
    """Whether a class can be a record."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel)
    )


class _Shapes:
    """One pass over a class and the classes within it."""

    def __init__(self, namespace: str, *, as_json: bool) -> None:
        self._namespace = namespace
        self._as_json = as_json
        self.renames = False
        """Whether any field is read by another name than it is written by."""
        self._named: dict[type, Shape] = {}
        self._names: dict[str, type] = {}

    def of(self, kind: object, where: str) -> Shape:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            asked = [each.name for each in arguments[1:] if isinstance(each, AvroType)]
            if asked:
                return Shape(asked[0], _NUMBERS.get(asked[0]))
            return self.of(arguments[0], where)
        if kind in _PLAIN:
            avro = _PLAIN[kind]
            return Shape(avro, _NUMBERS.get(avro) if isinstance(avro, str) else None)
        if kind is type(None):
            return Shape("null")
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, where)
        if origin in (list, tuple) and arguments and arguments[1:] in ((), (...,)):
            item = self.of(arguments[0], where)
            return Shape(
                {"type": "array", "items": item.avro},
                _each(item.to_avro),
                _each(item.from_avro),
                _if_a(list, _each(item.renamed)),
            )
        if origin in (dict, Mapping) and arguments[0] is str:
            item = self.of(arguments[1], where)
            return Shape(
                {"type": "map", "values": item.avro},
                _each_value(item.to_avro),
                _each_value(item.from_avro),
                _if_a(dict, _each_value(item.renamed)),
            )
        if isinstance(kind, type) and (issubclass(kind, Enum) or is_record(kind)):
            return self._named_shape(kind, where)
        raise SchemaDefinitionError(
            f"{where}: {kind!r} has no Avro type; use bool, int, float, str, bytes, datetime, "
            "date, Enum, list, dict with str keys, dataclasses or pydantic models"
        )

    def _named_shape(self, kind: type, where: str) -> Shape:
        known = self._named.get(kind)
        if known is not None:
            # A class within itself is converted at run time: its converters do not exist yet.
            return Shape(
                self._full_name(kind),
                lambda value: (found := self._named[kind].to_avro) and found(value),
                lambda value: (found := self._named[kind].from_avro) and found(value),
                lambda value: value if (to := self._named[kind].renamed) is None else to(value),
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
        members = _members_of(kind, where, as_json=self._as_json)
        fields = [(each, self.of(each.annotation, f"{where}.{each.name}")) for each in members]
        definition = self._definition(
            "record",
            kind,
            fields=[_field(each.name, shape, each.default) for each, shape in fields],
        )
        self.renames |= any(each.name != each.reads for each in members)
        self._named[kind] = Shape(
            definition,
            _to_record(kind, fields),
            _from_record(kind, fields),
            _if_a(dict, _renaming(fields)),
        )
        return self._named[kind]

    def _union(self, members: tuple[object, ...], where: str) -> Shape:
        others = [each for each in members if each is not type(None)]
        if len(others) != 1 or len(members) != 2:
            raise SchemaDefinitionError(f"{where}: the only union allowed is `T | None`")
        one = self.of(others[0], where)
        return Shape(
            ["null", one.avro],
            _unless_none(one.to_avro),
            _unless_none(one.from_avro),
            _unless_none(one.renamed),
        )

    def _definition(self, what: str, kind: type, **more: object) -> dict[str, object]:
        named: dict[str, object] = {"type": what, "name": kind.__name__}
        if self._namespace:
            named["namespace"] = self._namespace
        return named | more

    def _full_name(self, kind: type) -> str:
        return f"{self._namespace}.{kind.__name__}" if self._namespace else kind.__name__


_NONE = object()


@dataclass(frozen=True, slots=True)
class _Member:
    """A field of a class."""

    own: str
    """Name of the attribute."""
    name: str
    """Name in the definition, and in payloads."""
    reads: str
    """Name by which the class reads the field."""
    readable: list[str]
    """All names by which the class reads the field."""
    annotation: object
    default: object
    """Default value; `_NONE` if the field has none."""


def _members_of(kind: typing.Any, where: str, *, as_json: bool) -> list[_Member]:
    """Return the fields of a class.

    Raises:
        SchemaDefinitionError: a type is unknown; for JSON: a field is not read by a name of its
            own, or is not written by one.
    """
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise SchemaDefinitionError(f"{kind.__name__}: unknown type: {error}") from error
    members: list[_Member] = []
    is_model = issubclass(kind, BaseModel)
    for own, field, default in _pydantic_fields(kind, hints):
        if not as_json and not is_model:
            members.append(_Member(own, own, own, [own], hints[own], default))
            continue
        name = (field.serialization_alias if as_json else field.alias) or own
        readable = _readable(kind, own, field)
        if as_json and not readable:
            raise SchemaDefinitionError(
                f"{where}.{own}: JSON cannot write what is read by an AliasPath; give it a "
                "validation_alias that is a name, too (AliasChoices), or populate_by_name"
            )
        reads = name if name in readable or not readable else readable[0]
        members.append(_Member(own, name, reads, readable, hints[own], default))
    if as_json:
        for what, names in (
            ("written", [each.name for each in members]),
            ("read", [each.reads for each in members]),
        ):
            twice = sorted({each for each in names if names.count(each) > 1})
            if twice:
                raise SchemaDefinitionError(f"{where}: two fields are {what} by {twice[0]!r}")
    return members


def _pydantic_fields(
    kind: typing.Any, hints: Mapping[str, object]
) -> list[tuple[str, FieldInfo, object]]:
    """Return each attribute, its pydantic field, and its default (`_NONE` if it has none)."""
    if issubclass(kind, BaseModel):
        return [
            (own, field, _default_of(field.default, _factory_of(field)))
            for own, field in kind.model_fields.items()
        ]
    known: Mapping[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    found: list[tuple[str, FieldInfo, object]] = []
    for each in dataclasses.fields(kind):
        if not each.init:
            continue
        field = known.get(each.name)
        if field is not None:
            found.append((each.name, field, _default_of(field.default, _factory_of(field))))
            continue
        field = FieldInfo.from_annotated_attribute(
            typing.cast("type", hints[each.name]),
            PydanticUndefined if each.default is dataclasses.MISSING else each.default,
        )
        factory = None if each.default_factory is dataclasses.MISSING else each.default_factory
        found.append((each.name, field, _default_of(each.default, factory)))
    return found


def _factory_of(field: FieldInfo) -> Callable[[], object] | None:
    """Return the factory of a default that does not depend on other fields; None if there is
    none."""
    if field.default_factory is None or field.default_factory_takes_validated_data:
        return None
    return typing.cast("Callable[[], object]", field.default_factory)


def _default_of(given: object, factory: Callable[[], object] | None) -> object:
    """Return the default, given or made; `_NONE` if there is none, or none that is always the
    same."""
    if given is not PydanticUndefined and given is not dataclasses.MISSING:
        return given
    if factory is None:
        return _NONE
    try:
        made = factory()
        if not isinstance(made, list | tuple | dict) and not is_record(type(made)):
            return _NONE
        return made if made == factory() else _NONE
    except Exception:  # noqa: BLE001  # An application's code: values are made without defaults, too.
        return _NONE


def _readable(kind: typing.Any, own: str, field: FieldInfo) -> list[str]:
    """Return the names by which a class reads a field, the preferred one first. A path is no
    name."""
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    alias = field.validation_alias
    if alias is None or config.get("validate_by_alias") is False:
        return [own]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    names = [each for each in choices if isinstance(each, str)]
    if config.get("populate_by_name") or config.get("validate_by_name"):
        names.append(own)
    return names


def _field(name: str, shape: Shape, default: object) -> dict[str, object]:
    field: dict[str, object] = {"name": name, "type": shape.avro}
    if isinstance(shape.avro, list) and default is not None and default is not _NONE:
        field["type"] = shape.avro[::-1]  # Avro: a default is of the first type of its union
    if default is not _NONE:
        plain = default if shape.to_avro is None or default is None else shape.to_avro(default)
        try:
            # In JSON's form: a tuple becomes a list, and a value without a form in JSON is no
            # default.
            field["default"] = json.loads(json.dumps(plain, allow_nan=False))
        except (TypeError, ValueError):
            field["type"] = shape.avro
    return field


def _to_record(kind: type, fields: list[tuple[_Member, Shape]]) -> Convert:
    names = [(each.name, each.own, shape.to_avro) for each, shape in fields]

    def convert(value: object) -> object:
        if not isinstance(value, kind):
            raise TypeError(f"expected a {kind.__name__}, got {type(value).__name__}")
        return {
            name: getattr(value, own) if to is None else to(getattr(value, own))
            for name, own, to in names
        }

    return convert


def _from_record(kind: type, fields: list[tuple[_Member, Shape]]) -> Convert:
    converted = [(each.name, shape.from_avro) for each, shape in fields if shape.from_avro]
    reads = {each.name: each.reads for each, _ in fields}
    renames = any(name != read for name, read in reads.items())

    def convert(value: object) -> object:
        assert isinstance(value, dict)
        for name, back in converted:
            value[name] = back(value[name])
        if renames:
            value = {reads[name]: each for name, each in value.items()}
        return kind(**value)

    return convert


def _renaming(fields: list[tuple[_Member, Shape]]) -> Convert:
    """Return the converter from written names to those that the class reads.

    Names that are not in the definition stay, because other writers may use the read names.
    """
    known = {each.name: (each.reads, shape.renamed) for each, shape in fields}
    inside = {name: shape.renamed for each, shape in fields for name in each.readable}

    def convert(value: object) -> object:
        result: dict[object, object] = {}
        for name, found in typing.cast("dict[str, object]", value).items():
            reads, renamed = known.get(name, (None, inside.get(name)))
            found = found if renamed is None else renamed(found)
            if reads is None:
                result.setdefault(name, found)
            else:
                result[reads] = found
        return result

    return convert


def _if_a(kind: type, convert: Convert | None) -> Convert | None:
    """Apply a converter to values of one type only. Others stay as they are, and the reader refuses
    them."""
    if convert is None:
        return None
    return lambda value: convert(value) if isinstance(value, kind) else value


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
