"""TCP proxies between clusters: a link is cut, or all its connections are dropped.

A link leads to the brokers of one cluster, and has a port for each of theirs. While it is cut it
lets nothing through, both ways, on open connections and new ones; as with a network that is cut,
nobody is told, and what waited goes on when it is mended.
"""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TypeVar

from tests.processes import HOST

T = TypeVar("T")

_CHUNK = 1 << 16


class _Link:
    """What is known of one link."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.connections: set[asyncio.Task[None]] = set()


class Links:
    """All links, on a thread of their own. A context manager."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Links":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._on_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, link: str, port: int, target_port: int) -> None:
        """Listen on a port of this host, and pass on to another one."""
        self._on_loop(self._listen(link, port, target_port))

    def cut(self, link: str) -> None:
        """Let nothing through from now on."""
        self._on_loop(self._set(link, flows=False))

    def mend(self, link: str) -> None:
        """Let through what waits, and what comes."""
        self._on_loop(self._set(link, flows=True))

    def drop(self, link: str) -> int:
        """End all connections, and return how many there were; new ones may come at once."""
        return self._on_loop(self._drop(link))

    def _on_loop(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            await self._drop(link)

    async def _set(self, link: str, *, flows: bool) -> None:
        event = self._links[link].flows
        if flows:
            event.set()
        else:
            event.clear()

    async def _drop(self, link: str) -> int:
        tasks = list(self._links[link].connections)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def _listen(self, name: str, port: int, target_port: int) -> None:
        link = self._links.setdefault(name, _Link())

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "a server runs its callback in a task"
            link.connections.add(task)
            try:
                await _serve(link, target_port, reader, writer)
            except asyncio.CancelledError:
                pass  # dropped
            finally:
                link.connections.discard(task)

        self._servers.append(await asyncio.start_server(take, HOST, port))


async def _serve(
    link: _Link, target_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    ways: list[asyncio.Task[None]] = []
    there: asyncio.StreamWriter | None = None
    try:
        await link.flows.wait()
        try:
            answers, there = await asyncio.open_connection(HOST, target_port)
        except OSError:
            return
        ways = [
            asyncio.create_task(_pass(link, reader, there)),
            asyncio.create_task(_pass(link, answers, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        # An end, too, is news that must not get through.
        await link.flows.wait()
    finally:
        for each in ways:
            each.cancel()
        for end in (there, writer):
            if end is not None:
                end.transport.abort()


async def _pass(link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            await link.flows.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side is told by the end of its connection
