"""The health of another broker is asked there."""

from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI

from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.http import refusals
from magnetar.broker.http.admin import KnownBroker
from magnetar.broker.http.brokers import brokers_router
from magnetar.broker.http.context import HttpContext

RECORD = BrokerRecord(
    name="other",
    native_url="pulsar://other:6650",
    http_url="http://other:8080",
    http_url_tls="https://other:8443",
    session_token="token",
)


async def location(scheme: str) -> tuple[int, str]:
    """What is answered to a question about the other one: the status, and where it is."""
    other = KnownBroker(RECORD, None, is_leader=False, is_self=False)
    context = SimpleNamespace(admin=SimpleNamespace(brokers=lambda: [other]))

    async def ok() -> str:
        return "ok"

    app = FastAPI()
    refusals.install(app)
    app.include_router(
        brokers_router(
            cast(HttpContext, context),
            status=lambda: "ok",
            health=ok,
            request_stop=lambda: None,
            wall_ms=lambda: 0,
        )
    )
    path = "/admin/v2/brokers/health"
    scope: dict[str, Any] = {
        "type": "http",
        "scheme": scheme,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"brokerId=other:8080",
        "headers": [],
        "server": ("here", 80),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = dict(sent[0]["headers"])
    return sent[0]["status"], headers.get(b"location", b"").decode()


async def test_who_asks_for_another_brokers_health_is_sent_there_as_it_came() -> None:
    for scheme, base in (("http", RECORD.http_url), ("https", RECORD.http_url_tls)):
        status, where = await location(scheme)
        assert (status, where.startswith(f"{base}/admin/v2/brokers/health?")) == (307, True)
