"""What sockets may take of the HTTPS port before they speak TLS, and what those have that do."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from magnetar.broker.broker import Broker
from tests.certificates import Authority
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

PER_ADDRESS = 3
LONG_MS = 600_000
END_S = 20.0
"""A test gives up after it."""

Serve = Callable[[int], AbstractAsyncContextManager[tuple[Broker, ssl.SSLContext]]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A broker with so many milliseconds for a handshake, and what its clients trust."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")

    @asynccontextmanager
    async def serving(handshake_ms: int) -> AsyncIterator[tuple[Broker, ssl.SSLContext]]:
        async with (
            cluster_of(1, tmp_path) as cluster,
            broker_on(
                cluster,
                https_port=0,
                tls_certificate_file=str(certificate),
                tls_key_file=str(key),
                tls_handshake_timeout_ms=handshake_ms,
                connections_per_address_max=PER_ADDRESS,
                connections_kept_for_loopback=0,
            ) as broker,
        ):
            yield broker, ssl.create_default_context(cafile=str(authority.path))

    return serving


async def _status(port: int, trusted: ssl.SSLContext) -> str:
    """Of a request over TLS; empty: the connection was closed."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = await reader.readline()
    except OSError:
        return ""
    writer.transport.abort()
    return head.decode().partition(" ")[2][:3]


async def _wait_served(port: int, trusted: ssl.SSLContext) -> None:
    """Until the broker has seen the others go, and a handshake was as fast as it has to be."""

    async def is_served() -> bool:
        return await _status(port, trusted) == "200"

    await until(is_served, "the server has seen the others go", within_s=END_S)


async def _end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(END_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_does_not_finish_a_handshake_is_closed_and_leaves_its_place(
    serve: Serve, said: bytes
) -> None:
    async with serve(500) as (broker, trusted):
        assert broker.https_port is not None
        for _ in range(PER_ADDRESS + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.https_port)
            writer.write(said)
            await _end(reader)
            writer.transport.abort()
        await _wait_served(broker.https_port, trusted)


async def test_sockets_count_before_they_speak_tls(serve: Serve) -> None:
    async with serve(LONG_MS) as (broker, trusted):
        port = broker.https_port
        assert port is not None
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(PER_ADDRESS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await _end(reader) == b""
        writer.transport.abort()
        assert broker.services.counters.connections_refused == 1
        _, writer = silent.pop()
        writer.transport.abort()
        await _wait_served(port, trusted)
        for _, writer in silent:
            writer.transport.abort()


async def test_a_broker_that_stops_waits_for_no_handshake(serve: Serve) -> None:
    async with serve(LONG_MS) as (broker, trusted):
        assert broker.https_port is not None
        assert await _status(broker.https_port, trusted) == "200"
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.https_port)
        await broker.stop()
        assert await _end(reader) == b""
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", broker.https_port)
