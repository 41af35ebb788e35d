"""The brokers over HTTP: which exist, which one leads, their bundles, settings and measurements.

Settings have the names of `BrokerSettings`. Names of Pulsar's configuration file with the same
meaning are accepted, too, and shown beside them.

Source: HTTP sheet, sections 3 to 5.
"""

import asyncio
import gc
import json
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.cluster.balance.load_report import BundleLoad, LoadReport
from magnetar.broker.features.message_index import exact_backlogs
from magnetar.broker.features.retention.backlog import backlog_age
from magnetar.broker.http.admin import KnownBroker
from magnetar.broker.http.bodies import JSON, done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.metrics.page import MetricsPage
from magnetar.broker.http.refusals import ElsewhereError, HttpRefusal
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.policies.dynamic import ALL_NAMES, under_both_names
from magnetar.broker.topic import Topic
from magnetar.ledger.flight_recorder import MOMENTS_MAX, RECORDER, SlowMoment


class LeaderBrokerInfo(BaseModel):
    """The broker that assigns bundles to brokers."""

    serviceUrl: str
    brokerId: str


class BrokerView(BaseModel):
    """A broker with its registration and its load; not a shape of Pulsar's."""

    name: str
    broker_id: str
    native_url: str
    http_url: str
    listeners: dict[str, str]
    version: str
    draining: bool
    is_leader: bool
    is_self: bool
    load: LoadReport | None

    @classmethod
    def of(cls, known: KnownBroker) -> "BrokerView":
        record = known.record
        return cls(
            name=record.name,
            broker_id=known.broker_id,
            native_url=record.native_url,
            http_url=record.http_url,
            listeners=record.listeners,
            version=record.version,
            draining=record.draining,
            is_leader=known.is_leader,
            is_self=known.is_self,
            load=known.report,
        )


