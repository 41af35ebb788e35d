"""Schemas over HTTP. Source: HTTP sheet, section 10.

Any broker answers, none redirects: schemas are in the metadata store and in ledgers. The topic
itself need not exist yet; its namespace must.
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
    """A schema, as Pulsar's tools give it."""

    model_config = ConfigDict(extra="ignore")

    type: str
    definition: Annotated[str | None, Field(alias="schema")] = None
    """Of KEY_VALUE: JSON with a key and a value."""
    properties: dict[str, str] | None = None


def schemas_router(context: HttpContext) -> APIRouter:
    """The routes below /admin/v2/schemas."""
    router = late_router(tags=["schemas"])
    schemas = context.schemas

    async def named(tenant: str, namespace: str, topic: str) -> TopicName:
        return (await context.topic("persistent", tenant, namespace, topic)).partitioned

    async def policies_of(name: TopicName) -> Policies:
        return await context.policies.of(name)

    @router.get(_PREFIX + "/schema")
    async def latest(tenant: str, namespace: str, topic: str) -> JSONResponse:
        """The schema of a topic. 404: it has none, or it was deleted."""
        return JSONResponse(
            shown_schema(await schemas.latest(await named(tenant, namespace, topic)))
        )

    @router.get(_PREFIX + "/schema/{version}")
    async def numbered(tenant: str, namespace: str, topic: str, version: int) -> JSONResponse:
        """A version of the schema, also one that was deleted."""
        name = await named(tenant, namespace, topic)
        return JSONResponse(shown_schema(await schemas.get(name, version)))

    @router.get(_PREFIX + "/schemas")
    async def versions(tenant: str, namespace: str, topic: str) -> JSONResponse:
        """All versions of the schema, oldest first."""
        found = await schemas.versions(await named(tenant, namespace, topic))
        return JSONResponse({"getSchemaResponses": [shown_schema(each) for each in found]})

    @router.get(_PREFIX + "/metadata")
    async def metadata(tenant: str, namespace: str, topic: str) -> JSONResponse:
        """Where the versions are stored."""
        index = await schemas.index(await named(tenant, namespace, topic))
        places = [_place(each) for each in index]
        return JSONResponse({"info": places[-1], "index": places})

    @router.post(_PREFIX + "/schema")
    async def register(
        tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, Any]:
        """Give the topic a schema. 409: it does not fit. 422: it is no definition of its type."""
        name = await named(tenant, namespace, topic)
        version = await schemas.put(name, _schema_of(payload), await policies_of(name))
        return {"version": {"version": version}}

    @router.delete(_PREFIX + "/schema")
    async def delete(
        tenant: str, namespace: str, topic: str, force: bool = False
    ) -> dict[str, int]:
        """Have the topic have no schema. With force, old versions cannot be read any more."""
        name = await named(tenant, namespace, topic)
        if not force:
            return {"version": await schemas.delete(name)}
        version = await schemas.remove(name)
        if version is None:
            raise HttpRefusal(404, f"Schema not found: {schema_id(name)} has none")
        return {"version": version}

    @router.post(_PREFIX + "/compatibility", status_code=202)
    async def compatibility(
        tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, Any]:
        """Whether a schema could be registered, and by which strategy."""
        name = await named(tenant, namespace, topic)
        strategy = (await policies_of(name)).schema_compatibility
        schema = _schema_of(payload)
        fits = True
        try:
            await schemas.check(name, schema, strategy)
        except InvalidSchemaError:
            raise
        except IncompatibleSchemaError:
            fits = False
        return {"compatibility": fits, "schemaCompatibilityStrategy": strategy.value}

    @router.post(_PREFIX + "/version")
    async def version_of(
        tenant: str, namespace: str, topic: str, payload: PostSchemaPayload
    ) -> dict[str, int]:
        """The version of a schema. 404: it is none of the topic's."""
        name = await named(tenant, namespace, topic)
        return {"version": await schemas.find(name, _schema_of(payload))}

    return router


def _schema_of(payload: PostSchemaPayload) -> SchemaData:
    """
    Raises:
        InvalidSchemaError
    """
    try:
        kind = SchemaType(payload.type.upper())
    except ValueError:
        raise InvalidSchemaError(f"there is no schema type {payload.type[:100]!r}") from None
    if kind is SchemaType.BYTES:
        raise InvalidSchemaError("a topic of bytes has no schema")
    text = payload.definition or ""
    try:
        data = key_value.data_of_text(text) if kind is SchemaType.KEY_VALUE else text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(f"a definition that is no text: {error}") from error
    return SchemaData(kind, data, payload.properties or {})


def shown_schema(stored: StoredSchema) -> dict[str, Any]:
    """A version of a schema as Pulsar's JSON."""
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
