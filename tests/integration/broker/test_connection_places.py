"""Clients and probes of a broker whose connections are all taken by some that say nothing, or read
nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.broker import Broker
from magnetar.broker.protocol.connection import BinaryServer
from magnetar.ledger.system import SystemNetwork
from magnetar.sdk import Client
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.ledger.cluster import cluster_of
from tests.processes import HOST
from tests.unit.broker.harness import Harness
from tests.waiting import until

PLACES = 5
TOPIC = "persistent://public/default/crowded"
END_S = 20.0
_MORE_THAN_BUFFERS = 64 << 20
"""Bytes, more than the buffers of the sockets hold."""


@pytest.fixture(params=[0, PLACES])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    """Of `PLACES` places in all, or for an address; none is kept for loopback."""
    limit = request.param
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(
            cluster,
            connections_max=100 if limit else PLACES,
            http_connections_max=100 if limit else PLACES,
            connections_per_address_max=limit,
            connections_kept_for_loopback=0,
        ) as started,
    ):
        yield started


async def _fill(stack: AsyncExitStack, port: int, said: bytes) -> None:
    for _ in range(2 * PLACES):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        stack.callback(_abort, writer)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Takes the writer and not its transport: a writer that nobody holds closes its connection."""
    writer.transport.abort()


async def _health(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_health_answers_beside_half_requests(broker: Broker) -> None:
    async def is_answered() -> bool:
        return (await _health(broker.http_port)).startswith(b"HTTP/1.1 200")

    async with AsyncExitStack() as stack, asyncio.timeout(END_S):
        await _fill(stack, broker.http_port, b"GET /health HTTP/1.1\r\nHo")
        await until(is_answered, "the others have been silent for a second", within_s=END_S)


@pytest.mark.parametrize("said", [b"", b"\0\0\0\x20\0\0"])
async def test_a_client_publishes_beside_silent_connections(broker: Broker, said: bytes) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(END_S):
        await _fill(stack, broker.port, said)
        client = await stack.enter_async_context(Client(f"pulsar://127.0.0.1:{broker.port}"))
        producer = await client.producer(TOPIC)
        await producer.send(b"heard")


async def test_a_client_that_reads_nothing_loses_its_place_when_the_broker_closes_it() -> None:
    services = Harness(host=HOST, port=0, keep_alive_interval_ms=50).services
    server = BinaryServer(services, SystemNetwork())
    await server.start()
    try:
        with socket.create_connection((HOST, server.port)):
            await until(lambda: server.connections == 1, "the client has a place")
            (connection,) = server.clients
            connection.link.write(b"\0" * _MORE_THAN_BUFFERS)
            assert connection.link.unsent_bytes > 0
            connection.close()
            await until(lambda: server.connections == 0, "the place is free", within_s=END_S)
    finally:
        await server.stop_accepting()
