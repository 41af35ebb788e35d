"""Scalable topics over HTTP: create, migrate, show, split, merge and delete them, set their scaling
policies; and the requests of brokers about segments.

A layout is in the metadata store, so the broker that gets the request does the work itself. For
work that only the owner of a segment can do, it sends a request to the owner: `/admin/v2/segments`,
for super users. Names and shapes of values are Pulsar's, where it has them. Source: sheet of Pulsar
5, section 4.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    ConflictError,
    NotAllowedError,
    RequestError,
    TopicNotFoundError,
)
from magnetar.broker.base.settings.scaling import RATES
from magnetar.broker.features.message_index import exact_backlogs
from magnetar.broker.features.retention.backlog import backlog_age
from magnetar.broker.features.scalable import (
    ScalableTopicRecord,
    ScalableTopics,
    SegmentRecord,
    WholeSubscriptions,
)
from magnetar.broker.features.scalable.scaling import ScalePolicy, last_change_ms
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import ask_elsewhere, value_in
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.policy import shape_of
from magnetar.broker.http.refusals import ElsewhereError, HttpRefusal
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.policies.model import AutoScale
from magnetar.broker.policies.table import BY_FIELD
from magnetar.broker.topic import Topic
from magnetar.broker.topics.segment_owners import OwnSegments, segment_at, segment_path
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_AUTO_SCALE = shape_of(BY_FIELD["auto_scale"])
_STATS_AT_ONCE = 16
_SUMS = ("msgRateIn", "msgRateOut", "storageSize", "backlogSize")
"""Fields of the segments' statistics that are summed."""
_SUBSCRIPTION_SUMS = ("msgBacklog", "backlogSize", "unackedMessages", "msgRateOut")


