"""What else a namespace has over HTTP: properties, a resource group. Source: HTTP sheet, 8.1."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from magnetar.broker.base.errors import InvalidNameError, NotThereError
from magnetar.broker.http.answers import done, text_or_json
from magnetar.broker.http.bodies import Flag
from magnetar.broker.http.context import HttpContext
from magnetar.broker.policies.model import NamespaceRecord

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_NO_LIMITS = "resource groups limit nothing"
_NO_MIGRATION = "clients are not sent to other clusters"


def namespace_details_router(context: HttpContext) -> APIRouter:
    """Routes below /admin/v2/namespaces."""
    router = APIRouter(tags=["namespaces"])
    _add_properties(router, context)
    _add_resource_group(router, context)
    _add_migration(router, context)
    return router


def _add_properties(router: APIRouter, context: HttpContext) -> None:
    async def change(name: str, properties: dict[str, str | None], *, clears: bool = False) -> None:
        def changed(record: NamespaceRecord) -> NamespaceRecord:
            after = {**({} if clears else record.properties), **properties}
            kept = {key: value for key, value in after.items() if value is not None}
            return record.model_copy(update={"properties": kept})

        await context.policies.update_namespace(name, changed)

    async def value_of(name: str, key: str) -> str:
        properties = (await context.tenants.namespace(name)).properties
        if key not in properties:
            raise NotThereError(f"namespace {name} has no property {key!r}")
        return properties[key]

    @router.get(_NAMESPACE + "/properties", summary="What was written down about a namespace")
    async def properties(tenant: str, namespace: str) -> dict[str, str]:
        return (await context.tenants.namespace(f"{tenant}/{namespace}")).properties

    @router.put(_NAMESPACE + "/properties", status_code=204, summary="Add to that, or change it")
    async def set_properties(tenant: str, namespace: str, values: dict[str, str]) -> Response:
        await change(f"{tenant}/{namespace}", dict(values))
        return done()

    @router.delete(_NAMESPACE + "/properties", status_code=204, summary="Remove all properties")
    async def clear_properties(tenant: str, namespace: str) -> Response:
        await change(f"{tenant}/{namespace}", {}, clears=True)
        return done()

    @router.get(
        _NAMESPACE + "/property/{key}",
        summary="One property of a namespace, as plain text",
        response_class=Response,
    )
    async def get_property(tenant: str, namespace: str, key: str) -> Response:
        return text_or_json(await value_of(f"{tenant}/{namespace}", key), is_text=True)

    @router.put(
        _NAMESPACE + "/property/{key}/{value:path}",
        status_code=204,
        summary="Set one property of a namespace",
    )
    async def put_property(tenant: str, namespace: str, key: str, value: str) -> Response:
        await change(f"{tenant}/{namespace}", {key: value})
        return done()

    @router.delete(
        _NAMESPACE + "/property/{key}",
        summary="Remove one property of a namespace; its last value",
        response_class=Response,
    )
    async def remove_property(tenant: str, namespace: str, key: str) -> Response:
        value = await value_of(f"{tenant}/{namespace}", key)
        await change(f"{tenant}/{namespace}", {key: None})
        return text_or_json(value, is_text=True)


def _add_migration(router: APIRouter, context: HttpContext) -> None:
    @router.post(
        _NAMESPACE + "/migration",
        status_code=204,
        summary="Say that a namespace has gone to another cluster",
    )
    async def set_migrated(
        tenant: str, namespace: str, migrated: Annotated[Flag, Body()]
    ) -> Response:
        """It is kept and has no effect: clients are not sent to other clusters."""

        def changed(record: NamespaceRecord) -> NamespaceRecord:
            return record.model_copy(update={"migrated": migrated})

        await context.policies.update_namespace(f"{tenant}/{namespace}", changed)
        return done(note=_NO_MIGRATION)


def _add_resource_group(router: APIRouter, context: HttpContext) -> None:
    async def change(name: str, group: str | None) -> None:
        def changed(record: NamespaceRecord) -> NamespaceRecord:
            return record.model_copy(update={"resource_group": group})

        await context.policies.update_namespace(name, changed)

    @router.get(
        _NAMESPACE + "/resourcegroup",
        summary="The resource group of a namespace, as plain text",
        response_class=Response,
    )
    async def get_group(tenant: str, namespace: str) -> Response:
        """204: it has none."""
        group = (await context.tenants.namespace(f"{tenant}/{namespace}")).resource_group
        return text_or_json(group, is_text=True) if group is not None else done()

    @router.post(
        _NAMESPACE + "/resourcegroup/{name}",
        status_code=204,
        summary="Put a namespace into a resource group",
    )
    async def set_group(tenant: str, namespace: str, name: str) -> Response:
        """It is kept and has no effect. 412: there is no such group."""
        await context.namespace(tenant, namespace)
        if name not in await context.resources.group_names():
            raise InvalidNameError(f"there is no resource group {name!r}: make it first")
        await change(f"{tenant}/{namespace}", name)
        return done(note=_NO_LIMITS)

    @router.delete(
        _NAMESPACE + "/resourcegroup",
        status_code=204,
        summary="Take a namespace out of its resource group",
    )
    async def remove_group(tenant: str, namespace: str) -> Response:
        await change(f"{tenant}/{namespace}", None)
        return done()