class _Brokers:
    """Routes of brokers."""

    def __init__(
        self,
        context: HttpContext,
        status: Callable[[], str],
        health: Callable[[], Awaitable[str]],
        request_stop: Callable[[], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._context = context
        self._status = status
        self._health = health
        self._request_stop = request_stop
        self._started_ms = wall_ms()

    async def leader_broker(self) -> LeaderBrokerInfo:
        """Return the leader; 404 if there is none at the moment."""
        for known in self._context.admin.brokers():
            if known.is_leader:
                return LeaderBrokerInfo(serviceUrl=known.record.http_url, brokerId=known.broker_id)
        raise HttpRefusal(404, "there is no leader among the brokers at the moment; try again")

    async def version(self) -> PlainTextResponse:
        """Return the version of this broker."""
        return PlainTextResponse(self._context.version)

    async def check_health(
        self,
        broker_id: Annotated[str, Query(alias="brokerId")] = "",
    ) -> PlainTextResponse:
        """Return `ok`; 503 with the reason if the broker does not serve. 307 to another broker if
        `brokerId` names it."""
        known = self._broker(broker_id) if broker_id else None
        if known is not None and not known.is_self:
            raise ElsewhereError(known.record.http_url, http_url_tls=known.record.http_url_tls)
        said = await self._health()
        if said != "ok":
            raise HttpRefusal(503, said)
        return PlainTextResponse("ok")

    async def ready(self) -> PlainTextResponse:
        said = self._status()
        if said != "ok":
            raise HttpRefusal(503, said)
        return PlainTextResponse("ok")

    async def status_page(self) -> PlainTextResponse:
        await self.ready()
        return PlainTextResponse("OK")

    async def shutdown(
        self,
        forcedTerminateTopic: bool = True,
        maxConcurrentUnloadPerSec: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        """Hand the topics over and stop. The parameters have no effect: a setting limits how many
        topics move at a time."""
        self._request_stop()
        return done()

    async def brokers(self) -> list[str]:
        return [known.broker_id for known in self._context.admin.brokers()]

    async def brokers_of(self, cluster: str) -> list[str]:
        self._check_cluster(cluster)
        return await self.brokers()

    async def owned_namespaces(self, cluster: str, broker_id: str) -> dict[str, dict[str, Any]]:
        """Return the bundles of a broker; 307 to that broker if it is not this one."""
        self._check_cluster(cluster)
        known = self._broker(broker_id)
        if not known.is_self:
            raise ElsewhereError(known.record.http_url, http_url_tls=known.record.http_url_tls)
        return {
            str(bundle): {
                "broker_assignment": "shared",
                "is_controlled": False,
                "is_active": True,
            }
            for bundle in await self._context.admin.owned()
        }

    async def load_report(self) -> dict[str, Any]:
        """Return the current load of this broker, in Pulsar's shape."""
        await self._context.admin.owned()
        report = await self._context.admin.reporter.look()
        own = next((each for each in self._context.admin.brokers() if each.is_self), None)
        return pulsar_report(report, own, self._context.version, started_ms=self._started_ms)

    async def all_brokers(self) -> list[BrokerView]:
        """Return the registered brokers with their addresses and last load reports."""
        return [BrokerView.of(known) for known in self._context.admin.brokers()]

    async def slow(
        self, kind: str = "", milliseconds_min: float = 0.0, limit: int = MOMENTS_MAX
    ) -> list[SlowMoment]:
        """Return recent slow operations of this process, newest first: late callbacks of the event
        loop, journal commits, flushes, calls to the metadata store, garbage collections."""
        return list(RECORDER.moments(kind=kind, milliseconds_min=milliseconds_min, limit=limit))

    def _broker(self, broker_id: str) -> KnownBroker:
        for each in self._context.admin.brokers():
            if broker_id in (each.broker_id, each.record.name):
                return each
        raise HttpRefusal(404, f"there is no broker {broker_id}")

    def _check_cluster(self, name: str) -> None:
        if name != self._context.cluster_name:
            raise HttpRefusal(404, f"there is no cluster {name}")


def brokers_router(
    context: HttpContext,
    *,
    status: Callable[[], str],
    health: Callable[[], Awaitable[str]],
    request_stop: Callable[[], None],
    wall_ms: Callable[[], int],
) -> APIRouter:
    """Return the routes below /admin/v2/brokers, /admin/v2/broker-stats and /magnetar/v1/brokers.

    Args:
        status: `ok` while clients are served, else the reason.
        health: as `status`, but with a heartbeat.
        request_stop: makes this process stop in order.
    """
    router = late_router(tags=["brokers"])
    routes = _Brokers(context, status, health, request_stop, wall_ms)
    router.get("/admin/v2/brokers/leaderBroker")(routes.leader_broker)
    router.get("/admin/v2/brokers/version")(routes.version)
    router.get(
        "/admin/v2/brokers/health",
        summary="`ok` while a broker serves, and can write and read",
        response_class=PlainTextResponse,
    )(routes.check_health)
    router.get(
        "/admin/v2/brokers/ready",
        summary="`ok` while this broker may own topics and serves them",
        response_class=PlainTextResponse,
    )(routes.ready)
    router.get(
        "/status.html", summary="`OK`, for load balancers", response_class=PlainTextResponse
    )(routes.status_page)
    router.post("/admin/v2/brokers/shutdown", status_code=204, summary="Shut down this broker")(
        routes.shutdown
    )
    router.get("/admin/v2/brokers", summary="Ids of the registered brokers")(routes.brokers)
    router.get("/admin/v2/brokers/{cluster}", summary="Ids of the brokers of a cluster")(
        routes.brokers_of
    )
    router.get("/admin/v2/brokers/{cluster}/{broker_id}/ownedNamespaces")(routes.owned_namespaces)
    router.get("/admin/v2/broker-stats/load-report")(routes.load_report)
    router.get("/magnetar/v1/brokers")(routes.all_brokers)
    router.get("/magnetar/v1/slow", summary="Slow moments of this process")(routes.slow)
    return router


REPORT_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "loadReportType": ("LocalBrokerData", "tells clients in Java which class to make of it"),
    "persistentTopicsEnabled": (True, "a broker serves both kinds"),
    "nonPersistentTopicsEnabled": (True, "a broker serves both kinds"),
    "directMemory": ({"usage": 0.0, "limit": 0.0}, "all memory is Python's own"),
    "lastBundleGains": ([], "what changed since the report before is not kept"),
    "lastBundleLosses": ([], "what changed since the report before is not kept"),
    "protocols": ({}, "there are no further protocols to plug in"),
    "loadManagerClassName": ("", "bundles are placed in one way"),
    "cacheSize": (0, "of a bundle: the tail cache belongs to the broker"),
}
"""Constant fields of a load report: the value, and why."""


def pulsar_report(
    report: LoadReport, own: KnownBroker | None, version: str, *, started_ms: int
) -> dict[str, Any]:
    """Return a load report in Pulsar's shape (LocalBrokerData)."""
    bundles = report.bundles
    constants = {name: value for name, (value, _) in REPORT_CONSTANTS.items()}
    cache_size = constants.pop("cacheSize")
    stats = {
        name: {**_pulsar_bundle(load), "cacheSize": cache_size}
        for name, load in sorted(bundles.items())
    }
    return {
        **constants,
        "webServiceUrl": own.record.http_url if own is not None else "",
        "webServiceUrlTls": own.record.http_url_tls or None if own is not None else None,
        "pulsarServiceUrl": own.record.native_url if own is not None else "",
        "pulsarServiceUrlTls": own.record.native_url_tls or None if own is not None else None,
        "advertisedListeners": (
            {name: {"brokerServiceUrl": url} for name, url in sorted(own.record.listeners.items())}
            if own is not None
            else {}
        ),
        "startTimestamp": started_ms,
        "maxResourceUsage": report.usage_percent / 100,
        "cpu": {"usage": report.cpu_percent, "limit": 100.0},
        "memory": {"usage": report.memory_bytes / (1 << 20), "limit": 0.0},
        "bandwidthIn": {"usage": report.network_in_percent, "limit": 100.0},
        "bandwidthOut": {"usage": report.network_out_percent, "limit": 100.0},
        "msgRateIn": sum(load.msg_rate_in for load in bundles.values()),
        "msgRateOut": sum(load.msg_rate_out for load in bundles.values()),
        "msgThroughputIn": sum(load.bytes_rate_in for load in bundles.values()),
        "msgThroughputOut": sum(load.bytes_rate_out for load in bundles.values()),
        "numTopics": report.topics,
        "numBundles": len(bundles),
        "numProducers": sum(load.producers for load in bundles.values()),
        "numConsumers": sum(load.consumers for load in bundles.values()),
        "bundles": sorted(bundles),
        "lastUpdate": report.sent_ms,
        "lastStats": stats,
        "bundleStats": stats,
        "brokerVersionString": version,
    }


def _pulsar_bundle(load: BundleLoad) -> dict[str, Any]:
    return {
        "topics": load.topics,
        "producerCount": load.producers,
        "consumerCount": load.consumers,
        "msgRateIn": load.msg_rate_in,
        "msgRateOut": load.msg_rate_out,
        "msgThroughputIn": load.bytes_rate_in,
        "msgThroughputOut": load.bytes_rate_out,
    }


_CONFIGURATION = "/admin/v2/brokers/configuration"
_SECRET_WORDS = ("secret", "password", "private", "credential", "token", "key")
_HIDDEN = "*****"


class InternalConfiguration(BaseModel):
    """Addresses of the metadata store of the cluster."""

    zookeeperServers: str
    configurationStoreServers: str
    metadataStoreUrl: str
    configurationMetadataStoreUrl: str
    ledgersRootPath: str
    bookkeeperMetadataServiceUri: str
    stateStorageServiceUrl: str | None = None


def configuration_router(context: HttpContext, *, metadata_url: str) -> APIRouter:
    """Return the routes below /admin/v2/brokers about settings. `metadata_url`: URL of the metadata
    store."""
    router = late_router(tags=["brokers"])
    dynamic = context.policies.dynamic

    @router.get(_CONFIGURATION, summary="Names of the dynamic settings")
    async def names() -> list[str]:
        return list(ALL_NAMES)

    @router.get(_CONFIGURATION + "/values", summary="Dynamic settings that have a value")
    async def values() -> dict[str, str]:
        return under_both_names(await dynamic.values())

    @router.get(_CONFIGURATION + "/runtime", summary="Current settings of this broker")
    async def runtime() -> dict[str, str]:
        """Return the current settings; secrets are hidden."""
        return under_both_names(
            {
                name: _HIDDEN if _is_secret(name) and value else str(value)
                for name, value in context.settings
            }
        )

    @router.post(
        _CONFIGURATION + "/{name}/{value:path}", status_code=204, summary="Set a dynamic setting"
    )
    async def change(name: str, value: str) -> Response:
        """Change a setting on all brokers, at once. 412 if there is no such setting, or the value
        is not valid."""
        await dynamic.set(name, value)
        return done()

    @router.delete(_CONFIGURATION + "/{name}", status_code=204, summary="Reset a dynamic setting")
    async def remove(name: str) -> Response:
        """Reset a setting; 412 if it cannot be changed while brokers run."""
        await dynamic.remove(name)
        return done()

    @router.get(
        "/admin/v2/brokers/internal-configuration",
        summary="Metadata store of the cluster",
        response_model_exclude_none=True,
    )
    async def internal() -> InternalConfiguration:
        servers = metadata_url.partition("://")[2].partition("/")[0]
        is_zookeeper = metadata_url.startswith(("zk:", "zookeeper:"))
        return InternalConfiguration(
            zookeeperServers=servers if is_zookeeper else "",
            configurationStoreServers=servers if is_zookeeper else "",
            metadataStoreUrl=metadata_url,
            configurationMetadataStoreUrl=metadata_url,
            ledgersRootPath="/ledgers",
            bookkeeperMetadataServiceUri=f"metadata-store:{metadata_url}",
        )

    return router


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)


_STATS = "/admin/v2/broker-stats"
_TOPICS_AT_ONCE = 50
"""Topics whose statistics are computed in one turn of the event loop."""

OLD_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "filteredEntriesCount": (0, "brokers run no code of others on messages"),
}
"""Constant fields of a topic that only `/topics` has: the value, and why."""


