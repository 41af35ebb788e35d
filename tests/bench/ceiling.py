"""The yardstick: a ledger of three synced copies, reduced to the bare work.

Three processes append every entry to a journal, one `writev` + `fdatasync` per group, and answer.
One writer keeps a number of entries in flight and computes a CRC32C per entry. An entry is done
when two of the three have answered for it and for everything before it. There is no index, no
recovery, no check of what arrives. This is the most that Python can do here; the other figures are
ratios to it. The speed of a machine varies by the minute, so measure the yardstick right beside the
figure that it judges.

usage: python -m tests.bench.ceiling [--entries N] [--size BYTES] [--in-flight N] [--json]
"""

import argparse
import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import google_crc32c
import uvloop

from tests.bench.figures import Latency
from tests.processes import ROOT

COPIES = 3
ACK_QUORUM = 2

_ADD = struct.Struct(">IqqqI")
"""Number of the following bytes, ledger, entry, last add confirmed, CRC32C of the payload."""
_LENGTH_BYTES = 4
_ACK = struct.Struct(">qqI")
"""Ledger, entry, status. Acks have one size, so they need no length."""
_WRITEV_BUFFERS_MAX = 1024
_JOIN_BYTES_MAX = 8192
"""Largest payload that is joined into one buffer: above it, the copy costs more than the vector."""
_WRITE_BUFFER_BYTES_MAX = 64 << 20
_LEDGER_ID = 7


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Result of one measurement."""

    entries: int
    size: int
    in_flight: int
    seconds: float
    entries_per_s: float
    mb_per_s: float
    latency_ms: Latency


@dataclass(frozen=True, slots=True)
class _Received:
    """The adds of one network read: whole frames, and the answer to them."""

    frames: list[bytes]
    transport: asyncio.Transport
    answer: bytes


class _Journal(threading.Thread):
    """Writes and syncs the frames that gathered during the previous sync."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        self._loop = loop
        self._pending: list[_Received] = []
        self._arrived = threading.Condition()

    def append(self, received: _Received) -> None:
        with self._arrived:
            self._pending.append(received)
            self._arrived.notify()

    def run(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._pending)
                group, self._pending = self._pending, []
            frames = [frame for received in group for frame in received.frames]
            for at in range(0, len(frames), _WRITEV_BUFFERS_MAX):
                os.writev(self._file, frames[at : at + _WRITEV_BUFFERS_MAX])
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(self._answer, group)

    @staticmethod
    def _answer(group: list[_Received]) -> None:
        answers: dict[asyncio.Transport, list[bytes]] = {}
        for received in group:
            answers.setdefault(received.transport, []).append(received.answer)
        for transport, parts in answers.items():
            if not transport.is_closing():
                transport.write(b"".join(parts))


class _BookieConnection(asyncio.Protocol):
    def __init__(self, journal: _Journal) -> None:
        self._journal = journal
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        frames: list[bytes] = []
        answer = bytearray()
        while end - at >= _ADD.size:
            size, ledger_id, entry_id, _, _ = _ADD.unpack_from(buffer, at)
            frame_end = at + _LENGTH_BYTES + size
            if frame_end > end:
                break
            frames.append(bytes(memoryview(buffer)[at:frame_end]))
            answer += _ACK.pack(ledger_id, entry_id, 0)
            at = frame_end
        if frames:
            del buffer[:at]
            self._journal.append(_Received(frames, self._transport, bytes(answer)))


