"""What is written to a connection in one turn of the event loop leaves together, and in order."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from magnetar.ledger.system import SystemNetwork
from magnetar.ledger.turns import TurnTransport
from tests.ledger_storage import turn_loop

HOST = "127.0.0.1"


class Below(asyncio.Transport):
    """Notes what comes down, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.closed = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = "in order"

    def abort(self) -> None:
        self.closed = "at once"

    def get_write_buffer_size(self) -> int:
        return 7


async def test_the_writes_of_one_turn_leave_in_one_call() -> None:
    below = Below()
    transport = TurnTransport(below)
    transport.write(b"a")
    transport.writelines([b"b", b"c"])
    transport.write(b"d")
    assert not below.calls
    assert transport.get_write_buffer_size() == 4 + 7
    await turn_loop()
    assert below.calls == [b"abcd"]
    transport.write(b"e")
    await turn_loop()
    assert below.calls == [b"abcd", b"e"]
    assert transport.get_write_buffer_size() == 7


async def test_more_than_64_kib_do_not_wait_for_the_end_of_the_turn() -> None:
    for size, waits in ((64 << 10, True), ((64 << 10) + 1, False)):
        below = Below()
        transport = TurnTransport(below)
        transport.write(bytes(size - 1))
        assert not below.calls
        transport.write(b"x")
        assert (not below.calls) is waits
        transport.write(b"y")
        await turn_loop()
        assert b"".join(below.calls) == bytes(size - 1) + b"xy"


async def test_what_was_written_before_a_close_is_sent() -> None:
    below = Below()
    transport = TurnTransport(below)
    transport.write(b"last words")
    transport.close()
    assert below.calls == [b"last words"]
    assert below.closed == "in order"


async def test_an_abort_sends_nothing() -> None:
    below = Below()
    transport = TurnTransport(below)
    transport.write(b"never")
    transport.abort()
    await turn_loop()
    assert not below.calls
    assert below.closed == "at once"


async def test_nothing_is_written_to_a_connection_that_ends() -> None:
    below = Below()
    transport = TurnTransport(below)
    transport.write(b"too late")
    below.closed = "by the other side"
    await turn_loop()
    assert not below.calls


class Peer(asyncio.Protocol):
    """One end of a real connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = b""
        self.reads = 0
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TurnTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.reads += 1
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_both_ends_of_a_real_connection_join_their_writes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk() -> None:
        network, server, client = SystemNetwork(), Peer(), Peer()
        listener = await network.listen(HOST, 0, lambda: server)
        transport = await network.connect(HOST, listener.port, lambda: client, timeout_s=10)
        assert transport is client.transport
        for number in range(100):
            transport.write(b"%02d" % number)
        sent = b"".join(b"%02d" % number for number in range(100))
        await server.until(lambda: server.received == sent)
        assert server.reads == 1
        assert server.transport is not None
        large = bytes(range(256)) * 4096
        server.transport.writelines([b"first", large])
        server.transport.write(b"last")
        server.transport.close()
        await client.until(lambda: client.transport is None)
        assert client.received == b"first" + large + b"last"
        await server.until(lambda: server.transport is None)
        await listener.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())
