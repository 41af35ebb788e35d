"""Resource groups and quotas of bundles; and absent services. Source: HTTP sheet, section 11.

Groups and quotas are only stored and shown: they limit nothing. Services that this broker does not
have get answers that Pulsar's tools understand.
"""

from fastapi import APIRouter, Response

from magnetar.broker.base.json_values import Flag, Number, WholeNumber
from magnetar.broker.http.bodies import RequestBody, done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies.registry import check_name

_QUOTAS = "/admin/v2/resource-quotas"
_BUNDLE = _QUOTAS + "/{tenant}/{namespace}/{bundle}"
_GROUP = "/admin/v2/resourcegroups/{name}"
_NOTE = "resource groups and quotas limit nothing"


class ResourceQuota(RequestBody):
    """Expected needs of a bundle; bandwidths and memory in MiB."""

    msgRateIn: Number = 40.0
    msgRateOut: Number = 120.0
    bandwidthIn: Number = 100_000.0
    bandwidthOut: Number = 300_000.0
    memory: Number = 80.0
    dynamic: Flag = True


class ResourceGroup(RequestBody):
    """Limits that the namespaces of a group share; -1 for none."""

    publishRateInMsgs: WholeNumber | None = None
    publishRateInBytes: WholeNumber | None = None
    dispatchRateInMsgs: WholeNumber | None = None
    dispatchRateInBytes: WholeNumber | None = None
    replicationDispatchRateInMsgs: WholeNumber | None = None
    replicationDispatchRateInBytes: WholeNumber | None = None


def resources_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/resource-quotas and /admin/v2/resourcegroups."""
    router = late_router(tags=["resources"])
    resources = context.resources

    async def default() -> ResourceQuota:
        return ResourceQuota.model_validate(await resources.quota("default") or {})

    async def bundle_of(tenant: str, namespace: str, bundle: str) -> str:
        return str(await context.bundle(tenant, namespace, bundle))

    @router.get(_QUOTAS, summary="The quota of bundles that have none of their own")
    async def default_quota() -> ResourceQuota:
        return await default()

    @router.post(_QUOTAS, status_code=204, summary="Set the quota of all other bundles")
    async def set_default_quota(quota: ResourceQuota) -> Response:
        """Store the default quota. It has no effect: quotas limit nothing."""
        await resources.set_quota("default", quota.model_dump())
        return done(note=_NOTE)

    @router.get(_BUNDLE, summary="The quota of a bundle")
    async def quota(tenant: str, namespace: str, bundle: str) -> ResourceQuota:
        found = await resources.quota(await bundle_of(tenant, namespace, bundle))
        return ResourceQuota.model_validate(found) if found is not None else await default()

    @router.post(_BUNDLE, status_code=204, summary="Set the quota of a bundle")
    async def set_quota(tenant: str, namespace: str, bundle: str, quota: ResourceQuota) -> Response:
        """Store the quota. It has no effect: quotas limit nothing."""
        name = await bundle_of(tenant, namespace, bundle)
        await resources.set_quota(name, quota.model_dump())
        return done(note=_NOTE)

    @router.delete(_BUNDLE, status_code=204, summary="Remove the quota of a bundle")
    async def remove_quota(tenant: str, namespace: str, bundle: str) -> Response:
        await resources.set_quota(await bundle_of(tenant, namespace, bundle), None)
        return done()

    @router.get("/admin/v2/resourcegroups", summary="The names of the resource groups")
    async def groups() -> list[str]:
        return await resources.group_names()

    @router.get(_GROUP, summary="A resource group", response_model_exclude_none=True)
    async def group(name: str) -> ResourceGroup:
        check_name(name)
        return ResourceGroup.model_validate(await resources.group(name))

    @router.put(_GROUP, status_code=204, summary="Create or replace a resource group")
    async def set_group(name: str, group: ResourceGroup) -> Response:
        """Store the group. It has no effect: groups limit nothing."""
        check_name(name)
        await resources.set_group(name, group.model_dump(exclude_none=True))
        return done(note=_NOTE)

    @router.delete(_GROUP, status_code=204, summary="Remove a resource group")
    async def remove_group(name: str) -> Response:
        """Remove the group; 409 if a namespace is in it."""
        check_name(name)
        for tenant in await context.tenants.tenants():
            for namespace in await context.tenants.namespaces(tenant):
                if (await context.tenants.namespace(namespace)).resource_group == name:
                    raise HttpRefusal(409, f"namespace {namespace} is in resource group {name}")
        await resources.delete_group(name)
        return done()

    return router


_METHODS = ["GET", "POST", "PUT", "DELETE"]

_ABSENT = (
    ("/admin/v3/functions", 409, "there is no functions worker: run functions as programs"),
    ("/admin/v3/sources", 409, "there is no functions worker: run sources as programs"),
    ("/admin/v3/sinks", 409, "there is no functions worker: run sinks as programs"),
    ("/admin/v3/source", 409, "there is no functions worker: run sources as programs"),
    ("/admin/v3/sink", 409, "there is no functions worker: run sinks as programs"),
    ("/admin/v2/functions", 409, "there is no functions worker: run functions as programs"),
    ("/admin/v3/packages", 404, "there is no package storage"),
    ("/admin/v2/worker", 503, "there is no functions worker"),
    ("/admin/v2/worker-stats", 503, "there is no functions worker"),
)


def absent_router() -> APIRouter:
    """Return routes that refuse all paths of absent services."""
    router = late_router(tags=["not here"])
    for prefix, status, reason in _ABSENT:
        _add(router, prefix, status, reason)
    return router


def _add(router: APIRouter, prefix: str, status: int, reason: str) -> None:
    async def refused() -> None:
        raise HttpRefusal(status, reason)

    for path in (prefix, prefix + "/{rest:path}"):
        router.add_api_route(path, refused, methods=_METHODS, include_in_schema=False)
