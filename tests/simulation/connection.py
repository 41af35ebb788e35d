"""A connection: two ends, and a pipe for each direction in which frames never overtake each other.

A frame that is held and a link that is blocked stop the pipe. What was sent before arrives late
when it opens again, even if the sender has given up the connection meanwhile. A frame is only lost
together with its connection.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from magnetar.ledger.hello import HELLO_ID
from magnetar.ledger.wire import (
    HEADER,
    HEADER_BYTES,
    MASTER_KEY_BYTES,
    PACKET_HEADER,
    RESPONSE,
    Op,
    Status,
    decode_block,
    encode_frame,
)
from magnetar.ledger.wire_adds import (
    ADD_HEAD,
    COUNT_BYTES,
    NO_ID,
    count_of,
    decode_outcome,
    encode_outcome,
)
from tests.simulation.frame_rules import Facts, Message
from tests.simulation.history import Delivered, Sent
from tests.simulation.loop import SimProcess

if TYPE_CHECKING:
    from tests.simulation.network import Fabric

_LAC_BYTES = 8
_PAIR = Struct(">qq")


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

    def lose_all(self) -> None:
        """Drop what is on its way, and break the connection."""
        self.queue.clear()
        self.connection.reset()

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
            self.connection.record_delivery(self.target.process.name, head)
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
            self.out.connection.on_end(self)
            self.out.push_end()
            self.process.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        """What is on its way may be lost, from some frame on."""
        if self.is_open:
            self.is_open = False
            self.out.connection.on_end(self)
            self.out.connection.cut(self.out)
            self.out.push_end()
            self.process.call_soon(self.protocol.connection_lost, None)

    def on_end(self, error: Exception | None) -> None:
        """The other end is gone."""
        if self.is_open:
            self.is_open = False
            self.out.connection.on_end(self)
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
        self._requests: dict[tuple[int, int, int], tuple[int, tuple[int, ...]]] = {}
        """Flags and entries by request id, ledger id and entry id."""

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
        for each in facts:
            fabric.record(each.source, each)
        for alteration in fabric.alterations:
            if any(map(alteration.match.fits, facts)):
                body = alteration.change(raw[HEADER_BYTES:])
                assert len(body) == len(raw) - HEADER_BYTES, "the length of a frame is not changed"
                raw = raw[:HEADER_BYTES] + body
        # A hello is counted with the making of the connection, which takes a trip each way.
        is_hello = request_id == HELLO_ID
        arrives_s = fabric.loop.time() if is_hello else fabric.arrival_s(pipe.link)
        message = Message(raw, facts, request_id, arrives_s)
        for loss in fabric.losses:
            if loss.count and message.fits(loss.match):
                loss.count -= 1
                source, target = pipe.link
                fabric.say(source, f"the frame to {target} is lost")
                self.reset()
                return
        for forgery in fabric.forgeries:
            if forgery.count and message.fits(forgery.match):
                forgery.count -= 1
                self._forge(message, forgery.status)
                return
        for hold in fabric.holds:
            if message.fits(hold.match):
                hold.take(message, pipe)
                if hold.is_overtaken:
                    return
                break
        pipe.push(message)

    def record_delivery(self, actor: str, message: Message) -> None:
        """A frame has arrived."""
        for facts in message.facts:
            assert isinstance(facts, Sent)
            self.fabric.record(actor, Delivered(*facts))

    def on_end(self, end: SimTransport) -> None:
        """One end of the connection is closed."""

    def _look(self, pipe: _Pipe, raw: bytes) -> tuple[Sequence[Facts], int]:
        """What a frame says: of ADDS, what each of its adds does, as if it were an ADD."""
        _, _, _, op, flags, status, request_id, ledger_id, entry_id = HEADER.unpack_from(raw)
        body = raw[HEADER_BYTES:]
        is_reply, op = op >= RESPONSE, op & ~RESPONSE
        if op == Op.ADDS:
            adds = _outcomes_of(body) if is_reply else _adds_of(body)
        else:
            entries: tuple[int, ...] = ()
            if op == Op.ADD and not is_reply:
                entries = _entries_of(body[MASTER_KEY_BYTES:])
            elif op == Op.READ and is_reply and status == Status.OK:
                entries = _entries_of(body[_LAC_BYTES:])
            adds = [(ledger_id, entry_id, entries)]
        source, target = pipe.link
        all_facts: list[Facts] = []
        for ledger_id, entry_id, entries in adds:
            question = request_id, ledger_id, entry_id
            request_flags = flags
            if not is_reply:
                self._requests[question] = flags, entries
            else:
                request_flags, asked = self._requests.pop(question, (0, ()))
                entries = entries or (asked if op in (Op.ADD, Op.ADDS) else ())
            all_facts.append(
                Sent(
                    self.number,
                    source,
                    target,
                    Op.ADD if op == Op.ADDS else op,
                    is_reply,
                    status,
                    flags,
                    request_flags,
                    ledger_id,
                    entry_id,
                    entries,
                )
            )
        return all_facts, request_id

    def _forge(self, message: Message, status: Status) -> None:
        facts = message.facts[0]
        assert isinstance(facts, Sent)
        op, ledger_id, entry_id = facts.op, facts.ledger_id, facts.entry_id
        body = b"made up by the simulation"
        if HEADER.unpack_from(message.raw)[3] == Op.ADDS:
            ids: list[int] = []
            for each in message.facts:
                assert isinstance(each, Sent)
                ids += each.ledger_id, each.entry_id
            body = encode_outcome(ids, body)
            op, ledger_id, entry_id = Op.ADDS, NO_ID, NO_ID
        reply = encode_frame(
            op | RESPONSE,
            request_id=message.request_id,
            ledger_id=ledger_id,
            entry_id=entry_id,
            status=status,
            body=body,
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
                self.on_end(end)
                self.cut(end.out)
                end.out.push_end()


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


def _adds_of(body: bytes) -> list[tuple[int, int, tuple[int, ...]]]:
    """Ledger id, entry id and entries of each add in an ADDS."""
    adds: list[tuple[int, int, tuple[int, ...]]] = []
    at = COUNT_BYTES
    for _ in range(count_of(body)):
        ledger_id, entry_id, size, _ = ADD_HEAD.unpack_from(body, at)
        at += ADD_HEAD.size
        adds.append((ledger_id, entry_id, _entries_of(body[at : at + size])))
        at += size
    return adds


def _outcomes_of(body: bytes) -> list[tuple[int, int, tuple[int, ...]]]:
    """Ledger id and entry id of each add that a reply to ADDS is about."""
    return [(*_PAIR.unpack(pair), ()) for pair in decode_outcome(body).pairs]
