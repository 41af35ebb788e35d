"""An in-memory network: frames in order within a connection, everything else as a test or a plan
wants it.

What travels is looked at frame by frame, so that a rule can name an operation, and so that the
history says who told whom what. A direction of a connection is a pipe: a frame never overtakes the
one before it. A frame that is held, and a link that is blocked, stop the pipe; what was sent
arrives late when it opens again, even if the sender has given up the connection meanwhile. A frame
is only lost together with its connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from magnetar.ledger.ports import Listener
from magnetar.ledger.wire import (
    HEADER,
    MASTER_KEY_BYTES,
    PACKET_HEADER,
    RESPONSE,
    Op,
    Status,
    decode_block,
    encode_frame,
)
from tests.simulation.history import Delivered, Fault, History, Sent
from tests.simulation.loop import SimLoop, SimProcess

_LAC_BYTES = 8
_SKEWS = (0.0, 0.0, 0.2, 1.0)
"""Shares of `skew_s` that links have."""


class Message:
    """One frame on its way."""

    __slots__ = ("arrives_s", "facts", "held_by", "raw", "request_id")

    def __init__(self, raw: bytes, facts: Sent, request_id: int, arrives_s: float) -> None:
        self.raw = raw
        self.facts = facts
        self.request_id = request_id
        self.arrives_s = arrives_s
        self.held_by: Hold | None = None


class Match(NamedTuple):
    """Which frames a rule is about; None matches everything."""

    client: str | None = None
    bookie: str | None = None
    op: int | None = None
    reply: bool = False
    ledger_id: int | None = None
    entry: int | None = None
    flags: int | None = None
    """At least these flags of the request."""

    def fits(self, facts: Sent) -> bool:
        if facts.is_reply != self.reply:
            return False
        client, bookie = facts.source, facts.target
        if facts.is_reply:
            client, bookie = bookie, client
        return (
            (self.client is None or self.client == client)
            and (self.bookie is None or self.bookie == bookie)
            and (self.op is None or self.op == facts.op)
            and (self.ledger_id is None or self.ledger_id == facts.ledger_id)
            and (self.entry is None or self.entry == facts.entry_id or self.entry in facts.entries)
            and (self.flags is None or facts.request_flags & self.flags == self.flags)
        )


class Hold:
    """Frames that wait for `release`. Everything behind them on their connection waits too."""

    def __init__(self, fabric: "Fabric", match: Match) -> None:
        self._fabric = fabric
        self._pipes: list[_Pipe] = []
        self.match = match
        self.messages: list[Message] = []
        """What is held now, in the order of sending."""
        self.seen = 0
        """How many were held in all."""

    def take(self, message: Message, pipe: "_Pipe") -> None:
        message.held_by = self
        self.messages.append(message)
        self.seen += 1
        if pipe not in self._pipes:
            self._pipes.append(pipe)

    def release(self, count: int | None = None) -> None:
        """Let the oldest `count` go on; without a count all, and hold no more."""
        if count is None:
            self._fabric.holds.remove(self)
            count = len(self.messages)
        for message in self.messages[:count]:
            message.held_by = None
        self.messages = self.messages[count:]
        for pipe in self._pipes:
            pipe.pump()

    def drop(self) -> None:
        """What is held is lost, and so are the connections that it was on. Hold no more."""
        self._fabric.holds.remove(self)
        for message in self.messages:
            message.held_by = None
        for pipe in self._pipes:
            pipe.queue.clear()
            pipe.connection.reset()


class Loss:
    """The next matching frames are lost, each with its connection."""

    def __init__(self, match: Match, count: int) -> None:
        self.match = match
        self.count = count


class Forgery:
    """The next matching requests never arrive; an answer with this status comes instead."""

    def __init__(self, match: Match, status: Status, count: int) -> None:
        self.match = match
        self.status = status
        self.count = count


class _Pipe:
    """One direction of a connection."""

    def __init__(self, connection: "Connection", source: "SimTransport", target: "SimTransport"):
        self.connection = connection
        self.source = source
        self.target = target
        self.queue: deque[Message | None] = deque()
        """None is the end of the stream."""
        self.queued_bytes = 0
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.unsplit = b""

    @property
    def link(self) -> tuple[str, str]:
        return self.source.process.name, self.target.process.name

    def push(self, message: Message) -> None:
        self.queue.append(message)
        self.queued_bytes += len(message.raw)
        self.pump()

    def push_end(self) -> None:
        self.queue.append(None)
        self.pump()

    def pump(self) -> None:
        """Arrange for the next delivery, if anything can be delivered."""
        if self._timer is not None or not self.queue or self._is_stopped():
            return
        loop = self.connection.fabric.loop
        head = self.queue[0]
        arrives_s = loop.time() if head is None else head.arrives_s
        self._last_s = max(self._last_s, loop.time(), arrives_s)
        self._timer = self.target.process.call_at(self._last_s, self._deliver)

    def _is_stopped(self) -> bool:
        head = self.queue[0]
        if head is not None and head.held_by is not None:
            return True
        return self.link in self.connection.fabric.blocked or self.target.is_read_paused

    def _deliver(self) -> None:
        self._timer = None
        fabric = self.connection.fabric
        now_s = fabric.loop.time()
        parts: list[bytes] = []
        while self.queue and not self._is_stopped():
            head = self.queue[0]
            if head is None:
                if parts:
                    break
                self.queue.popleft()
                self.target.on_end(None)
                return
            if head.arrives_s > now_s:
                break
            self.queue.popleft()
            self.queued_bytes -= len(head.raw)
            if not self.target.is_open:
                continue
            parts.append(head.raw)
            fabric.record(self.target.process.name, Delivered(*head.facts))
        if parts and self.target.is_open:
            self.target.protocol.data_received(b"".join(parts))
        self.pump()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, process: SimProcess, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.process = process
        self.protocol = protocol
        self.out: _Pipe
        self.is_open = True
        self.is_read_paused = False
        self.incoming: _Pipe

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_open and self.process.is_alive:
            self.out.connection.split(self.out, bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """What was written still arrives, then the end."""
        if self.is_open:
            self.is_open = False
            self.out.push_end()
            self.process.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        """What is on its way may be lost, from some frame on."""
        if self.is_open:
            self.is_open = False
            self.out.connection.cut(self.out)
            self.out.push_end()
            self.process.call_soon(self.protocol.connection_lost, None)

    def on_end(self, error: Exception | None) -> None:
        """The other end is gone."""
        if self.is_open:
            self.is_open = False
            self.protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        self.is_read_paused = True

    def resume_reading(self) -> None:
        self.is_read_paused = False
        self.incoming.pump()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Without effect: `pause_writing` is not simulated, the frames are small."""

    def get_write_buffer_size(self) -> int:
        return self.out.queued_bytes

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.process.name if name == "peername" else default


