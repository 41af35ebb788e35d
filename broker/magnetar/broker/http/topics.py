"""Topics over HTTP: lists, unload, offload. Source: HTTP sheet, section 9.1."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel

from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.life import MessageId
from magnetar.broker.http.listing import has_properties, properties_of, without_system
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.sdk.wire import parse_topic_name


class OffloadStatus(BaseModel):
    """Of a topic: there is no offloader."""

    status: Literal["NOT_RUN"] = "NOT_RUN"
    lastError: str = ""


def topics_router(context: HttpContext) -> APIRouter:
    """The routes below /admin/v2/persistent."""
    router = APIRouter(tags=["topics"])
    prefix = "/admin/v2/persistent/{tenant}/{namespace}"

    @router.get(prefix, summary="The topics of a namespace, or of one of its bundles")
    async def topics(
        tenant: str,
        namespace: str,
        bundle: str = "",
        includeSystemTopic: bool = False,
        properties: str = "",
    ) -> list[str]:
        """Full names; of a partitioned topic, of each partition.

        `properties`: only topics that have all of these, as key=value with commas between.
        """
        name = await context.namespace(tenant, namespace)
        names = without_system(await context.topics.names(name), keeps=includeSystemTopic)
        if bundle:
            held = await context.bundle(tenant, namespace, bundle)
            names = [each for each in names if held.holds(parse_topic_name(each))]
        if properties:
            has = [has_properties(await properties_of(context, each), properties) for each in names]
            names = [each for each, is_wanted in zip(names, has, strict=True) if is_wanted]
        return names

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

    @router.put(prefix + "/{topic}/offload", status_code=204, summary="Offload old messages")
    async def offload(
        tenant: str, namespace: str, topic: str, until: Annotated[MessageId, Body()]
    ) -> Response:
        """412: this broker has no offloader."""
        name = await context.topic("persistent", tenant, namespace, topic)
        await context.served(name)
        raise HttpRefusal(412, f"{name} cannot be offloaded: this broker has no offloader")

    @router.get(prefix + "/{topic}/offload", summary="What the last offloading has come to")
    async def offload_status(tenant: str, namespace: str, topic: str) -> OffloadStatus:
        await context.served(await context.topic("persistent", tenant, namespace, topic))
        return OffloadStatus()

    return router
