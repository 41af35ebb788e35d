"""What bodies of requests and of answers have in common. Pure but for reading a request.

Numbers and flags may come as JSON text. Bodies hold text that can be written down again: JSON may
escape half of a surrogate pair (`"\\ud800"`), and parsers take it for a character. It is none: it
can be written neither into a record nor into an answer, and fails wherever that is tried.
"""

import json
import re
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from magnetar.broker.http.refusals import HttpRefusal

LONG_MAX = (1 << 63) - 1
"""Of whole numbers: Pulsar's tools know no larger ones, and what reckons with them has an end."""

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


WholeNumber = Annotated[StrictInt, BeforeValidator(_whole)]
"""A whole number of a body, also as JSON text: clients in Go and Rust write "60" for 60, and
Pulsar's broker takes it. What is no number is refused, true and false among it."""

Number = Annotated[StrictFloat, BeforeValidator(_decimal)]
"""A number of a body, also as JSON text."""

Flag = Annotated[StrictBool, BeforeValidator(_flag)]
"""A boolean of a body, also as JSON text, or as 0 or 1."""


class RequestBody(BaseModel):
    """Unknown fields are ignored, and a field that is null is one that was left out: clients in Go
    send nulls for empty lists. What parsers take for numbers and JSON has no word for (NaN) could
    be written into a record and never be read again."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, each in value.items():
            if isinstance(each, int) and abs(each) > LONG_MAX:
                raise ValueError(f"{name} has more than 64 bits")
        return {name: each for name, each in value.items() if each is not None}


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def refuse_broken_text(request: Request) -> None:
    """A dependency of all routes.

    Raises:
        HttpRefusal: 400: half of a character.
    """
    data = await request.body()
    if _SURROGATE.search(data) is None:
        return
    try:
        json.dumps(json.loads(data), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise HttpRefusal(400, f"the body holds half of a character: {error.reason}") from error
    except (ValueError, RecursionError):
        return  # Whoever reads it says what is wrong.


NOTE_HEADER = "X-Magnetar-Note"
"""Says what was accepted and has no effect here; `magnetar admin` shows it."""

JSON = "application/json"


def done(*, note: str = "") -> Response:
    """204: it was done, and there is nothing to say; but for what has no effect."""
    headers = {NOTE_HEADER: f"kept, without effect: {note}"} if note else None
    return Response(status_code=204, headers=headers)


def text_or_json(value: Any, *, is_text: bool) -> Response:
    """Text goes out as it is, as Pulsar's servers send it: its tools read no quotes."""
    return Response(value, media_type=JSON) if is_text else JSONResponse(value)


def with_body(
    schema: dict[str, Any], *, is_required: bool = False, media_type: str = JSON
) -> dict[str, Any]:
    """The part of a route's description that says what its body is."""
    content = {media_type: {"schema": schema}}
    return {"requestBody": {"content": content, "required": is_required}}
