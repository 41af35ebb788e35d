"""Tenants and the life of namespaces over HTTP. Source: HTTP sheet, sections 7 and 8.1."""

from typing import Any

from fastapi import APIRouter, Body, Response
from pydantic import Field

from magnetar.broker.base import naming
from magnetar.broker.base.errors import ConflictError
from magnetar.broker.cluster.balance.layouts import create_layout
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.namespace_json import namespace_of_json, namespace_to_json
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.scalable import delete_scalable
from magnetar.broker.http.topics import forget_partitioned
from magnetar.broker.policies.model import TenantRecord
from magnetar.sdk.wire import TopicName, parse_topic_name

_OPTIONAL = Body(default=None)
_BUNDLES_MAX = 65_536


class TenantInfo(RequestBody):
    """Administrators and clusters of a tenant."""

    adminRoles: list[str] = Field(default_factory=list)
    allowedClusters: list[str] = Field(default_factory=list)

    def record(self) -> TenantRecord:
        return TenantRecord(
            admin_roles=tuple(self.adminRoles), allowed_clusters=tuple(self.allowedClusters)
        )


def tenants_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/tenants and /admin/v2/namespaces."""
    router = late_router(tags=["tenants"])
    _add_tenants(router, context)
    _add_namespaces(router, context)
    return router


def _add_tenants(router: APIRouter, context: HttpContext) -> None:
    tenants = "/admin/v2/tenants"

    @router.get(tenants)
    async def list_tenants() -> list[str]:
        """Return the names of all tenants."""
        return await context.tenants.tenants()

    @router.get(tenants + "/{tenant}")
    async def get_tenant(tenant: str) -> TenantInfo:
        """Return a tenant."""
        record = await context.tenants.tenant(tenant)
        return TenantInfo(
            adminRoles=list(record.admin_roles), allowedClusters=list(record.allowed_clusters)
        )

    @router.put(tenants + "/{tenant}", status_code=204)
    async def create_tenant(tenant: str, info: TenantInfo | None = _OPTIONAL) -> Response:
        """Create a tenant. 412 if the name is not valid, or a cluster does not exist."""
        await context.tenants.create_tenant(tenant, (info or TenantInfo()).record())
        return Response(status_code=204)

    @router.post(tenants + "/{tenant}", status_code=204)
    async def update_tenant(tenant: str, info: TenantInfo) -> Response:
        """Replace the roles and clusters of a tenant."""
        await context.tenants.update_tenant(tenant, info.record())
        return Response(status_code=204)

    @router.delete(tenants + "/{tenant}", status_code=204)
    async def delete_tenant(tenant: str, force: bool = False) -> Response:
        """Delete a tenant. 409 if it has namespaces; with `force` they are deleted, too, if that is
        allowed."""
        if force:
            if not context.settings.force_delete_tenant:
                raise HttpRefusal(405, "force is not allowed: set force_delete_tenant")
            for namespace in await context.tenants.namespaces(tenant):
                await _delete_namespace(context, namespace, is_forced=True)
        await context.tenants.delete_tenant(tenant)
        return Response(status_code=204)


def _add_namespaces(router: APIRouter, context: HttpContext) -> None:
    namespaces = "/admin/v2/namespaces/{tenant}"

    @router.get(namespaces)
    async def list_namespaces(tenant: str) -> list[str]:
        """Return the namespaces of a tenant, as tenant/namespace."""
        return await context.tenants.namespaces(tenant)

    @router.get("/admin/namespaces/{tenant}/{cluster}")
    async def list_namespaces_below(tenant: str, cluster: str) -> list[str]:
        """Return an empty list: namespaces below a cluster belong to an older model. pulsar-admin
        requests them."""
        await context.tenants.tenant(tenant)
        await context.tenants.cluster(cluster)
        return []

    @router.get(namespaces + "/{namespace}")
    async def get_namespace(tenant: str, namespace: str) -> dict[str, Any]:
        """Return all policies and properties of a namespace."""
        name = f"{tenant}/{namespace}"
        record = await context.tenants.namespace(name)
        layout = await context.admin.layouts.layout_of(name)
        boundaries = [f"{each:#010x}" for each in layout.boundaries]
        return namespace_to_json(record, context.cluster_name, boundaries)

    @router.put(namespaces + "/{namespace}", status_code=204)
    async def create_namespace(
        tenant: str, namespace: str, body: dict[str, Any] | None = _OPTIONAL
    ) -> Response:
        """Create a namespace, with policies if they are given. 409 if it exists."""
        name = f"{tenant}/{namespace}"
        body = body or {}
        record = namespace_of_json(body, context.cluster_name)
        bundles = _bundles(body)
        await context.tenants.check_new_namespace(name, record)
        if bundles:
            await create_layout(context.store, name, bundles)
        await context.tenants.create_namespace(name, record)
        return Response(status_code=204)

    @router.delete(namespaces + "/{namespace}", status_code=204)
    async def delete_namespace(tenant: str, namespace: str, force: bool = False) -> Response:
        """Delete a namespace. 409 if it has topics; with `force` they are deleted, too, if that is
        allowed."""
        if force and not context.settings.force_delete_namespace:
            raise HttpRefusal(405, "force is not allowed: set force_delete_namespace")
        await _delete_namespace(context, f"{tenant}/{namespace}", is_forced=force)
        return Response(status_code=204)


def _bundles(body: dict[str, Any]) -> int:
    """Return the number of bundles for a new namespace; 0 for the default."""
    wanted = body.get("bundles") or {}
    count = wanted.get("numBundles", 0) if isinstance(wanted, dict) else wanted
    # True is an int to Python, too.
    if type(count) is not int or not 0 <= count <= _BUNDLES_MAX:
        raise HttpRefusal(
            412, f"numBundles must be 1 to {_BUNDLES_MAX}, or 0 for the default, got {count!r:.100}"
        )
    return count


async def _delete_namespace(context: HttpContext, name: str, *, is_forced: bool) -> None:
    """Delete a namespace. From the mark on, no topic can be created in it."""
    record = await context.tenants.namespace(name)
    if record.is_deleted:  # An earlier deletion was not completed.
        await context.policies.mark_deleted(name, is_deleted=False)
    if is_forced:  # Before the mark: owners refuse requests about topics of marked namespaces.
        await _delete_topics(context, name)
    await _check_empty(context, name)
    await context.policies.mark_deleted(name, is_deleted=True)
    try:
        version = await context.tenants.marked_version(name)
        await context.admin.unload_namespace(name)
        # Only now: an owner that had not seen the mark may have created a topic until then.
        await _check_empty(context, name)
        now = await context.tenants.marked_version(name)
    except BaseException:
        await context.policies.mark_deleted(name, is_deleted=False)
        raise
    if version is None or now != version:  # The mark is another request's, which may need it.
        raise ConflictError(f"another request is deleting namespace {name}: try again")
    await context.schemas.remove_namespace(name)
    await context.tenants.delete_namespace(name, version=version)


async def _delete_topics(context: HttpContext, namespace: str) -> None:
    """Delete all topics of a namespace at their owners; their clients are disconnected."""
    topics = context.topics
    wholes = [
        whole
        for domain in ("persistent", "non-persistent")
        for whole in await topics.partitioned.names(namespace, domain)
    ]
    for whole in wholes:
        await topics.partitioned.mark_deleted(whole, with_scalable=True)

    async def delete(topic: TopicName) -> None:
        await context.admin.here(topic)
        await topics.removal.delete(topic, is_forced=True)

    every = [parse_topic_name(each) for each in await topics.names(namespace)]
    await on_each(context.admin, every, delete, "DELETE", "?force=true", may_be_missing=True)
    for named in await topics.scalable.names(namespace):
        await delete_scalable(context, naming.base_topic_of(named))
    for whole in wholes:
        await forget_partitioned(context, whole)


async def _check_empty(context: HttpContext, name: str) -> None:
    left = await context.tenants.topics_in(name)
    if left:
        raise ConflictError(
            f"namespace {name} has {len(left)} topics, such as {left[0]}: delete them first"
        )
