"""The brokers over HTTP: who there is, who leads, what each has.

Source: HTTP sheet, sections 3 to 5.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from magnetar.broker.balance.load_report import BundleLoad, LoadReport
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
) -> APIRouter:
    """The routes below /admin/v2/brokers, /admin/v2/broker-stats and
    /magnetar/v1/brokers. `status`: `ok` while clients are served, else why not; `health`:
    the same with a heartbeat. `request_stop`: have this process end in order."""
    router = APIRouter(tags=["brokers"])

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
        return _pulsar_report(report, own, context.version)

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


def _pulsar_report(report: LoadReport, own: KnownBroker | None, version: str) -> dict[str, Any]:
    bundles = report.bundles
    return {
        "webServiceUrl": own.record.http_url if own is not None else "",
        "pulsarServiceUrl": own.record.native_url if own is not None else "",
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
        "lastStats": {name: _pulsar_bundle(load) for name, load in sorted(bundles.items())},
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
