"""HTTP interface of a process without a broker: metrics, health, slow operations; POST /gc of a
bookie.

Imported late, because FastAPI takes long to import.
"""

from collections.abc import Callable, Sequence

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel

from magnetar.ledger.flight_recorder import MOMENTS_MAX, RECORDER, SlowMoment

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Health(BaseModel):
    """Answer of GET /health of a bookie."""

    status: str
    """`ok`, or the problem: no metadata store, not registered, journal full, stopping."""
    bookie: str
    port: int
    writable: bool
    """Whether the bookie takes adds. A read-only bookie is healthy: it serves reads."""
    registered_as: str | None
    """`writable` or `read-only`; null: not registered."""
    read_only_reasons: list[str]
    """Reasons why the bookie takes no adds: no room, on request, stopping."""


class RecoveryHealth(BaseModel):
    """Answer of GET /health of an auto-recovery process."""

    status: str
    """`ok`; `no metadata` while the metadata store does not answer; `stopping`; or the part, of
    auditor and worker, that has ended."""
    name: str
    is_auditor: bool
    """Whether this process was elected auditor. Any number of processes may be candidates."""


def make_metrics_app(
    collectors: Sequence[Collector],
    *,
    health: Callable[[], Health],
    request_gc: Callable[[bool], None],
) -> FastAPI:
    """Make the application of a bookie.

    `request_gc` begins a round of garbage collection; its argument tells whether a major one.
    """
    app = _app(collectors)

    @app.get("/health")
    async def answer_health(response: Response) -> Health:
        """Answer 200 while the bookie serves clients, else 503."""
        now = health()
        if now.status != "ok":
            response.status_code = 503
        return now

    @app.post("/gc", status_code=202)
    async def answer_gc(request: Request, major: bool = False) -> Response:
        """Begin a round of garbage collection. The log and the metrics report what it does.

        Web pages get 403: a browser lets any page send requests, and marks them with this header.
        """
        if "origin" in request.headers:
            return Response("web pages may ask for nothing here\n", status_code=403)
        request_gc(major)
        return Response(status_code=202)

    return app


def make_recovery_app(
    collectors: Sequence[Collector], *, health: Callable[[], RecoveryHealth]
) -> FastAPI:
    """Make the application of an auto-recovery process."""
    app = _app(collectors)

    @app.get("/health")
    async def answer_health(response: Response) -> RecoveryHealth:
        """Answer 200 while ledgers are looked after, else 503."""
        now = health()
        if now.status != "ok":
            response.status_code = 503
        return now

    return app


def _app(collectors: Sequence[Collector]) -> FastAPI:
    """Make an application with GET /metrics. It runs on the event loop, which owns the numbers."""
    app = FastAPI(title="Magnetar metrics", docs_url=None, redoc_url=None, openapi_url=None)
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    @app.get("/metrics")
    async def answer_metrics() -> Response:
        """Answer in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=METRICS_TYPE)

    @app.get("/magnetar/v1/slow")
    async def answer_slow(
        kind: str = "", milliseconds_min: float = 0.0, limit: int = MOMENTS_MAX
    ) -> list[SlowMoment]:
        """Recent slow operations of this process, newest first."""
        return list(RECORDER.moments(kind=kind, milliseconds_min=milliseconds_min, limit=limit))

    return app
