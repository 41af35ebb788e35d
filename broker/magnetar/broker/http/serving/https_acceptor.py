"""Accepts HTTP connections over TLS, and counts them before their handshake.

A server of the event loop tells of a connection only when its handshake is over: sockets that never
begin one would be within no bound, and take the files of the process away from its clients.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from magnetar.broker.http.serving.http_connections import HttpConnections

_log = structlog.get_logger()

_PAUSE_S: Final = 1.0
"""After a failure to accept: the process may have no file left."""


class HttpsAcceptor:
    """Of one port."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], Any],
        connections: HttpConnections,
        *,
        handshake_timeout_s: float,
    ) -> None:
        """`make` makes uvicorn's part of a connection, within the bounds of `connections`."""
        self._listener = listener
        self._tls = tls
        self._make = make
        self._connections = connections
        self._timeout_s = handshake_timeout_s
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept. The listener is the acceptor's from now on."""
        self._accepting = asyncio.get_running_loop().create_task(
            self._accept(), name="https-acceptor"
        )

    def stop(self) -> None:
        """Accept no more; handshakes that are under way end with their connections."""
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
            connection = self._make()
            if self._connections.admit(connection, address[0]):
                task = loop.create_task(self._open(connection, accepted), name="https-handshake")
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()
            await asyncio.sleep(0)  # a loop may accept without a turn: others have theirs

    async def _open(self, connection: Any, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._timeout_s,
            )
        except OSError:
            pass  # of the client: it spoke no TLS, was not let in, too slow, or is gone
        finally:
            if connection.transport is None:
                self._connections.forget(connection)
