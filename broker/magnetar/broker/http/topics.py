"""Topics over HTTP: lists, creation and deletion, partitions, unloading, offloading and compaction.

Requests that only the owner can carry out are sent to it; for a partitioned topic, to the owner of
each partition. Only the owners know the names of non-persistent topics, so they are asked.

Source: HTTP sheet, section 9.1.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NotAllowedError,
    PartitionCountError,
    RequestError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.base.json_values import Flag, WholeNumber
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.features.compaction import compaction_of
from magnetar.broker.features.offloading import offload_of
from magnetar.broker.features.transactions.ids import COORDINATORS
from magnetar.broker.http.bodies import RequestBody, noted
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each, value_in
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies.records import asked
from magnetar.broker.topic.termination import terminate
from magnetar.ledger.errors import LedgerError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName, parse_topic_name

_log = structlog.get_logger()
_OF_PEOPLE = "topic."
"""Prefix, in a log, of the names of properties that users set. The broker's own names never begin
with it."""


def without_system(names: Sequence[str], *, keeps: bool) -> list[str]:
    """Return the names without those of system topics, unless `keeps`."""
    return [name for name in names if keeps or not naming.is_system_topic(name)]


def has_properties(properties: Mapping[str, str], wanted: str) -> bool:
    """Whether the properties hold all of `wanted`, given as key=value separated by commas."""
    pairs = (each.partition("=") for each in wanted.split(",") if each)
    return all(properties.get(key) == value for key, _, value in pairs)


async def non_persistent_here(context: HttpContext, bundle: BundleId) -> list[str]:
    """Return the names of the non-persistent topics of a bundle that this broker has.

    Raises:
        RequestError
    """
    names = await context.topics.non_persistent_names(bundle.namespace)
    return [name for name in names if bundle.holds(parse_topic_name(name))]


async def non_persistent_names(context: HttpContext, namespace: str) -> list[str]:
    """Return the names of the non-persistent topics of a namespace at all brokers, sorted.

    Only the owners know them: each one is asked for its bundles. Topics of a broker that does not
    answer are left out: they are about to disappear.

    Raises:
        RequestError
    """
    brokers = {each.record.name: each for each in context.admin.brokers()}
    found = set(await context.topics.non_persistent_names(namespace))
    if len(brokers) > 1:
        for bundle in (await context.admin.layouts.layout_of(namespace)).bundles:
            owner = brokers.get(await context.admin.find_owner(BundleId(namespace, bundle)) or "")
            if owner is not None and not owner.is_self:
                path = f"/admin/v2/non-persistent/{namespace}/{bundle.name}"
                found.update(await _asked(context, owner.record.http_url, path))
    return sorted(found)


async def _asked(context: HttpContext, http_url: str, path: str) -> list[str]:
    try:
        answer = await context.admin.ask(http_url, "GET", path)
        return [str(name) for name in value_in(answer, list, f"the broker at {http_url}")]
    except BrokerMetadataError:
        return []


async def properties_of(context: HttpContext, full_name: str) -> Mapping[str, str]:
    """Return the properties of a topic; for a partition, those of its topic.

    Raises:
        RequestError
    """
    name = parse_topic_name(full_name)
    record = await context.topics.partitioned.find(name.partitioned)
    if record is not None:
        return record.properties
    path = naming.log_path(name)
    try:
        node = await asked(context.store.get(path), f"read {path}")
    except NoNodeError:
        return {}
    try:
        return _as_told(LogMetadata.from_json(node.value, path=path).properties)
    except LedgerError as error:
        raise BrokerMetadataError(f"{full_name}: its record cannot be read: {error}") from error


async def forget_partitioned(context: HttpContext, name: TopicName) -> None:
    """Remove what is kept under the name of a partitioned topic, and its record, after its
    partitions are deleted. Does nothing if another request has done so.

    Raises:
        ConflictError: the topic is not being deleted any more.
        BrokerMetadataError
    """
    partitioned = context.topics.partitioned
    still = partial(partitioned.check_deleted, name)
    try:
        await still()
        await context.topics.removal.forget(name, still)
    except TopicNotFoundError:
        return
    await partitioned.forget(name)


def topics_router(context: HttpContext) -> APIRouter:
    """Return the routes of lists, unloading and offloading below /admin/v2/persistent."""
    router = late_router(tags=["topics"])
    prefix = "/admin/v2/persistent/{tenant}/{namespace}"

    @router.get(prefix, summary="The topics of a namespace, or of one of its bundles")
    async def topics(
        tenant: str,
        namespace: str,
        bundle: str = "",
        includeSystemTopic: bool = False,
        properties: str = "",
    ) -> list[str]:
        """Return full names; for a partitioned topic, of each partition.

        `properties`: only topics that have all of these, as key=value separated by commas.
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
        """Have the owner close a topic; it is loaded again when a client uses it."""
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

    _add_offload(router, prefix, context)
    return router


