"""Permissions of roles, over HTTP. Source: HTTP sheet, sections 8.1 and 9.1.

Grants for topics and subscriptions are stored with their namespace. `security/` decides by them.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Body, Response

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.http.bodies import done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.policies.model import AuthAction, NamespaceRecord

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
_DOMAINS = ("persistent", "non-persistent")

Grants = dict[str, list[str]]
Actions = Annotated[list[AuthAction], Body(description="Permitted actions of the role.")]
Roles = Annotated[list[str], Body(description="The roles that may use the subscription.")]


def permissions_router(context: HttpContext) -> APIRouter:
    """Return the routes of grants on namespaces and topics."""
    router = late_router(tags=["permissions"])
    _add_of_namespaces(router, context)
    for domain in _DOMAINS:
        _add_of_topics(router, context, domain)
    _add_of_topics(router, context, "persistent", below="scalable")
    return router


def _shown(grants: Mapping[str, tuple[str, ...]]) -> Grants:
    return {role: list(actions) for role, actions in grants.items()}


def _given(
    grants: Mapping[str, tuple[str, ...]], role: str, actions: list[AuthAction]
) -> dict[str, tuple[str, ...]]:
    """Return the grants with those of one role replaced."""
    return {**grants, role: tuple(sorted({each.value for each in actions}))}


def _taken(grants: Mapping[str, tuple[str, ...]], role: str) -> dict[str, tuple[str, ...]]:
    return {each: actions for each, actions in grants.items() if each != role}


def _add_of_subscriptions(router: APIRouter, context: HttpContext) -> None:
    @router.get(_NAMESPACE + "/subscription", summary="The roles that may use each subscription")
    async def show_subscriptions(tenant: str, namespace: str) -> Grants:
        record = await context.tenants.namespace(f"{tenant}/{namespace}")
        return _shown(record.subscription_permissions)

    @router.post(
        _NAMESPACE + "/subscription/{subscription}",
        status_code=204,
        summary="Grant roles permission to use a subscription",
    )
    async def grant_subscription(
        tenant: str, namespace: str, subscription: str, roles: Roles
    ) -> Response:
        """Grant the roles; from then on no other role may use the subscription on any topic of the
        namespace."""

        def change(record: NamespaceRecord) -> NamespaceRecord:
            known = record.subscription_permissions
            granted = tuple(sorted({*known.get(subscription, ()), *roles}))
            return _with_subscriptions(record, {**known, subscription: granted})

        await context.policies.update_namespace(f"{tenant}/{namespace}", change)
        return done()

    @router.delete(
        _NAMESPACE + "/{subscription}/{role}",
        status_code=204,
        summary="Revoke a role's permission to use a subscription",
    )
    async def revoke_subscription(
        tenant: str, namespace: str, subscription: str, role: str
    ) -> Response:
        def change(record: NamespaceRecord) -> NamespaceRecord:
            known = dict(record.subscription_permissions)
            left = tuple(each for each in known.pop(subscription, ()) if each != role)
            return _with_subscriptions(record, {**known, subscription: left} if left else known)

        await context.policies.update_namespace(f"{tenant}/{namespace}", change)
        return done()


def _add_of_namespaces(router: APIRouter, context: HttpContext) -> None:
    @router.get(_NAMESPACE, summary="Permissions of each role on a namespace")
    async def show(tenant: str, namespace: str) -> Grants:
        record = await context.tenants.namespace(f"{tenant}/{namespace}")
        return _shown(record.permissions)

    _add_of_subscriptions(router, context)

    @router.post(
        _NAMESPACE + "/{role}", status_code=204, summary="Grant a role permissions on a namespace"
    )
    async def grant(tenant: str, namespace: str, role: str, actions: Actions) -> Response:
        """Grant actions on all topics of a namespace; they replace the role's former grants."""

        def change(record: NamespaceRecord) -> NamespaceRecord:
            granted = _given(record.permissions, role, actions)
            return record.model_copy(update={"permissions": granted})

        await context.policies.update_namespace(f"{tenant}/{namespace}", change)
        return done()

    @router.delete(
        _NAMESPACE + "/{role}",
        status_code=204,
        summary="Revoke all permissions of a role on a namespace",
    )
    async def revoke(tenant: str, namespace: str, role: str) -> Response:
        """Revoke the grants on a namespace; grants on single topics stay."""

        def change(record: NamespaceRecord) -> NamespaceRecord:
            return record.model_copy(update={"permissions": _taken(record.permissions, role)})

        await context.policies.update_namespace(f"{tenant}/{namespace}", change)
        return done()


def _with_subscriptions(
    record: NamespaceRecord, permissions: dict[str, tuple[str, ...]]
) -> NamespaceRecord:
    return record.model_copy(update={"subscription_permissions": permissions})


def _add_of_topics(
    router: APIRouter, context: HttpContext, domain: str, *, below: str = ""
) -> None:
    """Add the routes for topics. `below`: part of the path before the tenant; empty for the
    domain."""
    path = f"/admin/v2/{below or domain}/{{tenant}}/{{namespace}}/{{topic}}/permissions"

    async def name_of(tenant: str, namespace: str, topic: str) -> str:
        """Return the full name of the whole topic. It need not exist: it may get rights before it
        does."""
        return str((await context.topic(domain, tenant, namespace, topic)).partitioned)

    async def change(
        name: str, namespace: str, role: str, actions: list[AuthAction] | None
    ) -> Response:
        def changed(record: NamespaceRecord) -> NamespaceRecord:
            known = dict(record.topic_permissions)
            roles = known.pop(name, {})
            if actions is None and role not in roles:
                raise NotThereError(
                    f"role {role} has no permissions on {name} itself: revoke those that it has on "
                    "the namespace there"
                )
            after = _taken(roles, role) if actions is None else _given(roles, role, actions)
            if after:
                known[name] = after
            return record.model_copy(update={"topic_permissions": known})

        await context.policies.update_namespace(namespace, changed)
        return done()

    @router.get(path, summary=f"Permissions of each role on a {domain} topic")
    async def show(tenant: str, namespace: str, topic: str) -> Grants:
        """Return the grants on the topic; those of its namespace are included."""
        name = await name_of(tenant, namespace, topic)
        record = await context.tenants.namespace(f"{tenant}/{namespace}")
        shown = _shown(record.permissions)
        for role, actions in record.topic_permissions.get(name, {}).items():
            shown[role] = sorted({*shown.get(role, ()), *actions})
        return shown

    @router.post(
        path + "/{role}", status_code=204, summary=f"Grant a role permissions on a {domain} topic"
    )
    async def grant(
        tenant: str, namespace: str, topic: str, role: str, actions: Actions
    ) -> Response:
        name = await name_of(tenant, namespace, topic)
        return await change(name, f"{tenant}/{namespace}", role, actions)

    @router.delete(
        path + "/{role}",
        status_code=204,
        summary=f"Revoke all permissions of a role on a {domain} topic",
    )
    async def revoke(tenant: str, namespace: str, topic: str, role: str) -> Response:
        """Revoke the grants on the topic; 404 if the role has none on the topic itself."""
        name = await name_of(tenant, namespace, topic)
        return await change(name, f"{tenant}/{namespace}", role, None)
