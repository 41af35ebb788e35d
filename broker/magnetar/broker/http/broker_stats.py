"""What a broker measures, over HTTP. Source: HTTP sheet, section 5."""

import asyncio
import gc
import json
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Response
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.features.retention.backlog import backlog_age
from magnetar.broker.http.answers import JSON
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.metrics.page import MetricsPage
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.topic import Topic

_PREFIX = "/admin/v2/broker-stats"
_TOPICS_AT_ONCE = 50
"""Whose statistics are made in one turn of the loop."""

OLD_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "filteredEntriesCount": (0, "brokers run no code of others on messages"),
}
"""Fields of a topic in `/topics` alone that never change: the value, and why."""


class Metrics(BaseModel):
    """Samples with the same labels."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


class ResourceAvailability(BaseModel):
    """How much more a broker can take, in percent of what it has."""

    availabilityPercent: float


def broker_stats_router(
    context: HttpContext, page: MetricsPage, *, wall_ms: Callable[[], int]
) -> APIRouter:
    """The routes below /admin/v2/broker-stats. `page`: what /metrics shows."""
    router = APIRouter(tags=["broker statistics"])

    @router.get(_PREFIX + "/metrics", summary="What /metrics shows, as JSON")
    async def metrics() -> list[Metrics]:
        text = "".join([portion async for portion in page.written()])
        return await asyncio.to_thread(_by_labels, text)

    @router.get(_PREFIX + "/mbeans", summary="The process and its garbage collector")
    async def mbeans() -> list[Metrics]:
        runtime = {"implementation": platform.python_implementation(), "version": sys.version}
        generations = [
            Metrics(
                metrics={name: float(value) for name, value in each.items()},
                dimensions={"MBean": f"python:type=GarbageCollector,generation={number}"},
            )
            for number, each in enumerate(gc.get_stats())
        ]
        process = Metrics(metrics={}, dimensions={"MBean": "python:type=Runtime", **runtime})
        return [process, *generations]

    @router.get(
        _PREFIX + "/topics",
        summary="The statistics of all topics of this broker",
        response_model=dict[str, Any],
    )
    async def topics() -> Response:
        """By namespace, bundle and domain."""
        own = next((each for each in context.admin.brokers() if each.is_self), None)
        owner = own.broker_id if own is not None else ""
        shown: dict[str, Any] = {}
        for number, topic in enumerate(context.topics.loaded):
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # Everybody else has their turn in between.
            name = topic.name
            layout = await context.admin.layouts.layout_of(name.namespace_name)
            bundle = shown.setdefault(name.namespace_name, {}).setdefault(
                layout.bundle_of(name).name, {}
            )
            if not topic.is_closed:
                now_ms = wall_ms()
                oldest = await backlog_age(topic, now_ms, reads=False)
                stats = topic_stats(topic, now_ms=now_ms, owner=owner, oldest=oldest)
                bundle.setdefault(name.domain, {})[str(name)] = with_old_names(topic, stats)
        return Response(await asyncio.to_thread(json.dumps, shown), media_type=JSON)

    @router.get(_PREFIX + "/allocator-stats/{name}", summary="Memory of an allocator")
    async def allocator(name: str) -> dict[str, Any]:
        """404: there are no pooled allocators here, whatever their name."""
        raise NotThereError(f"there is no allocator {name!r}: memory is Python's own")

    @router.get(_PREFIX + "/bookieops", summary="Operations of the ledger client")
    async def bookie_operations() -> dict[str, Any]:
        """By namespace and topic: what of the log waits for bookies, and what it has."""
        shown: dict[str, Any] = {}
        for topic in context.topics.loaded:
            if topic.name.is_persistent:
                shown.setdefault(topic.name.namespace_name, {})[str(topic.name)] = {
                    "pendingAddEntries": getattr(topic.log, "pending_batches", 0),
                    "pendingAddBytes": getattr(topic.log, "pending_bytes", 0),
                    "ledgers": len(topic.log.ledgers),
                }
        return shown

    @router.get(
        _PREFIX + "/broker-resource-availability/{tenant}/{namespace}",
        summary="How much more this broker can take",
    )
    async def availability(tenant: str, namespace: str) -> ResourceAvailability:
        await context.namespace(tenant, namespace)
        await context.admin.owned()
        report = await context.admin.reporter.look()
        used = max(report.cpu_percent, report.network_in_percent, report.network_out_percent)
        return ResourceAvailability(availabilityPercent=max(0.0, 100.0 - used))

    return router


def with_old_names(topic: Topic, stats: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a topic, with what this answer alone has, or has under other names."""
    log = topic.log
    subscriptions = {}
    for name, shown in stats["subscriptions"].items():
        cursor = topic.subscriptions[name].cursor
        subscriptions[name] = {
            **shown,
            "numberOfEntriesSinceFirstNotAckedMessage": log.entries_between(
                cursor.mark_delete, log.last_confirmed
            ),
            "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        }
    return {
        **stats,
        "subscriptions": subscriptions,
        "producerCount": len(topic.producers),
        "msgInCount": stats["msgInCounter"],
        "bytesInCount": stats["bytesInCounter"],
        "msgOutCount": stats["msgOutCounter"],
        "bytesOutCount": stats["bytesOutCounter"],
        "pendingAddEntriesCount": getattr(log, "pending_batches", 0),
        **{name: value for name, (value, _) in OLD_CONSTANTS.items()},
    }


def _by_labels(text: str) -> list[Metrics]:
    """The samples of a page of metrics; those with the same labels together."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(labels, {})[sample.name] = float(sample.value)
    return [Metrics(metrics=values, dimensions=dict(labels)) for labels, values in found.items()]
