"""Load for one bookie over its wire protocol: adds and reads of entries of one size.

The client keeps no records except of what is in flight, so that it takes little processor time: the
figures are the bookie's. Packets have a correct header and no digest, which bookies never check.
"""

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from magnetar.ledger.wire import (
    MASTER_KEY_BYTES,
    PACKET_HEADER,
    Flag,
    Frame,
    FrameDecoder,
    Op,
    Status,
    encode_frame,
    encode_header,
    encode_read_body,
)

_KEY = b"k" * MASTER_KEY_BYTES
_TABLE_HEAD_BYTES = 4
_WRITE_BUFFER_BYTES_MAX = 64 << 20
_BLOCK_HEAD_BYTES = 8
"""Bytes of the LAC before the block in a reply to READ."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Amount and duration of a load."""

    entries: int
    payload_bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / self.seconds / 1e6

    @property
    def entries_per_s(self) -> float:
        return self.entries / self.seconds


NextRequest = Callable[[], Sequence[bytes] | None]
"""Returns the parts of the next frame; None if there is none at present."""


class BookieError(Exception):
    """The bookie refused a request of the load."""


class _Connection(asyncio.Protocol):
    """Keeps a number of requests in flight until there are no more."""

    def __init__(self, next_request: NextRequest, on_reply: Callable[[Frame], None]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next_request = next_request
        self._on_reply = on_reply
        self._in_flight = 0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES_MAX)

    def send(self, count: int) -> None:
        parts: list[bytes] = []
        for _ in range(count):
            request = self._next_request()
            if request is None:
                break
            parts += request
            self._in_flight += 1
        if parts:
            self._transport.writelines(parts)
        elif not self._in_flight and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        frames = self._decoder.feed(data)
        for frame in frames:
            if frame.status != Status.OK:
                self._fail(f"{Status(frame.status).name}: {frame.body.decode(errors='replace')}")
                return
            self._on_reply(frame)
        self._in_flight -= len(frames)
        if frames:
            self.send(len(frames))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the bookie closed the connection")

    def close(self) -> None:
        self._transport.abort()

    def _fail(self, text: str) -> None:
        if not self.done.done():
            self.done.set_exception(BookieError(text))


async def run(
    port: int,
    next_request: NextRequest,
    *,
    in_flight: int,
    on_reply: Callable[[Frame], None] = lambda frame: None,
) -> float:
    """Send all requests with so many in flight; return the seconds until all are answered."""
    loop = asyncio.get_running_loop()
    connection = _Connection(next_request, on_reply)
    await loop.create_connection(lambda: connection, "127.0.0.1", port)
    started_s = time.perf_counter()
    connection.send(in_flight)
    await connection.done
    took_s = time.perf_counter() - started_s
    connection.close()
    return took_s


async def add(
    port: int,
    ledger_ids: Sequence[int],
    *,
    entries: int,
    size: int,
    entries_per_add: int = 1,
    in_flight: int = 100,
    first: int = 0,
) -> Measured:
    """Add so many entries to each of the ledgers, in turn; `in_flight` counts entries."""
    payload = os.urandom(size)

    def requests() -> Iterator[Sequence[bytes]]:
        number = 0
        for at in range(first, first + entries, entries_per_add):
            count = min(entries_per_add, first + entries - at)
            for ledger_id in ledger_ids:
                number += 1
                yield add_request(number, ledger_id, at, count, payload)

    coming = requests()
    seconds = await run(
        port, lambda: next(coming, None), in_flight=max(1, in_flight // entries_per_add)
    )
    total = entries * len(ledger_ids)
    return Measured(total, total * size, seconds)


def add_request(
    request_id: int, ledger_id: int, first: int, count: int, payload: bytes
) -> list[bytes]:
    """Return the parts of an ADD frame; the payload is not copied."""
    size = PACKET_HEADER.size + len(payload)
    body_bytes = MASTER_KEY_BYTES + _TABLE_HEAD_BYTES * (1 + count) + size * count
    table = b"".join([count.to_bytes(4, "big"), size.to_bytes(4, "big") * count])
    parts = [
        encode_header(
            Op.ADD,
            body_bytes,
            request_id=request_id,
            ledger_id=ledger_id,
            entry_id=first,
            flags=Flag(0),
        )
        + _KEY
        + table
    ]
    for entry_id in range(first, first + count):
        length = len(payload) * (entry_id + 1)
        parts += [PACKET_HEADER.pack(ledger_id, entry_id, entry_id - 1, length), payload]
    return parts


async def read_in_order(
    port: int,
    ledger_id: int,
    *,
    entries: int,
    size: int,
    reply_bytes: int = 1 << 20,
    ahead: int = 2,
) -> Measured:
    """Read a ledger from its first entry to its last, with so many range reads outstanding."""
    per_read = max(1, reply_bytes // (size + PACKET_HEADER.size + _TABLE_HEAD_BYTES))
    parts = [(at, min(entries, at + per_read) - 1) for at in range(0, entries, per_read)]
    asked: dict[int, tuple[int, int]] = {}
    rests: deque[tuple[int, int]] = deque()
    """Ranges that short replies left out: a reply may end where a stored run does."""
    found = 0

    coming = iter(parts)

    def next_request() -> Sequence[bytes] | None:
        part = rests.popleft() if rests else next(coming, None)
        if part is None:
            return None
        number = len(asked)
        asked[number] = part
        return [read_request(number, ledger_id, *part, reply_bytes + (64 << 10))]

    def on_reply(frame: Frame) -> None:
        nonlocal found
        count = int.from_bytes(frame.body[_BLOCK_HEAD_BYTES : _BLOCK_HEAD_BYTES + 4], "big")
        found += count
        first, last = asked[frame.request_id]
        if first + count <= last:
            rests.append((first + count, last))

    seconds = await run(port, next_request, in_flight=ahead, on_reply=on_reply)
    if found != entries:
        raise BookieError(f"{found} of {entries} entries came back")
    return Measured(entries, entries * size, seconds)


async def read_at_random(
    port: int,
    ledger_ids: Sequence[int],
    *,
    entries: int,
    size: int,
    reads: int,
    in_flight: int = 128,
    seed: int = 1,
) -> Measured:
    """Read single random entries of ledgers that have so many entries each."""
    source = random.Random(seed)
    bytes_max = size + 4096
    frames = [
        read_request(number, source.choice(ledger_ids), at, at, bytes_max)
        for number, at in ((number, source.randrange(entries)) for number in range(reads))
    ]
    coming = iter([frame] for frame in frames)
    seconds = await run(port, lambda: next(coming, None), in_flight=in_flight)
    return Measured(reads, reads * size, seconds)


def read_request(request_id: int, ledger_id: int, first: int, last: int, bytes_max: int) -> bytes:
    body = encode_read_body(last_entry_id=last, bytes_max=bytes_max, master_key=_KEY)
    return encode_frame(
        Op.READ, request_id=request_id, ledger_id=ledger_id, entry_id=first, body=body
    )
