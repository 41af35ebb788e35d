"""One HTTP request to another broker, over the network port.

The client is small on purpose: HTTP/1.1, one request per connection, answers of known length or up
to the end of the connection. It does not follow redirects. The caller has looked up the broker to
ask; if that broker redirects, the caller looks it up again.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 4 << 20

_PORTS = {"http": 80, "https": 443}
_JSON = "Content-Type: application/json\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class HttpCallError(Exception):
    """The call got no usable answer: no connection, a timeout, or no HTTP.

    The other side may have carried the request out.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by their names in lower case."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Outgoing(Protocol):
    """Outgoing stream connections: all that a request needs of a network."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport: ...


async def call(
    network: Outgoing,
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: bytes = b"",
    token: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request, and wait for the whole answer. For https:// the network must be one with TLS.

    Args:
        body: JSON, or nothing.
        token: proves the identity of the sender.
        headers: sent instead of the content type and the authorization header.

    Raises:
        HttpCallError: there is no usable answer.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise HttpCallError(f"{url} is not of the form http://host:port/path")
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    own = f"{_JSON if body else ''}{_authorization(token)}"
    if headers is not None:
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = (
        f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n"
        f"{own}Connection: close\r\n\r\n"
    ).encode("latin-1") + body
    received = asyncio.get_running_loop().create_future()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport = await network.connect(
                parts.hostname,
                parts.port or _PORTS[parts.scheme],
                lambda: _Receiver(received),
                timeout_s=timeout_s,
            )
            transport.write(request)
            return _parse(url, await received)
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {timeout_s:g} s"
        raise HttpCallError(f"{method} {url}: {reason}") from error
    finally:
        if transport is not None:
            transport.abort()


def _authorization(token: bytes) -> str:
    return f"Authorization: Bearer {token.decode('ascii')}\r\n" if token else ""


class _Receiver(asyncio.Protocol):
    """Collects an answer until it is complete."""

    def __init__(self, received: "asyncio.Future[bytes]") -> None:
        self._received = received
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_BYTES_MAX:
            self._fail(ConnectionError(f"an answer of more than {ANSWER_BYTES_MAX} bytes"))
        elif (length := _length_of(self._data)) is not None and len(self._data) >= length:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._fail(ConnectionError(f"the connection broke: {exc}"))
        else:
            self._done()

    def _done(self) -> None:
        if not self._received.done():
            self._received.set_result(bytes(self._data))

    def _fail(self, error: Exception) -> None:
        if not self._received.done():
            self._received.set_exception(error)


def _length_of(data: bytearray) -> int | None:
    """Return the size of the whole answer in bytes; None if the head does not tell it yet."""
    head, separator, _ = bytes(data[:65_536]).partition(b"\r\n\r\n")
    if not separator:
        return None
    match = re.search(rb"\r\ncontent-length: *(\d{1,9})\r\n", head.lower() + b"\r\n")
    if match is not None:
        return len(head) + 4 + int(match[1])
    status = _STATUS.match(head)
    return len(head) + 4 if status is not None and status[1] == b"204" else None


def _parse(url: str, data: bytes) -> Answer:
    head, separator, body = data.partition(b"\r\n\r\n")
    match = _STATUS.match(head)
    if not separator or match is None:
        raise HttpCallError(f"{url} did not answer as an HTTP server does: {data[:80]!r}")
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    headers = {
        name.decode("latin-1").lower(): value.strip().decode("latin-1") for name, _, value in lines
    }
    return Answer(int(match[1]), body, headers)