class Connection:
    """Two ends and the pipes between them."""

    def __init__(
        self,
        fabric: "Fabric",
        number: int,
        client: SimTransport,
        server: SimTransport,
    ) -> None:
        self.fabric = fabric
        self.number = number
        self.client = client
        self.server = server
        self.to_server = _Pipe(self, client, server)
        self.to_client = _Pipe(self, server, client)
        client.out = server.incoming = self.to_server
        server.out = client.incoming = self.to_client
        self._requests: dict[int, tuple[int, tuple[int, ...]]] = {}

    @property
    def is_dead(self) -> bool:
        return not (self.client.is_open or self.server.is_open) and not (
            self.to_server.queue or self.to_client.queue
        )

    def split(self, pipe: _Pipe, data: bytes) -> None:
        """Cut what was written into frames, and send each."""
        if pipe.unsplit:
            data = pipe.unsplit + data
        at, end = 0, len(data)
        while end - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > end:
                break
            self._send(pipe, data[at:stop] if stop - at < end else data)
            at = stop
        pipe.unsplit = data[at:]

    def _send(self, pipe: _Pipe, raw: bytes) -> None:
        fabric = self.fabric
        facts, request_id = self._look(pipe, raw)
        fabric.record(facts.source, facts)
        message = Message(raw, facts, request_id, fabric.arrival_s(pipe.link))
        for loss in fabric.losses:
            if loss.count and loss.match.fits(facts):
                loss.count -= 1
                fabric.say(facts.source, f"the frame to {facts.target} is lost")
                self.reset()
                return
        for forgery in fabric.forgeries:
            if forgery.count and forgery.match.fits(facts):
                forgery.count -= 1
                self._forge(message, forgery.status)
                return
        for hold in fabric.holds:
            if hold.match.fits(facts):
                hold.take(message, pipe)
                break
        pipe.push(message)

    def _look(self, pipe: _Pipe, raw: bytes) -> tuple[Sent, int]:
        _, _, _, op, flags, status, request_id, ledger_id, entry_id = HEADER.unpack_from(raw)
        body = raw[HEADER.size :]
        entries: tuple[int, ...] = ()
        if op < RESPONSE:
            request_flags = flags
            if op == Op.ADD:
                entries = _entries_of(body[MASTER_KEY_BYTES:])
            self._requests[request_id] = flags, entries
        else:
            request_flags, entries = self._requests.pop(request_id, (0, ()))
            if op == Op.READ | RESPONSE and status == Status.OK:
                entries = _entries_of(body[_LAC_BYTES:])
        source, target = pipe.link
        facts = Sent(
            self.number,
            source,
            target,
            op & ~RESPONSE,
            op >= RESPONSE,
            status,
            flags,
            request_flags,
            ledger_id,
            entry_id,
            entries,
        )
        return facts, request_id

    def _forge(self, message: Message, status: Status) -> None:
        facts = message.facts
        reply = encode_frame(
            facts.op | RESPONSE,
            request_id=message.request_id,
            ledger_id=facts.ledger_id,
            entry_id=facts.entry_id,
            status=status,
            body=b"made up by the simulation",
        )
        # Numbered below zero: nothing that the bookie itself said.
        self.number = -abs(self.number)
        self.split(self.to_client, reply)
        self.number = abs(self.number)

    def cut(self, pipe: _Pipe) -> None:
        """The sender gave up: from some frame on, nothing of what is on its way arrives."""
        keep = self.fabric.frames_kept(len(pipe.queue))
        while len(pipe.queue) > keep:
            lost = pipe.queue.pop()
            if lost is not None:
                pipe.queued_bytes -= len(lost.raw)

    def reset(self) -> None:
        """The connection breaks; both ends hear of it soon."""
        for pipe in (self.to_server, self.to_client):
            self.cut(pipe)
            pipe.push_end()

    def on_process_gone(self, process: SimProcess) -> None:
        """A process died: the system closes its sockets. What it had sent may still arrive."""
        for end in (self.client, self.server):
            if end.process is process and end.is_open:
                end.is_open = False
                self.cut(end.out)
                end.out.push_end()


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
        self.connections: list[Connection] = []
        self.blocked: dict[tuple[str, str], None] = {}
        """Links (source, target) on which nothing moves now."""
        self.holds: list[Hold] = []
        self.losses: list[Loss] = []
        self.forgeries: list[Forgery] = []
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
    ) -> Hold:
        """Hold every matching frame from now on; see `Hold`."""
        hold = Hold(self, Match(client, bookie, op, reply, ledger_id, entry, flags))
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
        """Undo every block, hold, loss and slowness."""
        self.blocked.clear()
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

    def record(self, actor: str, event: Sent | Delivered) -> None:
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
        self.listeners[process.name, port] = process, factory
        return _SimListener(self, (process.name, port))

    async def connect(
        self, process: SimProcess, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        await self._wait_way(process.name, host)
        found = self.listeners.get((host, port))
        if found is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        owner, server_factory = found
        await self._wait_way(host, process.name)
        if not owner.is_alive:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        client = SimTransport(process, factory())
        server = SimTransport(owner, owner.context.copy().run(server_factory))
        number, self._next_connection = self._next_connection, self._next_connection + 1
        connection = Connection(self, number, client, server)
        self.connections = [each for each in self.connections if not each.is_dead]
        self.connections.append(connection)
        owner.call_soon(server.protocol.connection_made, server)
        client.protocol.connection_made(client)
        return client

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


def _entries_of(block: bytes) -> tuple[int, ...]:
    """Ids of the packets of an entry block."""
    decoded = decode_block(block)
    ids: list[int] = []
    at = decoded.packets_offset
    for length in decoded.lengths:
        # A packet that rotted may be too short for a header; its digest will tell.
        ids.append(PACKET_HEADER.unpack_from(block, at)[1] if length >= PACKET_HEADER.size else -1)
        at += length
    return tuple(ids)
