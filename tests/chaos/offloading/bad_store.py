"""A proxy before a server that speaks S3: now and then it does what stores and networks do.

A request is not passed on, or its answer is lost after it took effect, or comes cut, or late, or
the store says that it is too busy. Faults are drawn per request.
"""

import asyncio
import random
import threading
from dataclasses import dataclass, field

from tests.processes import HOST

_FAULTS = ("refused", "unavailable", "reply lost", "cut", "slow")
_BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: 39\r\n\r\n<Error><Code>SlowDown</Code></Error>   "
)


@dataclass(slots=True)
class BadStore:
    """The proxy, on a thread of its own. `start`, `stop`."""

    target_port: int
    seed: int
    likely: float = 0.0
    """How likely a request meets a fault."""
    port: int = 0
    faults: int = 0
    slow_s: float = 0.5
    busy: bytes = _BUSY
    """The answer if the store is unavailable."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def start(self) -> None:
        """Listen; `port` is known then."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(server.wait_closed())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: the answer says that it is the last one."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fault = self._drawn()
            if fault == "refused":
                return
            if fault == "unavailable":
                writer.write(self.busy)
                await writer.drain()
                return
            if fault == "slow":
                await asyncio.sleep(self.slow_s)
            answer = await self._ask(_closing(head), reader, head)
            if fault == "reply lost":
                return
            writer.write(answer[: len(answer) // 2] if fault == "cut" else answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _drawn(self) -> str:
        if self._random.random() >= self.likely:
            return ""
        self.faults += 1
        return self._random.choice(_FAULTS)

    async def _ask(self, head: bytes, client: asyncio.StreamReader, original: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.target_port)
        try:
            writer.write(head)
            length = _length_in(original)
            while length > 0:
                piece = await client.read(min(length, 1 << 16))
                if not piece:
                    raise ConnectionResetError("the client went")
                length -= len(piece)
                writer.write(piece)
                await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def _closing(head: bytes) -> bytes:
    """The head of a request on whose connection no other one follows."""
    lines = [
        line
        for line in head.rstrip(b"\r\n").split(b"\r\n")
        if not line.lower().startswith(b"connection:")
    ]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _length_in(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
