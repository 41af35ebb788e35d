"""The HTTP server: uvicorn in the event loop of the process, and the limits on its connections.

Heavy modules are imported when the server starts, so that importing the broker stays cheap. The
server serves any application: a process without a broker uses it for its metrics.

Limits apply to the number of connections, and to the time that an idle one may take. A connection
*waits* while its next request is incomplete, head or body, or while the client reads nothing of an
answer. A connection that waits too long is closed. Otherwise a client that opens many and sends
nothing, or a byte a minute, would take the file descriptors of the process away from other clients.
A socket that became a WebSocket is no longer counted; the limits of that service apply.

Over TLS, a connection is counted before its handshake. A server of the event loop reports a
connection only after its handshake, so sockets that never begin one would escape all limits.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from magnetar.broker.base.connection_places import ConnectionPlaces
from magnetar.broker.base.errors import ListenError
from magnetar.broker.security.identity import role_of

if TYPE_CHECKING:
    import uvicorn

    from magnetar.broker.http.authentication import Application

_log = structlog.get_logger()

_LOOKS_PER_TIMEOUT: Final = 4


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """Limits of one port."""

    connections_max: int = 10_000
    """Connections at most; more are closed on arrival."""
    per_address_max: int = 0
    """Connections from one address at most; 0 for any number."""
    kept_for_loopback: int = 32
    """Extra connections, beyond both limits, from the host itself."""
    request_timeout_s: float = 60.0
    """Seconds for head and body of a request, from when the connection could begin it; and seconds
    for which the client may read nothing of an answer."""


class HttpConnections:
    """The connections of one port, within their limits."""

    def __init__(
        self, bounds: HttpBounds, *, on_refused: Callable[[], None] = lambda: None
    ) -> None:
        self._bounds = bounds
        self._on_refused = on_refused
        self._connections: ConnectionPlaces[Any] = ConnectionPlaces(
            connections_max=bounds.connections_max,
            per_address_max=bounds.per_address_max,
            kept_for_loopback=bounds.kept_for_loopback,
            is_silent=_is_silent,
            cut=lambda connection: connection.transport.abort(),
        )
        self._pause_s = bounds.request_timeout_s / _LOOKS_PER_TIMEOUT
        self._looking: asyncio.TimerHandle | None = None
        self._looked_s = 0.0
        self._is_full = False

    def __len__(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        """Start to close connections that wait too long."""
        self._look_later()

    def stop(self) -> None:
        """Stop closing connections."""
        if self._looking is not None:
            self._looking.cancel()

    def bounded(self, base: Any) -> Any:
        """Return a subclass of uvicorn's connection class `base` with these limits."""
        connections = self

        class Bounded(base):  # type: ignore[misc]  # uvicorn chooses the class when it runs
            waits_since_s: float | None = None
            """When the wait began, in seconds; None if it did not wait at the last look."""
            unsent_bytes = 0
            """Bytes in the write buffer at the last look while writing was paused; else 0."""
            is_ended = False

            def connection_made(self, transport: asyncio.Transport) -> None:
                peer = transport.get_extra_info("peername")
                if connections.admit(self, peer[0] if peer else "?"):
                    super().connection_made(transport)
                else:
                    transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                connections.forget(self)
                if self.transport is not None:  # It was admitted.
                    super().connection_lost(exc)

            def handle_websocket_upgrade(self, *arguments: Any) -> None:
                connections.forget(self)
                super().handle_websocket_upgrade(*arguments)

            def resume_writing(self) -> None:
                self.unsent_bytes = 0
                super().resume_writing()

            def on_response_complete(self) -> None:
                self.waits_since_s = None
                connections.answered(self)
                super().on_response_complete()

        return Bounded

    def admit(self, connection: Any, host: str) -> bool:
        """Count a connection in, unless that was done before its handshake. False if there are too
        many."""
        if connection in self._connections:
            return True
        if self._connections.take(connection, host, asyncio.get_running_loop().time()):
            return True
        if self._connections.is_full and not self._is_full:  # One line, not one per client.
            self._is_full = True
            _log.warning("http_connections_full", connections=len(self._connections))
        self._on_refused()
        return False

    def answered(self, connection: Any) -> None:
        """Note that a request was answered: the connection has the full time for its next one."""
        self._connections.spoke(connection, asyncio.get_running_loop().time())

    def forget(self, connection: Any) -> None:
        """Stop counting a connection that is gone, or became a WebSocket."""
        if self._connections.give_back(connection):
            self._is_full = False

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        self._look_later()  # First: a defect below must not end all further looks.
        now_s = asyncio.get_running_loop().time()
        # After a stall of the event loop, data from clients may be unread: that is not their fault.
        is_late = now_s - self._looked_s > 2 * self._pause_s
        self._looked_s = now_s
        for connection in list(self._connections.all):
            if connection.transport is None:
                continue  # In its handshake, which has a timeout of its own.
            is_stuck = _is_stuck(connection)
            if is_late or not (is_stuck or _is_waiting(connection)):
                connection.waits_since_s = None
            elif connection.waits_since_s is None:
                connection.waits_since_s = now_s
            elif now_s - connection.waits_since_s >= self._bounds.request_timeout_s:
                connection.waits_since_s = now_s
                _end(connection, for_good=is_stuck or connection.is_ended)


