"""Backlogs of whole namespaces over HTTP, and the check of quotas at once.

Source: HTTP sheet, sections 4 (backlog-quota-check) and 8.1 (clearBacklog, unsubscribe).
"""

from collections.abc import Sequence
from urllib.parse import quote

from fastapi import APIRouter, Response

from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import operating
from magnetar.broker.topics.keeping import Keeping
from magnetar.sdk.wire import TopicName, parse_topic_name

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


def backlogs_router(context: HttpContext, keeping: Keeping) -> APIRouter:
    """The routes about the backlogs of many topics."""
    router = APIRouter(tags=["backlogs"])

    async def topics_of(tenant: str, namespace: str) -> list[TopicName]:
        name = await context.namespace(tenant, namespace)
        return [parse_topic_name(each) for each in await context.topics.names(name)]

    async def topics_in(tenant: str, namespace: str, bundle: str) -> list[TopicName]:
        held = await context.bundle(tenant, namespace, bundle)
        return [each for each in await topics_of(tenant, namespace) if held.holds(each)]

    async def durable(topic: TopicName) -> list[Subscription]:
        there = await context.served(topic)
        return [each for each in there.subscriptions.values() if each.is_durable and each.is_open]

    async def clear(topics: Sequence[TopicName], wanted: str | None) -> None:
        async def names(topic: TopicName) -> list[str]:
            return [each.name for each in await durable(topic)]

        found = await on_each(
            context.admin, topics, names, "GET", "subscriptions", may_be_missing=True
        )
        for topic, subscriptions in zip(topics, found, strict=True):
            for name in subscriptions if isinstance(subscriptions, list) else ():
                if wanted in (None, name):
                    await clear_one(topic, str(name))

    async def clear_one(topic: TopicName, name: str) -> None:
        async def skip_all(of: TopicName) -> None:
            for each in await durable(of):
                if each.name == name:
                    await operating.skip_all(each)

        action = f"subscription/{quote(name, safe='')}/skip_all"
        await on_each(context.admin, [topic], skip_all, "POST", action, may_be_missing=True)

    @router.post(_NAMESPACE + "/clearBacklog", status_code=204)
    async def clear_all(tenant: str, namespace: str) -> Response:
        """Forget the backlogs of all subscriptions of a namespace."""
        await clear(await topics_of(tenant, namespace), None)
        return Response(status_code=204)

    @router.post(_NAMESPACE + "/clearBacklog/{sub:path}", status_code=204)
    async def clear_subscription(tenant: str, namespace: str, sub: str) -> Response:
        """Forget the backlogs of one subscription on all topics of a namespace."""
        await clear(await topics_of(tenant, namespace), sub)
        return Response(status_code=204)

    @router.post(_NAMESPACE + "/{bundle}/clearBacklog", status_code=204)
    async def clear_bundle(tenant: str, namespace: str, bundle: str) -> Response:
        """Forget the backlogs of all subscriptions of one bundle."""
        await clear(await topics_in(tenant, namespace, bundle), None)
        return Response(status_code=204)

    @router.post(_NAMESPACE + "/{bundle}/clearBacklog/{sub:path}", status_code=204)
    async def clear_subscription_of_bundle(
        tenant: str, namespace: str, bundle: str, sub: str
    ) -> Response:
        """Forget the backlogs of one subscription on all topics of one bundle."""
        await clear(await topics_in(tenant, namespace, bundle), sub)
        return Response(status_code=204)

    @router.post(_NAMESPACE + "/unsubscribe/{sub:path}", status_code=204)
    async def unsubscribe(tenant: str, namespace: str, sub: str) -> Response:
        """Delete a subscription on all topics of a namespace. 412: it has consumers somewhere."""

        async def delete(topic: TopicName) -> None:
            there = await context.served(topic)
            for each in await durable(topic):
                if each.name == sub:
                    await there.subscriptions.delete(each, is_forced=False)

        action = f"subscription/{quote(sub, safe='')}"
        topics = await topics_of(tenant, namespace)
        await on_each(context.admin, topics, delete, "DELETE", action, may_be_missing=True)
        return Response(status_code=204)

    @router.get("/admin/v2/brokers/backlog-quota-check", status_code=204)
    async def check_quotas() -> Response:
        """Check the quotas of the topics of this broker now."""
        for topic in context.topics.loaded:
            work = keeping.quotas.look_at(topic)
            if work is not None and topic.tenure.holds():
                await work
        return Response(status_code=204)

    return router
