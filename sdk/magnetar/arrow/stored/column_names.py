"""Names of columns, and what decides on columns without a type of theirs. Pure."""

from collections.abc import Mapping
from typing import Any

VALUE = "value"
KEY_PART = "key"
"""Column of the key of a KEY_VALUE schema; `value` is the one of its value."""

KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
ERROR = "__error"

_DIGITS_MAX = 38


def members_of(union: list[Any]) -> list[Any]:
    """The types of a union that are members of its struct; empty if it is a column of one type."""
    others = [each for each in union if each != "null"]
    return [] if len(others) < 2 or widest_of(others) else others


def widest_of(types: list[Any]) -> str:
    """The type that a column of these types has, if one of them holds the others; else empty."""
    names = {each for each in types if isinstance(each, str)}
    if len(types) == 2 and names == {"int", "long"}:
        return "long"
    if len(types) == 2 and names == {"float", "double"}:
        return "double"
    return ""


def is_decimal(schema: Mapping[str, Any]) -> bool:
    """Whether it is a number that a column has room for; else it is its bytes."""
    return schema.get("logicalType") == "decimal" and 0 < schema.get("precision", 0) <= _DIGITS_MAX
