"""Compaction over HTTP. Source: HTTP sheet, section 9.1."""

from fastapi import APIRouter, Response

from magnetar.broker.features.compaction import compaction_of
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.sdk.wire import TopicName

_PATH = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/compaction"


def compaction_router(context: HttpContext) -> APIRouter:
    """The routes below a topic that compact it."""
    router = APIRouter(tags=["topics"])

    async def start(name: TopicName) -> None:
        compaction_of(await context.served(name)).start()

    @router.put(_PATH, status_code=204)
    async def compact(tenant: str, namespace: str, topic: str) -> Response:
        """Begin to compact a topic, or all its partitions. 409: that is being done already."""
        name = await context.topic("persistent", tenant, namespace, topic)
        record = await context.topics.partitioned.find(name)
        if record is None:
            await start(name)
        else:
            every = [name.partition(index) for index in range(record.partitions)]
            await on_each(context.admin, every, start, "PUT", "compaction")
        return Response(status_code=204)

    @router.get(_PATH)
    async def status(tenant: str, namespace: str, topic: str) -> dict[str, str]:
        """What the last compaction of a topic has come to."""
        name = await context.topic("persistent", tenant, namespace, topic)
        compaction = compaction_of(await context.served(name))
        return {"status": compaction.status.value, "lastError": compaction.last_error}

    return router
