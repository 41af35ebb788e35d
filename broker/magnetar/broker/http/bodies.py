"""What bodies of requests and of answers have in common. Pure but for reading a request.

Numbers and flags may come as JSON text. Bodies hold text that can be written down again: JSON may
escape half of a surrogate pair (`"\\ud800"`), and parsers take it for a character. It is none: it
can be written neither into a record nor into an answer, and fails wherever that is tried.
"""

import json
import re
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, model_validator

from magnetar.broker.base.json_values import without_nulls
from magnetar.broker.http.refusals import HttpRefusal


class RequestBody(BaseModel):
    """Unknown fields are ignored, and a field that is null is one that was left out: clients in Go
    send nulls for empty lists. What parsers take for numbers and JSON has no word for (NaN) could
    be written into a record and never be read again."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return without_nulls(value)


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
        raise HttpRefusal(
            400, f"the body has a lone surrogate, which UTF-8 cannot encode: {error.reason}"
        ) from error
    except (ValueError, RecursionError):
        return  # Whoever reads it says what is wrong.


NOTE_HEADER = "X-Magnetar-Note"
"""Says what was accepted and has no effect here; `magnetar admin` shows it."""

JSON = "application/json"


def done(*, note: str = "") -> Response:
    """204: it was done, and there is nothing to say; but for what has no effect."""
    headers = {NOTE_HEADER: f"kept, without effect: {note}"} if note else None
    return Response(status_code=204, headers=headers)


def noted(note: str) -> Response:
    """204: it was done; with what the operator should know of it, if anything."""
    line = " ".join(note.split()).encode("latin-1", "replace").decode("latin-1")
    return Response(status_code=204, headers={NOTE_HEADER: line} if line else None)


def text_or_json(value: Any, *, is_text: bool) -> Response:
    """Text goes out as it is, as Pulsar's servers send it: its tools read no quotes."""
    return Response(value, media_type=JSON) if is_text else JSONResponse(value)


def with_body(
    schema: dict[str, Any], *, is_required: bool = False, media_type: str = JSON
) -> dict[str, Any]:
    """The part of a route's description that says what its body is."""
    content = {media_type: {"schema": schema}}
    return {"requestBody": {"content": content, "required": is_required}}
