"""Parts that the bodies of requests and answers share. Pure but for reading a request.

Numbers and flags may come as JSON text. Bodies hold only text that can be encoded again. JSON may
escape half of a surrogate pair (U+D800, for example), and parsers take it for a character. It is
not one: writing it into a record or an answer fails.
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
    """Base of request bodies. Unknown fields are ignored. A null field counts as absent, because
    clients in Go send nulls for empty lists. NaN is refused: JSON has no such number, so a record
    that holds it could not be read again."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return without_nulls(value)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def refuse_broken_text(request: Request) -> None:
    """Refuse a body with half of a surrogate pair; a dependency of all routes.

    Raises:
        HttpRefusal: 400.
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
        return  # The route that reads the body says what is wrong.


NOTE_HEADER = "X-Magnetar-Note"
"""Header that names accepted values without effect; `magnetar admin` shows it."""

JSON = "application/json"


def done(*, note: str = "") -> Response:
    """Return 204; `note` names what was stored but has no effect."""
    headers = {NOTE_HEADER: f"kept, without effect: {note}"} if note else None
    return Response(status_code=204, headers=headers)


def noted(note: str) -> Response:
    """Return 204 with a note for the operator, if there is one."""
    line = " ".join(note.split()).encode("latin-1", "replace").decode("latin-1")
    return Response(status_code=204, headers={NOTE_HEADER: line} if line else None)


def text_or_json(value: Any, *, is_text: bool) -> Response:
    """Return text unquoted, as Pulsar's servers send it, because its tools expect no quotes; else
    JSON."""
    return Response(value, media_type=JSON) if is_text else JSONResponse(value)


def with_body(
    schema: dict[str, Any], *, is_required: bool = False, media_type: str = JSON
) -> dict[str, Any]:
    """Return the part of a route's description that describes its body."""
    content = {media_type: {"schema": schema}}
    return {"requestBody": {"content": content, "required": is_required}}
