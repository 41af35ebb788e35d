"""The one client of a simulated bookie: it speaks the protocol and writes down what it hears."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

from magnetar.bookie.server import BookieConnection
from magnetar.ledger.wire import (
    PACKET_HEADER,
    Flag,
    Frame,
    FrameDecoder,
    Op,
    Status,
    decode_block,
    encode_block,
    encode_frame,
    encode_read_body,
)
from magnetar.ledger.wire_bodies import LAC_PACKET_HEADER
from tests.simulation.storing.machine import Machine
from tests.simulation.storing.model import (
    Confirmed,
    Event,
    Expected,
    Fence,
    FenceSent,
    LacSent,
    Model,
    Refused,
    Sent,
)


class ViolationError(AssertionError):
    """The bookie broke a promise: C1 to C6 of the storage sheet, by its number."""


class Trouble(Protocol):
    """What makes calls of the disk fail."""

    @property
    def has_come(self) -> bool: ...


def key_of(ledger_id: int) -> bytes:
    return b"key of ledger %06d" % ledger_id


def packet_of(ledger_id: int, entry_id: int, lac: int, size: int, number: int) -> bytes:
    """A packet that is unlike every other: `number` is that of its request."""
    head = PACKET_HEADER.pack(ledger_id, entry_id, lac, entry_id * 10) + bytes(4)
    text = b"<%d/%d by %d>" % (ledger_id, entry_id, number)
    return head + (text * (size // len(text) + 1))[: max(size, len(text))]


class Client:
    """Requests of all kinds. `events` is the client's journal; it goes on over many processes."""

    def __init__(
        self, machine: Machine, events: list[Event], trouble: Trouble | None = None
    ) -> None:
        self._machine = machine
        self._trouble = trouble
        self.events = events
        self.model = Model()
        for event in events:
            self.model.apply(event)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._decoder = FrameDecoder(1 << 24)
        self._fenced_before: set[int] = set()
        """Requests for ordinary adds to ledgers that were fenced for sure when they went out."""
        self.is_full = False
        """The disk has been full in this life."""
        self._protocol = cast(
            BookieConnection, machine.network.connect_client(_Transport(self._on_data))
        )

    @property
    def is_troubled(self) -> bool:
        """Calls of the disk have failed: answers may be errors, but must not be wrong."""
        return self.is_full or (self._trouble is not None and self._trouble.has_come)

    def say(self, event: Event) -> None:
        self.events.append(event)
        self.model.apply(event)

    # Requests

    def add(
        self, ledger_id: int, entry_ids: Sequence[int], size: int, *, recovery: bool = False
    ) -> asyncio.Future[Frame]:
        request_id = len(self.events)
        lac = entry_ids[0] - 1
        packets = {
            entry_id: packet_of(ledger_id, entry_id, lac, size, request_id)
            for entry_id in entry_ids
        }
        body = key_of(ledger_id) + encode_block(list(packets.values())).data
        if not recovery and self._expected(ledger_id).fence is Fence.YES:
            self._fenced_before.add(request_id)
        self.say(Sent(request_id, ledger_id, packets, lac))
        flags = Flag.RECOVERY if recovery else 0
        return self._send(Op.ADD, request_id, ledger_id, entry_ids[0], flags, body)

    def fence(self, ledger_id: int) -> asyncio.Future[Frame]:
        request_id = len(self.events)
        self.say(FenceSent(request_id, ledger_id))
        return self._send(Op.READ_LAC, request_id, ledger_id, -1, Flag.FENCE, key_of(ledger_id))

    def write_lac(self, ledger_id: int, lac: int) -> asyncio.Future[Frame]:
        request_id = len(self.events)
        packet = LAC_PACKET_HEADER.pack(ledger_id, lac) + b"%04d" % (request_id % 10_000)
        self.say(LacSent(request_id, ledger_id, lac, packet))
        return self._send(Op.WRITE_LAC, request_id, ledger_id, lac, 0, key_of(ledger_id) + packet)

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> None:
        """Read, and judge the answer."""
        body = encode_read_body(
            last_entry_id=last, bytes_max=bytes_max, master_key=key_of(ledger_id)
        )
        reply = await self._send(Op.READ, -1 - len(self._waiting), ledger_id, first, 0, body)
        self.judge_read(reply, ledger_id, first, last)

    async def settle(self) -> None:
        """Wait for all answers."""
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))

    def judge_read(self, reply: Frame, ledger_id: int, first: int, last: int) -> None:
        expected = self._expected(ledger_id)
        status = reply.status
        if status == Status.OK:
            for entry_id, packet in enumerate(decode_block(reply.body[8:]).packets(), first):
                if entry_id > last or not expected.may_be(entry_id, packet):
                    raise ViolationError(f"C4: ledger {ledger_id} entry {entry_id}: {packet!r}")
        elif status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
            if expected.must_hold(first):
                raise ViolationError(f"C3: ledger {ledger_id} entry {first} is denied")
            if status == Status.NO_SUCH_LEDGER and expected.is_known:
                raise ViolationError(f"C3: ledger {ledger_id} is denied")
        elif not self.is_troubled:
            raise ViolationError(f"a read of ledger {ledger_id} entry {first} fails: {reply}")

    # The connection

    def _expected(self, ledger_id: int) -> Expected:
        return self.model.ledgers.get(ledger_id, Expected())

    def _send(
        self, op: int, request_id: int, ledger_id: int, entry_id: int, flags: int, body: bytes
    ) -> asyncio.Future[Frame]:
        future: asyncio.Future[Frame] = self._machine.loop.create_future()
        self._waiting[request_id] = future
        frame = encode_frame(
            op,
            request_id=request_id & 0xFFFFFFFFFFFFFFFF,
            ledger_id=ledger_id,
            entry_id=entry_id,
            flags=flags,
            body=body,
        )
        self._protocol.data_received(frame)
        return future

    def _on_data(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            request_id = frame.request_id
            if request_id >= 1 << 63:
                request_id -= 1 << 64
            self._on_reply(request_id, frame)

    def _on_reply(self, request_id: int, frame: Frame) -> None:
        status = frame.status
        is_ok = status == Status.OK
        if frame.op == Op.ADD and is_ok and request_id in self._fenced_before:
            raise ViolationError(f"C2: an add to fenced ledger {frame.ledger_id}: OK")
        if frame.op == Op.READ_LAC:
            is_ok = bool(frame.flags & Flag.FENCED)
        if is_ok and frame.op in (Op.ADD, Op.WRITE_LAC, Op.READ_LAC):
            self.say(Confirmed(request_id))
        elif frame.op == Op.ADD and status in (Status.FENCED, Status.TOO_MANY_REQUESTS):
            self.say(Refused(request_id))
        self._waiting.pop(request_id).set_result(frame)


class _Transport(asyncio.Transport):
    """Hands over at once what is written."""

    def __init__(self, on_data: object) -> None:
        super().__init__()
        self._on_data = on_data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._on_data(bytes(data))  # type: ignore[operator]

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """The client never reads ahead: what it sent waits in the connection."""

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...
