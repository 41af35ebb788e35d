"""Servers that speak S3 for tests: moto, and one whose answers the test chooses."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import urllib3

from tests.processes import HOST, ServerProcess, free_ports, python_command

_READY_TIMEOUT_S = 120.0


class S3Server:
    """moto, which keeps buckets in memory and accepts any credentials."""

    def __init__(self, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self._http = urllib3.PoolManager()
        self._process = ServerProcess(
            python_command("tests.moto_server", HOST, str(self.port)),
            log_path=directory / "moto.log",
            is_ready=lambda line: "Running on" in line,
        )
        self._process.wait_ready(_READY_TIMEOUT_S)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def create_bucket(self, name: str) -> None:
        assert self._http.request("PUT", f"{self.endpoint}/{name}").status == 200

    def keys(self, bucket: str) -> list[str]:
        """Return the first thousand keys of a bucket."""
        answer = self._http.request("GET", f"{self.endpoint}/{bucket}?list-type=2")
        return re.findall(r"<Key>([^<]*)</Key>", answer.data.decode())

    def unfinished_uploads(self, bucket: str) -> int:
        """Return the number of multipart uploads that were neither completed nor aborted."""
        answer = self._http.request("GET", f"{self.endpoint}/{bucket}?uploads")
        return answer.data.count(b"<Upload>")

    def stop(self) -> None:
        self._http.clear()
        self._process.kill()


class Request(NamedTuple):
    """A request to an `answering` server."""

    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """Return the bytes of an answer. `length`: a Content-Length other than the true one."""
    fields = {
        "Content-Length": str(len(body) if length is None else length),
        "Last-Modified": "Sat, 01 Feb 2025 00:00:00 GMT",
        "ETag": '"1"',
        "Connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Because\r\n{head}\r\n".encode() + body


def refusal(status: int, code: str, message: str = "", more: str = "") -> bytes:
    """Return the bytes of an error in S3's form; `more`: further elements of it."""
    text = f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    return answer(status, text.encode(), Content_Type="application/xml")


@asynccontextmanager
async def answering(
    reply: Callable[[Request], Awaitable[bytes]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve HTTP with the answers of `reply`, each on a connection that ends with the answer.
    Yields the endpoint."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {
                name.lower(): value
                for name, _, value in (each.partition(": ") for each in head[1:])
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            writer.write(await reply(Request(method, target, headers, body)))
            await writer.drain()
        except (OSError, EOFError):
            pass  # the client gave up
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
