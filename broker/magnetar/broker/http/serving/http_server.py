"""The HTTP server: uvicorn in the event loop of the process.

Everything heavy is imported when the server starts, so that importing the broker stays cheap. It
serves whatever application it is given: a process without a broker shows its metrics by it too.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.base.errors import ListenError
from magnetar.broker.http.authentication import Application
from magnetar.broker.http.serving.http_connections import HttpBounds, HttpConnections
from magnetar.broker.http.serving.https_acceptor import HttpsAcceptor
from magnetar.broker.security.certificates import role_of

if TYPE_CHECKING:
    import uvicorn

_HEAD_BYTES_MAX: Final = 64 << 10


class HttpServer:
    """Serves an ASGI application."""

    def __init__(
        self,
        make_app: Callable[[], Application],
        *,
        host: str,
        port: int,
        make_websocket: Callable[[], Callable[..., asyncio.Protocol] | None] = lambda: None,
        tls: "ssl.SSLContext | None" = None,
        tls_handshake_timeout_s: float = 10.0,
        certificate_roles: dict[tuple[str, int], str] | None = None,
        bounds: HttpBounds | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Both are called when the server starts. `make_websocket` gives what takes sockets over
        whose clients ask for an upgrade (see `websocket/`); None: nothing does. `tls`: serve over
        TLS. `certificate_roles`: gets the names in verified certificates of clients, by their
        address, while they are connected. `on_refused`: a connection beyond `bounds` came."""
        self._connections = HttpConnections(bounds or HttpBounds(), on_refused=on_refused)
        self._tls = tls
        self._handshake_timeout_s = tls_handshake_timeout_s
        self._acceptor: HttpsAcceptor | None = None
        self._roles = certificate_roles
        self._make_app = make_app
        self._make_websocket = make_websocket
        self._host = host
        self._port = port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address is taken or not ours.
        """
        listener = self._listen()
        self._port = listener.getsockname()[1]
        import uvicorn

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                """Leave the signals to the process: stopping is its owner's decision."""
                yield

        config = uvicorn.Config(
            _unambiguous(self._make_app()),
            log_config=None,
            access_log=False,
            lifespan="off",
            # Whatever else is installed: this one bounds the head of a request.
            http="h11",
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            # Any callable will do, whatever the type says.
            ws=self._make_websocket() or "none",  # type: ignore[arg-type]
            timeout_graceful_shutdown=1,
            # Whose address it is decides about limits and certificates: no header may say so.
            proxy_headers=False,
        )
        config.load()
        if self._roles is not None:
            config.http_protocol_class = _noting(config.http_protocol_class, self._roles)
        config.http_protocol_class = self._connections.bounded(config.http_protocol_class)
        self._connections.start()
        self._server = server = Server(config)
        sockets = [listener]
        if self._tls is not None:
            sockets = []  # uvicorn gets connections whose handshake is over
            self._acceptor = HttpsAcceptor(
                listener,
                self._tls,
                lambda: config.http_protocol_class(config, server.server_state, {}),  # type: ignore[call-arg]
                self._connections,
                handshake_timeout_s=self._handshake_timeout_s,
            )
            self._acceptor.start()
        self._serving = asyncio.get_running_loop().create_task(
            server.serve(sockets=sockets), name="http-server"
        )

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise ListenError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}; "
                "is another server running there? Choose another HTTP port"
            ) from error
        listener.setblocking(False)
        return listener

    async def stop(self) -> None:
        """Finish open requests, within a second."""
        self._connections.stop()
        if self._acceptor is not None:
            self._acceptor.stop()
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=3.0)
        self._serving.cancel()


def _noting(base: Any, roles: dict[tuple[str, int], str]) -> Any:
    """A class of connections that note the names in their clients' certificates."""

    class Noting(base):  # type: ignore[misc]  # uvicorn chooses the class when it runs
        def connection_made(self, transport: asyncio.Transport) -> None:
            self._noted = tuple((transport.get_extra_info("peername") or ("?", 0))[:2])
            # Whoever had this address before is gone, whatever it was handed over to meanwhile.
            roles.pop(self._noted, None)
            role = role_of(transport.get_extra_info("peercert"))
            if role:
                roles[self._noted] = role
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            roles.pop(self._noted, None)
            super().connection_lost(exc)

    return Noting


def _unambiguous(app: Application) -> Application:
    """Refuse requests that a proxy in front may read in another way than we do.

    With both Content-Length and Transfer-Encoding the two could disagree where the next request
    begins, and with two Authorization headers who is asking. The connection ends with the answer:
    what follows on it cannot be trusted either. Source: RFC 9112, 6.1 and 6.3.
    """

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        names = [name for name, _ in scope.get("headers", ())]
        if b"transfer-encoding" in names and b"content-length" in names:
            await _refuse(send, "both Content-Length and Transfer-Encoding; send one of them")
        elif names.count(b"authorization") > 1:
            await _refuse(send, "more than one Authorization header; send one")
        else:
            await app(scope, receive, send)

    return checked


async def _refuse(send: Any, found: str) -> None:
    body = json.dumps({"reason": f"the request has {found}"}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
