"""One broker's HTTP request to another, answered by servers of every kind."""

import asyncio

import pytest

from magnetar.broker.base.http_client import ANSWER_BYTES_MAX, HttpCallError, call
from magnetar.ledger.system import SystemNetwork

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: Chunked\r\n\r\n"


async def answered(answer: bytes, *, close: bool = True, timeout_s: float = 10.0) -> object:
    """Call a server that says just this."""

    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not close:
                await reader.read()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass  # The client has had enough.
        finally:
            served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        found = await call(
            SystemNetwork(), "PUT", f"http://127.0.0.1:{port}/a?b=c", timeout_s=timeout_s
        )
        return found.status, found.body
    finally:
        server.close()
        await served.wait()


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, b"hello")),
        (b"HTTP/1.1 412 No\r\ncontent-length: 2\r\n\r\n{}", (412, b"{}")),
        (CHUNKED + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", (200, b"hello")),
        (CHUNKED + b"A\r\n0123456\n\r\n\r\n000\r\nA: b\r\n\r\n", (200, b"0123456\n\r\n")),
        (CHUNKED + b"0\r\n\r\n", (200, b"")),
    ],
)
async def test_an_answer_of_known_length_is_taken_when_it_is_there(
    answer: bytes, found: tuple[int, bytes], close: bool
) -> None:
    assert await answered(answer, close=close) == found


async def test_an_answer_of_unknown_length_ends_with_the_connection() -> None:
    assert await answered(b"HTTP/1.0 200 OK\r\n\r\nhel" + b"lo") == (200, b"hello")


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200", b"HTTP/1.1 x\r\n\r\n"]
)
async def test_what_is_no_http_is_an_error(answer: bytes) -> None:
    with pytest.raises(HttpCallError):
        await answered(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        CHUNKED,
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
    ],
)
async def test_an_answer_that_is_broken_off_is_an_error(answer: bytes) -> None:
    with pytest.raises(HttpCallError, match="broken off"):
        await answered(answer)


@pytest.mark.parametrize("chunk", [b"x\r\nhello\r\n", b"-5\r\n", b"2\r\nhello\r\n", b"_5\r\n"])
async def test_chunks_of_no_valid_form_are_an_error(chunk: bytes) -> None:
    with pytest.raises(HttpCallError, match="chunk"):
        await answered(CHUNKED + chunk + b"0\r\n\r\n")


async def test_an_answer_without_end_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with pytest.raises(HttpCallError, match="more than"):
        await answered(head + bytes(ANSWER_BYTES_MAX))


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with pytest.raises(HttpCallError, match="within"):
        await answered(b"", close=False, timeout_s=0.05)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "https://127.0.0.1/", "pulsar://h:1"])
async def test_nobody_there_is_an_error(url: str) -> None:
    with pytest.raises(HttpCallError):
        await call(SystemNetwork(), "GET", url, timeout_s=5.0)
