"""HTTP of a process without a broker: metrics, health, slow moments; POST /gc of a bookie.

Imported late: FastAPI takes its time.
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
    """`ok`, or in words why not: no metadata store, not registered, journal full, stopping."""
    bookie: str
    port: int
    writable: bool
    """False: read-only. That is not unwell: what it has is served."""
    registered_as: str | None
    """`writable` or `read-only`; null: not at all."""
    read_only_reasons: list[str]
    """Why it takes no adds, in words: no room, as told, stopping."""


class RecoveryHealth(BaseModel):
    """Answer of GET /health of a process of auto-recovery."""

    status: str
    """`ok`; `no metadata` while the metadata store does not answer; `stopping`; or which of its
    two parts has ended."""
    name: str
    is_auditor: bool
    """Whether it was elected. Any number of processes wait to be."""


def make_metrics_app(
    collectors: Sequence[Collector],
    *,
    health: Callable[[], Health],
    request_gc: Callable[[bool], None],
) -> FastAPI:
    """The application of a bookie.

    `request_gc` begins a round of garbage collection, major or not.
    """
    app = _app(collectors)

    @app.get("/health")
    async def answer_health(response: Response) -> Health:
        """200 while clients are served, 503 otherwise."""
        now = health()
        if now.status != "ok":
            response.status_code = 503
        return now

    @app.post("/gc", status_code=202)
    async def answer_gc(request: Request, major: bool = False) -> Response:
        """Begin a round of garbage collection; what it does is in the log and in the metrics.

        403 for web pages: a browser lets any page ask, and says so by this header.
        """
        if "origin" in request.headers:
            return Response("web pages may ask for nothing here\n", status_code=403)
        request_gc(major)
        return Response(status_code=202)

    return app


def make_recovery_app(
    collectors: Sequence[Collector], *, health: Callable[[], RecoveryHealth]
) -> FastAPI:
    """The application of a process of auto-recovery."""
    app = _app(collectors)

    @app.get("/health")
    async def answer_health(response: Response) -> RecoveryHealth:
        """200 while ledgers are looked after, 503 otherwise."""
        now = health()
        if now.status != "ok":
            response.status_code = 503
        return now

    return app


def _app(collectors: Sequence[Collector]) -> FastAPI:
    """Serve GET /metrics; all of it runs on the event loop, where the numbers belong."""
    app = FastAPI(title="Magnetar metrics", docs_url=None, redoc_url=None, openapi_url=None)
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    @app.get("/metrics")
    async def answer_metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=METRICS_TYPE)

    @app.get("/magnetar/v1/slow")
    async def answer_slow(
        kind: str = "", milliseconds_min: float = 0.0, limit: int = MOMENTS_MAX
    ) -> list[SlowMoment]:
        """Recent slow operations of this process, newest first."""
        return list(RECORDER.moments(kind=kind, milliseconds_min=milliseconds_min, limit=limit))

    return app
