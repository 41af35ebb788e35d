"""What one HTTP client may take of a broker: the size of a body, connections, and time."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets
from websockets.exceptions import InvalidStatus

from tests.http_calls import ask
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

BYTES_MAX = 4096
PATH = "/admin/v2/namespaces/public/default/properties"
HEAD = f"PUT {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ANSWERS_UNREAD = 50
"""More than the buffers of both sides hold."""
END_S = 20.0
"""A test gives up after it."""
SLOWLY_S = 120.0
"""And one that reads slowly, after this."""


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(
            cluster,
            http_body_bytes_max=BYTES_MAX,
            http_request_timeout_ms=1500,
            http_connections_max=6,
            connections_per_address_max=3,
            connections_kept_for_loopback=0,
        ) as broker,
    ):
        # What the first request makes can take longer than a request may here.
        assert (await ask(broker.http_port, "GET", "/admin/v2/clusters")).status == 200
        yield broker.http_port


class Raw:
    """A socket that says what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Raw":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def answer(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(END_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length) or "{}")

    async def end(self) -> bytes:
        """What still comes until the broker closes."""
        async with asyncio.timeout(END_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.transport.abort()


async def _describe(port: int) -> None:
    """Ask for the description of the interface until it has been made, as it is by the first who
    asks. That can take longer than a request may here; a thread makes it, and is not cut off."""
    async with asyncio.timeout(SLOWLY_S):
        while True:
            raw = await Raw.open(port)
            raw.writer.write(
                b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            )
            answer = await raw.end()
            raw.close()
            if answer.startswith(b"HTTP/1.1 200"):
                return


async def _is_served(port: int) -> bool:
    """Or closed, as one too many."""
    raw = await Raw.open(port)
    raw.writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await raw.end()
    raw.close()
    return answer.startswith(b"HTTP/1.1 200")


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(port: int) -> None:
    raw = await Raw.open(port)
    raw.writer.write(f"{HEAD}Content-Length: {1 << 40}\r\n\r\n".encode())
    status, body = await raw.answer()
    assert (status, f"at most {BYTES_MAX} bytes" in body["reason"]) == (413, True)
    raw.close()


async def test_a_body_that_turns_out_too_long_is_cut_off_there(port: int) -> None:
    raw = await Raw.open(port)
    raw.writer.write(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(2 * BYTES_MAX // 1024):
        raw.writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
    status, body = await raw.answer()
    assert (status, f"at most {BYTES_MAX} bytes" in body["reason"]) == (413, True)
    raw.close()


async def test_a_body_of_the_largest_size_is_taken(port: int) -> None:
    value = "v" * (BYTES_MAX - len('{"k": ""}'))
    assert (await ask(port, "PUT", PATH, {"k": value})).status == 204
    assert (await ask(port, "PUT", PATH, {"k": value + "v"})).status == 413


@pytest.mark.parametrize(
    "said", ["", "GET /admin/v2/clus", f"{HEAD}Content-Length: 100\r\n\r\nhalf"]
)
async def test_who_does_not_finish_a_request_is_closed(port: int, said: str) -> None:
    raw = await Raw.open(port)
    raw.writer.write(said.encode())
    await raw.end()
    raw.close()


@pytest.mark.parametrize(("head_bytes", "status"), [(40_000, 200), (70_000, 400)])
async def test_a_head_of_64_kib_is_taken_in_any_parts(
    port: int, head_bytes: int, status: int
) -> None:
    raw = await Raw.open(port)
    head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * head_bytes
    raw.writer.write(head)
    await raw.writer.drain()
    # One loop serves all: by the answer to this it has read the first part.
    assert (await ask(port, "GET", "/admin/v2/clusters")).status == 200
    raw.writer.write(b"\r\n\r\n")
    async with asyncio.timeout(END_S):
        assert (await raw.reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    raw.close()


@pytest.mark.parametrize("more", ["", "X-Magnetar-Forward: 1\r\n"])
async def test_who_goes_in_the_middle_of_a_request_has_nothing_done_and_nothing_logged(
    port: int, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = "/admin/v2/persistent/public/default/half"
    for path in (made, f"{made}/unload"):
        raw = await Raw.open(port)
        head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        raw.writer.write(f"{head}{more}Content-Length: 100\r\n\r\n{{".encode())
        await raw.writer.drain()
        assert (await ask(port, "GET", "/admin/v2/clusters")).status == 200
        raw.close()
    # One loop serves all: by the third answer it has dealt with the ends of those.
    for _ in range(3):
        assert (await ask(port, "GET", f"{made}/internalStats")).status == 404
    assert "Exception in ASGI application" not in caplog.text


@pytest.mark.parametrize(
    "more",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Authorization: Bearer one\r\nAuthorization: Bearer two\r\n",
    ],
)
async def test_a_request_of_two_meanings_is_refused_and_the_connection_closed(
    port: int, more: str
) -> None:
    raw = await Raw.open(port)
    hidden = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    raw.writer.write(f"{HEAD}{more}\r\n0\r\n\r\n{hidden}".encode())
    answer = await raw.end()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"the request has" in answer
    raw.close()


async def test_a_byte_now_and_then_holds_no_connection(port: int) -> None:
    raw = await Raw.open(port)

    async def drip() -> None:
        while True:
            raw.writer.write(b"G")
            await asyncio.sleep(0.05)  # slower than anybody is, faster than the bound

    dripping = asyncio.create_task(drip())
    await raw.end()
    dripping.cancel()
    raw.close()


async def test_who_reads_no_answers_is_cut_off(port: int) -> None:
    """And leaves its place to others: three are as many as one address may have."""
    await _describe(port)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    stuck = [await Raw.open(port) for _ in range(3)]
    for raw in stuck:
        raw.writer.write(asked * ANSWERS_UNREAD)
        await raw.reader.readexactly(1)  # it is answered; the rest nobody takes
    await until(lambda: _is_served(port), "the broker has cut them off", within_s=END_S)
    for raw in stuck:
        raw.close()


async def test_who_reads_slowly_gets_it_all(port: int) -> None:
    """Over longer than a request may take."""
    await _describe(port)
    raw = await Raw.open(port)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    raw.writer.write((asked + b"\r\n") * (ANSWERS_UNREAD - 1))
    raw.writer.write(asked + b"Connection: close\r\n\r\n")
    answers = bytearray()
    async with asyncio.timeout(SLOWLY_S):
        while part := await raw.reader.read(1 << 20):
            answers += part
            await asyncio.sleep(0.02)  # slower than it comes
    assert answers.count(b"HTTP/1.1 200") == ANSWERS_UNREAD
    raw.close()


async def test_a_connection_that_is_used_stays(port: int) -> None:
    """For longer than a request may take, with a rest between requests."""
    raw = await Raw.open(port)
    for _ in range(25):
        raw.writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(END_S):
            head = await raw.reader.readuntil(b"\r\n\r\n")
            await raw.reader.readuntil(b"0\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.1)  # the rest
    raw.close()


async def test_one_address_has_so_many_connections_and_web_sockets_are_counted_apart(
    port: int,
) -> None:
    base = f"ws://127.0.0.1:{port}/ws/v2/producer/persistent/public/default"
    sockets = [await websockets.connect(f"{base}/t{n}") for n in range(3)]
    with pytest.raises(InvalidStatus) as caught:
        await websockets.connect(f"{base}/t3")
    assert caught.value.response.status_code == 429
    idle = [await Raw.open(port) for _ in range(3)]
    beyond = await Raw.open(port)
    assert await beyond.end() == b""
    for raw in (*idle, beyond):
        raw.close()
    await sockets[0].close()

    async def has_room() -> bool:
        try:
            await (await websockets.connect(f"{base}/t3")).close()
        except (InvalidStatus, ConnectionError, websockets.InvalidMessage):
            return False
        return True

    await until(has_room, "the broker has seen them go", within_s=END_S)
    for socket in sockets[1:]:
        await socket.close()
