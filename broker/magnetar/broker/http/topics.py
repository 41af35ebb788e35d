"""Topics over HTTP: lists, unload. Source: HTTP sheet, section 9.1."""

from fastapi import APIRouter, Response

from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.sdk.wire import parse_topic_name


def topics_router(context: HttpContext) -> APIRouter:
    """The routes below /admin/v2/persistent."""
    router = APIRouter(tags=["topics"])
    prefix = "/admin/v2/persistent/{tenant}/{namespace}"

    @router.get(prefix)
    async def topics(tenant: str, namespace: str, bundle: str = "") -> list[str]:
        """Full names of the topics of a namespace, or of one of its bundles."""
        names = await context.topics.names(await context.namespace(tenant, namespace))
        if not bundle:
            return names
        held = await context.bundle(tenant, namespace, bundle)
        return [name for name in names if held.holds(parse_topic_name(name))]

    @router.put(prefix + "/{topic}/unload", status_code=204)
    async def unload(tenant: str, namespace: str, topic: str) -> Response:
        """Have the owner close a topic: it is loaded anew when a client asks for it."""
        name = await context.topic("persistent", tenant, namespace, topic)
        record = await context.topics.partitioned.find(name)
        if record is not None:
            every = [name.partition(index) for index in range(record.partitions)]
            unload_one = context.admin.unload_topic
            await on_each(context.admin, every, unload_one, "PUT", "unload")
            return Response(status_code=204)
        if not await context.topics.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        await context.admin.unload_topic(name)
        return Response(status_code=204)

    return router
