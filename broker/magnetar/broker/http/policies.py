"""Policies of namespaces and topics over HTTP: one set of routes per row of the table.

GET of a policy that is not set answers 204 without a body. Any broker answers, without redirects:
values are in the metadata store, and every broker learns of changes. Source: HTTP sheet, 8.2 and
9.4.

The routes read paths and bodies themselves. There are hundreds of them, and FastAPI's models of the
same few parameters for each would take most of the time that a broker needs to start.
"""

import re
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.features.offloading.rules import store_of
from magnetar.broker.http.bodies import done, text_or_json, with_body
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.policy import (
    BACKLOG_QUOTA,
    CLUSTERS,
    Shape,
    quota_type,
    quotas_to_json,
    shape_of,
)
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.scalable import check_scaling
from magnetar.broker.policies.model import DispatchRate, Policies, QuotaType
from magnetar.broker.policies.table import BY_FIELD, POLICIES, Policy
from magnetar.sdk.wire import TopicName

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_DOMAINS = ("persistent", "non-persistent")


def policies_router(context: HttpContext) -> APIRouter:
    """Return the routes of all policies."""
    router = late_router(tags=["policies"])
    for policy in POLICIES:
        if policy.namespace:
            _add_of_namespace(router, context, policy)
    _add_namespace_quotas(router, context)
    for domain in _DOMAINS:
        topics = _Topics(router, context, domain)
        for policy in POLICIES:
            if policy.topic:
                topics.add(policy)
        topics.add_quotas()
        topics.add_subscription_rate()
        topics.add_removal()
    return router


def _answer(value: Any, shape: Shape) -> Response:
    if value is None:
        return done()
    return text_or_json(shape.to_json(value), is_text=shape.is_text)


def _namespace_of(request: Request) -> str:
    names = request.path_params
    return f"{names['tenant']}/{names['namespace']}"


def _is_applied(request: Request) -> bool:
    return request.query_params.get("applied", "").lower() in ("true", "1")


def _quota_type_of(request: Request) -> QuotaType:
    return quota_type(request.query_params.get("backlogQuotaType", QuotaType.SIZE))


def _add_of_namespace(router: APIRouter, context: HttpContext, policy: Policy) -> None:
    path = f"{_NAMESPACE}/{policy.namespace}"
    words = _words(policy.namespace)
    shape = shape_of(policy)

    async def show(request: Request) -> Response:
        name = _namespace_of(request)
        value = policy.of_namespace(await context.tenants.namespace(name))
        if value is None and policy.unset is not None:
            return text_or_json(policy.unset, is_text=shape.is_text)
        return _answer(value, shape)

    async def change(name: str, value: Any) -> Response:
        await context.policies.update_namespace(
            name, lambda record: policy.set_in_namespace(record, value)
        )
        return done(note=_note(context, policy, value))

    async def replace(request: Request) -> Response:
        value = shape.parse(await request.body())
        _check_partitions(context, policy, value)
        _check_store(context, policy, value)
        if policy.field == "auto_scale":
            check_scaling(context, value)
        await _check_clusters(context, policy, value)
        return await change(_namespace_of(request), value)

    async def remove(request: Request) -> Response:
        return await change(_namespace_of(request), None)

    name = policy.namespace
    _add(router, path, show, ["GET"], f"get-{name}", f"The {words} of a namespace", policy)
    verbs = [policy.namespace_verb]
    _add(router, path, replace, verbs, f"set-{name}", f"Set the {words} of a namespace", policy)
    if policy.can_remove:
        name = "removeOffloadPolicies" if policy.field == "offload" else name
        path = f"{_NAMESPACE}/{name}"
        summary = f"Remove the {words} of a namespace"
        _add(router, path, remove, ["DELETE"], f"remove-{name}", summary, policy)


