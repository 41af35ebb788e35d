"""The shell of the binary protocol: sockets and timers around the `Connection` core."""

import asyncio
import os
from collections.abc import Collection
from typing import cast

import structlog

from magnetar.broker.base.connection_places import ConnectionPlaces
from magnetar.broker.base.errors import ListenError
from magnetar.broker.protocol.connection import Connection
from magnetar.broker.security.certificates import role_of
from magnetar.broker.topics.services import Services
from magnetar.ledger.ports import Listener, Network

_log = structlog.get_logger()


class _ConnectionShell(asyncio.Protocol):
    """One socket: feeds its connection, carries out what that decides."""

    def __init__(self, server: "BinaryServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._tick: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        certificate = transport.get_extra_info("peercert")
        self._connection = self._server.admit(self, f"{host}:{port}", role_of(certificate))
        if self._connection is None:
            transport.abort()
            return
        high = self._server.services.settings.write_buffer_bytes_high
        transport.set_write_buffer_limits(high=high, low=high // 2)
        self._schedule_tick()

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.on_writable(False)

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        # Each knows the other: one of them has to let go, or neither is freed by itself.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lost()
            self._server.forget(connection)

    # The connection's side

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        assert self._transport is not None
        return self._transport.get_write_buffer_size()

    def _schedule_tick(self) -> None:
        interval_s = self._server.services.settings.keep_alive_interval_ms / 1000
        self._tick = asyncio.get_running_loop().call_later(interval_s, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self._connection is not None and not self._connection.is_closed:
            self._connection.on_tick()
            self._schedule_tick()


class BinaryServer:
    """Listens for clients of the binary protocol."""

    def __init__(self, services: Services, network: Network) -> None:
        self.services = services
        self._network = network
        self._listener: Listener | None = None
        self._tls_listener: Listener | None = None
        settings = services.settings
        self._connections: ConnectionPlaces[Connection] = ConnectionPlaces(
            connections_max=settings.connections_max,
            per_address_max=settings.connections_per_address_max,
            kept_for_loopback=settings.connections_kept_for_loopback,
            is_silent=lambda connection: not connection.is_connected,
            cut=Connection.drop,
        )
        self._is_accepting = False
        self._is_full = False

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        assert self._listener is not None, "the server is not started"
        return self._listener.port

    @property
    def tls_port(self) -> int | None:
        """The port for TLS; None: there is none."""
        return self._tls_listener.port if self._tls_listener is not None else None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def clients(self) -> Collection[Connection]:
        """The connections."""
        return self._connections.all

    async def start(self, tls: Network | None = None) -> None:
        """Listen; with a network for TLS on its port, too.

        Raises:
            ListenError: an address is taken or not ours.
        """
        settings = self.services.settings
        self._is_accepting = True
        host = settings.plain_host or settings.host
        self._listener = await self._listen(self._network, host, settings.port)
        if tls is not None and settings.tls_port is not None:
            try:
                self._tls_listener = await self._listen(tls, settings.host, settings.tls_port)
            except ListenError:
                await self._listener.close()
                raise

    async def _listen(self, network: Network, host: str, port: int) -> Listener:
        try:
            return await network.listen(host, port, lambda: _ConnectionShell(self))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ListenError(
                f"cannot listen on {host}:{port}: {reason}; "
                "is another broker running there? Choose another port"
            ) from error

    async def stop_accepting(self) -> None:
        """Take no more connections; those that exist stay."""
        self._is_accepting = False
        for listener in (self._listener, self._tls_listener):
            if listener is not None:
                await listener.close()

    def close_connections(self) -> None:
        """Close every connection, after what was written is sent."""
        for connection in list(self._connections.all):
            connection.close()

    def admit(
        self, shell: _ConnectionShell, address: str, certificate_role: str
    ) -> Connection | None:
        """A connection for a new socket; None if there are too many."""
        counters = self.services.counters
        if not self._is_accepting:
            return None
        host, now_s = address.rpartition(":")[0], self.services.clock.monotonic_s()
        if not self._connections.make_room(host, now_s):
            counters.connections_refused += 1
            if self._connections.is_full and not self._is_full:  # one line, not one per client
                self._is_full = True
                _log.warning("connections_full", connections=len(self._connections))
            return None
        connection = Connection(shell, self.services, address, certificate_role=certificate_role)
        self._connections.take(connection, host, now_s)
        counters.connections_opened += 1
        return connection

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.give_back(connection)
        self._is_full = False
