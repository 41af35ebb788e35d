"""Names of columns, and the Avro types that determine a column's form. Pure."""

from collections.abc import Mapping
from typing import Any

VALUE = "value"
KEY_PART = "key"
"""Column of the key of a KEY_VALUE schema; `value` is the column of its value."""

KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
NULL_VALUE = "__nullValue"
ERROR = "__error"

_DIGITS_MAX = 38


def members_of(union: list[Any]) -> list[Any]:
    """Return the types of a union that become members of a struct; empty if the union is one
    column."""
    others = [each for each in union if each != "null"]
    return [] if len(others) < 2 or widest_of(others) else others


def widest_of(types: list[Any]) -> str:
    """Return the type that can hold all of these types, if one of them can; else empty."""
    names = {each for each in types if isinstance(each, str)}
    if len(types) == 2 and names == {"int", "long"}:
        return "long"
    if len(types) == 2 and names == {"float", "double"}:
        return "double"
    return ""


def is_decimal(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is a decimal that fits into a column; otherwise the column has its
    bytes."""
    return schema.get("logicalType") == "decimal" and 0 < schema.get("precision", 0) <= _DIGITS_MAX
