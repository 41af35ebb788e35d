"""Avro types, as far as resolution depends on them. Pure.

Named types refer to each other in cycles. So these are objects with identity, complete once the
whole definition is parsed. Logical types, docs, orders and the values of defaults are left out:
they do not decide whether bytes can be read.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Primitive(StrEnum):
    """Types without parts."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"


@dataclass(slots=True, eq=False)
class Array:
    items: "AvroType"


@dataclass(slots=True, eq=False)
class Map:
    values: "AvroType"


@dataclass(slots=True, eq=False)
class Union:
    branches: tuple["AvroType", ...]


@dataclass(slots=True, eq=False)
class Fixed:
    name: str
    """Full name, with its namespace."""
    aliases: frozenset[str]
    """Full names, with their namespaces."""
    size: int


@dataclass(slots=True, eq=False)
class Enumeration:
    name: str
    aliases: frozenset[str]
    symbols: frozenset[str]
    default: str | None
    """Symbol that a reader uses for symbols that it does not know; None if there is none."""


@dataclass(slots=True, eq=False)
class Field:
    name: str
    aliases: tuple[str, ...]
    type: "AvroType"
    has_default: bool


@dataclass(slots=True, eq=False)
class Record:
    name: str
    aliases: frozenset[str]
    fields: dict[str, Field] = field(default_factory=dict)


Named = Fixed | Enumeration | Record
AvroType = Primitive | Array | Map | Union | Fixed | Enumeration | Record


def name_of(avro_type: AvroType) -> str:
    """Return the name of the type for error texts."""
    match avro_type:
        case Primitive():
            return avro_type.value
        case Array():
            return "array"
        case Map():
            return "map"
        case Union():
            return "union"
        case Fixed():
            return f"fixed {avro_type.name}"
        case Enumeration():
            return f"enum {avro_type.name}"
        case Record():
            return f"record {avro_type.name}"
