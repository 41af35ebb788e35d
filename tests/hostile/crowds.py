"""Many connections that say nothing or half of something, and crowds that come and go at once."""

import asyncio
import gc
import resource
import time
from contextlib import suppress
from pathlib import Path

from magnetar.sdk.client import Client
from magnetar.testing import Broker
from tests.bench.crowds import SETTINGS, measure
from tests.hostile.findings import Findings
from tests.processes import HOST
from tests.standalone import Standalone

_HALVES: dict[str, tuple[bool, bytes]] = {
    "silent": (False, b""),
    "half a frame": (False, b"\x00\x00\x01\x00\x00"),
    "silent over HTTP": (True, b""),
    "half a request": (True, b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nX-"),
}
"""Whether it is the HTTP port, and what is said."""
_AT_ONCE = 200
_SERVED_WITHIN_S = 30.0
_MEMORY_MIB_MAX = 400
_TURN_MS_MAX = 40.0
"""Twice what is promised of a quiet machine."""


async def silent(directory: Path, connections: int) -> Findings:
    """A client is served, and the health check answered, beside so many of each kind."""
    findings = Findings()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(hard, connections + 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Standalone(directory / "data") as server:
        for name, (is_http, said) in _HALVES.items():
            held: list[asyncio.StreamWriter] = []
            port = server.http_port if is_http else server.port
            try:
                await _hold(held, port, said, min(connections, soft - 500))
                await _look(server, findings, name)
            finally:
                for writer in held:
                    writer.transport.abort()
        memory_mib = server.process.resident_bytes() >> 20
        findings.figures["memory_mib"] = memory_mib
        findings.note(f"{memory_mib} MiB of memory", holds=memory_mib <= _MEMORY_MIB_MAX)
    return findings


async def _hold(held: list[asyncio.StreamWriter], port: int, said: bytes, count: int) -> None:
    async def one() -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            held.append(writer)
            writer.write(said)

    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*(one() for _ in range(min(_AT_ONCE, count - first))))


async def _look(server: Standalone, findings: Findings, beside: str) -> None:
    for what, look in (("the health check", _health), ("a client", _publish)):
        began_s = time.monotonic()
        seen = ""
        while time.monotonic() - began_s < _SERVED_WITHIN_S:
            try:
                async with asyncio.timeout(_SERVED_WITHIN_S):
                    await look(server)
            except Exception as error:  # noqa: BLE001  # whatever it is: it is tried again
                seen = repr(error)
                await asyncio.sleep(0.2)
            else:
                seen = ""
                break
        seconds = time.monotonic() - began_s
        findings.figures[f"{what} beside {beside}, s"] = round(seconds, 2)
        findings.note(f"{what} is served beside {beside}", holds=not seen, seen=seen)


async def _health(server: Standalone) -> None:
    reader, writer = await asyncio.open_connection(HOST, server.http_port)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
    finally:
        writer.transport.abort()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"answered {answer[:80]!r}")


async def _publish(server: Standalone) -> None:
    async with Client(server.url) as client:
        producer = await client.producer("persistent://public/default/beside")
        await producer.send(b"between them all")


async def coming_and_going(members: int) -> Findings:
    """The longest turn of a broker's loop while so many members come, and go at once."""
    findings = Findings()
    for name, found in (await asyncio.to_thread(_turns, members)).items():
        findings.figures[name] = found
        turn_ms = found["turn_cpu_ms_max"]
        findings.note(f"{name}: a turn of {turn_ms} ms", holds=turn_ms <= _TURN_MS_MAX)
    return findings


def _turns(members: int) -> dict[str, dict[str, float]]:
    # A full collection would walk the client's objects too; a server plans its own.
    gc.disable()
    try:
        with Broker(settings={"broker": SETTINGS}) as broker:
            return asyncio.run(measure(broker, members))
    finally:
        gc.enable()
