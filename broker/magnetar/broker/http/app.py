"""The HTTP application of a broker: probes, the console's files, and the interface in `http/`.

Probes are frequent and need no framework, nor do files. Everything else is an application that is
built at its first request (`LateApplication`), so that a broker is ready early and stays small
without HTTP clients. Layers around it authenticate requests and limit the size of bodies. The limit
is needed because routes read a whole body into memory before anything checks the rights of its
sender.
"""

import asyncio
import json
from collections.abc import Callable

import structlog

from magnetar.broker.base.errors import AuthenticationError, AuthorizationError
from magnetar.broker.http.authentication import (
    Application,
    Authentication,
    Message,
    Receive,
    Scope,
    Send,
)
from magnetar.broker.http.console.forwarding import Forwarding
from magnetar.broker.http.console.serving import ConsoleFiles
from magnetar.broker.http.metrics.page import MetricsPage
from magnetar.broker.http.view import BrokerView
from magnetar.broker.security import Action, Cluster
from magnetar.broker.security.host_names import REFUSED_NAME, is_own_name, own_names
from magnetar.broker.websocket.access import is_allowed

_log = structlog.get_logger()


class BodyLimit:
    """Limits the size of request bodies; an ASGI application around another one."""

    def __init__(self, app: Application, *, bytes_max: int) -> None:
        """`bytes_max`: bytes of one body."""
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _stated_bytes(scope) > self._bytes_max:
            await self._refuse(send)
            return
        got = 0
        is_too_long = has_begun = False

        async def counted() -> Message:
            nonlocal got, is_too_long
            message = await receive()
            got += len(message.get("body", b""))
            if got <= self._bytes_max:
                return message
            is_too_long = True
            # Ends the reader's body, with nothing that it could take for content.
            return {"type": "http.disconnect"}

        async def watched(message: Message) -> None:
            nonlocal has_begun
            if is_too_long and not has_begun:
                return  # The answer to half a body does not count: it is too long.
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counted, watched)
        except Exception:
            if not is_too_long:
                raise  # Else the application failed because it got half a body.
        if is_too_long and not has_begun:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        body = json.dumps(
            {"reason": f"the body of a request has at most {self._bytes_max} bytes"}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _stated_bytes(scope: Scope) -> int:
    """Return the Content-Length; 0 without one. Servers refuse invalid ones themselves."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


class LateApplication:
    """An ASGI application in front of one that is built at the first request.

    FastAPI, hundreds of routes and their models cost part of a second of processor time and many
    megabytes. All requests that arrive meanwhile wait; none is refused. The event loop goes on, but
    slower.
    """

    def __init__(self, make: Callable[[], Application]) -> None:
        """`make` runs in a thread. It may read the state of the event loop's objects, but not
        change it. If it raises, the waiting requests fail, and the next request tries again."""
        self._make = make
        self._made: Application | None = None
        self._making: asyncio.Task[Application] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._made or await self._wait_made()
        await made(scope, receive, send)

    async def _wait_made(self) -> Application:
        making = self._making
        if making is None:
            making = asyncio.create_task(asyncio.to_thread(self._make), name="http-application")
            self._making = making
            making.add_done_callback(self._on_made)
        # A request that is cancelled must not cancel the build for the others.
        return await asyncio.shield(making)

    def _on_made(self, making: "asyncio.Task[Application]") -> None:
        self._making = None
        if making.cancelled():
            return
        error = making.exception()
        if error is None:
            self._made = making.result()
        else:
            _log.error("http_application_failed", error=repr(error))


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_METRICS = ("/metrics", "/metrics/")
"""Paths of the metrics. Pulsar's servers redirect from one to the other, so both answer here."""
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


class BrokerApplication:
    """Answers probes, and passes everything else on."""

    def __init__(self, broker: BrokerView, page: MetricsPage, interface: Application) -> None:
        self._broker = broker
        self._page = page
        self._interface = interface
        self._origins = broker.services.settings.websocket_origins
        self._own = {"/health": self._health} | dict.fromkeys(_METRICS, self._metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._own.get(scope["path"]) if scope["type"] == "http" else None
        if answer is None:
            await self._pass_on(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            reason = f"{scope['method']} {scope['path']}: Method Not Allowed"
            await _refuse(send, 405, reason, allow="GET, HEAD")
        else:
            await answer(scope, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
            reason = "GET /: browsers find the console here, programs a description: /openapi.json"
            await _refuse(send, 404, reason)
            return
        if scope["type"] == "http" and scope["method"] not in _HARMLESS and not self._is_own(scope):
            reason = (
                "pages of this origin may change nothing; websocket_origins lists those that may"
            )
            await _refuse(send, 403, reason)
            return
        if scope["type"] == "http" and scope["method"] == "HEAD":
            # Handled as a GET; the server omits the body.
            scope = {**scope, "method": "GET"}
        await self._interface(scope, receive, send)

    def _is_own(self, scope: Scope) -> bool:
        """Whether a changing request may come from its origin. Browsers send requests without a
        body for any page, without a preflight. Without this check, a web page could use a broker
        that only the machine of its visitor can reach."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        return is_allowed(headers.get(b"origin"), headers.get(b"host"), self._origins)

    async def _health(self, scope: Scope, send: Send) -> None:
        """Answer 200 while the broker serves clients and can write and read; else 503 with the
        reason."""
        broker = self._broker
        status = await broker.health.look()
        values = {
            "status": status,
            "version": broker.version,
            "service_url": broker.service_url,
            "topics": len(broker.services.topics.loaded),
            "connections": broker.connections(),
        }
        await _begin(send, 200 if status == "ok" else 503, _JSON)
        await _end(send, _json(values))

    async def _metrics(self, scope: Scope, send: Send) -> None:
        """Answer with Prometheus' text format. With authorization, only for super users, unless
        `metrics_open` is set."""
        broker = self._broker
        if not broker.services.settings.metrics_open:
            identity = scope["state"]["identity"]
            try:
                await broker.services.authorizer.check(identity, Action.ADMINISTER, Cluster())
            except AuthenticationError as error:
                await _refuse(send, 401, str(error))
                return
            except AuthorizationError as error:
                await _refuse(send, 403, str(error))
                return
        await _begin(send, 200, METRICS_TYPE)
        async for portion in self._page.written():
            part = portion.encode()
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await _end(send, b"")


def make_app(broker: BrokerView, page: MetricsPage) -> Application:
    """Build the application of one broker."""
    settings = broker.services.settings

    def make_interface() -> Application:
        from magnetar.broker.http.application import make_interface

        return make_interface(broker, page)

    console = ConsoleFiles()
    timeout_s = settings.console_forward_timeout_ms / 1000
    has_tls = settings.broker_client_tls
    interface = Forwarding(
        LateApplication(make_interface),
        broker.network,
        timeout_s=timeout_s,
        tls_network=lambda: broker.network if has_tls else None,
    )
    open_paths = {"/health", "/status.html", *(_METRICS if settings.metrics_open else ())}
    names = own_names(settings)
    application = Authentication(
        BodyLimit(
            BrokerApplication(broker, page, interface), bytes_max=settings.http_body_bytes_max
        ),
        authenticator=broker.services.authenticator,
        audit=broker.audit,
        certificate_roles=broker.certificate_roles,
        open_paths=frozenset(open_paths),
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the console's files to all: the console asks for credentials itself."""
        if scope["path"] not in open_paths and not is_own_name(_host_of(scope), names):
            await _refuse(send, 403, REFUSED_NAME)
        elif console.is_for(scope):
            await console.answer(scope, send)
        else:
            await application(scope, receive, send)

    return app


def _host_of(scope: Scope) -> str | None:
    found: bytes | None = dict(scope["headers"]).get(b"host")
    return None if found is None else found.decode("latin-1")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _refuse(send: Send, status: int, reason: str, **headers: str) -> None:
    await _begin(send, status, _JSON, **headers)
    await _end(send, _json({"reason": reason}))


async def _begin(send: Send, status: int, media_type: str, **more: str) -> None:
    headers = [(b"content-type", media_type.encode())]
    headers += [(name.encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _end(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body})
