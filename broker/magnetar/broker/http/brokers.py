"""The brokers over HTTP: who there is, who leads, what each has.

Source: HTTP sheet, sections 3 to 5.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from magnetar.broker.cluster.balance.load_report import BundleLoad, LoadReport
from magnetar.broker.http.admin import KnownBroker
from magnetar.broker.http.answers import done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import ElsewhereError, HttpRefusal


class LeaderBrokerInfo(BaseModel):
    """The broker that decides who gets a bundle."""

    serviceUrl: str
    brokerId: str


class BrokerView(BaseModel):
    """A broker with everything that is known of it; not a shape of Pulsar's."""

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


def brokers_router(
    context: HttpContext,
    *,
    status: Callable[[], str],
    health: Callable[[], Awaitable[str]],
    request_stop: Callable[[], None],
    wall_ms: Callable[[], int],
) -> APIRouter:
    """The routes below /admin/v2/brokers, /admin/v2/broker-stats and
    /magnetar/v1/brokers. `status`: `ok` while clients are served, else why not; `health`:
    the same with a heartbeat. `request_stop`: have this process end in order."""
    router = APIRouter(tags=["brokers"])
    started_ms = wall_ms()

    @router.get("/admin/v2/brokers/leaderBroker")
    async def leader_broker() -> LeaderBrokerInfo:
        """The broker that leads; 404: none at the moment."""
        for known in context.admin.brokers():
            if known.is_leader:
                return LeaderBrokerInfo(serviceUrl=known.record.http_url, brokerId=known.broker_id)
        raise HttpRefusal(404, "no broker leads the others at the moment")

    @router.get("/admin/v2/brokers/version")
    async def version() -> PlainTextResponse:
        """The version of this broker."""
        return PlainTextResponse(context.version)

    @router.get(
        "/admin/v2/brokers/health",
        summary="`ok` while a broker serves, and can write and read",
        response_class=PlainTextResponse,
    )
    async def check_health(
        broker_id: Annotated[str, Query(alias="brokerId")] = "",
    ) -> PlainTextResponse:
        """503: it does not, and why. Of another broker than this one: 307 to it."""
        known = _broker(broker_id) if broker_id else None
        if known is not None and not known.is_self:
            raise ElsewhereError(known.record.http_url, http_url_tls=known.record.http_url_tls)
        said = await health()
        if said != "ok":
            raise HttpRefusal(503, said)
        return PlainTextResponse("ok")

    @router.get(
        "/admin/v2/brokers/ready",
        summary="`ok` while this broker may own topics and serves them",
        response_class=PlainTextResponse,
    )
    async def ready() -> PlainTextResponse:
        said = status()
        if said != "ok":
            raise HttpRefusal(503, said)
        return PlainTextResponse("ok")

    @router.get(
        "/status.html", summary="`OK`, for load balancers", response_class=PlainTextResponse
    )
    async def status_page() -> PlainTextResponse:
        await ready()
        return PlainTextResponse("OK")

    @router.post(
        "/admin/v2/brokers/shutdown", status_code=204, summary="Have this broker stop in order"
    )
    async def shutdown(
        forcedTerminateTopic: bool = True,
        maxConcurrentUnloadPerSec: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        """It hands its topics over and ends. How many at a time is a setting of its own."""
        request_stop()
        return done()

    @router.get("/admin/v2/brokers", summary="Ids of the registered brokers")
    async def brokers() -> list[str]:
        return [known.broker_id for known in context.admin.brokers()]

    @router.get("/admin/v2/brokers/{cluster}", summary="Ids of the brokers of a cluster")
    async def brokers_of(cluster: str) -> list[str]:
        _check_cluster(cluster)
        return await brokers()

    @router.get("/admin/v2/brokers/{cluster}/{broker_id}/ownedNamespaces")
    async def owned_namespaces(cluster: str, broker_id: str) -> dict[str, dict[str, Any]]:
        """The bundles of a broker; 307 to it, if it is not this one."""
        _check_cluster(cluster)
        known = _broker(broker_id)
        if not known.is_self:
            raise ElsewhereError(known.record.http_url, http_url_tls=known.record.http_url_tls)
        return {
            str(bundle): {
                "broker_assignment": "shared",
                "is_controlled": False,
                "is_active": True,
            }
            for bundle in await context.admin.owned()
        }

    @router.get("/admin/v2/broker-stats/load-report")
    async def load_report() -> dict[str, Any]:
        """The load of this broker now, in Pulsar's shape."""
        await context.admin.owned()
        report = await context.admin.reporter.look()
        own = next((each for each in context.admin.brokers() if each.is_self), None)
        return pulsar_report(report, own, context.version, started_ms=started_ms)

    @router.get("/magnetar/v1/brokers")
    async def all_brokers() -> list[BrokerView]:
        """The registered brokers with their addresses and last load reports."""
        return [BrokerView.of(known) for known in context.admin.brokers()]

    def _broker(broker_id: str) -> KnownBroker:
        for each in context.admin.brokers():
            if broker_id in (each.broker_id, each.record.name):
                return each
        raise HttpRefusal(404, f"there is no broker {broker_id}")

    def _check_cluster(name: str) -> None:
        if name != context.cluster_name:
            raise HttpRefusal(404, f"there is no cluster {name}")

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
"""Fields of a load report that never change: the value, and why."""


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
