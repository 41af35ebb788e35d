"""The front doors of a server without authentication: web pages, odd requests, odd frames.

Each probe says what must come back; after all of them a client is served as before.
"""

import asyncio
import base64
import os
import struct
from contextlib import suppress
from pathlib import Path

from magnetar.sdk.client import Client
from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.hostile.findings import Findings
from tests.processes import HOST
from tests.standalone import EXCEPTION_MARKS, Standalone

_WAIT_S = 5.0
_ANSWER_BYTES_MAX = 200_000
_A = "/admin/v2"
_CHANGES = (
    ("PUT", f"{_A}/tenants/evil"),
    ("PUT", f"{_A}/persistent/public/default/evil"),
    ("POST", f"{_A}/namespaces/public/default/clearBacklog"),
)
_FOREIGN_PAGES = (
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Origin", "http://127.0.0.1:9999"),
)
"""A browser says so with every request that may change something."""
_FOREIGN_HOSTS = ("evil.example", "evil.example:8080", "127.0.0.1.nip.io", "localhost.evil.example")
_ESCAPES = (
    "/console/../../../../etc/passwd",
    "/console/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/console/..%2f..%2f..%2fetc/passwd",
    "/console/%252e%252e/etc/passwd",
    "//etc/passwd",
    "/console/serving.py",
)
_NAMES = (
    "..%2f..%2fevil",
    "%2e%2e",
    "a%00b",
    "a%0ab",
    "a%0d%0aX-Y:%20z",
    "%c0%ae%c0%ae",
    "a" * 2000,
)
_SMUGGLED = "GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_CONNECT = encode_command(
    BaseCommand(
        type=BaseCommand.CONNECT,
        connect=pb.CommandConnect(client_version="evil", protocol_version=20),
    )
)
_SEND_FIRST = encode_command(
    BaseCommand(
        type=BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1)
    )
)
_FRAMES: dict[str, bytes] = {
    "a frame of 2 GiB": struct.pack(">II", 0x7FFF_FFFF, 8) + b"x" * 64,
    "a command that is longer than its frame": struct.pack(">II", 8, 1 << 30) + b"xxxx",
    "noise": b"\x00\x00\x00\x10" + bytes(range(16, 32)),
    "SEND before CONNECT": _SEND_FIRST,
    "CONNECT twice": _CONNECT + _CONNECT,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


async def drill(directory: Path) -> Findings:
    findings = Findings()
    with Standalone(directory / "data") as server:
        doors = _Doors(server, findings)
        await doors.pages()
        await doors.requests()
        await doors.names()
        await doors.frames()
        await doors.is_served()
    text = server.log_text()
    for mark in EXCEPTION_MARKS:
        findings.note(f"the log holds no {mark}", holds=mark not in text)
    return findings


class _Doors:
    def __init__(self, server: Standalone, findings: Findings) -> None:
        self._server = server
        self._note = findings.note

    async def pages(self) -> None:
        """A page in the browser of somebody on this host."""
        for method, path in _CHANGES:
            for header in _FOREIGN_PAGES:
                seen = await self._ask(method, path, (header,))
                self._note(f"{method} {path} with {header}", holds=_status(seen) == 403, seen=seen)
        for host in _FOREIGN_HOSTS:
            seen = await self._ask("GET", f"{_A}/clusters", host=host)
            self._note(f"Host: {host}", holds=_status(seen) in (400, 403, 421), seen=seen)
        seen = await self._ask("GET", f"{_A}/clusters", (("Origin", "http://evil.example"),))
        is_shared = b"access-control-allow-origin" in seen.lower()
        self._note("no answer is shared with foreign pages", holds=not is_shared, seen=seen)
        key = base64.b64encode(os.urandom(16)).decode()
        seen = await self._ask(
            "GET",
            "/ws/v2/producer/persistent/public/default/evil",
            (
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Key", key),
                ("Sec-WebSocket-Version", "13"),
                ("Origin", "http://evil.example"),
            ),
            closes=False,
        )
        self._note("a WebSocket of a foreign page", holds=_status(seen) == 403, seen=seen)

    async def requests(self) -> None:
        head = f"POST {_A}/namespaces/public/default/clearBacklog HTTP/1.1\r\nHost: localhost\r\n"
        for name, framing in {
            "Content-Length and Transfer-Encoding": (
                "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            "two lengths": "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        }.items():
            seen = await self._raw((head + framing + _SMUGGLED).encode())
            answers = seen.count(b"HTTP/1.1 ")
            self._note(name, holds=answers == 1 and _status(seen) == 400, seen=seen)
        for path in _ESCAPES:
            seen = await self._ask("GET", path)
            is_inside = b"root:" not in seen and b"import " not in seen
            self._note(f"GET {path}", holds=is_inside and 300 <= _status(seen) < 500, seen=seen)
        deep = b"[" * 200_000
        seen = await self._ask("PUT", f"{_A}/tenants/deep", body=deep)
        self._note("JSON of 200,000 levels", holds=400 <= _status(seen) < 500, seen=seen)
        seen = await self._ask("PUT", f"{_A}/tenants/large", body=b"9" * (8 << 20))
        self._note("a body of 8 MiB", holds=_status(seen) in (0, 400, 413, 422), seen=seen)

    async def names(self) -> None:
        for name in _NAMES:
            for kind in ("persistent/public/default", "namespaces/public", "tenants"):
                seen = await self._ask("PUT", f"{_A}/{kind}/{name}")
                self._note(f"PUT {kind}/{name[:30]}", holds=_status(seen) < 500, seen=seen)

    async def frames(self) -> None:
        for name, frame in _FRAMES.items():
            self._note(name, holds=await self._ends(frame))

    async def is_served(self) -> None:
        async with Client(self._server.url) as client:
            producer = await client.producer("persistent://public/default/good")
            place = await producer.send(b"as before")
        self._note("a client is served as before", holds=place.ledger_id >= 0, seen=place)

    # Helpers

    async def _ask(
        self,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        host: str = "localhost",
        body: bytes = b"",
        closes: bool = True,
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
        if closes:
            lines.append("Connection: close")
        if method != "GET":
            lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers]
        return await self._raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def _raw(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self._server.http_port)
        seen = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                writer.write(request)
                while len(seen) < _ANSWER_BYTES_MAX and (more := await reader.read(65_536)):
                    seen += more
                    if b"\r\n\r\n" in seen and not seen.startswith(b"HTTP/1.1 2"):
                        break
        writer.transport.abort()
        return seen

    async def _ends(self, frame: bytes) -> bool:
        """Whether the broker ends the connection for it."""
        reader, writer = await asyncio.open_connection(HOST, self._server.port)
        try:
            async with asyncio.timeout(_WAIT_S):
                writer.write(frame)
                while await reader.read(65_536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            writer.transport.abort()
        return True


def _status(answer: bytes) -> int:
    """0: there was none."""
    parts = answer.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
