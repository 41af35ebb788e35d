"""HTTP requests of tests to a server, with a bounded wait.

`call` blocks and takes any answer, `ask` is its form for an event loop, `follow` follows redirects,
`admin` is for requests that must succeed.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from tests.processes import HOST

TIMEOUT_S = 60.0

_THREADS = ThreadPoolExecutor(128, "http-call")
"""Threads for `ask`; not the event loop's, which a server in this process needs to answer."""


class HasHttp(Protocol):
    @property
    def http_url(self) -> str: ...


Server = int | str | HasHttp
"""A port of this machine, a URL, or an object that has one."""


@dataclass(frozen=True)
class Answer:
    """A response. The names of `headers` are in lower case."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, response: HTTPResponse, method: str, path: str) -> "Answer":
        headers = {name.lower(): value for name, value in response.getheaders()}
        return cls(method, path, response.status, headers, response.read())

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_ok(self) -> bool:
        """Whether the status is one of success, whatever the body is."""
        return 200 <= self.status < 300

    def ok(self) -> Any:
        """Return the JSON, or None if the body is empty.

        Raises:
            AssertionError: the status is not one of success.
        """
        assert self.is_ok, self
        return self.json if self.body.strip() else None


def call(
    server: Server,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
    expect: int | None = None,
) -> Answer:
    """Send one request on a connection of its own, and return any answer.

    Args:
        path: relative to /admin/v2/, unless it begins with a slash.
        body: bytes are sent unchanged, other values as JSON.
        token: for an Authorization header.
        tls: for an https URL.
        timeout_s: time limit per read and write.

    Raises:
        AssertionError: the status is not `expect`.
    """
    url = f"http://{HOST}:{server}" if isinstance(server, int) else server
    parts = urlsplit(url if isinstance(url, str) else url.http_url)
    connection = (
        HTTPSConnection(parts.netloc, timeout=timeout_s, context=tls)
        if parts.scheme == "https"
        else HTTPConnection(parts.netloc, timeout=timeout_s)
    )
    content = body if body is None or isinstance(body, bytes) else json.dumps(body)
    given = {"Content-Type": "application/json", **(headers or {})}
    if token:
        given["Authorization"] = f"Bearer {token}"
    path = path if path.startswith("/") else f"/admin/v2/{path}"
    try:
        connection.request(method, path, content, given)
        answer = Answer.read(connection.getresponse(), method, path)
    finally:
        connection.close()
    assert expect in (None, answer.status), answer
    return answer


def follow(server: Server, method: str, path: str, body: object = None, **how: Any) -> Answer:
    """Send a request and follow redirects, at most five times."""
    for _ in range(5):
        answer = call(server, method, path, body, **how)
        if answer.status != 307:
            return answer
        place = urlsplit(answer.headers["location"])
        server, path = f"{place.scheme}://{place.netloc}", f"{place.path}?{place.query}"
    raise AssertionError(f"redirected in circles: {path}")


async def ask(server: Server, method: str, path: str, body: object = None, **how: Any) -> Answer:
    """Send one request from an event loop, which may be the server's and stays free meanwhile.

    `how`: the keywords of `call`.
    """
    asked = partial(call, server, method, path, body, **how)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, asked)


def admin(server: Server, method: str, path: str, body: object = None) -> Any:
    """Send a request that must succeed, and return the JSON of the answer."""
    return call(server, method, path, body).ok()


def topic_path(topic: str) -> str:
    """Return the path of a topic, relative to /admin/v2/."""
    domain, _, rest = topic.partition("://")
    namespace, _, name = rest.rpartition("/")
    return f"{domain}/{namespace}/{quote(name, safe='')}"
