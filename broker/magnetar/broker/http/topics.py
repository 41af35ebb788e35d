"""Topics over HTTP: lists, partitions, unload. Source: HTTP sheet, section 9.1."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.sdk.wire import parse_topic_name


class PartitionedTopicMetadata(BaseModel):
    """How many partitions a topic has; 0: it stands for itself."""

    partitions: int = 0
    deleted: bool = False


def topics_router(context: HttpContext) -> APIRouter:
    """The routes below /admin/v2/persistent and /admin/v2/schemas."""
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

    @router.get(prefix + "/{topic}/partitions")
    async def partitions(
        tenant: str,
        namespace: str,
        topic: str,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> PartitionedTopicMetadata:
        """0: there are no partitioned topics yet. 404: it does not exist, and was not to be."""
        name = await context.topic("persistent", tenant, namespace, topic)
        await context.topics.creation.check(name, may_create=may_create)
        return PartitionedTopicMetadata()

    @router.put(prefix + "/{topic}/unload", status_code=204)
    async def unload(tenant: str, namespace: str, topic: str) -> Response:
        """Have the owner close a topic: it is loaded anew when a client asks for it."""
        name = await context.topic("persistent", tenant, namespace, topic)
        if not await context.topics.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        await context.admin.unload_topic(name)
        return Response(status_code=204)

    @router.get("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema")
    @router.get("/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}")
    async def schema(tenant: str, namespace: str, topic: str) -> None:
        """There are no schemas yet."""
        name = await context.topic("persistent", tenant, namespace, topic)
        raise HttpRefusal(404, f"{name} has no schema")

    return router
