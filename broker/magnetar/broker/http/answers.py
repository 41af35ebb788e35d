"""Answers that are no JSON object, and descriptions of bodies that routes read themselves."""

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

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
