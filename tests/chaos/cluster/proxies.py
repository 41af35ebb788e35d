"""A field of TCP proxies, for machines without network namespaces.

Each place has two addresses of the loopback network: on one its server listens, on the other a
proxy, port by port; the second is what others are told. Whose connection it is says the kernel's
table of sockets. A cut lets nothing through any more, both ways, on open connections and new ones;
unlike a cut in a network, the kernel still takes a connection and what is sent on it. Clients are
all processes that are no server's.
"""

import asyncio
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from tests.chaos.cluster.field import CLIENTS, Place

T = TypeVar("T")

_CHUNK = 1 << 16
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")


class Proxies:
    """The field (field.py)."""

    kind = "proxies"

    def __init__(self) -> None:
        # Two drills on one host shall not meet.
        self._network = f"127.{random.SystemRandom().randrange(64, 250)}"
        self._places: dict[str, Place] = {}
        self._pids: dict[str, int] = {}
        self._cuts: set[frozenset[str]] = set()
        self._lock = threading.Lock()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self.place(CLIENTS)

    def place(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            number = len(self._places) + 1
            place = Place(name, f"{self._network}.0.{number}", f"{self._network}.1.{number}")
            self._places[name] = place
        return place

    def serve(self, name: str, ports: Iterable[int]) -> None:
        self._on_loop(self._listen(self._places[name], ports))

    def joined(self, name: str, pid: int) -> None:
        with self._lock:
            self._pids[name] = pid

    def cut(self, one: str, other: str) -> None:
        with self._lock:
            self._cuts.add(frozenset((one, other)))
        self._loop.call_soon_threadsafe(self._wake)

    def mend(self, one: str, other: str) -> None:
        with self._lock:
            self._cuts.discard(frozenset((one, other)))
        self._loop.call_soon_threadsafe(self._wake)

    def slow_down(self, name: str) -> bool:
        return False

    def speed_up(self, name: str) -> None:
        """Nothing was slowed down."""

    def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._on_loop(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, work: Coroutine[None, None, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result()

    async def _listen(self, place: Place, ports: Iterable[int]) -> None:
        for port in ports:

            async def take(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
            ) -> None:
                await self._take(place, port, reader, writer)

            self._servers.append(await asyncio.start_server(take, place.host, port))

    async def _take(
        self, place: Place, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = self._owner_of(*writer.get_extra_info("peername")[:2])
        try:
            await self._wait_open(peer, place.name)
            try:
                there = await asyncio.open_connection(place.listen_host, port)
            except OSError:
                return
            ways = [
                asyncio.create_task(self._pass(peer, place.name, reader, there[1])),
                asyncio.create_task(self._pass(peer, place.name, there[0], writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                # An end, too, is news that must not get through.
                await self._wait_open(peer, place.name)
            finally:
                for way in ways:
                    way.cancel()
                there[1].close()
        finally:
            writer.close()

    async def _pass(
        self, one: str, other: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await self._wait_open(one, other)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # The other side is told by the end of its connection.

    async def _wait_open(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        while pair in self._cuts:
            changed = self._changed
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _owner_of(self, host: str, port: int) -> str:
        """The place whose process has this end of a connection."""
        inode = _inode_of(host, port)
        with self._lock:
            pids = dict(self._pids)
        for name, pid in pids.items():
            if inode in _inodes_of_tree(pid):
                return name
        return CLIENTS


def _inode_of(host: str, port: int) -> str:
    packed = bytes(int(part) for part in reversed(host.split("."))).hex().upper()
    wanted = f"{packed}:{port:04X}"
    # An end of the IPv6 family, as Java's, may hold the IPv4 address, mapped.
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(wanted):
                return fields[9]
    return ""


def _inodes_of_tree(pid: int) -> set[str]:
    """The sockets of a process and of its children, as of the one that runs the Java process."""
    found: set[str] = set()
    for each in [pid, *_children(pid)]:
        folder = f"/proc/{each}/fd"
        try:
            for name in os.listdir(folder):
                try:
                    match = _SOCKET_LINK.fullmatch(os.readlink(f"{folder}/{name}"))
                except OSError:
                    continue  # closed meanwhile
                if match:
                    found.add(match[1])
        except OSError:
            continue  # the process has ended
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
