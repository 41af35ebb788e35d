"""Ports of the client: network, clock, random. Timers are the event loop's own.

The interfaces match the ledger component's ports, so that one production or simulated
implementation serves both. The SDK does not import those, because it depends on the wire alone.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for intervals, and milliseconds since the epoch for timestamps of
    messages."""

    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int: ...


class Network(Protocol):
    """Outgoing stream connections."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        """Connect; return after the factory's protocol got `connection_made`.

        Raises:
            OSError, TimeoutError: the host did not answer.
        """
        ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemNetwork:
    """TCP sockets of the running event loop, with TLS if a context is given."""

    def __init__(self, make_tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Take the source of TLS contexts. It is called in a thread for each connection, because
        certificates are renewed."""
        self._make_tls = make_tls

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                tls = None if self._make_tls is None else await asyncio.to_thread(self._make_tls)
                transport, _ = await loop.create_connection(factory, host, port, ssl=tls)
        except (ConnectionResetError, ConnectionAbortedError) as error:
            if self._make_tls is None or str(error):
                raise
            raise ConnectionResetError(
                "the connection closed during the TLS handshake: is this a TLS port?"
            ) from error
        return transport


def secure_random(size: int) -> bytes:
    """Return unpredictable bytes, for keys."""
    return os.urandom(size)
