"""Policies of namespaces and topics over HTTP: one set of routes per row of the table.

GET of a policy that is not set answers 204 and nothing. Any broker answers, none redirects: values
are in the metadata store, and every broker hears of changes. Source: HTTP sheet, 8.2 and 9.4.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from magnetar.broker.http import policy_table as table
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.policy_shapes import BACKLOG_QUOTA, Shape
from magnetar.broker.http.policy_table import POLICIES, Policy
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies.model import PolicySet
from magnetar.sdk.wire import TopicName

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_DOMAINS = ("persistent", "non-persistent")


def policies_router(context: HttpContext) -> APIRouter:
    """The routes of all policies."""
    router = APIRouter(tags=["policies"])
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
    return Response(status_code=204) if value is None else JSONResponse(shape.to_json(value))


def _done() -> Response:
    return Response(status_code=204)


def _add_of_namespace(router: APIRouter, context: HttpContext, policy: Policy) -> None:
    path = f"{_NAMESPACE}/{policy.namespace}"

    async def show(tenant: str, namespace: str) -> Response:
        record = await context.tenants.namespace(f"{tenant}/{namespace}")
        return _answer(policy.of_namespace(record), policy.shape)

    async def change(tenant: str, namespace: str, value: Any) -> Response:
        await context.policies.update_namespace(
            f"{tenant}/{namespace}", lambda record: policy.set_in_namespace(record, value)
        )
        return _done()

    async def replace(tenant: str, namespace: str, request: Request) -> Response:
        value = policy.shape.parse(await request.body())
        _check_partitions(context, policy, value)
        return await change(tenant, namespace, value)

    async def remove(tenant: str, namespace: str) -> Response:
        return await change(tenant, namespace, None)

    name = policy.namespace
    router.add_api_route(path, show, methods=["GET"], name=f"get-{name}")
    router.add_api_route(path, replace, methods=[policy.namespace_verb], name=f"set-{name}")
    if policy.can_remove:
        router.add_api_route(path, remove, methods=["DELETE"], name=f"remove-{name}")


def _check_partitions(context: HttpContext, policy: Policy, value: Any) -> None:
    limit = context.settings.partitions_max
    if policy.field == "auto_topic_creation" and value is not None and 0 < limit < value.partitions:
        raise HttpRefusal(406, f"defaultNumPartitions must not be above {limit}")


def _add_namespace_quotas(router: APIRouter, context: HttpContext) -> None:
    async def show(tenant: str, namespace: str) -> Response:
        record = await context.tenants.namespace(f"{tenant}/{namespace}")
        return JSONResponse(table.quotas_to_json(record.policies))

    async def replace(
        tenant: str,
        namespace: str,
        request: Request,
        backlogQuotaType: str = "destination_storage",
    ) -> Response:
        kind = table.quota_type(backlogQuotaType)
        is_removal = request.method == "DELETE"
        quota = None if is_removal else BACKLOG_QUOTA.parse(await request.body())
        await context.policies.update_namespace(
            f"{tenant}/{namespace}",
            lambda record: record.model_copy(
                update={"policies": table.with_quota(record.policies, kind, quota)}
            ),
        )
        return _done()

    router.add_api_route(f"{_NAMESPACE}/backlogQuotaMap", show, methods=["GET"])
    router.add_api_route(f"{_NAMESPACE}/backlogQuota", replace, methods=["POST", "DELETE"])


class _Topics:
    """Routes of topics of one domain."""

    def __init__(self, router: APIRouter, context: HttpContext, domain: str) -> None:
        self._router = router
        self._context = context
        self._domain = domain
        self._prefix = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}"

    async def _topic(self, tenant: str, namespace: str, topic: str) -> TopicName:
        """A topic that exists, or is partitioned.

        Raises:
            HttpRefusal: 405, a partition.
            RequestError
        """
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(405, f"{name} is a partition: the policies are its topic's")
        await self._context.topics.creation.partitions_of(name, may_create=False)
        return name

    async def _change(
        self, names: tuple[str, str, str], change: Callable[[PolicySet], PolicySet]
    ) -> Response:
        await self._context.policies.update_topic(await self._topic(*names), change)
        return _done()

    def add(self, policy: Policy) -> None:
        """A row of the table."""
        path = f"{self._prefix}/{policy.topic}"

        async def show(tenant: str, namespace: str, topic: str, applied: bool = False) -> Response:
            name = await self._topic(tenant, namespace, topic)
            value = getattr(await self._context.policies.own(name), policy.field)
            if value is None and applied:
                value = await self._applied(policy, name)
            return _answer(value, policy.shape)

        async def replace(tenant: str, namespace: str, topic: str, request: Request) -> Response:
            content = await request.body()
            if policy.topic_query:
                content = request.query_params.get(policy.topic_query, "").encode() or content
            value = policy.shape.parse(content)
            if value is None and policy.topic_query:
                raise HttpRefusal(412, f"{policy.topic_query} is missing")
            return await self._change(
                (tenant, namespace, topic), lambda own: policy.set_in_topic(own, value)
            )

        async def remove(tenant: str, namespace: str, topic: str) -> Response:
            return await self._change(
                (tenant, namespace, topic), lambda own: policy.set_in_topic(own, None)
            )

        name = f"{self._domain}-{policy.topic}"
        self._router.add_api_route(path, show, methods=["GET"], name=f"get-{name}")
        self._router.add_api_route(path, replace, methods=["POST", "PUT"], name=f"set-{name}")
        self._router.add_api_route(path, remove, methods=["DELETE"], name=f"remove-{name}")

    async def _applied(self, policy: Policy, name: TopicName) -> Any:
        record = await self._context.tenants.namespace(name.namespace_name)
        value = policy.of_namespace(record) if policy.namespace else None
        if value is None and policy.default is not None:
            value = policy.default(self._context.policies.defaults)
        return value

    def add_quotas(self) -> None:
        async def show(tenant: str, namespace: str, topic: str, applied: bool = False) -> Response:
            name = await self._topic(tenant, namespace, topic)
            shown = table.quotas_to_json(await self._context.policies.own(name))
            if applied:
                record = await self._context.tenants.namespace(name.namespace_name)
                shown = {**table.quotas_to_json(record.policies), **shown}
            return JSONResponse(shown)

        async def replace(
            tenant: str,
            namespace: str,
            topic: str,
            request: Request,
            backlogQuotaType: str = "destination_storage",
        ) -> Response:
            kind = table.quota_type(backlogQuotaType)
            is_removal = request.method == "DELETE"
            quota = None if is_removal else BACKLOG_QUOTA.parse(await request.body())
            return await self._change(
                (tenant, namespace, topic), lambda own: table.with_quota(own, kind, quota)
            )

        self._router.add_api_route(f"{self._prefix}/backlogQuotaMap", show, methods=["GET"])
        self._router.add_api_route(
            f"{self._prefix}/backlogQuota", replace, methods=["POST", "DELETE"]
        )

    def add_subscription_rate(self) -> None:
        shape = table.SUBSCRIPTION_DISPATCH_RATE

        async def show(
            tenant: str, namespace: str, topic: str, subscription: str, applied: bool = False
        ) -> Response:
            name = await self._topic(tenant, namespace, topic)
            own = await self._context.policies.own(name)
            value = (own.subscription_dispatch_rates or {}).get(subscription)
            if value is None and applied:
                policy = next(each for each in POLICIES if each.field == _SUBSCRIPTION_RATE)
                value = getattr(own, _SUBSCRIPTION_RATE) or await self._applied(policy, name)
            return _answer(value, shape)

        async def replace(
            tenant: str, namespace: str, topic: str, subscription: str, request: Request
        ) -> Response:
            is_removal = request.method == "DELETE"
            rate = None if is_removal else shape.parse(await request.body())

            def change(own: PolicySet) -> PolicySet:
                rates = dict(own.subscription_dispatch_rates or {})
                rates.pop(subscription, None)
                if rate is not None:
                    rates[subscription] = rate
                return own.model_copy(update={"subscription_dispatch_rates": rates or None})

            return await self._change((tenant, namespace, topic), change)

        path = f"{self._prefix}/{{subscription}}/dispatchRate"
        self._router.add_api_route(path, show, methods=["GET"])
        self._router.add_api_route(path, replace, methods=["POST", "DELETE"])

    def add_removal(self) -> None:
        async def remove(tenant: str, namespace: str, topic: str) -> Response:
            return await self._change((tenant, namespace, topic), lambda _: PolicySet())

        self._router.add_api_route(f"{self._prefix}/policies", remove, methods=["DELETE"])


_SUBSCRIPTION_RATE = "subscription_dispatch_rate"
