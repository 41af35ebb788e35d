"""Numbers and flags of JSON, also as text: clients in Go and Rust write "60" for 60. Pure."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, StrictBool, StrictFloat, StrictInt

LONG_MAX = (1 << 63) - 1
"""Largest whole number that a body may contain: Pulsar's tools use 64 bits, signed."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_FLAGS = {"true": True, "false": False}


def _whole(value: Any) -> Any:
    is_text = isinstance(value, str) and _WHOLE.fullmatch(value.strip())
    if not is_text and not (isinstance(value, float) and value.is_integer()):
        return value
    number = int(value)
    if abs(number) > LONG_MAX:
        raise ValueError(f"{value} has more than 64 bits")
    return number


def _decimal(value: Any) -> Any:
    is_number = isinstance(value, str) and _DECIMAL.fullmatch(value.strip())
    return float(value) if is_number else value


def _flag(value: Any) -> Any:
    if isinstance(value, str):
        return _FLAGS.get(value.strip().lower(), value)
    return bool(value) if type(value) is int and value in (0, 1) else value


def without_nulls(value: Any) -> Any:
    """Return an object without its nulls: clients in Go send nulls for omitted fields.

    Raises:
        ValueError: a number in the object has more than 64 bits.
    """
    if not isinstance(value, dict):
        return value
    for name, each in value.items():
        if isinstance(each, int) and abs(each) > LONG_MAX:
            raise ValueError(f"{name} has more than 64 bits")
    return {name: each for name, each in value.items() if each is not None}


WholeNumber = Annotated[StrictInt, BeforeValidator(_whole)]
"""A whole number of a body, also as JSON text: clients in Go and Rust write "60" for 60, and
Pulsar's broker takes it. Other values are refused, true and false included."""

Number = Annotated[StrictFloat, BeforeValidator(_decimal)]
"""A number of a body, also as JSON text."""

Flag = Annotated[StrictBool, BeforeValidator(_flag)]
"""A boolean of a body, also as JSON text, or as 0 or 1."""
