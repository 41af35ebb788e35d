"""Requests of a page about topics of other brokers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from magnetar.broker.http.authentication import Application, Message, Receive, Scope, Send
from magnetar.broker.http.console.forwarding import BODY_BYTES_MAX, HEADER, HOPS_MAX, Forwarding
from magnetar.ledger.system import SystemNetwork

TOKEN = b"Bearer the-token-of-who-asks"


@dataclass
class _Owner:
    """Another broker: keeps what it is asked, and answers with what it is given."""

    answer: bytes
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self.answer.replace(b"PORT", str(self.port).encode()))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def _owner(status: str, *headers: str, body: str = "") -> AsyncIterator[_Owner]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", body]
    owner = _Owner("\r\n".join(lines).encode())
    async with await asyncio.start_server(owner.serve, "127.0.0.1", 0) as server:
        owner.port = server.sockets[0].getsockname()[1]
        yield owner


async def _ask(
    location: str, *headers: tuple[bytes, bytes], body: bytes = b"", is_asked: bool = True
) -> tuple[int, dict[bytes, bytes], bytes]:
    """What comes back of a request that this broker redirects."""
    said: list[Message] = []

    async def redirecting(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == body
        where = [(b"location", location.encode())]
        await send({"type": "http.response.start", "status": 307, "headers": where})
        await send({"type": "http.response.body", "body": b'{"reason": "ask there"}'})

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        said.append(message)

    mark = [(b"x-magnetar-forward", b"1")] if is_asked else []
    scope = {"type": "http", "method": "POST", "path": "/p", "headers": [*mark, *headers]}
    await Forwarding(redirecting, SystemNetwork(), timeout_s=10)(scope, receive, send)
    return said[0]["status"], dict(said[0]["headers"]), said[-1]["body"]


async def test_a_program_is_redirected_as_ever() -> None:
    status, headers, _ = await _ask("http://127.0.0.1:1/x", is_asked=False)
    assert (status, headers[b"location"]) == (307, b"http://127.0.0.1:1/x")


async def test_a_page_gets_the_answer_of_the_owner_who_is_asked_in_its_name() -> None:
    shown = ("Content-Type: text/plain", "X-Pulsar-Message-ID: 1:2", "X-Magnetar-Note: no effect")
    async with _owner("404 Not Found", *shown, "Set-Cookie: no=thing", body="not here") as owner:
        url = f"http://127.0.0.1:{owner.port}/p%2Fq?authoritative=true"
        sent = ((b"authorization", TOKEN), (b"content-type", b"application/json"))
        status, headers, body = await _ask(url, *sent, (b"cookie", b"a=b"), body=b'{"a": 1}')
    assert (status, body) == (404, b"not here")
    assert headers[b"content-type"] == b"text/plain"
    assert headers[b"x-pulsar-message-id"] == b"1:2"
    assert headers[b"x-magnetar-note"] == b"no effect"
    assert b"set-cookie" not in headers
    (request,) = owner.requests
    assert request.startswith(b"POST /p%2Fq?authoritative=true HTTP/1.1\r\n")
    assert b"authorization: " + TOKEN in request
    assert request.endswith(b'\r\n\r\n{"a": 1}')
    assert b"cookie" not in request
    assert b"forward" not in request


async def test_who_asks_without_credentials_gets_none_from_here() -> None:
    async with _owner("200 OK", body="{}") as owner:
        assert (await _ask(f"http://127.0.0.1:{owner.port}/x"))[0] == 200
    assert b"authorization" not in owner.requests[0].lower()


async def test_brokers_that_send_each_other_on_are_asked_so_often_and_no_more() -> None:
    location = "Location: http://127.0.0.1:PORT/again"
    async with _owner("307 Temporary Redirect", location) as owner:
        status, _, body = await _ask(f"http://127.0.0.1:{owner.port}/x")
    assert (status, len(owner.requests)) == (503, HOPS_MAX)
    assert "try again" in json.loads(body)["reason"]


async def test_an_owner_that_does_not_answer_is_said_in_words() -> None:
    status, _, body = await _ask("http://127.0.0.1:1/x")
    assert status == 503
    assert "cannot reach the broker" in json.loads(body)["reason"]


async def test_what_came_by_tls_never_goes_on_in_the_clear() -> None:
    status, _, body = await _ask("https://elsewhere:8443/x", (b"authorization", TOKEN))
    assert status == 503
    assert "open the console there" in json.loads(body)["reason"]


async def test_a_body_has_a_bound() -> None:
    async with _owner("200 OK", body="{}") as owner:
        url = f"http://127.0.0.1:{owner.port}/x"
        assert (await _ask(url, body=b"x" * BODY_BYTES_MAX))[0] == 200
        assert (await _ask(url, body=b"x" * (BODY_BYTES_MAX + 1)))[0] == 413


async def _through(app: Application, received: list[Message]) -> list[Message]:
    """Return what the page receives from an application that answers itself."""
    said: list[Message] = []

    async def receive() -> Message:
        return received.pop(0)

    async def send(message: Message) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/p", "headers": [(HEADER, b"1")]}
    await Forwarding(app, SystemNetwork(), timeout_s=10)(scope, receive, send)
    return said


async def test_half_a_body_has_no_effect_and_is_not_called_too_long() -> None:
    async def unused(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    half = {"type": "http.request", "body": b"half", "more_body": True}
    said = await _through(unused, [half, {"type": "http.disconnect"}])
    assert (said[0]["status"], b"disconnected" in said[1]["body"]) == (400, True)


async def test_an_answer_in_parts_learns_that_the_page_is_gone() -> None:
    received: list[Message] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        received.append(await receive())

    body = {"type": "http.request", "body": b"whole", "more_body": False}
    await _through(streaming, [body, {"type": "http.disconnect"}])
    assert received == [body, {"type": "http.disconnect"}]
