"""The HTTP application: health, metrics, and the interfaces of `http/`.

Imported late: FastAPI takes its time.
"""

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from magnetar.broker.http.composition import add_routers
from magnetar.broker.http.description import add_description
from magnetar.broker.metrics.page import MetricsPage
from magnetar.broker.security import Action, Cluster
from magnetar.broker.security.http import Authentication

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Health(BaseModel):
    """Answer of GET /health."""

    status: str
    """ok; or in words why not: starting, no lease, stopping, what a heartbeat failed at."""
    version: str
    service_url: str
    topics: int
    connections: int


def make_app(broker: "Broker", page: MetricsPage) -> FastAPI:
    """The application of one broker."""
    app = FastAPI(title="Magnetar broker", version=broker.version, openapi_url=None, docs_url=None)

    @app.get("/health")
    async def health(response: Response) -> Health:
        """200 while the broker serves clients and can write and read; else 503, and why."""
        status = await broker.health.look()
        if status != "ok":
            response.status_code = 503
        return Health(
            status=status,
            version=broker.version,
            service_url=broker.service_url,
            topics=len(broker.services.topics.loaded),
            connections=broker.connections,
        )

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus' text format. With authorization it takes a super user, or a setting."""
        if not broker.metrics_open:
            identity = request.state.identity
            await broker.services.authorizer.check(identity, Action.ADMINISTER, Cluster())
        return StreamingResponse(page.written(), media_type=METRICS_TYPE)

    add_routers(app, broker, page)
    open_paths = {"/health", "/metrics"} if broker.metrics_open else {"/health"}
    app.add_middleware(
        Authentication,
        authenticator=broker.services.authenticator,
        audit=broker.security.audit,
        certificate_roles=broker.certificate_roles,
        open_paths=frozenset(open_paths),
    )
    add_description(app)
    return app