class BrokerMetrics(BaseModel):
    """Samples that share their labels."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


class ResourceAvailability(BaseModel):
    """Free capacity of a broker, in percent of its total."""

    availabilityPercent: float


class _BrokerStats:
    """Routes of the statistics of a broker."""

    def __init__(self, context: HttpContext, page: MetricsPage, wall_ms: Callable[[], int]) -> None:
        self._context = context
        self._page = page
        self._wall_ms = wall_ms

    async def metrics(self) -> list[BrokerMetrics]:
        text = "".join([portion async for portion in self._page.written()])
        return await asyncio.to_thread(_by_labels, text)

    async def mbeans(self) -> list[BrokerMetrics]:
        runtime = {"implementation": platform.python_implementation(), "version": sys.version}
        generations = [
            BrokerMetrics(
                metrics={name: float(value) for name, value in each.items()},
                dimensions={"MBean": f"python:type=GarbageCollector,generation={number}"},
            )
            for number, each in enumerate(gc.get_stats())
        ]
        process = BrokerMetrics(metrics={}, dimensions={"MBean": "python:type=Runtime", **runtime})
        return [process, *generations]

    async def topics(self) -> Response:
        """Return the statistics of the topics of this broker, by namespace, bundle and domain."""
        own = next((each for each in self._context.admin.brokers() if each.is_self), None)
        owner = own.broker_id if own is not None else ""
        shown: dict[str, Any] = {}
        for number, topic in enumerate(self._context.topics.loaded):
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # Let other work run in between.
            name = topic.name
            layout = await self._context.admin.layouts.layout_of(name.namespace_name)
            bundle = shown.setdefault(name.namespace_name, {}).setdefault(
                layout.bundle_of(name).name, {}
            )
            if not topic.is_closed:
                now_ms = self._wall_ms()
                oldest = await backlog_age(topic, now_ms, reads=False)
                stats = topic_stats(
                    topic,
                    now_ms=now_ms,
                    owner=owner,
                    oldest=oldest,
                    backlogs=await exact_backlogs(topic, reads=False),
                )
                bundle.setdefault(name.domain, {})[str(name)] = with_old_names(topic, stats)
        return Response(await asyncio.to_thread(json.dumps, shown), media_type=JSON)

    async def allocator(self, name: str) -> dict[str, Any]:
        """Return 404: there are no pooled allocators, whatever the name."""
        raise NotThereError(f"there is no allocator {name!r}: memory is Python's own")

    async def bookie_operations(self) -> dict[str, Any]:
        """Return the log of each topic by namespace: appends in flight to bookies, and its
        ledgers."""
        shown: dict[str, Any] = {}
        for topic in self._context.topics.loaded:
            if topic.name.is_persistent:
                shown.setdefault(topic.name.namespace_name, {})[str(topic.name)] = {
                    "pendingAddEntries": getattr(topic.log, "pending_batches", 0),
                    "pendingAddBytes": getattr(topic.log, "pending_bytes", 0),
                    "ledgers": len(topic.log.ledgers),
                }
        return shown

    async def availability(self, tenant: str, namespace: str) -> ResourceAvailability:
        await self._context.namespace(tenant, namespace)
        await self._context.admin.owned()
        report = await self._context.admin.reporter.look()
        used = max(report.cpu_percent, report.network_in_percent, report.network_out_percent)
        return ResourceAvailability(availabilityPercent=max(0.0, 100.0 - used))


def broker_stats_router(
    context: HttpContext, page: MetricsPage, *, wall_ms: Callable[[], int]
) -> APIRouter:
    """Return the routes below /admin/v2/broker-stats. `page` is the page that /metrics shows."""
    router = late_router(tags=["broker statistics"])
    routes = _BrokerStats(context, page, wall_ms)
    router.get(_STATS + "/metrics", summary="Metrics as JSON")(routes.metrics)
    router.get(_STATS + "/mbeans", summary="The process and its garbage collector")(routes.mbeans)
    router.get(
        _STATS + "/topics",
        summary="The statistics of all topics of this broker",
        response_model=dict[str, Any],
    )(routes.topics)
    router.get(_STATS + "/allocator-stats/{name}", summary="Memory of an allocator")(
        routes.allocator
    )
    router.get(_STATS + "/bookieops", summary="Operations of the ledger client")(
        routes.bookie_operations
    )
    router.get(
        _STATS + "/broker-resource-availability/{tenant}/{namespace}",
        summary="Free capacity of this broker",
    )(routes.availability)
    return router


def with_old_names(topic: Topic, stats: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of a topic with the fields that only this answer has, or has under
    other names."""
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


def _by_labels(text: str) -> list[BrokerMetrics]:
    """Group the samples of a metrics page by their labels."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(labels, {})[sample.name] = float(sample.value)
    return [
        BrokerMetrics(metrics=values, dimensions=dict(labels)) for labels, values in found.items()
    ]