def _words(name: str) -> str:
    """Return a name in words: inactiveTopicPolicies as inactive topic policies."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.rpartition("/")[2])
    return spaced if spaced.isupper() else spaced.lower().replace("message ttl", "message TTL")


def _add(
    router: APIRouter,
    path: str,
    function: Callable[..., Any],
    verbs: list[str],
    name: str,
    summary: str,
    policy: Policy | None,
    shape: Shape | None = None,
) -> None:
    """Add one route, with a description of its parameters and its answer."""
    shape = shape or (shape_of(policy) if policy is not None else BACKLOG_QUOTA)
    text = f"{summary}."
    if policy is not None and policy.note:
        text += f" It is kept and has no effect: {policy.note}."
    if verbs == ["GET"]:
        text += " 204: it is not set."
    router.add_api_route(
        path,
        function,
        methods=verbs,
        name=name,
        summary=summary,
        description=text,
        status_code=200 if verbs == ["GET"] else 204,
        responses={200: {"content": {"application/json": {"schema": shape.schema()}}}}
        if verbs == ["GET"]
        else None,
        openapi_extra=_extra(path, verbs[0], shape, policy),
        response_class=Response,
    )


def _extra(path: str, verb: str, shape: Shape, policy: Policy | None) -> dict[str, Any]:
    """Describe the parameters that the route reads itself. Names in the path are described for all
    routes together."""
    is_topic = "{topic}" in path
    query: list[dict[str, Any]] = []
    if path.endswith("/backlogQuota"):
        kinds = {"type": "string", "enum": list(QuotaType), "default": QuotaType.SIZE}
        query = [{"name": "backlogQuotaType", "in": "query", "schema": kinds}]
    elif verb == "GET" and is_topic:
        text = "Return the effective value if the topic has none of its own."
        schema = {"type": "boolean", "default": False}
        query = [{"name": "applied", "in": "query", "schema": schema, "description": text}]
    if verb not in ("POST", "PUT"):
        return {"parameters": query}
    if is_topic and policy is not None and policy.topic_query:
        schema = shape.schema()
        return {"parameters": [{"name": policy.topic_query, "in": "query", "schema": schema}]}
    return {"parameters": query, **with_body(shape.schema())}


def _check_partitions(context: HttpContext, policy: Policy, value: Any) -> None:
    limit = context.settings.partitions_max
    if policy.field == "auto_topic_creation" and value is not None and 0 < limit < value.partitions:
        raise HttpRefusal(406, f"defaultNumPartitions must not be above {limit}")


async def _check_clusters(context: HttpContext, policy: Policy, value: Any) -> None:
    """Refuse unknown clusters, and replication that leaves this cluster out."""
    if shape_of(policy) is not CLUSTERS or value is None:
        return
    known = await context.tenants.clusters()
    for name in value:
        if name not in known:
            raise HttpRefusal(412, f"there is no cluster {name!r}, only {', '.join(known)}")
    is_replication = policy.namespace == "replication" or policy.topic == "replication"
    if is_replication and context.cluster_name not in value:
        raise HttpRefusal(
            412,
            f"replication clusters must include this cluster, {context.cluster_name}. To remove "
            "a topic from it, delete the topic",
        )


def _is_of_offloading(policy: Policy) -> bool:
    return policy.field.startswith("offload")


def _note(context: HttpContext, policy: Policy, value: Any) -> str:
    """Return why a policy has no effect on this broker; empty if it has one, or is removed."""
    if value is None:
        return ""
    if _is_of_offloading(policy) and not context.settings.object_stores:
        return "the brokers have no object store (object_stores in their settings)"
    return policy.note


def _check_store(context: HttpContext, policy: Policy, value: Any) -> None:
    """Refuse an object store that the brokers do not have, if they have any."""
    stores = context.settings.object_stores
    if policy.field != "offload" or not value or not stores:
        return
    urls = {store.name: store.url for store in stores}
    try:
        store_of(Policies(offload=value), urls, "")
    except InvalidPolicyError as error:
        raise HttpRefusal(412, str(error)) from error


def _add_namespace_quotas(router: APIRouter, context: HttpContext) -> None:
    async def show(request: Request) -> Response:
        record = await context.tenants.namespace(_namespace_of(request))
        return JSONResponse(quotas_to_json(record.policies))

    async def replace(request: Request) -> Response:
        kind = _quota_type_of(request)
        is_removal = request.method == "DELETE"
        quota = None if is_removal else BACKLOG_QUOTA.parse(await request.body())
        await context.policies.update_namespace(
            _namespace_of(request),
            lambda record: record.model_copy(
                update={"policies": record.policies.with_quota(kind, quota)}
            ),
        )
        return done()

    _add_quotas(router, _NAMESPACE, "namespace", show, replace)


def _add_quotas(
    router: APIRouter,
    prefix: str,
    what: str,
    show: Callable[..., Any],
    replace: Callable[..., Any],
) -> None:
    router.add_api_route(
        f"{prefix}/backlogQuotaMap",
        show,
        methods=["GET"],
        summary=f"The backlog quotas of a {what}, by their types",
    )
    path, name = f"{prefix}/backlogQuota", f"backlogQuota of a {what}"
    _add(router, path, replace, ["POST"], f"set {name}", f"Set a {name}", None)
    _add(router, path, replace, ["DELETE"], f"remove {name}", f"Remove a {name}", None)


class _Topics:
    """Routes of topics of one domain."""

    def __init__(self, router: APIRouter, context: HttpContext, domain: str) -> None:
        self._router = router
        self._context = context
        self._domain = domain
        self._prefix = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}"

    async def _topic(self, request: Request) -> TopicName:
        """Return the topic in the path: one that exists, or is partitioned, or is scalable. A
        scalable topic has its policies here, too.

        Raises:
            HttpRefusal: 405, the topic is a partition.
            RequestError
        """
        names = request.path_params
        tenant, namespace, topic = names["tenant"], names["namespace"], names["topic"]
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(
                405, f"{name} is a partition: use the partitioned topic, which has the policies"
            )
        creation = self._context.topics.creation
        if not await creation.is_scalable(name):
            await creation.partitions_of(name, may_create=False)
        return name

    async def _change(
        self,
        request: Request,
        change: Callable[[Policies], Policies],
        note: str = "",
    ) -> Response:
        await self._context.policies.update_topic(await self._topic(request), change)
        return done(note=note)

    def add(self, policy: Policy) -> None:
        """Add the routes for a row of the table."""
        path = f"{self._prefix}/{policy.topic}"
        shape = shape_of(policy)

        async def show(request: Request) -> Response:
            name = await self._topic(request)
            value = (await self._context.policies.own(name)).own(policy.field)
            if value is None and _is_applied(request):
                value = await self._applied(policy, name)
            return _answer(value, shape)

        async def replace(request: Request) -> Response:
            content = await request.body()
            if policy.topic_query:
                content = request.query_params.get(policy.topic_query, "").encode() or content
            value = shape.parse(content)
            if value is None and policy.topic_query:
                raise HttpRefusal(412, f"{policy.topic_query} is missing")
            await _check_clusters(self._context, policy, value)
            _check_store(self._context, policy, value)
            note = _note(self._context, policy, value)
            return await self._change(request, lambda own: policy.set_in(own, value), note)

        async def remove(request: Request) -> Response:
            return await self._change(request, lambda own: policy.set_in(own, None))

        name = f"{self._domain}-{policy.topic}"
        words = _words(policy.topic)
        of = f"{words} of a {self._domain} topic"
        _add(self._router, path, show, ["GET"], f"get-{name}", f"The {of}", policy)
        for verb in ("POST", "PUT"):
            summary = f"Set the {of}"
            _add(self._router, path, replace, [verb], f"{verb}-{name}", summary, policy)
        _add(self._router, path, remove, ["DELETE"], f"remove-{name}", f"Remove the {of}", policy)

    async def _applied(self, policy: Policy, name: TopicName) -> Any:
        record = await self._context.tenants.namespace(name.namespace_name)
        value = policy.of_namespace(record) if policy.namespace else None
        if value is None and policy.broker is not None:
            value = getattr(self._context.policies.defaults, policy.field)
        return value

    def add_quotas(self) -> None:
        async def show(request: Request) -> Response:
            name = await self._topic(request)
            shown = quotas_to_json(await self._context.policies.own(name))
            if _is_applied(request):
                record = await self._context.tenants.namespace(name.namespace_name)
                shown = {**quotas_to_json(record.policies), **shown}
            return JSONResponse(shown)

        async def replace(request: Request) -> Response:
            kind = _quota_type_of(request)
            is_removal = request.method == "DELETE"
            quota = None if is_removal else BACKLOG_QUOTA.parse(await request.body())
            return await self._change(request, lambda own: own.with_quota(kind, quota))

        _add_quotas(self._router, self._prefix, f"{self._domain} topic", show, replace)

    def add_subscription_rate(self) -> None:
        policy = BY_FIELD["subscription_dispatch_rate"]
        shape = shape_of(policy)

        async def show(request: Request) -> Response:
            name = await self._topic(request)
            own = await self._context.policies.own(name)
            value = own.subscription_dispatch_rates.get(request.path_params["subscription"])
            if value is None and _is_applied(request):
                value = own.own(policy.field) or await self._applied(policy, name)
            return _answer(value, shape)

        async def replace(request: Request) -> Response:
            subscription = request.path_params["subscription"]
            is_removal = request.method == "DELETE"
            rate = None if is_removal else shape.parse(await request.body())

            def change(own: Policies) -> Policies:
                rates: dict[str, DispatchRate] = dict(own.subscription_dispatch_rates)
                rates.pop(subscription, None)
                if rate is not None:
                    rates[subscription] = rate
                return own.with_values(subscription_dispatch_rates=rates or None)

            return await self._change(request, change)

        path = f"{self._prefix}/{{subscription}}/dispatchRate"
        of = f"dispatch rate of a subscription of a {self._domain} topic"
        for verb, words, function in (
            ("GET", "The", show),
            ("POST", "Set the", replace),
            ("DELETE", "Remove the", replace),
        ):
            summary = f"{words} {of}"
            _add(self._router, path, function, [verb], f"{verb} {of}", summary, None, shape)

    def add_removal(self) -> None:
        async def remove(request: Request) -> Response:
            return await self._change(request, lambda _: Policies())

        self._router.add_api_route(
            f"{self._prefix}/policies",
            remove,
            methods=["DELETE"],
            status_code=204,
            summary=f"Remove all policies that a {self._domain} topic has of its own",
            response_class=Response,
        )
