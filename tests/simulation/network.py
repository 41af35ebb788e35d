"""An in-memory network: frames in order within a connection, everything else as a test or a plan
wants it.

What travels is looked at frame by frame (`connection.py`), so that a rule can name an operation
(`frame_rules.py`), and so that the history says who told whom what.
"""

import asyncio
from collections.abc import Callable
from random import Random

from magnetar.ledger.ports import Listener
from magnetar.ledger.wire import Op, Status
from tests.simulation.connection import Connection, SimTransport
from tests.simulation.frame_rules import Alteration, Forgery, Hold, Loss, Match
from tests.simulation.history import Event, Fault, History
from tests.simulation.loop import SimLoop, SimProcess

_SKEWS = (0.0, 0.0, 0.2, 1.0)
"""Shares of `skew_s` that links have."""


class _SimListener:
    def __init__(self, fabric: "Fabric", address: tuple[str, int]) -> None:
        self._fabric = fabric
        self._address = address

    @property
    def port(self) -> int:
        return self._address[1]

    async def close(self) -> None:
        self._fabric.listeners.pop(self._address, None)


class Fabric:
    """The network between all processes of a run."""

    def __init__(self, loop: SimLoop, history: History, *, seed: str) -> None:
        self.loop = loop
        self._history = history
        self._seed = seed
        self._links: dict[tuple[str, str], Random] = {}
        self._skews: dict[tuple[str, str], float] = {}
        self._cuts = Random(f"{seed}/cuts")
        self._next_connection = 1
        self._next_port = 3181
        self.listeners: dict[
            tuple[str, int], tuple[SimProcess, Callable[[], asyncio.Protocol]]
        ] = {}
        self.hosts: dict[str, str] = {}
        """Addresses of machines that have another one than their name."""
        self.connections: list[Connection] = []
        self.blocked: dict[tuple[str, str], None] = self.make_links()
        """Links (source, target) on which nothing moves now."""
        self.holds: list[Hold] = []
        self.losses: list[Loss] = []
        self.forgeries: list[Forgery] = []
        self.alterations: list[Alteration] = []
        self.latency_s = 0.0002
        self.jitter_s = 0.0
        """Up to so much more, drawn per frame."""
        self.skew_s = 0.0
        """How much slower some links are than others, all the time."""
        self.slowness: dict[str, float] = {}
        """Seconds more for every frame from or to a process."""
        self.keeps_frames = True
        """Whether what is on its way when a connection is given up always arrives."""

    # For a test

    def hold(
        self,
        *,
        client: str | None = None,
        bookie: str | None = None,
        op: Op | None = None,
        reply: bool = False,
        ledger_id: int | None = None,
        entry: int | None = None,
        flags: int | None = None,
        overtaken: bool = False,
    ) -> Hold:
        """Hold every matching frame from now on; see `Hold`."""
        assert reply or not overtaken, "requests arrive in order"
        match = Match(client, bookie, op, reply, ledger_id, entry, flags)
        hold = Hold(self.holds, match, overtaken=overtaken)
        self.holds.append(hold)
        return hold

    def drop(
        self,
        *,
        client: str | None = None,
        bookie: str | None = None,
        op: Op | None = None,
        reply: bool = False,
        ledger_id: int | None = None,
        entry: int | None = None,
        flags: int | None = None,
        count: int = 1,
    ) -> Loss:
        """Lose the next `count` matching frames, each with its connection."""
        loss = Loss(Match(client, bookie, op, reply, ledger_id, entry, flags), count)
        self.losses.append(loss)
        return loss

    def refuse(
        self,
        status: Status,
        *,
        client: str | None = None,
        bookie: str | None = None,
        op: Op | None = None,
        ledger_id: int | None = None,
        entry: int | None = None,
        flags: int | None = None,
        count: int = 1 << 30,
    ) -> Forgery:
        """Answer the next `count` matching requests with an error, unseen by the bookie."""
        match = Match(client, bookie, op, False, ledger_id, entry, flags)
        forgery = Forgery(match, status, count)
        self.forgeries.append(forgery)
        return forgery

    def alter(
        self,
        change: Callable[[bytes], bytes],
        *,
        client: str | None = None,
        bookie: str | None = None,
        op: Op | None = None,
        ledger_id: int | None = None,
        entry: int | None = None,
    ) -> Alteration:
        """Change the bodies of matching answers on their way."""
        match = Match(client, bookie, op, True, ledger_id, entry, None)
        alteration = Alteration(match, change)
        self.alterations.append(alteration)
        return alteration

    def block(self, source: str, target: str) -> None:
        """Nothing moves from `source` to `target` until `unblock`; the other way it still does."""
        self.blocked[source, target] = None

    def unblock(self, source: str, target: str) -> None:
        self.blocked.pop((source, target), None)
        for connection in self.connections:
            connection.to_server.pump()
            connection.to_client.pump()

    def partition(self, one: str, other: str) -> None:
        """Nothing moves between the two, either way."""
        self.block(one, other)
        self.block(other, one)

    def heal(self, one: str, other: str) -> None:
        self.unblock(one, other)
        self.unblock(other, one)

    def heal_all(self) -> None:
        """Undo every block, hold, loss, change and slowness."""
        self.blocked.clear()
        self.alterations.clear()
        self.losses.clear()
        self.forgeries.clear()
        self.slowness.clear()
        for hold in list(self.holds):
            hold.release()
        for connection in self.connections:
            connection.to_server.pump()
            connection.to_client.pump()

    def reset(self, one: str, other: str) -> None:
        """Break the connections between the two."""
        for connection in self._between(one, other):
            connection.reset()

    def _between(self, one: str, other: str) -> list[Connection]:
        names = {one, other}
        return [
            connection
            for connection in self.connections
            if {connection.client.process.name, connection.server.process.name} == names
        ]

    # For the parts

    def record(self, actor: str, event: Event) -> None:
        self._history.add(self.loop.time(), actor, event)

    def say(self, actor: str, text: str) -> None:
        self._history.add(self.loop.time(), actor, Fault(text))

    def arrival_s(self, link: tuple[str, str]) -> float:
        arrives_s = self.loop.time() + self.latency_s
        if self.jitter_s or self.skew_s:
            source = self._links.get(link)
            if source is None:
                source = self._links[link] = Random(f"{self._seed}/link/{link[0]}/{link[1]}")
                self._skews[link] = source.choice(_SKEWS) * self.skew_s
            arrives_s += source.random() * self.jitter_s + self._skews[link]
        if self.slowness:
            arrives_s += self.slowness.get(link[0], 0.0) + self.slowness.get(link[1], 0.0)
        return arrives_s

    def frames_kept(self, count: int) -> int:
        return count if self.keeps_frames or not count else self._cuts.randint(0, count)

    def on_process_gone(self, process: SimProcess) -> None:
        for address, (owner, _) in list(self.listeners.items()):
            if owner is process:
                del self.listeners[address]
        for connection in self.connections:
            connection.on_process_gone(process)

    def listen(
        self, process: SimProcess, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        address = self.hosts.get(process.name, process.name), port
        self.listeners[address] = process, factory
        return _SimListener(self, address)

    async def connect(
        self, process: SimProcess, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        there = next((name for name, moved in self.hosts.items() if moved == host), host)
        await self._wait_way(process.name, there)
        found = self.listeners.get((host, port))
        if found is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        owner, server_factory = found
        await self._wait_way(there, process.name)
        if not owner.is_alive:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        client = self.make_end(process, factory())
        server = self.make_end(owner, owner.context.copy().run(server_factory))
        number, self._next_connection = self._next_connection, self._next_connection + 1
        connection = self.join_ends(number, client, server)
        self.connections = [each for each in self.connections if not each.is_dead]
        self.connections.append(connection)
        owner.call_soon(server.protocol.connection_made, server)
        client.protocol.connection_made(client)
        return client

    def make_links(self) -> dict[tuple[str, str], None]:
        return {}

    def make_end(self, process: SimProcess, protocol: asyncio.Protocol) -> SimTransport:
        return SimTransport(process, protocol)

    def join_ends(self, number: int, client: SimTransport, server: SimTransport) -> Connection:
        return Connection(self, number, client, server)

    async def _wait_way(self, source: str, target: str) -> None:
        """One trip; while the link is blocked, it takes as long as that."""
        while True:
            await asyncio.sleep(self.arrival_s((source, target)) - self.loop.time())
            if (source, target) not in self.blocked:
                return
            # Blocked: like a SYN, tried again and again until the caller gives up.
            await asyncio.sleep(0.05)


class SimNetwork:
    """`Network` of one process."""

    def __init__(self, fabric: Fabric, process: SimProcess) -> None:
        self._fabric = fabric
        self._process = process

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        async with asyncio.timeout(timeout_s):
            return await self._fabric.connect(self._process, host, port, factory)

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        return self._fabric.listen(self._process, port, factory)
