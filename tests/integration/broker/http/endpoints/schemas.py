"""Endpoints of schemas. What they answer in detail: tests/integration/pulsar_client."""

import json

from tests.integration.broker.http.endpoints.rows import NAMESPACE, Before, Row

SCHEMA = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "R", "fields": []})}
_PREFIX = f"/admin/v2/schemas/{NAMESPACE}"
_BROKEN = {"type": "AVRO", "schema": "{"}


def _row(
    method: str,
    action: str,
    body: object = None,
    *,
    name: str,
    status: int = 200,
    wrong: tuple[str | None, object, int] | None = None,
) -> Row:
    """On a topic of its own; asked of one without a schema first."""
    path = f"{_PREFIX}/{name}"
    before: tuple[Before, ...] = (("POST", f"{path}/schema", SCHEMA),)
    missing = (f"{_PREFIX}/none/{action}", 404) if status != 202 else None
    return Row(method, f"{path}/{action}", body, status, wrong, missing, before)


SCHEMAS = (
    Row(
        "POST",
        f"{_PREFIX}/posted/schema",
        SCHEMA,
        200,
        (None, _BROKEN, 422),
        ("/admin/v2/schemas/acme/nowhere/posted/schema", 404),
    ),
    _row("GET", "schema", name="latest"),
    _row("GET", "schema/0", name="numbered", wrong=(f"{_PREFIX}/numbered/schema/x", None, 400)),
    _row("GET", "schemas", name="all"),
    _row("GET", "metadata", name="places"),
    _row("POST", "version", SCHEMA, name="found", wrong=(None, _BROKEN, 422)),
    _row("POST", "compatibility", SCHEMA, name="fits", status=202, wrong=(None, _BROKEN, 422)),
    _row(
        "DELETE",
        "schema",
        name="deleted",
        wrong=(f"{_PREFIX}/deleted/schema?force=perhaps", None, 400),
    ),
)
