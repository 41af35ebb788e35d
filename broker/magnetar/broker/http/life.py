"""The life of topics over HTTP: create, delete, terminate, properties.

Source: HTTP sheet, section 9.1. What only the owner can do is sent there; of a partitioned topic,
each partition to its own owner.
"""

import asyncio
from typing import Annotated

import structlog
from fastapi import APIRouter, Body, Response

from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.http.bodies import RequestBody, WholeNumber
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.topic.termination import terminate
from magnetar.broker.topic.topic_properties import as_stored, as_told
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_LOAD_S_MAX = 5.0
"""Whoever creates a topic waits no longer for its owner to load it."""

_PREFIX = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


class MessageId(RequestBody):
    """A message, as Pulsar's tools name it."""

    ledgerId: WholeNumber
    entryId: WholeNumber
    partitionIndex: WholeNumber = -1


async def _load(context: HttpContext, name: TopicName) -> None:
    """Have its owner load a topic that was created just now: only topics that are loaded are looked
    at, and one that nobody ever uses must go after its time. It is there in any case."""
    policies = await context.policies.of(name)
    if not policies.inactive_topic_is_on:
        return
    try:
        async with asyncio.timeout(_LOAD_S_MAX):
            await on_each(context.admin, [name], context.served, "GET", "stats")
    except (RequestError, HttpRefusal, TimeoutError) as error:
        _log.info("topic_not_loaded_yet", topic=str(name), error=str(error))


def life_router(context: HttpContext) -> APIRouter:
    """Routes below /admin/v2/persistent."""
    router = APIRouter(tags=["topics"])
    topics = context.topics
    partitioned = topics.partitioned

    async def named(tenant: str, namespace: str, topic: str) -> TopicName:
        return await context.topic("persistent", tenant, namespace, topic)

    async def check_plain(name: TopicName, status: int) -> None:
        if await partitioned.find(name, is_sure=True) is not None:
            raise HttpRefusal(status, f"{name} is a partitioned topic")

    async def partitions_of(name: TopicName) -> list[TopicName]:
        record = await partitioned.find(name, is_sure=True)
        return [name.partition(index) for index in range(record.partitions)] if record else []

    @router.put(_PREFIX, status_code=204)
    async def create(
        tenant: str,
        namespace: str,
        topic: str,
        properties: Annotated[dict[str, str] | None, Body()] = None,
    ) -> Response:
        """Create a topic without partitions. 409: the name is taken. 412: that of a partition."""
        name = await named(tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(412, f"{name} has the name of a partition: create the whole topic")
        await check_plain(name, 409)
        async with topics.creation.turn(name.namespace_name):
            await topics.creation.check_room(name.namespace_name, 1)
            await partitioned.create_plain(name, as_stored(properties or {}))
        await _load(context, name)
        return Response(status_code=204)

    @router.delete(_PREFIX, status_code=204)
    async def delete(tenant: str, namespace: str, topic: str, force: bool = False) -> Response:
        """Delete a topic. 412: somebody uses it. 409: it is a partitioned one."""
        name = await named(tenant, namespace, topic)
        await check_plain(name, 409)
        await context.admin.here(name)
        await topics.removal.delete(name, is_forced=force)
        return Response(status_code=204)

    @router.delete(_PREFIX + "/partitions", status_code=204)
    async def delete_partitioned(
        tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Delete a partitioned topic with its partitions. 412: somebody uses one of them.

        A deletion that was interrupted goes on when it is asked for again.
        """
        name = await named(tenant, namespace, topic)
        await partitioned.get(name)
        if not force:
            for partition in await partitions_of(name):
                await topics.removal.check_unused(partition)
        # As many as there are now: it may have grown since it was looked at.
        every = [name.partition(index) for index in range(await partitioned.mark_deleted(name))]

        async def delete_one(partition: TopicName) -> None:
            await context.admin.here(partition)
            await topics.removal.delete(partition, is_forced=force)

        query = "?force=true" if force else ""
        try:
            await on_each(context.admin, every, delete_one, "DELETE", query, may_be_missing=True)
        except (NotAllowedError, HttpRefusal):
            if not force:
                await partitioned.mark_deleted(name, is_deleted=False)
                await partitioned.create_missed(name)
            raise
        await topics.removal.forget(name)
        await partitioned.forget(name)
        return Response(status_code=204)

    async def end(name: TopicName) -> MessageId:
        last = await terminate(await context.served(name))
        return MessageId(
            ledgerId=last.ledger_id, entryId=last.entry_id, partitionIndex=name.partition_index
        )

    @router.post(_PREFIX + "/terminate")
    async def terminate_topic(tenant: str, namespace: str, topic: str) -> MessageId:
        """End a topic for good; its last message. 405: it is a partitioned one."""
        name = await named(tenant, namespace, topic)
        await check_plain(name, 405)
        return await end(name)

    @router.post(_PREFIX + "/terminate/partitions")
    async def terminate_partitions(
        tenant: str, namespace: str, topic: str
    ) -> dict[int, MessageId | None]:
        """End all partitions; the last message of each. 405: it is not a partitioned topic."""
        name = await named(tenant, namespace, topic)
        every = await partitions_of(name)
        if not every:
            raise HttpRefusal(405, f"Termination of {name}: it is not a partitioned topic")

        async def end_one(partition: TopicName) -> MessageId:
            await topics.creation.check(partition, may_create=False)
            return await end(partition)

        found = await on_each(context.admin, every, end_one, "POST", "terminate")
        return {
            index: each if isinstance(each, MessageId) else MessageId.model_validate(each)
            for index, each in enumerate(found)
        }

    @router.get(_PREFIX + "/properties")
    async def properties_of(tenant: str, namespace: str, topic: str) -> dict[str, str]:
        """What was written down about a topic."""
        name = await named(tenant, namespace, topic)
        record = await partitioned.find(name)
        if record is not None:
            return record.properties
        return as_told((await context.served(name)).log.properties)

    @router.put(_PREFIX + "/properties", status_code=204)
    async def set_properties(
        tenant: str, namespace: str, topic: str, properties: dict[str, str]
    ) -> Response:
        """Add to that, or change it."""
        name = await named(tenant, namespace, topic)
        if await partitioned.find(name) is not None:
            await partitioned.update_properties(name, lambda known: {**known, **properties})
        else:
            log = (await context.served(name)).log
            await log.update_properties(as_stored(properties))
        return Response(status_code=204)

    @router.delete(_PREFIX + "/properties", status_code=204)
    async def remove_property(tenant: str, namespace: str, topic: str, key: str) -> Response:
        """Remove one entry."""
        name = await named(tenant, namespace, topic)
        if await partitioned.find(name) is not None:

            def without(known: dict[str, str]) -> dict[str, str]:
                return {each: value for each, value in known.items() if each != key}

            await partitioned.update_properties(name, without)
        else:
            log = (await context.served(name)).log
            await log.update_properties(dict.fromkeys(as_stored({key: ""})))
        return Response(status_code=204)

    return router