def scalable_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/scalable and /admin/v2/segments."""
    router = late_router(tags=["scalable topics"])
    _add_topics(router, _Topics(context))
    _add_segments(router, _Segments(context))
    return router


def _add_topics(router: APIRouter, topics: "_Topics") -> None:
    space = "/admin/v2/scalable/{tenant}/{namespace}"
    prefix = space + "/{topic}"
    router.get(space, summary="The scalable topics of a namespace")(topics.names)
    router.put(prefix, status_code=204, summary="Create a scalable topic")(topics.create)
    router.get(prefix, summary="The layout of a scalable topic")(topics.show)
    router.delete(prefix, status_code=204, summary="Delete a scalable topic")(topics.delete)
    router.get(prefix + "/stats", summary="Statistics of a scalable topic")(topics.stats)
    router.post(prefix + "/split/{segment}", status_code=204, summary="Divide a segment in two")(
        topics.split
    )
    router.post(
        prefix + "/merge/{segment}/{other}", status_code=204, summary="Make one segment of two"
    )(topics.merge)
    router.post(
        prefix + "/rebucket/{segment}",
        status_code=204,
        summary="Give a segment another number of entry buckets",
    )(topics.rebucket)
    router.post(
        prefix + "/migrate", status_code=204, summary="Make a scalable topic of a plain one"
    )(topics.migrate)
    subscription = prefix + "/subscriptions/{subscription}"
    router.put(subscription, status_code=204, summary="Make a subscription of all segments")(
        topics.subscribe
    )
    router.delete(subscription, status_code=204, summary="Delete a subscription of all segments")(
        topics.unsubscribe
    )
    router.post(
        subscription + "/seek", status_code=204, summary="Move a subscription of all segments"
    )(topics.seek)
    router.post(
        subscription + "/skip-all", status_code=204, summary="Clear the backlog of all segments"
    )(topics.skip_all)
    policy = prefix + "/autoScalePolicy"
    router.get(policy, summary="How load splits and merges a topic")(topics.auto_scale)
    router.post(policy, status_code=204, summary="Set how load splits and merges a topic")(
        topics.set_auto_scale
    )
    router.delete(policy, status_code=204, summary="Have a topic scaled as its namespace says")(
        topics.remove_auto_scale
    )


def _add_segments(router: APIRouter, segments: "_Segments") -> None:
    whole = "/admin/v2/segments/{tenant}/{namespace}/{topic}/held"
    router.put(whole, status_code=204, summary="Hold back what the topic's record says")(
        segments.hold_back
    )
    part = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
    router.post(part + "/terminate", summary="Have a segment take no more messages")(segments.seal)
    router.put(part + "/ahead", status_code=204, summary="Load a segment that is about to come")(
        segments.open_ahead
    )
    router.delete(part, status_code=204, summary="Delete what a segment holds")(segments.delete)
    router.get(part + "/stats", summary="Statistics of a segment")(segments.stats)
    router.delete(part + "/subscription/{subscription}", summary="Delete a subscription")(
        segments.unsubscribe
    )
    router.post(part + "/subscription/{subscription}/seek", summary="Move a subscription")(
        segments.seek
    )
    router.get(part + "/used-up", summary="Whether a segment may be pruned")(segments.used_up)
    router.get(part + "/clients", summary="Who cannot follow a migration")(segments.clients)
    router.put(
        part + "/subscription/{subscription}",
        status_code=204,
        summary="Have a subscription at the end of a segment",
    )(segments.subscribe)
    router.get(
        part + "/subscription/{subscription}/backlog",
        summary="Whether a subscription is done with a segment",
    )(segments.backlog)


async def delete_scalable(context: HttpContext, name: TopicName) -> None:
    """Delete a scalable topic, even if it is in use. A deletion that was interrupted is completed.

    Raises:
        TopicNotFoundError, RequestError
    """
    scalable, partitioned = context.topics.scalable, context.topics.partitioned
    await partitioned.mark_migrated_deleted(name)
    created_ms = await scalable.delete_segments(name)
    still = partial(scalable.check_deleted, name, created_ms)
    try:
        await still()
        await context.topics.removal.forget(name, still)
    except TopicNotFoundError:
        return  # Another request has completed the deletion.
    await partitioned.forget(name)
    await scalable.forget(name, created_ms)


def check_scaling(context: HttpContext, *overrides: AutoScale | None) -> None:
    """Refuse a scaling policy that is not consistent with the policies below it.

    `overrides`: policies of the namespace and of the topic, in this order.

    Raises:
        HttpRefusal: 412.
    """
    policy = ScalePolicy.of_broker(context.settings)
    for each in overrides:
        policy = policy.over(each)
    if policy.fault:
        raise HttpRefusal(412, policy.fault)


class _Topics:
    """Routes of whole topics."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    @property
    def _scalable(self) -> ScalableTopics:
        """The scalable topics.

        Raises:
            HttpRefusal: 503, scalable topics are switched off.
        """
        self._check_on()
        return self._context.topics.scalable

    def _check_on(self) -> None:
        """Refuse a request while scalable topics are switched off.

        Raises:
            HttpRefusal: 503, scalable topics are switched off.
        """
        if not self._context.settings.scalable_topics:
            raise HttpRefusal(
                503, "Scalable topics are disabled on this broker (setting scalable_topics)"
            )

    @property
    def _subscriptions(self) -> WholeSubscriptions:
        """Subscriptions of whole topics.

        Raises:
            HttpRefusal: 503, scalable topics are switched off.
        """
        self._check_on()
        return self._context.topics.whole_subscriptions

    async def _named(self, tenant: str, namespace: str, topic: str) -> TopicName:
        return await self._context.topic("persistent", tenant, namespace, topic)

    async def names(
        self,
        tenant: str,
        namespace: str,
        wanted: Annotated[list[str] | None, Query(alias="property")] = None,
    ) -> list[str]:
        """Return the full names. `property`: only topics that have all of these, as key=value."""
        space = await self._context.namespace(tenant, namespace)
        names = await self._scalable.names(space)
        pairs = [tuple(each.partition("=")[::2]) for each in wanted or ()]
        if not pairs:
            return names
        found = []
        for each in names:
            record = await self._scalable.find(naming.base_topic_of(each))
            if record is not None and all(record.properties.get(k) == v for k, v in pairs):
                found.append(each)
        return found

    async def create(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        segments: Annotated[int, Query(alias="numInitialSegments")] = 1,
        properties: Annotated[dict[str, str] | None, Body()] = None,
    ) -> Response:
        """Create a scalable topic. 409 if the name is taken. 412 if it cannot have so many
        segments."""
        name = await self._named(tenant, namespace, topic)
        if name.partition_index >= 0:
            raise HttpRefusal(412, f"{name} has the name of a partition: it cannot be scalable")
        creation = self._context.topics.creation
        async with creation.turn(name.namespace_name):
            await creation.check_room(name.namespace_name, 1)
            await self._scalable.create(
                name, segments, properties, is_taken=lambda: creation.is_taken(name)
            )
        return Response(status_code=204)

    async def show(self, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Return the record of a topic: its segments with their parents and children, and its
        properties."""
        name = await self._named(tenant, namespace, topic)
        return _shown(name, await self._scalable.get(name))

    async def delete(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Delete a topic with its segments; producers are disconnected. 412 if it has
        subscriptions; with `force` these are deleted, too. Repeating the request completes an
        interrupted deletion."""
        name = await self._named(tenant, namespace, topic)
        record = await self._scalable.find(name, is_sure=True)
        if record is not None and record.is_migrating and not record.is_deleted:
            raise ConflictError(f"{name} is being migrated: migrate it again, then delete it")
        used = () if force else await self._scalable.used_by(name)
        if used:
            raise NotAllowedError(
                f"Topic has active producers/subscriptions: {naming.resolved_name(name)} has "
                f"{len(used)} subscriptions, {used[0]} and so on; delete it with force"
            )
        await delete_scalable(self._context, name)
        return Response(status_code=204)

    async def split(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        segment: int,
        at: Annotated[
            int | None,
            Query(description="First hash of the second half. Pulsar has no such parameter."),
        ] = None,
    ) -> Response:
        """Split an active segment in two, in its middle or at the given hash. 404 if there is none,
        409 if the layout is being changed, 412 if it cannot be split."""
        name = await self._named(tenant, namespace, topic)
        await self._scalable.split(name, segment, at=at)
        return Response(status_code=204)

    async def rebucket(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        segment: int,
        buckets: Annotated[int, Query(alias="bucketCount")],
    ) -> Response:
        """Replace an active segment by one with the given number of entry buckets, which is also
        the number of stream consumers that can share it. 404 if there is none, 409 if the layout is
        being changed, 412 if the number is not possible."""
        name = await self._named(tenant, namespace, topic)
        await self._scalable.rebucket(name, segment, buckets)
        return Response(status_code=204)

    async def merge(
        self, tenant: str, namespace: str, topic: str, segment: int, other: int
    ) -> Response:
        """Merge two adjacent active segments into one. 404, 409 and 412 as for a split."""
        name = await self._named(tenant, namespace, topic)
        await self._scalable.merge(name, segment, other)
        return Response(status_code=204)

    async def migrate(
        self, tenant: str, namespace: str, topic: str, force: bool = False
    ) -> Response:
        """Turn a plain or partitioned topic into a scalable one. Its messages are read as before.
        Its producers are refused from then on, unless they are of Pulsar 5. This cannot be undone.

        404 if there is no such topic. 409 if it is scalable already, or has clients that are not
        known to be of Pulsar 5, unless `force` is set. 412 if it has too many partitions, or is
        copied to other clusters. Repeating the request completes an interrupted migration.
        """
        name = await self._named(tenant, namespace, topic)
        scalable, partitioned = self._scalable, self._context.topics.partitioned
        record = await partitioned.find(name, is_sure=True)
        if record is None and not await self._context.topics.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        if name.partition_index >= 0:
            raise HttpRefusal(412, f"{name} is a partition: migrate {name.partitioned}")
        await self._check_migration(name, record.partitions if record else 0, force=force)
        await scalable.migrate(name, await partitioned.make_final(name) or 0)
        return Response(status_code=204)

    async def _check_migration(self, name: TopicName, partitions: int, *, force: bool) -> None:
        """Refuse a topic that must not be migrated, before anything is changed.

        Raises:
            HttpRefusal, RequestError
        """
        scalable = self._scalable
        found = await scalable.find(name, is_sure=True)
        if found is not None and not found.is_migrating:
            raise HttpRefusal(409, f"{naming.resolved_name(name)} is a scalable topic already")
        limit = self._context.settings.scalable_segments_max
        if partitions > limit:
            raise HttpRefusal(
                412,
                f"{name} has {partitions} partitions, and a scalable topic has at most {limit} "
                "segments (scalable_segments_max of the broker)",
            )
        copied = set((await self._context.policies.of(name)).replicated_to)
        if copied - {self._context.cluster_name}:
            raise HttpRefusal(
                412, f"{name} is copied to {', '.join(sorted(copied))}: scalable topics are not"
            )
        owners = scalable.owners
        if force or owners is None:
            return
        names = [name.partition(index) for index in range(partitions)] or [name]
        classic = sum(await asyncio.gather(*map(owners.classic_clients, names)))
        if classic:
            raise ConflictError(
                f"{name} has {classic} producers and consumers that are not known to be of Pulsar "
                "5: they cannot go on; close them, or migrate it with force"
            )

    async def subscribe(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Create a subscription at the end of all active segments; where it exists, it stays.
        Pulsar's `type` has no effect: each consumer names its own."""
        name = await self._named(tenant, namespace, topic)
        naming.check_subscription(subscription)
        await self._subscriptions.subscribe(name, subscription)
        return Response(status_code=204)

    async def unsubscribe(
        self, tenant: str, namespace: str, topic: str, subscription: str, force: bool = False
    ) -> Response:
        """Delete a subscription of all segments. 404 if there is none, 412 if it has consumers."""
        name = await self._named(tenant, namespace, topic)
        await self._subscriptions.unsubscribe(name, subscription, is_forced=force)
        return Response(status_code=204)

    async def seek(
        self, tenant: str, namespace: str, topic: str, subscription: str, timestamp: int
    ) -> Response:
        """Move a subscription, in all segments, to the first message published at or after a time
        in ms since 1970. Stream consumers are assigned the segments again, parents before children.
        """
        name = await self._named(tenant, namespace, topic)
        await self._subscriptions.seek(name, subscription, timestamp)
        return Response(status_code=204)

    async def skip_all(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Clear the whole backlog of a subscription, in all segments."""
        name = await self._named(tenant, namespace, topic)
        await self._subscriptions.seek(name, subscription, None)
        return Response(status_code=204)

    async def auto_scale(self, tenant: str, namespace: str, topic: str) -> Response:
        """Return the topic's overrides of its namespace's policy; 204 if it has none."""
        record = await self._scalable.get(await self._named(tenant, namespace, topic))
        if record.auto_scale is None:
            return Response(status_code=204)
        return JSONResponse(_AUTO_SCALE.to_json(record.auto_scale))

    async def set_auto_scale(
        self, tenant: str, namespace: str, topic: str, request: Request
    ) -> Response:
        """Override the policy of the namespace, field by field; absent fields keep the namespace's
        value. 412 if a merged segment would be split again, or a number is too small."""
        name = await self._named(tenant, namespace, topic)
        own = _AUTO_SCALE.parse(await request.body())
        if own is None:
            raise HttpRefusal(412, "the body is empty: give the policy as a JSON object")
        check_scaling(self._context, await self._of_namespace(name), own)
        await self._scalable.set_auto_scale(name, own)
        return Response(status_code=204)

    async def remove_auto_scale(self, tenant: str, namespace: str, topic: str) -> Response:
        """Remove the topic's overrides."""
        await self._scalable.set_auto_scale(await self._named(tenant, namespace, topic), None)
        return Response(status_code=204)

    async def _policy(self, name: TopicName, record: ScalableTopicRecord) -> ScalePolicy:
        """Return the effective policy of a topic."""
        policy = ScalePolicy.of_broker(self._context.settings)
        return policy.over(await self._of_namespace(name)).over(record.auto_scale)

    async def _of_namespace(self, name: TopicName) -> AutoScale | None:
        return (await self._context.policies.check_namespace(name.namespace_name)).auto_scale

    async def stats(self, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Return the layout, with the statistics from the owners of the segments, by segment and
        summed. A segment whose owner does not answer has no numbers, nor has one that cannot be
        read now."""
        name = await self._named(tenant, namespace, topic)
        record = await self._scalable.get(name)
        limit = asyncio.Semaphore(_STATS_AT_ONCE)

        async def stats_of(segment: SegmentRecord) -> dict[str, Any]:
            async with limit:
                return await self.numbers_of(segment.name_in(name))

        stats = await asyncio.gather(*map(stats_of, record.segments))
        owner = await self._context.admin.owner_of(name, is_authoritative=False, listener="")
        return {
            "controllerBroker": owner.http_url.removeprefix("http://"),
            "autoScale": _auto_scale(record, await self._policy(name, record)),
            "layout": _layout(name, record, stats),
            **{field: sum(each.get(field, 0) for each in stats) for field in _SUMS},
            "subscriptions": _subscriptions(record, stats),
        }

    async def numbers_of(self, segment: TopicName) -> dict[str, Any]:
        """Return the statistics of a segment; none if they cannot be had now."""
        try:
            return await self._stats_of(segment)
        except (RequestError, HttpRefusal, LedgerError, CursorError) as error:
            _log.info("segment_stats_missing", topic=str(segment), error=str(error))
            return {}

    async def _stats_of(self, segment: TopicName) -> dict[str, Any]:
        """Return the statistics of a segment, from its owner."""
        try:
            topic = await self._context.served(segment)
        except ElsewhereError as elsewhere:
            path = f"{segment_path(segment)}/stats"
            answer = await ask_elsewhere(self._context.admin, elsewhere, "GET", path)
            return value_in(answer, dict, f"the owner of {segment}")
        return await _own_stats(self._context, topic)


class _Segments:
    """Routes that the owner of a segment serves for other brokers."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._own = OwnSegments(context.topics, context.store)

    async def _here(self, tenant: str, namespace: str, topic: str, descriptor: str) -> TopicName:
        name = segment_at(f"{tenant}/{namespace}", topic, descriptor)
        await self._context.topics.check_namespace(name.namespace_name)
        await self._context.check_owner(name)
        return name

    async def seal(
        self, tenant: str, namespace: str, topic: str, descriptor: str
    ) -> dict[str, list[str]]:
        """Seal a segment for good, and return its durable subscriptions. The caller updates the
        record of the topic."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return {"subscriptions": list(await self._own.seal(name))}

    async def open_ahead(
        self, tenant: str, namespace: str, topic: str, descriptor: str
    ) -> Response:
        """Load a segment that a split or merge in progress creates. No client is assigned to it
        before that is complete."""
        name = await self._here(tenant, namespace, topic, descriptor)
        await self._own.open_ahead(name)
        return Response(status_code=204)

    async def delete(self, tenant: str, namespace: str, topic: str, descriptor: str) -> Response:
        """Delete the contents of a segment; its clients are disconnected."""
        name = await self._here(tenant, namespace, topic, descriptor)
        await self._own.delete(name)
        return Response(status_code=204)

    async def unsubscribe(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        descriptor: str,
        subscription: str,
        force: bool = False,
    ) -> dict[str, bool]:
        """Delete a subscription of a segment, and return whether there was one."""
        name = await self._here(tenant, namespace, topic, descriptor)
        found = await self._own.unsubscribe(name, subscription, is_forced=force)
        return {"found": found}

    async def seek(
        self,
        tenant: str,
        namespace: str,
        topic: str,
        descriptor: str,
        subscription: str,
        timestamp: int | None = None,
    ) -> dict[str, bool]:
        """Move a subscription of a segment to a publish time, or to the end, and return whether
        there was one."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return {"found": await self._own.seek(name, subscription, timestamp)}

    async def hold_back(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Withdraw, from stream consumers of a subscription, the descendants of segments on which
        it moves back by the topic's record."""
        name = await self._context.topic("persistent", tenant, namespace, topic)
        await self._context.check_owner(name)
        await self._context.segment_coordinators.hold_back(name, subscription)
        return Response(status_code=204)

    async def used_up(
        self, tenant: str, namespace: str, topic: str, descriptor: str
    ) -> dict[str, bool]:
        """Return whether a sealed segment is no longer needed."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return {"usedUp": await self._own.is_used_up(name)}

    async def clients(
        self, tenant: str, namespace: str, topic: str, descriptor: str
    ) -> dict[str, int]:
        """Return the number of producers and consumers of a topic that are not known to be of
        Pulsar 5."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return {"classic": self._own.classic_clients(name)}

    async def subscribe(
        self, tenant: str, namespace: str, topic: str, descriptor: str, subscription: str
    ) -> Response:
        """Create a durable subscription at the current end of a segment; an existing one stays."""
        name = await self._here(tenant, namespace, topic, descriptor)
        naming.check_subscription(subscription)
        await self._own.subscribe(name, subscription)
        return Response(status_code=204)

    async def backlog(
        self, tenant: str, namespace: str, topic: str, descriptor: str, subscription: str
    ) -> dict[str, bool]:
        """Return whether a segment is sealed, and all its messages are acknowledged on a
        subscription."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return {"drained": await self._own.is_drained(name, subscription)}

    async def stats(
        self, tenant: str, namespace: str, topic: str, descriptor: str
    ) -> dict[str, Any]:
        """Return the statistics of a segment, in the form of any topic's."""
        name = await self._here(tenant, namespace, topic, descriptor)
        return await _own_stats(
            self._context, await self._context.topics.get(name, may_create=False)
        )


async def _own_stats(context: HttpContext, topic: Topic) -> dict[str, Any]:
    """Return the statistics of a segment of this broker."""
    own = next((each for each in context.admin.brokers() if each.is_self), None)
    now_ms = context.wall_ms()
    return topic_stats(
        topic,
        now_ms=now_ms,
        owner=own.broker_id if own is not None else "",
        oldest=await backlog_age(topic, now_ms),
        backlogs=await exact_backlogs(topic),
    )


def _shown(topic: TopicName, record: ScalableTopicRecord) -> dict[str, Any]:
    """Return the record in Pulsar's form; -1 is the sealing epoch of a segment that is not
    sealed."""
    return {
        "epoch": record.epoch,
        "nextSegmentId": record.next_segment_id,
        "segments": {str(each.id): _shown_segment(topic, each) for each in record.segments},
        "properties": record.properties,
    }


def _shown_segment(topic: TopicName, segment: SegmentRecord) -> dict[str, Any]:
    return {
        "segmentId": segment.id,
        "hashRange": {"start": segment.hash_start, "end": segment.hash_end},
        "state": segment.state.value,
        "parentIds": segment.parents,
        "childIds": segment.children,
        "createdAtEpoch": segment.created_epoch,
        "sealedAtEpoch": -1 if segment.sealed_epoch is None else segment.sealed_epoch,
    } | ({} if segment.legacy is None else {"legacyTopicName": str(segment.name_in(topic))})


def _layout(
    name: TopicName, record: ScalableTopicRecord, stats: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    segments = {}
    for each, shown in zip(record.segments, stats, strict=True):
        segments[str(each.id)] = {
            "name": str(each.name_in(name)),
            "state": each.state.value,
            "parentIds": each.parents,
            "childIds": each.children,
            "createdAt": each.created_ms,
            "sealedAt": -1 if each.sealed_ms is None else each.sealed_ms,
            "entryBuckets": each.entry_buckets,
            "ownerBroker": shown.get("ownerBroker"),
            **{field: shown[field] for field in _SUMS if field in shown},
        }
    sealed = sum(each.is_sealed for each in record.segments)
    return {
        "epoch": record.epoch,
        "segments": segments,
        "states": {"ACTIVE": len(record.segments) - sealed, "SEALED": sealed},
        "splits": record.splits,
        "merges": record.merges,
        "underWay": _under_way(record),
        "lastOperation": _last_operation(record),
    }


def _under_way(record: ScalableTopicRecord) -> dict[str, Any] | None:
    change = record.change
    if change is None:
        return None
    return {"operation": change.kind, "segmentIds": change.parents, "begunAt": change.begun_ms}


def _last_operation(record: ScalableTopicRecord) -> dict[str, Any] | None:
    """Return Pulsar's fields, and Magnetar's own: the duration, and the time publishing was held
    up, in ms."""
    last = record.last_change
    if last is None:
        return None
    return {
        "operation": last.kind,
        "segmentIds": last.parents,
        "status": "COMPLETED",
        "at": last.ended_ms,
        "tookMs": max(0, last.ended_ms - last.begun_ms),
        "stalledMs": last.stalled_ms,
    }


def _auto_scale(record: ScalableTopicRecord, policy: ScalePolicy) -> dict[str, Any]:
    """Return the topic's effective policy under Pulsar's names, and when it was last scaled."""
    counts: dict[str, Any] = {
        "is_on": policy.is_on,
        "segments_max": policy.segments_max,
        "segments_min": policy.segments_min,
        "depth_max": policy.depth_max,
        "split_cooldown_s": round(policy.split_cooldown_s),
        "merge_cooldown_s": round(policy.merge_cooldown_s),
        "merge_window_s": round(policy.merge_window_s),
        "rebucket_cooldown_s": round(policy.rebucket_cooldown_s),
        "consumers_split_msg_rate_in": policy.consumers_split_msg_rate_in,
        **{f"split_{each}": getattr(policy.split, each) for each in RATES},
        **{f"merge_{each}": getattr(policy.merge, each) for each in RATES},
    }
    return {
        "policy": _AUTO_SCALE.to_json(AutoScale.model_validate(counts)),
        "blockedReason": policy.fault or None,
        "lastSplitAt": last_change_ms(record, parents=(1,)) or None,
        "lastMergeAt": last_change_ms(record, parents=(2,)) or None,
    }


def _subscriptions(
    record: ScalableTopicRecord, stats: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the subscriptions, summed over all segments."""
    found: dict[str, dict[str, Any]] = {}
    for segment, shown in zip(record.segments, stats, strict=True):
        for name, part in shown.get("subscriptions", {}).items():
            whole = found.setdefault(name, {**dict.fromkeys(_SUBSCRIPTION_SUMS, 0), "segments": {}})
            numbers = {field: part.get(field, 0) for field in _SUBSCRIPTION_SUMS}
            for field, number in numbers.items():
                whole[field] += number
            consumers = len(part.get("consumers", ()))
            whole["segments"][str(segment.id)] = {**numbers, "consumerCount": consumers}
    return found
