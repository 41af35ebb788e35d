"""Partitioned topics over HTTP: create, grow, look, list. Source: HTTP sheet, section 9.1."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from magnetar.broker.base import naming
from magnetar.broker.base.errors import PartitionCountError
from magnetar.broker.features.transactions.ids import COORDINATORS
from magnetar.broker.http.bodies import Flag, WholeNumber
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import HttpRefusal

DOMAINS = ("persistent", "non-persistent")


class PartitionedTopicMetadata(BaseModel):
    """How many partitions a topic has; 0: it stands for itself."""

    partitions: WholeNumber = 0
    deleted: Flag = False
    properties: dict[str, str] | None = None


def partitions_router(context: HttpContext) -> APIRouter:
    """The routes of partitioned topics below /admin/v2/persistent and non-persistent."""
    router = APIRouter(tags=["partitioned topics"])
    for domain in DOMAINS:
        _add_routes(router, context, domain)
    return router


def _add_routes(router: APIRouter, context: HttpContext, domain: str) -> None:
    prefix = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}"
    partitioned = context.topics.partitioned

    @router.get(prefix + "/partitioned")
    async def partitioned_topics(tenant: str, namespace: str) -> list[str]:
        """Full names of the partitioned topics of a namespace."""
        names = await partitioned.names(await context.namespace(tenant, namespace), domain)
        return [str(name) for name in names]

    @router.put(prefix + "/{topic}/partitions", status_code=204)
    async def create(
        tenant: str,
        namespace: str,
        topic: str,
        wanted: Annotated[WholeNumber | PartitionedTopicMetadata, Body()],
    ) -> Response:
        """Create a partitioned topic with all its partitions.

        409: the name is taken. 406: no such number. 412: the name is that of a partition.
        """
        name = await context.topic(domain, tenant, namespace, topic)
        if isinstance(wanted, int):
            wanted = PartitionedTopicMetadata(partitions=wanted)
        partitioned.check_count(wanted.partitions)
        async with context.topics.creation.turn(name.namespace_name):
            await context.topics.creation.check_room(name.namespace_name, wanted.partitions)
            await partitioned.create(name, wanted.partitions, wanted.properties)
        return Response(status_code=204)

    @router.get(prefix + "/{topic}/partitions", response_model_exclude_none=True)
    async def partitions(
        tenant: str,
        namespace: str,
        topic: str,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> PartitionedTopicMetadata:
        """How many partitions. 404: it does not exist, and was not to be."""
        name = naming.topic_of(f"{domain}://{tenant}/{namespace}/{topic}")
        if name == COORDINATORS and context.coordinators.is_enabled:
            return PartitionedTopicMetadata(partitions=await context.coordinators.prepare())
        name = await context.topic(domain, tenant, namespace, topic)
        record = await partitioned.find(name)
        if record is None:
            count = await context.topics.creation.partitions_of(name, may_create=may_create)
            return PartitionedTopicMetadata(partitions=count)
        return PartitionedTopicMetadata(
            partitions=record.partitions,
            deleted=record.is_deleted,
            properties=record.properties or None,
        )

    @router.post(prefix + "/{topic}/partitions", status_code=204)
    async def grow(
        tenant: str,
        namespace: str,
        topic: str,
        wanted: Annotated[WholeNumber, Body()],
        force: bool = False,
    ) -> Response:
        """Have more partitions; the subscriptions of the topic are in the new ones as well.

        422: fewer than now, or too many. 409: not partitioned, or a new name is taken.
        """
        name = await context.topic(domain, tenant, namespace, topic)
        try:
            async with context.topics.creation.turn(name.namespace_name):
                before = await partitioned.get(name)
                more = max(0, wanted - before.partitions)
                await context.topics.creation.check_room(name.namespace_name, more)
                await partitioned.grow(name, wanted, is_forced=force)
        except PartitionCountError as error:
            raise HttpRefusal(422, str(error)) from error
        return Response(status_code=204)

    @router.post(prefix + "/{topic}/createMissedPartitions", status_code=204)
    async def create_missed(tenant: str, namespace: str, topic: str) -> Response:
        """Have all partitions of a topic whose creation was interrupted."""
        name = await context.topic(domain, tenant, namespace, topic)
        await partitioned.create_missed(name)
        return Response(status_code=204)
