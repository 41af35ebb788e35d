"""Non-persistent topics over HTTP. Source: HTTP sheet, section 9.7.

Requests that need a position in a topic, or its data, are refused: these topics have neither.
"""

from contextlib import suppress

from fastapi import APIRouter, Response

from magnetar.broker.base.errors import TopicConflictError, TopicNotFoundError
from magnetar.broker.http.bodies import done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork, on_each
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.topics import (
    forget_partitioned,
    non_persistent_here,
    non_persistent_names,
)
from magnetar.broker.topic import Topic
from magnetar.sdk.wire import TopicName

_NAMESPACE = "/admin/v2/non-persistent/{tenant}/{namespace}"
_TOPIC = _NAMESPACE + "/{topic}"


class _NonPersistent:
    """Routes of non-persistent topics."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._topics = context.topics
        self._work_on = TopicWork(context)

    async def _named(self, tenant: str, namespace: str, topic: str) -> TopicName:
        return await self._context.topic("non-persistent", tenant, namespace, topic)

    async def listed(self, tenant: str, namespace: str) -> list[str]:
        """Return the topics in use, at all brokers."""
        return await non_persistent_names(
            self._context, await self._context.namespace(tenant, namespace)
        )

    async def create(self, tenant: str, namespace: str, topic: str) -> Response:
        """Create the topic; it ends when it is no longer used. 409 if the name is taken."""
        name = await self._named(tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(412, f"{name} has the name of a partition: create the whole topic")
        await self._check_whole(name, 409)
        await self._topics.creation.check_room(name.namespace_name, 1)
        await self._context.check_owner(name)
        if await self._topics.exists(name):
            raise TopicConflictError(f"This topic already exists: {name}")
        await self._topics.get(name)
        return done()

    async def _check_whole(self, name: TopicName, status: int) -> None:
        if await self._topics.partitioned.find(name, is_sure=True) is not None:
            raise HttpRefusal(status, f"{name} is a partitioned topic")

    async def delete(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Disconnect the topic's clients and forget it. 412 if it is in use and `force` is not
        set."""
        name = await self._named(tenant, namespace, topic)
        await self._check_whole(name, 409)
        await self._context.admin.here(name)
        await self._topics.removal.delete(name, is_forced=force)
        return done()

    async def delete_partitioned(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Delete a partitioned topic. 412 if one of its partitions is in use and `force` is not
        set."""
        name = await self._named(tenant, namespace, topic)
        record = await self._topics.partitioned.get(name)
        if not force and not record.is_deleted:  # An interrupted deletion may still be given up.
            for index in range(record.partitions):
                await self._topics.removal.check_unused(name.partition(index))

        async def delete_one(partition: TopicName) -> None:
            await self._context.admin.here(partition)
            await self._topics.removal.delete(partition, is_forced=force)

        # The mark first: a request that comes late finds a topic that was created anew without it.
        count = await self._topics.partitioned.mark_deleted(name)
        every = [name.partition(index) for index in range(count)]
        query = "?force=true" if force else ""
        try:
            await on_each(
                self._context.admin, every, delete_one, "DELETE", query, may_be_missing=True
            )
        except BaseException:
            # Whatever failed: no data is lost yet, and the mark hides a topic that may be in use.
            if not force:
                with suppress(TopicNotFoundError):  # Another request has completed the deletion.
                    await self._topics.partitioned.mark_deleted(name, is_deleted=False)
            raise
        await forget_partitioned(self._context, name)
        return done()

    async def unload(self, tenant: str, namespace: str, topic: str) -> Response:
        """Disconnect the topic's clients; they reconnect."""
        name = await self._named(tenant, namespace, topic)
        unload_one = self._context.admin.unload_topic
        every = await self._work_on.partitions(name)
        if every is not None:
            await on_each(
                self._context.admin, every, unload_one, "PUT", "unload", may_be_missing=True
            )
            return done()
        if not await self._topics.exists(name):
            await self._context.admin.here(name)
            raise TopicNotFoundError(f"Topic {name} not found")
        await unload_one(name)
        return done()

    async def subscriptions(self, tenant: str, namespace: str, topic: str) -> list[str]:
        """Return the subscriptions that have consumers now."""

        async def names(there: Topic) -> list[str]:
            return [name for name, each in there.subscriptions.items() if each.is_open]

        name = await self._named(tenant, namespace, topic)
        found = await self._work_on.each(name, "GET", "subscriptions", names)
        return sorted({str(one) for some in found if isinstance(some, list) for one in some})

    async def truncate(self, tenant: str, namespace: str, topic: str) -> Response:
        raise HttpRefusal(
            412,
            f"{await self._named(tenant, namespace, topic)} is not persistent: it keeps no data",
        )


def non_persistent_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/non-persistent; `bundle_lists_router` comes after all
    others."""
    router = late_router(tags=["non-persistent topics"])
    routes = _NonPersistent(context)
    router.get(_NAMESPACE, summary="The non-persistent topics of a namespace")(routes.listed)
    router.put(_TOPIC, status_code=204, summary="Create a non-persistent topic")(routes.create)
    router.delete(_TOPIC, status_code=204, summary="Delete a non-persistent topic")(routes.delete)
    router.delete(
        _TOPIC + "/partitions",
        status_code=204,
        summary="Delete a partitioned non-persistent topic",
    )(routes.delete_partitioned)
    router.put(_TOPIC + "/unload", status_code=204, summary="Unload a non-persistent topic")(
        routes.unload
    )
    router.get(_TOPIC + "/subscriptions", summary="The subscriptions of a non-persistent topic")(
        routes.subscriptions
    )
    router.delete(_TOPIC + "/truncate", status_code=204, summary="412: it keeps no data")(
        routes.truncate
    )
    for action in ("terminate", "terminate/partitions", "trim"):
        _refuse(router, context, "POST", action)
    for action in ("compaction", "offload"):
        _refuse(router, context, "PUT", action)
    for action in ("lastMessageId", "examinemessage", "compaction", "offload", "internal-info"):
        _refuse(router, context, "GET", action)
    _refuse_subscriptions(router, context)
    return router


def _refuse(router: APIRouter, context: HttpContext, method: str, action: str) -> None:
    async def refused(tenant: str, namespace: str, topic: str) -> None:
        name = await context.topic("non-persistent", tenant, namespace, topic)
        raise HttpRefusal(405, f"{action} of {name} is not allowed: it is not persistent")

    router.add_api_route(
        f"{_TOPIC}/{action}",
        refused,
        methods=[method],
        name=f"refuse-{method}-{action}",
        include_in_schema=False,
    )


def _refuse_subscriptions(router: APIRouter, context: HttpContext) -> None:
    path = _TOPIC + "/subscription/{sub:path}"

    @router.put(path, include_in_schema=False)
    async def nothing_to_make(tenant: str, namespace: str, topic: str, sub: str) -> None:
        await context.topic("non-persistent", tenant, namespace, topic)
        raise HttpRefusal(
            400, "subscriptions of non-persistent topics are created by their consumers"
        )

    @router.api_route(path, methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def nothing_to_move(tenant: str, namespace: str, topic: str, sub: str) -> None:
        await context.topic("non-persistent", tenant, namespace, topic)
        raise HttpRefusal(405, "subscriptions of non-persistent topics have no position")

    @router.post(_TOPIC + "/all_subscription/{rest:path}", include_in_schema=False)
    async def nothing_to_expire(tenant: str, namespace: str, topic: str, rest: str) -> None:
        await context.topic("non-persistent", tenant, namespace, topic)
        raise HttpRefusal(405, "subscriptions of non-persistent topics have no position")


def bundle_lists_router(context: HttpContext) -> APIRouter:
    """Return the route to add after all others: the path of a bundle matches any name."""
    router = late_router(tags=["non-persistent topics"])

    @router.get(
        _NAMESPACE + "/{bundle}", summary="The non-persistent topics of a bundle at this broker"
    )
    async def listed(tenant: str, namespace: str, bundle: str) -> list[str]:
        return await non_persistent_here(context, await context.bundle(tenant, namespace, bundle))

    return router
