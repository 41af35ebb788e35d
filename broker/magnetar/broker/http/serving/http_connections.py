"""Bounds of HTTP connections: how many there are, and how long one may hold its place for nothing.

A connection *waits* while the next request has not come whole, head and body, or while the client
takes nothing of an answer. One that waits too long is closed: whoever opens many and says nothing,
or says it a byte a minute, would else take the files of the process away from its clients. A socket
that became a WebSocket is not counted any more; its bounds are that service's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from magnetar.broker.base.connection_places import ConnectionPlaces

_log = structlog.get_logger()

_LOOKS_PER_TIMEOUT: Final = 4


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """Of one port."""

    connections_max: int = 10_000
    """More are closed on arrival."""
    per_address_max: int = 0
    """From one address; 0 = any number."""
    kept_for_loopback: int = 32
    """Beyond both, for connections from the host itself."""
    request_timeout_s: float = 60.0
    """For the head and the body of a request, from when the connection could begin it; and without
    the client taking anything of an answer."""


class HttpConnections:
    """The connections of one port."""

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
        """Begin to look for those that wait too long."""
        self._look_later()

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def bounded(self, base: Any) -> Any:
        """uvicorn's class of connections `base`, with these bounds."""
        connections = self

        class Bounded(base):  # type: ignore[misc]  # uvicorn chooses the class when it runs
            waits_since_s: float | None = None
            """None: it did not wait at the last look."""
            unsent_bytes = 0
            """What the client had to take at the last look before more is written; 0: nothing."""
            is_ended = False

            def connection_made(self, transport: asyncio.Transport) -> None:
                peer = transport.get_extra_info("peername")
                if connections.admit(self, peer[0] if peer else "?"):
                    super().connection_made(transport)
                else:
                    transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                connections.forget(self)
                if self.transport is not None:  # it was admitted
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
        """Take a new one in, if it was not before its handshake; False: there are too many."""
        if connection in self._connections:
            return True
        if self._connections.take(connection, host, asyncio.get_running_loop().time()):
            return True
        if self._connections.is_full and not self._is_full:  # one line, not one per client
            self._is_full = True
            _log.warning("http_connections_full", connections=len(self._connections))
        self._on_refused()
        return False

    def answered(self, connection: Any) -> None:
        """A request was answered: the connection has time for its next one."""
        self._connections.spoke(connection, asyncio.get_running_loop().time())

    def forget(self, connection: Any) -> None:
        """It is gone, or a WebSocket."""
        if self._connections.give_back(connection):
            self._is_full = False

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        # Then what clients have sent may lie unread: that the loop stood still is not their fault.
        is_late = now_s - self._looked_s > 2 * self._pause_s
        self._looked_s = now_s
        for connection in list(self._connections.all):
            if connection.transport is None:
                continue  # in its handshake, which has a bound of its own
            is_stuck = _is_stuck(connection)
            if is_late or not (is_stuck or _is_waiting(connection)):
                connection.waits_since_s = None
            elif connection.waits_since_s is None:
                connection.waits_since_s = now_s
            elif now_s - connection.waits_since_s >= self._bounds.request_timeout_s:
                connection.waits_since_s = now_s
                _end(connection, for_good=is_stuck or connection.is_ended)
        self._look_later()


def _is_stuck(connection: Any) -> bool:
    """Whether the client has taken nothing of an answer since the last look."""
    before: int = connection.unsent_bytes
    is_paused = connection.flow.write_paused
    now: int = connection.transport.get_write_buffer_size() if is_paused else 0
    connection.unsent_bytes = now
    return 0 < before <= now


def _is_silent(connection: Any) -> bool:
    """Whether it only holds its place; one in its TLS handshake has a bound of its own."""
    return connection.transport is not None and _is_waiting(connection)


def _is_waiting(connection: Any) -> bool:
    """Whether it is the client's turn to speak."""
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or cycle.more_body


def _end(connection: Any, *, for_good: bool) -> None:
    """Politely at first: an answer may still be on its way, if the client takes it."""
    connection.is_ended = True
    if for_good:
        connection.transport.abort()
    else:
        connection.transport.close()