class _Writer:
    """Keeps `in_flight` entries outstanding at three bookies; `done` is set when all are
    confirmed."""

    def __init__(self, *, entries: int, size: int, in_flight: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies_s: list[float] = []
        self.transports: list[asyncio.Transport] = []
        self._entries = entries
        self._in_flight = in_flight
        self._payload = os.urandom(size)
        self._next = 0
        self._last_add_confirmed = -1
        self._acks: dict[int, int] = {}
        self._sent_s: dict[int, float] = {}

    def pump(self) -> None:
        """Send as many entries as the window takes, with one write per bookie."""
        payload = self._payload
        limit = min(self._entries, self._last_add_confirmed + 1 + self._in_flight)
        parts: list[bytes] = []
        now = time.perf_counter()
        for entry_id in range(self._next, limit):
            crc = google_crc32c.value(payload)
            rest = _ADD.size - _LENGTH_BYTES + len(payload)
            parts.append(_ADD.pack(rest, _LEDGER_ID, entry_id, self._last_add_confirmed, crc))
            parts.append(payload)
            self._acks[entry_id] = 0
            self._sent_s[entry_id] = now
        if parts:
            self._next = limit
            if len(payload) >= _JOIN_BYTES_MAX:
                for transport in self.transports:
                    transport.writelines(parts)
                return
            data = b"".join(parts)
            for transport in self.transports:
                transport.write(data)

    def on_acks(self, entry_ids: Sequence[int]) -> None:
        acks = self._acks
        for entry_id in entry_ids:
            if entry_id in acks:  # the third answer comes after the entry is done
                acks[entry_id] += 1
        now = time.perf_counter()
        at = self._last_add_confirmed + 1
        while acks.get(at, 0) >= ACK_QUORUM:
            del acks[at]
            self.latencies_s.append(now - self._sent_s.pop(at))
            at += 1
        self._last_add_confirmed = at - 1
        if at == self._entries:
            if not self.done.done():
                self.done.set_result(None)
        elif self._next - at <= max(0, self._in_flight * 3 // 4 - 1):
            # Refill a quarter of the window at a time: groups keep their size, writes stay few.
            self.pump()


class _WriterChannel(asyncio.Protocol):
    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(_WRITE_BUFFER_BYTES_MAX)
        self._writer.transports.append(stream)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % _ACK.size
        self._writer.on_acks([entry_id for _, entry_id, _ in _ACK.iter_unpack(data[:whole])])
        self._rest = data[whole:]


async def _serve(journal_path: str) -> None:
    loop = asyncio.get_running_loop()
    journal = _Journal(journal_path, loop)
    journal.start()
    server = await loop.create_server(lambda: _BookieConnection(journal), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _write(ports: Sequence[int], *, entries: int, size: int, in_flight: int) -> Ceiling:
    loop = asyncio.get_running_loop()
    writer = _Writer(entries=entries, size=size, in_flight=in_flight)
    for port in ports:
        await loop.create_connection(lambda: _WriterChannel(writer), "127.0.0.1", port)
    start = time.perf_counter()
    writer.pump()
    await writer.done
    seconds = time.perf_counter() - start
    for transport in writer.transports:
        transport.close()
    return Ceiling(
        entries=entries,
        size=size,
        in_flight=in_flight,
        seconds=round(seconds, 3),
        entries_per_s=round(entries / seconds, 1),
        mb_per_s=round(entries * size / seconds / 1e6, 1),
        latency_ms=Latency.of(writer.latencies_s),
    )


def measure(
    *, entries: int = 50_000, size: int = 1024, in_flight: int = 1000, directory: Path | None = None
) -> Ceiling:
    """Start three bookies with their journals below `directory`, write the entries, stop them.

    Raises:
        RuntimeError: a bookie ended before it listened.
    """
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        bookies = [
            subprocess.Popen(
                [sys.executable, "-m", __spec__.name, "--bookie", f"{folder}/journal-{number}"],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for number in range(COPIES)
        ]
        try:
            ports: list[int] = []
            for bookie in bookies:
                assert bookie.stdout is not None
                line = bookie.stdout.readline()
                if not line:
                    raise RuntimeError("a bookie of the yardstick ended before it listened")
                ports.append(int(line))
            return uvloop.run(_write(ports, entries=entries, size=size, in_flight=in_flight))
        finally:
            for bookie in bookies:
                bookie.kill()
            for bookie in bookies:
                bookie.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of an entry's payload")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--dir", type=Path, default=None, help="parent of the journals' folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bookie", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bookie:
        uvloop.run(_serve(arguments.bookie))
        return
    result = measure(
        entries=arguments.entries,
        size=arguments.size,
        in_flight=arguments.in_flight,
        directory=arguments.dir,
    )
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
        return
    latency = result.latency_ms
    sys.stdout.write(
        f"{result.entries} x {result.size} B, {result.in_flight} in flight: "
        f"{result.entries_per_s:.0f} entries/s, {result.mb_per_s} MB/s, "
        f"p50 {latency.p50} ms, p99 {latency.p99} ms\n"
    )


if __name__ == "__main__":
    main()
