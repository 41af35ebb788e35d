"""Schemas over HTTP. Source: HTTP sheet, section 10.

Any broker answers, without redirects: schemas are in the metadata store and in ledgers. The topic
itself need not exist yet, but its namespace must.
"""

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies.model import Policies
from magnetar.broker.schemas import key_value
from magnetar.broker.schemas.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema
from magnetar.broker.schemas.record import IndexEntry, schema_id
from magnetar.sdk.wire import TopicName

_PREFIX = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


class PostSchemaPayload(BaseModel):
    """A schema in the form of Pulsar's tools."""

    model_config = ConfigDict(extra="ignore")

    type: str
    definition: Annotated[str | None, Field(alias="schema")] = None
    """Definition of the schema; for KEY_VALUE, JSON with a key and a value."""
    properties: dict[str, str] | None = None


class _Schemas:
    """Routes of schemas."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._schemas = context.schemas

    async def _named(self, tenant: str, namespace: str, topic: str) -> TopicName:
        return (await self._context.topic("persistent", tenant, namespace, topic)).partitioned

    async def _policies_of(self, name: TopicName) -> Policies:
        return await self._context.policies.of(name)

    async def latest(self, tenant: str, namespace: str, topic: str) -> JSONResponse:
        """Return the schema of a topic; 404 if it has none, or it was deleted."""
        return JSONResponse(
            shown_schema(await self._schemas.latest(await self._named(tenant, namespace, topic)))
        )

    async def numbered(self, tenant: str, namespace: str, topic: str, version: int) -> JSONResponse:
        """Return a version of the schema; 404 if there is none, or it was deleted."""
        name = await self._named(tenant, namespace, topic)
        return JSONResponse(shown_schema(await self._schemas.get(name, version)))

    async def versions(self, tenant: str, namespace: str, topic: str) -> JSONResponse:
        """Return the versions of the schema that were not deleted, oldest first."""
        found = await self._schemas.versions(await self._named(tenant, namespace, topic))
        return JSONResponse({"getSchemaResponses": [shown_schema(each) for each in found]})

    async def metadata(self, tenant: str, namespace: str, topic: str) -> JSONResponse:
        """Return the ledgers in which the versions are stored."""
        index = await self._schemas.index(await self._named(tenant, namespace, topic))
        places = [_place(each) for each in index]
        return JSONResponse({"info": places[-1], "index": places})

    async def register(
        self, tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, Any]:
        """Register a schema. 409 if it is not compatible, 422 if its definition is not valid for
        its type."""
        name = await self._named(tenant, namespace, topic)
        version = await self._schemas.put(name, _schema_of(payload), await self._policies_of(name))
        return {"version": {"version": version}}

    async def delete(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> dict[str, int]:
        """Delete the schema of a topic. With `force`, all versions are removed with their
        ledgers."""
        name = await self._named(tenant, namespace, topic)
        if not force:
            return {"version": await self._schemas.delete(name)}
        version = await self._schemas.remove(name)
        if version is None:
            raise HttpRefusal(404, f"Schema not found: {schema_id(name)} has none")
        return {"version": version}

    async def compatibility(
        self, tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, Any]:
        """Return whether a schema could be registered, and the strategy that decides."""
        name = await self._named(tenant, namespace, topic)
        strategy = (await self._policies_of(name)).schema_compatibility
        schema = _schema_of(payload)
        fits = True
        try:
            await self._schemas.check(name, schema, strategy)
        except InvalidSchemaError:
            raise
        except IncompatibleSchemaError:
            fits = False
        return {"compatibility": fits, "schemaCompatibilityStrategy": strategy.value}

    async def version_of(
        self, tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, int]:
        """Return the version of a schema; 404 if the topic has no such schema."""
        name = await self._named(tenant, namespace, topic)
        return {"version": await self._schemas.find(name, _schema_of(payload))}


def schemas_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/schemas."""
    router = late_router(tags=["schemas"])
    routes = _Schemas(context)
    router.get(_PREFIX + "/schema")(routes.latest)
    router.get(_PREFIX + "/schema/{version}")(routes.numbered)
    router.get(_PREFIX + "/schemas")(routes.versions)
    router.get(_PREFIX + "/metadata")(routes.metadata)
    router.post(_PREFIX + "/schema")(routes.register)
    router.delete(_PREFIX + "/schema")(routes.delete)
    router.post(_PREFIX + "/compatibility", status_code=202)(routes.compatibility)
    router.post(_PREFIX + "/version")(routes.version_of)
    return router


def _schema_of(payload: PostSchemaPayload) -> SchemaData:
    """Return the schema in a body.

    Raises:
        InvalidSchemaError: its type is unknown, or its definition is not text.
    """
    try:
        kind = SchemaType(payload.type.upper())
    except ValueError:
        raise InvalidSchemaError(f"there is no schema type {payload.type[:100]!r}") from None
    if kind is SchemaType.BYTES:
        raise InvalidSchemaError("a topic with schema BYTES has no definition")
    text = payload.definition or ""
    try:
        data = key_value.data_of_text(text) if kind is SchemaType.KEY_VALUE else text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(f"the definition is not text: {error}") from error
    return SchemaData(kind, data, payload.properties or {})


def shown_schema(stored: StoredSchema) -> dict[str, Any]:
    """Return a version of a schema as Pulsar's JSON."""
    schema = stored.schema
    if schema.type is SchemaType.KEY_VALUE:
        text = key_value.text_of_data(schema.data)
    else:
        text = schema.data.decode("utf-8", "replace")
    return {
        "version": stored.version,
        "type": schema.type.value,
        "timestamp": stored.timestamp_ms,
        "data": text,
        "properties": dict(schema.properties),
    }


def _place(entry: IndexEntry) -> dict[str, int]:
    entry_id = -1 if entry.is_deletion else 0
    return {"version": entry.version, "ledgerId": entry.ledger_id, "entryId": entry_id}