def _is_stuck(connection: Any) -> bool:
    """Whether the client has read nothing of an answer since the last look."""
    before: int = connection.unsent_bytes
    is_paused = connection.flow.write_paused
    now: int = connection.transport.get_write_buffer_size() if is_paused else 0
    connection.unsent_bytes = now
    return 0 < before <= now


def _is_silent(connection: Any) -> bool:
    """Whether the connection is idle. One in its TLS handshake is not: that has its own timeout."""
    return connection.transport is not None and _is_waiting(connection)


def _is_waiting(connection: Any) -> bool:
    """Whether the next bytes must come from the client."""
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or cycle.more_body


def _end(connection: Any, *, for_good: bool) -> None:
    """Close a connection; abort it if `for_good`. After a close, an answer may still be
    delivered."""
    connection.is_ended = True
    if for_good:
        connection.transport.abort()
    elif not connection.transport.is_closing():  # With TLS, a second close prevents an abort.
        connection.transport.close()


_PAUSE_S: Final = 1.0
"""Pause after a failed accept, in seconds: the process may be out of file descriptors."""


class HttpsAcceptor:
    """Accepts connections of one HTTPS port."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], Any],
        connections: HttpConnections,
        *,
        handshake_timeout_s: float,
    ) -> None:
        """`make` creates uvicorn's part of a connection, within the limits of `connections`."""
        self._listener = listener
        self._tls = tls
        self._make = make
        self._connections = connections
        self._timeout_s = handshake_timeout_s
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to accept connections. From now on the acceptor owns the listener."""
        self._accepting = asyncio.get_running_loop().create_task(
            self._accept(), name="https-acceptor"
        )

    def stop(self) -> None:
        """Stop accepting. Handshakes in progress end, and their connections with them."""
        if self._accepting is not None:
            self._accepting.cancel()
        for task in self._opening:
            task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("https_not_accepted", error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                connection = self._make()
                is_admitted = self._connections.admit(connection, address[0])
            except Exception:  # noqa: BLE001 - a defect must not end the accepting
                _log.exception("https_not_accepted")
                is_admitted = False
            if is_admitted:
                task = loop.create_task(self._open(connection, accepted), name="https-handshake")
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()
            await asyncio.sleep(0)  # Accepting may not suspend: give other tasks a turn.

    async def _open(self, connection: Any, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError:
            pass  # The client spoke no TLS, was refused, too slow, or left.
        finally:
            if connection.transport is None:
                self._connections.forget(connection)


_HEAD_BYTES_MAX: Final = 64 << 10


class HttpServer:
    """Serves an ASGI application."""

    def __init__(
        self,
        make_app: "Callable[[], Application]",
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
        """Create a server; `make_app` and `make_websocket` are called when it starts.

        Args:
            make_websocket: returns the factory of protocols that take over sockets when clients
                request an upgrade (see `websocket/`); None refuses upgrades.
            tls: serve over TLS with this context.
            certificate_roles: receives the names in verified certificates of clients, by address
                and port, while they are connected.
            on_refused: called for each connection beyond `bounds`.
        """
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
            ListenError: the address is taken, or not one of this host.
        """
        listener = self._listen()
        self._port = listener.getsockname()[1]
        import uvicorn

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                """Leave the signals to the process: its owner decides when to stop."""
                yield

        config = uvicorn.Config(
            _unambiguous(self._make_app()),
            log_config=None,
            access_log=False,
            lifespan="off",
            # This implementation is required, whatever else is installed: it limits the head of a
            # request.
            http="h11",
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            # uvicorn takes any callable, despite the type.
            ws=self._make_websocket() or "none",  # type: ignore[arg-type]
            timeout_graceful_shutdown=1,
            # Limits and certificates depend on the real address: no header may replace it.
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
            sockets = []  # uvicorn gets connections after their handshake.
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
        """Stop; open requests have one second to finish."""
        self._connections.stop()
        if self._acceptor is not None:
            self._acceptor.stop()
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=3.0)
        self._serving.cancel()


def _noting(base: Any, roles: dict[tuple[str, int], str]) -> Any:
    """Return a subclass of connections that records the names in client certificates."""

    class Noting(base):  # type: ignore[misc]  # uvicorn chooses the class when it runs
        def connection_made(self, transport: asyncio.Transport) -> None:
            self._noted = tuple((transport.get_extra_info("peername") or ("?", 0))[:2])
            # The former client at this address is gone, even if its socket was handed over.
            roles.pop(self._noted, None)
            role = role_of(transport.get_extra_info("peercert"))
            if role:
                roles[self._noted] = role
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            roles.pop(self._noted, None)
            super().connection_lost(exc)

    return Noting


def _unambiguous(app: "Application") -> "Application":
    """Refuse requests that a proxy in front may interpret differently.

    With both Content-Length and Transfer-Encoding, the two could disagree on where the next request
    begins; with two Authorization headers, on the sender's identity. The answer closes the
    connection, because what follows on it cannot be trusted either. Source: RFC 9112, 6.1 and 6.3.
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
