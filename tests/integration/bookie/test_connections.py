"""One bookie and odd clients: none harms the others."""

import asyncio
import socket

import pytest

from magnetar.bookie.server import BookieConnection, BookieServer
from magnetar.ledger.wire import Frame, Op, Status
from tests.bookie_parts import (
    KEY,
    BookieClient,
    add_request,
    encode_request,
    read_request,
)
from tests.integration.bookie.bookie_machine import BookieMachine, add

LEDGER = 7


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n" + bytes(40),
        bytes(64),
        b"\xff" * 64,
        b"\0\0\0\x1e\x4d\x42\x09" + bytes(40),
        encode_request(Frame(Op.ADD, False, 0, 0, 1, 1, 0, KEY + b"\0\0\0\7")),
        encode_request(Frame(Op.ADD, False, 0, 0, 1, 1, 0, b"")),
        encode_request(Frame(Op.READ, False, 0, 0, 1, 1, 0, b"xx")),
        (100 << 20).to_bytes(4, "big") + b"\x4d\x42\x01" + bytes(40),
    ],
    ids=["http", "zeros", "ones", "version", "bad block", "no block", "bad read", "too large"],
)
async def test_a_malformed_frame_ends_its_connection_only(
    machine: BookieMachine, data: bytes
) -> None:
    async with machine.bookie() as (bookie, client):
        bad = await BookieClient.connect(bookie.port)
        bad.write(data)
        await bad.wait_closed()
        assert (await add(client, LEDGER, 0)).status == Status.OK
        assert bookie.metrics.malformed_frames == 1


async def test_a_request_of_another_version_is_answered_so_and_ends_its_connection(
    machine: BookieMachine,
) -> None:
    async with machine.bookie() as (bookie, client):
        later = await BookieClient.connect(bookie.port)
        request = bytearray(encode_request(add_request(77, LEDGER, 0)))
        request[6] = 2  # the version, in the header
        later.write(bytes(request))
        reply = await later.reply(77)
        assert (reply.op, reply.status) == (Op.ADD, Status.BAD_VERSION)
        assert (reply.ledger_id, reply.entry_id) == (LEDGER, 0)
        assert reply.body == (
            b"a frame of the bookie protocol in version 2; this release speaks version 1"
        )
        await later.wait_closed()
        assert (await add(client, LEDGER, 0)).status == Status.OK


async def test_connections_beyond_the_limit_are_closed(machine: BookieMachine) -> None:
    async with machine.bookie(connections_max=1) as (bookie, client):
        other = await BookieClient.connect(bookie.port)
        await other.wait_closed()
        assert (await add(client, LEDGER, 0)).status == Status.OK


async def test_a_client_whose_machine_is_gone_does_not_stay_connected_for_ever(
    machine: BookieMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead machine sends no FIN, and a bookie has nothing to send to it: the system has to
    ask."""
    accepted: list[asyncio.BaseTransport] = []
    connection_made = BookieConnection.connection_made

    def noting(connection: BookieConnection, transport: asyncio.BaseTransport) -> None:
        accepted.append(transport)
        connection_made(connection, transport)

    monkeypatch.setattr(BookieConnection, "connection_made", noting)
    async with machine.bookie() as (_, client):
        assert (await add(client, LEDGER, 0)).status == Status.OK
        (transport,) = accepted
        beneath = transport.get_extra_info("socket")
        assert beneath.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_a_connection_that_ends_in_the_middle_of_a_frame_harms_nobody(
    machine: BookieMachine,
) -> None:
    async with machine.bookie() as (bookie, client):
        half = await BookieClient.connect(bookie.port)
        half.write(encode_request(add_request(1, LEDGER, 0))[:50])
        half.close()
        assert (await add(client, LEDGER, 0)).status == Status.OK


async def test_a_client_that_leaves_with_adds_under_way_harms_nobody(
    machine: BookieMachine,
) -> None:
    async with machine.bookie() as (bookie, client):
        leaver = await BookieClient.connect(bookie.port)
        for i in range(50):
            leaver.send(add_request(i, LEDGER + 1, i))
        await leaver.reply(0)
        leaver.close()
        assert (await add(client, LEDGER, 0)).status == Status.OK


async def test_a_client_that_does_not_take_its_replies_is_not_read(machine: BookieMachine) -> None:
    async with machine.bookie(
        connection_buffer_bytes_max=10_000, connection_read_bytes_max=50_000
    ) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
        # 200 MB of replies are asked for at once, and nobody reads.
        requests = [read_request(i, LEDGER, 0, 19) for i in range(200)]
        writer.write(b"".join(map(encode_request, requests)))
        await client.ask(lambda i: read_request(i, LEDGER, 0))
        assert bookie.metrics.read_requests < 100
        received = 0
        while received < 200 * 1_000_000:
            received += len(await reader.read(1 << 20))
        writer.close()


async def test_b23_reads_of_many_connections_hold_a_bounded_amount_of_memory(
    machine: BookieMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection alone is within its limits; together they ask for far more."""
    charges: list[int] = []
    held = BookieServer.on_reads_bytes

    def note(self: BookieServer, change: int) -> None:
        held(self, change)
        charges.append(self.metrics.reads_pending_bytes)

    monkeypatch.setattr(BookieServer, "on_reads_bytes", note)
    one = 1 << 20
    async with machine.bookie(reads_bytes_max=4 * one, read_cache_bytes_max=0) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        await bookie.parts.checkpointer.checkpoint()
        others = [await BookieClient.connect(bookie.port) for _ in range(20)]
        for other in others:
            for i in range(10):
                other.send(read_request(i, LEDGER, i, i, bytes_max=one))
        for other in others:
            for i in range(10):
                assert (await other.reply(i)).status == Status.OK
            other.close()
        assert 3 * one <= max(charges) <= 4 * one
        assert bookie.metrics.reads_pending_bytes == 0


async def test_b23_clients_that_take_no_replies_are_cut_when_they_hold_too_much(
    machine: BookieMachine,
) -> None:
    """Many idle receivers, each within its buffer, are no way to use up the memory."""
    limits = {"connection_buffer_bytes_max": 100_000, "replies_bytes_max": 300_000}
    async with machine.bookie(**limits) as (bookie, client):
        for i in range(20):
            reply = await client.ask(lambda r: add_request(r, LEDGER, i, payload=b"x" * 100_000))  # noqa: B023
            assert reply.status == Status.OK
        request = b"".join(encode_request(read_request(i, LEDGER, 0, 19)) for i in range(20))
        lazy: list[asyncio.StreamWriter] = []
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
            writer.write(request)
            lazy.append(writer)
        async with asyncio.timeout(30):
            while bookie.metrics.slow_clients_cut < 2:
                assert (await add(client, LEDGER, 100)).status == Status.OK
        for writer in lazy:
            writer.close()
        assert (await add(client, LEDGER, 101)).status == Status.OK