def _add_offload(router: APIRouter, prefix: str, context: HttpContext) -> None:
    @router.put(prefix + "/{topic}/offload", status_code=204, summary="Offload old messages")
    async def offload(
        tenant: str, namespace: str, topic: str, until: Annotated[MessageId, Body()]
    ) -> Response:
        """Start to move all ledgers that end before a message to the object store. 409 if that is
        in progress, 412 if the broker has no object store."""
        name = await context.topic("persistent", tenant, namespace, topic)
        offloading = offload_of(await context.served(name))
        if not offloading.has_store:
            raise HttpRefusal(
                412,
                f"{name} cannot be offloaded: this broker has no object store; name one in its "
                "settings (object_stores)",
            )
        offloading.start(Position(until.ledgerId, until.entryId))
        return Response(status_code=204)

    @router.get(prefix + "/{topic}/offload", summary="Status of the last offload")
    async def offload_status(tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Return the result of the last offload, and the first message that is not moved yet."""
        name = await context.topic("persistent", tenant, namespace, topic)
        offloading = offload_of(await context.served(name))
        shown: dict[str, Any] = {
            "status": offloading.status.value,
            "lastError": offloading.last_error,
        }
        first = offloading.first_on_bookies()
        if first is not None:
            shown["firstUnoffloadedMessage"] = {
                "ledgerId": first.ledger_id,
                "entryId": first.entry_id,
                "partitionIndex": name.partition_index,
            }
        return shown


_LOAD_S_MAX = 5.0
"""Seconds that a request to create a topic waits for the owner to load it."""

_PREFIX = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


class MessageId(RequestBody):
    """Id of a message, as in Pulsar's tools."""

    ledgerId: WholeNumber
    entryId: WholeNumber
    partitionIndex: WholeNumber = -1


async def _load(context: HttpContext, name: TopicName) -> None:
    """Have the owner load a topic that was just created. Only loaded topics are checked for
    inactivity, and a topic that is never used must be deleted in time. If loading fails, the topic
    still exists."""
    policies = await context.policies.of(name)
    if not policies.inactive_topic.is_on:
        return
    try:
        async with asyncio.timeout(_LOAD_S_MAX):
            await on_each(context.admin, [name], context.served, "GET", "stats")
    except (RequestError, HttpRefusal, TimeoutError) as error:
        _log.info("topic_not_loaded_yet", topic=str(name), error=str(error))


class _Life:
    """Routes to create, delete and terminate topics, and for their properties."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._topics = context.topics
        self._partitioned = self._topics.partitioned

    async def _named(self, tenant: str, namespace: str, topic: str) -> TopicName:
        return await self._context.topic("persistent", tenant, namespace, topic)

    async def _check_plain(self, name: TopicName, status: int) -> None:
        if await self._partitioned.find(name, is_sure=True) is not None:
            raise HttpRefusal(status, f"{name} is a partitioned topic")

    async def _partitions_of(self, name: TopicName) -> list[TopicName]:
        record = await self._partitioned.find(name, is_sure=True)
        return [name.partition(index) for index in range(record.partitions)] if record else []

    async def create(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        properties: Annotated[dict[str, str] | None, Body()] = None,
    ) -> Response:
        """Create a topic without partitions. 409 if the name is taken, 412 if it is that of a
        partition."""
        name = await self._named(tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(412, f"{name} has the name of a partition: create the whole topic")
        await self._check_plain(name, 409)
        async with self._topics.creation.turn(name.namespace_name):
            await self._topics.creation.check_room(name.namespace_name, 1)
            await self._partitioned.create_plain(name, _as_stored(properties or {}))
        await _load(self._context, name)
        return Response(status_code=204)

    async def delete(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        force: bool = False,
        asPartition: Annotated[
            bool,
            Query(
                description="Only while its partitioned topic is being deleted. Brokers ask each "
                "other so; Pulsar has no such parameter."
            ),
        ] = False,
    ) -> Response:
        """Delete a topic. 412 if it is in use and `force` is not set, 409 if it is a partitioned
        one."""
        name = await self._named(tenant, namespace, topic)
        await self._check_plain(name, 409)
        if await self._topics.scalable.segment(name) is not None:
            raise TopicConflictError(
                f"{name} is a part of the scalable topic {naming.resolved_name(name.partitioned)}: "
                "delete that one"
            )
        await self._context.admin.here(name)
        still = partial(self._partitioned.check_deleted, name.partitioned) if asPartition else None
        await self._topics.removal.delete(name, is_forced=force, still=still)
        return Response(status_code=204)

    async def delete_partitioned(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Delete a partitioned topic with its partitions. 412 if one of them is in use and `force`
        is not set.

        Repeating the request completes an interrupted deletion.
        """
        name = await self._named(tenant, namespace, topic)
        await self._partitioned.get(name)
        if not force:
            for partition in await self._partitions_of(name):
                await self._topics.removal.check_unused(partition)
        # As many partitions as there are now: it may have grown since the check.
        every = [
            name.partition(index) for index in range(await self._partitioned.mark_deleted(name))
        ]

        # Another request may complete the deletion, and then the partitions are a new topic's.
        still = partial(self._partitioned.check_deleted, name)

        async def delete_one(partition: TopicName) -> None:
            await self._context.admin.here(partition)
            await self._topics.removal.delete(partition, is_forced=force, still=still)

        query = "?asPartition=true" + ("&force=true" if force else "")
        try:
            await on_each(
                self._context.admin, every, delete_one, "DELETE", query, may_be_missing=True
            )
        except (NotAllowedError, HttpRefusal):
            if not force:
                await self._partitioned.mark_deleted(name, is_deleted=False)
                await self._partitioned.create_missed(name)
            raise
        await forget_partitioned(self._context, name)
        return Response(status_code=204)

    async def _end(self, name: TopicName) -> MessageId:
        last = await terminate(await self._context.served(name))
        return MessageId(
            ledgerId=last.ledger_id, entryId=last.entry_id, partitionIndex=name.partition_index
        )

    async def terminate_topic(self, tenant: str, namespace: str, topic: str) -> MessageId:
        """Terminate a topic for good, and return its last message. 405 if it is a partitioned
        one."""
        name = await self._named(tenant, namespace, topic)
        await self._check_plain(name, 405)
        return await self._end(name)

    async def terminate_partitions(
        self, tenant: str, namespace: str, topic: str
    ) -> dict[int, MessageId | None]:
        """Terminate all partitions, and return the last message of each. 405 if it is not a
        partitioned topic."""
        name = await self._named(tenant, namespace, topic)
        every = await self._partitions_of(name)
        if not every:
            raise HttpRefusal(405, f"Termination of {name}: it is not a partitioned topic")

        async def end_one(partition: TopicName) -> MessageId:
            await self._topics.creation.check(partition, may_create=False)
            return await self._end(partition)

        found = await on_each(self._context.admin, every, end_one, "POST", "terminate")
        return {
            index: each if isinstance(each, MessageId) else MessageId.model_validate(each)
            for index, each in enumerate(found)
        }

    async def properties_of(self, tenant: str, namespace: str, topic: str) -> dict[str, str]:
        """Return the properties of a topic."""
        name = await self._named(tenant, namespace, topic)
        record = await self._partitioned.find(name)
        if record is not None:
            return record.properties
        return _as_told((await self._context.served(name)).log.properties)

    async def set_properties(
        self, tenant: str, namespace: str, topic: str, properties: dict[str, str]
    ) -> Response:
        """Add or replace properties of a topic."""
        name = await self._named(tenant, namespace, topic)
        if await self._partitioned.find(name) is not None:
            await self._partitioned.update_properties(name, lambda known: {**known, **properties})
        else:
            log = (await self._context.served(name)).log
            await log.update_properties(_as_stored(properties))
        return Response(status_code=204)

    async def remove_property(self, tenant: str, namespace: str, topic: str, key: str) -> Response:
        """Remove one property of a topic."""
        name = await self._named(tenant, namespace, topic)
        if await self._partitioned.find(name) is not None:

            def without(known: dict[str, str]) -> dict[str, str]:
                return {each: value for each, value in known.items() if each != key}

            await self._partitioned.update_properties(name, without)
        else:
            log = (await self._context.served(name)).log
            await log.update_properties(dict.fromkeys(_as_stored({key: ""})))
        return Response(status_code=204)


def life_router(context: HttpContext) -> APIRouter:
    """Return the routes to create, delete and terminate topics below /admin/v2/persistent."""
    router = late_router(tags=["topics"])
    routes = _Life(context)
    router.put(_PREFIX, status_code=204)(routes.create)
    router.delete(_PREFIX, status_code=204)(routes.delete)
    router.delete(_PREFIX + "/partitions", status_code=204)(routes.delete_partitioned)
    router.post(_PREFIX + "/terminate")(routes.terminate_topic)
    router.post(_PREFIX + "/terminate/partitions")(routes.terminate_partitions)
    router.get(_PREFIX + "/properties")(routes.properties_of)
    router.put(_PREFIX + "/properties", status_code=204)(routes.set_properties)
    router.delete(_PREFIX + "/properties", status_code=204)(routes.remove_property)
    return router


DOMAINS = ("persistent", "non-persistent")


class PartitionedTopicMetadata(BaseModel):
    """Number of partitions of a topic; 0 for a topic without partitions."""

    partitions: WholeNumber = 0
    deleted: Flag = False
    properties: dict[str, str] | None = None


def partitions_router(context: HttpContext) -> APIRouter:
    """Return the routes of partitioned topics below /admin/v2/persistent and non-persistent."""
    router = late_router(tags=["partitioned topics"])
    for domain in DOMAINS:
        _add_partitions(router, context, domain)
    return router


class _Partitions:
    """Routes of partitioned topics of one domain."""

    def __init__(self, context: HttpContext, domain: str) -> None:
        self._context = context
        self._domain = domain
        self._partitioned = context.topics.partitioned

    async def partitioned_topics(self, tenant: str, namespace: str) -> list[str]:
        """Return the full names of the partitioned topics of a namespace."""
        names = await self._partitioned.names(
            await self._context.namespace(tenant, namespace), self._domain
        )
        return [str(name) for name in names]

    async def create(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        wanted: Annotated[WholeNumber | PartitionedTopicMetadata, Body()],
        createLocalTopicOnly: bool = False,
    ) -> Response:
        """Create a partitioned topic with all its partitions, also in the clusters that it is
        copied to, unless `createLocalTopicOnly` is set.

        409 if the name is taken, 406 if the number is not valid, 412 if the name is that of a
        partition.
        """
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        if isinstance(wanted, int):
            wanted = PartitionedTopicMetadata(partitions=wanted)
        self._partitioned.check_count(wanted.partitions)
        async with self._context.topics.creation.turn(name.namespace_name):
            await self._context.topics.creation.check_room(name.namespace_name, wanted.partitions)
            await self._partitioned.create(name, wanted.partitions, wanted.properties)
        return await self._spread(name, is_local=createLocalTopicOnly)

    async def _spread(self, name: TopicName, *, is_local: bool) -> Response:
        return noted("" if is_local else await self._context.topics.spread_partitions(name))

    async def partitions(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        may_create: Annotated[bool, Query(alias="checkAllowAutoCreation")] = False,
    ) -> PartitionedTopicMetadata:
        """Return the number of partitions. 404 if the topic does not exist, and may not be
        created."""
        name = naming.topic_of(f"{self._domain}://{tenant}/{namespace}/{topic}")
        if name == COORDINATORS and self._context.coordinators.is_enabled:
            return PartitionedTopicMetadata(partitions=await self._context.coordinators.prepare())
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        record = await self._partitioned.find(name)
        if record is None:
            count = await self._context.topics.creation.partitions_of(name, may_create=may_create)
            return PartitionedTopicMetadata(partitions=count)
        return PartitionedTopicMetadata(
            partitions=record.partitions,
            deleted=record.is_deleted,
            properties=record.properties or None,
        )

    async def grow(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        wanted: Annotated[WholeNumber, Body()],
        force: bool = False,
        updateLocalTopicOnly: bool = False,
    ) -> Response:
        """Add partitions; the topic's subscriptions are created in them. The clusters that the
        topic is copied to add them, too, unless `updateLocalTopicOnly` is set.

        422 if the number is smaller than now, or too large. 409 if the topic is not partitioned, or
        the name of a new partition is taken.
        """
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        try:
            async with self._context.topics.creation.turn(name.namespace_name):
                before = await self._partitioned.get(name)
                more = max(0, wanted - before.partitions)
                await self._context.topics.creation.check_room(name.namespace_name, more)
                await self._partitioned.grow(name, wanted, is_forced=force)
        except PartitionCountError as error:
            raise HttpRefusal(422, str(error)) from error
        return await self._spread(name, is_local=updateLocalTopicOnly)

    async def create_missed(self, tenant: str, namespace: str, topic: str) -> Response:
        """Create the missing partitions of a topic whose creation was interrupted."""
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        await self._partitioned.create_missed(name)
        return Response(status_code=204)


def _add_partitions(router: APIRouter, context: HttpContext, domain: str) -> None:
    prefix = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}"
    routes = _Partitions(context, domain)
    router.get(prefix + "/partitioned")(routes.partitioned_topics)
    router.put(prefix + "/{topic}/partitions", status_code=204)(routes.create)
    router.get(prefix + "/{topic}/partitions", response_model_exclude_none=True)(routes.partitions)
    router.post(prefix + "/{topic}/partitions", status_code=204)(routes.grow)
    router.post(prefix + "/{topic}/createMissedPartitions", status_code=204)(routes.create_missed)


