"""Parse Avro definitions from JSON into types. Pure.

The parser is as tolerant as Pulsar's clients: a default need not fit its type (Pulsar's Python
client writes a default of the second branch of a union), names may hold any letters, and unknown
attributes are ignored. Depth and size are limited, because any client may send a definition.

Source: Avro specification 1.12, "Schema Declaration" and "Names".
"""

import re
from typing import Any

from magnetar.broker.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Union,
    name_of,
)
from magnetar.broker.schemas.errors import InvalidSchemaError

DEPTH_MAX = 64
"""Nesting depth of types, at most: the parser recurses."""

TYPES_MAX = 10_000
"""Types in one definition, at most; references count."""

_PRIMITIVES = {each.value: each for each in Primitive}
_NAME = re.compile(r"[^\W\d]\w*")


def parse(definition: Any) -> AvroType:
    """Return the type that a definition describes, given as parsed JSON.

    Raises:
        InvalidSchemaError: it is not an Avro definition, or too large.
    """
    return _Parser().type_of(definition, "", 0)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        self._types = 0

    def type_of(self, definition: Any, namespace: str, depth: int) -> AvroType:
        self._types += 1
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"types are nested more than {DEPTH_MAX} deep")
        if self._types > TYPES_MAX:
            raise InvalidSchemaError(f"there are more than {TYPES_MAX} types in it")
        if isinstance(definition, str):
            return self._reference(definition, namespace)
        if isinstance(definition, list):
            return self._union(definition, namespace, depth)
        if not isinstance(definition, dict):
            raise InvalidSchemaError(
                f"a type must be text, a list or an object, not {definition!r}"
            )
        return self._described(definition, namespace, depth)

    def _reference(self, name: str, namespace: str) -> AvroType:
        primitive = _PRIMITIVES.get(name)
        if primitive is not None:
            return primitive
        found = self._named.get(name if "." in name else _joined(namespace, name))
        if found is None:
            found = self._named.get(name)
        if found is None:
            raise InvalidSchemaError(
                f"unknown type {_short(name)}: it is not built in, and was not defined before"
            )
        return found

    def _union(self, definition: list[Any], namespace: str, depth: int) -> Union:
        if not definition:
            raise InvalidSchemaError("a union has no types in it")
        branches = tuple(self.type_of(each, namespace, depth + 1) for each in definition)
        kinds = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise InvalidSchemaError("a union stands directly in a union")
            kind = name_of(branch)
            if kind in kinds:
                raise InvalidSchemaError(f"a union has {_short(kind)} twice")
            kinds.add(kind)
        return Union(branches)

    def _described(self, definition: dict[str, Any], namespace: str, depth: int) -> AvroType:
        kind = definition.get("type")
        if isinstance(kind, (dict, list)):
            return self.type_of(kind, namespace, depth + 1)
        match kind:
            case "array":
                return Array(self.type_of(_part(definition, "items"), namespace, depth + 1))
            case "map":
                return Map(self.type_of(_part(definition, "values"), namespace, depth + 1))
            case "fixed":
                return self._fixed(definition, namespace)
            case "enum":
                return self._enumeration(definition, namespace)
            case "record" | "error":
                return self._record(definition, namespace, depth)
            case str():
                return self._reference(kind, namespace)
        raise InvalidSchemaError("an object without a type")

    def _fixed(self, definition: dict[str, Any], namespace: str) -> Fixed:
        name, aliases = _names(definition, namespace)
        size = _part(definition, "size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidSchemaError(f"fixed {_short(name)}: its size is no number of bytes")
        fixed = Fixed(name, aliases, size)
        self._define(fixed)
        return fixed

    def _enumeration(self, definition: dict[str, Any], namespace: str) -> Enumeration:
        name, aliases = _names(definition, namespace)
        symbols = _part(definition, "symbols")
        if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
            raise InvalidSchemaError(f"enum {_short(name)}: its symbols are no list of texts")
        for symbol in symbols:
            _check_name(symbol, "a symbol")
        if len(set(symbols)) != len(symbols):
            raise InvalidSchemaError(f"enum {_short(name)} has a symbol twice")
        default = definition.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchemaError(f"enum {_short(name)}: its default is none of its symbols")
        enumeration = Enumeration(name, aliases, frozenset(symbols), default)
        self._define(enumeration)
        return enumeration

    def _record(self, definition: dict[str, Any], namespace: str, depth: int) -> Record:
        name, aliases = _names(definition, namespace)
        fields = _part(definition, "fields")
        if not isinstance(fields, list):
            raise InvalidSchemaError(f"record {_short(name)}: its fields are no list")
        record = Record(name, aliases)
        self._define(record)  # Before its fields, which may refer to it.
        inner = name.rpartition(".")[0]
        for each in fields:
            field = self._field(each, name, inner, depth)
            if field.name in record.fields:
                raise InvalidSchemaError(f"record {_short(name)} has {_short(field.name)} twice")
            record.fields[field.name] = field
        return record

    def _field(self, definition: Any, record: str, namespace: str, depth: int) -> Field:
        if not isinstance(definition, dict):
            raise InvalidSchemaError(f"record {_short(record)}: a field is no object")
        name = _check_name(definition.get("name"), f"a field of record {_short(record)}")
        aliases = _texts(definition.get("aliases"), f"field {_short(name)}")
        kind = self.type_of(_part(definition, "type"), namespace, depth + 1)
        return Field(name, aliases, kind, "default" in definition)

    def _define(self, named: Named) -> None:
        if named.name in self._named:
            raise InvalidSchemaError(f"{_short(named.name)} is defined twice")
        self._named[named.name] = named


def _part(definition: dict[str, Any], name: str) -> Any:
    if name not in definition:
        raise InvalidSchemaError(f"{_short(str(definition.get('type', 'a field')))}: no {name}")
    return definition[name]


def _names(definition: dict[str, Any], outer: str) -> tuple[str, frozenset[str]]:
    """Return the full name of a type, and its full aliases."""
    kind = definition["type"]
    given = definition.get("name")
    simple = given.rpartition(".")[2] if isinstance(given, str) else given
    _check_name(simple, f"a type of kind {kind}")
    assert isinstance(given, str)
    own = definition.get("namespace")
    if not isinstance(own, (str, type(None))):
        raise InvalidSchemaError(f"{kind} {_short(given)}: its namespace is no text")
    if given in _PRIMITIVES:
        raise InvalidSchemaError(f"{kind} {given} has the name of a primitive type")
    name = given if "." in given else _joined(outer if own is None else own, given)
    namespace = name.rpartition(".")[0]
    aliases = _texts(definition.get("aliases"), f"{kind} {_short(name)}")
    return name, frozenset(each if "." in each else _joined(namespace, each) for each in aliases)


def _check_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidSchemaError(f"{what} has the name {_short(repr(name))}, which is none")
    return name


def _texts(value: Any, of: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidSchemaError(f"{of}: its aliases are no list of texts")
    return tuple(value)


def _joined(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."
