"""Connections by address: one per broker, made when first asked for, shared by everybody."""

import asyncio

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import AlreadyClosedError, BrokerUnavailableError
from magnetar.sdk.ports import Network
from magnetar.sdk.service_url import Address
from magnetar.sdk.settings import ClientSettings


class ConnectionPool:
    """Opens, shares and closes connections."""

    def __init__(self, settings: ClientSettings, network: Network) -> None:
        self._settings = settings
        self._network = network
        self._connections: dict[tuple[Address, str], Connection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def get(self, address: Address, *, proxy_to: str = "") -> Connection:
        """The open connection to an address; `proxy_to` names the broker behind a proxy.

        Raises:
            BrokerUnavailableError: not reachable in time.
            ServiceError: the broker refused the client.
            AlreadyClosedError: the pool is closed.
        """
        if self._is_closed:
            raise self._closed_error()
        key = (address, proxy_to)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(address, proxy_to))
            self._opening[key] = task
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        # Several may wait for one connection: who gives up must not take it from the rest.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The task is cancelled by `close` alone; who waits may not have been.
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise self._closed_error() from None
            raise

    async def close(self) -> None:
        """Close all connections; no others are made."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        try:
            await asyncio.gather(*opening, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in self._connections.values()))
        finally:
            # Also if we are cancelled before all of them have heard of it.
            for each in self._connections.values():
                each.fail(self._closed_error())
            self._connections.clear()

    def _closed_error(self) -> AlreadyClosedError:
        return AlreadyClosedError("the client is closed")

    async def _open(self, address: Address, proxy_to: str) -> Connection:
        settings = self._settings
        timeout_s = settings.connect_timeout_ms / 1000
        connection = Connection(settings, name=str(address), proxy_to=proxy_to)
        try:
            async with asyncio.timeout(timeout_s):
                await self._network.connect(
                    address.host, address.port, lambda: connection, timeout_s=timeout_s
                )
                await connection.handshake()
        except TimeoutError:
            error = BrokerUnavailableError(
                f"{address} did not answer within {settings.connect_timeout_ms} ms"
            )
            connection.fail(error)
            raise error from None
        except OSError as error:
            raise BrokerUnavailableError(f"cannot connect to {address}: {error}") from error
        except BaseException:
            connection.fail(BrokerUnavailableError(f"gave up connecting to {address}"))
            raise
        # Brokers come and go, and so do their addresses: what is lost is not kept.
        self._connections = {at: each for at, each in self._connections.items() if each.is_open}
        self._connections[address, proxy_to] = connection
        return connection
