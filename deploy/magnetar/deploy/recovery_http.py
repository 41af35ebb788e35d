"""HTTP of a process of auto-recovery: GET /health and GET /metrics.

Imported late: FastAPI takes its time.
"""

from collections.abc import Callable, Sequence

from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel

from magnetar.deploy.metrics_http import METRICS_TYPE


class RecoveryHealth(BaseModel):
    """Answer of GET /health."""

    status: str
    """`ok`; `no metadata` while the metadata store does not answer; `stopping`; or which of its
    two parts has ended."""
    name: str
    is_auditor: bool
    """Whether it was elected. Any number of processes wait to be."""


def make_recovery_app(
    collectors: Sequence[Collector], *, health: Callable[[], RecoveryHealth]
) -> FastAPI:
    """The application; all of it runs on the event loop, where the numbers belong."""
    app = FastAPI(title="Magnetar metrics", docs_url=None, redoc_url=None, openapi_url=None)
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    @app.get("/health")
    async def answer_health(response: Response) -> RecoveryHealth:
        """200 while ledgers are looked after, 503 otherwise."""
        now = health()
        if now.status != "ok":
            response.status_code = 503
        return now

    @app.get("/metrics")
    async def answer_metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=METRICS_TYPE)

    return app