_COMPACTION = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/compaction"


def compaction_router(context: HttpContext) -> APIRouter:
    """Return the routes that compact a topic."""
    router = late_router(tags=["topics"])

    async def start(name: TopicName) -> None:
        compaction_of(await context.served(name)).start()

    @router.put(_COMPACTION, status_code=204)
    async def compact(tenant: str, namespace: str, topic: str) -> Response:
        """Start to compact a topic, or all its partitions. 409 if that is in progress."""
        name = await context.topic("persistent", tenant, namespace, topic)
        record = await context.topics.partitioned.find(name)
        if record is None:
            await start(name)
        else:
            every = [name.partition(index) for index in range(record.partitions)]
            await on_each(context.admin, every, start, "PUT", "compaction")
        return Response(status_code=204)

    @router.get(_COMPACTION)
    async def status(tenant: str, namespace: str, topic: str) -> dict[str, str]:
        """Return the result of the last compaction of a topic."""
        name = await context.topic("persistent", tenant, namespace, topic)
        compaction = compaction_of(await context.served(name))
        return {"status": compaction.status.value, "lastError": compaction.last_error}

    return router


def _as_stored(properties: Mapping[str, str]) -> dict[str, str]:
    """Return user properties under the names that they have in a log."""
    return {_OF_PEOPLE + name: value for name, value in properties.items()}


def _as_told(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the user properties among all properties of a log, under their own names."""
    return {
        name.removeprefix(_OF_PEOPLE): value
        for name, value in properties.items()
        if name.startswith(_OF_PEOPLE)
    }
