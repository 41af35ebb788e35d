"""One turn of the event loop at sockets: its writes leave together, and its reads are bounded.

`TurnTransport`: an event loop passes each write to the system at once. That call takes longer than
all the work before it, and costs a wake-up and a read at the other end. Servers and the channels
between them write small pieces, many in one turn: a receipt here, a message there, adds of many
ledgers for the same bookie. The transport collects them and sends them in one call at the end of
the turn. Large data leaves at once. The protocol does not notice. Pauses and limits are those of
the transport below, which has not seen at most `_TURN_BYTES_MAX` bytes yet.

`TurnShares`: an event loop reads each socket again and again in one turn while data keeps coming.
One limit holds for all connections: thirty busy clients must not hold the loop thirty times as long
as one client does. Beyond the limit a connection is not read until a later turn; the connection
that waits longest is first. A single client that sends less than that never waits. Nothing is
scheduled before the share is used up, and use in earlier turns only makes a pause come a little
early.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

_TURN_BYTES_MAX = 64 << 10
"""Bytes above which writes do not wait for the end of the turn."""
_JOIN_BYTES_MAX = 16 << 10
"""Bytes up to which one copy is cheaper than a list of buffers."""

_Data = bytes | bytearray | memoryview


class Sharer(Protocol):
    """A connection that shares the reads of a turn."""

    def go_on(self) -> None:
        """Process the waiting data, charge the share for it, resume reading; it may wait again."""
        ...


class TurnShares:
    """The share of the current turn, and the connections that wait for a later one."""

    def __init__(self, bytes_max: int, *, request_cost_bytes: int) -> None:
        """`request_cost_bytes`: cost of a request beside its bytes; even a small one takes time."""
        self._bytes_max = bytes_max
        self._request_cost_bytes = request_cost_bytes
        self._used_bytes = 0
        # A dict for a set that keeps its order.
        self._waiting: dict[Sharer, None] = {}
        self._is_scheduled = False

    @property
    def is_used_up(self) -> bool:
        """Whether the share of this turn is used up."""
        return self._used_bytes >= self._bytes_max

    @property
    def requests_left(self) -> int:
        """Number of requests that may still run in this turn; at least one, to ensure progress."""
        return max(1, (self._bytes_max - self._used_bytes) // self._request_cost_bytes)

    def use_bytes(self, count: int) -> None:
        """Charge bytes that were received now, or earlier and processed now."""
        self._used_bytes += count

    def use_requests(self, count: int) -> None:
        """Charge requests that were processed."""
        self._used_bytes += count * self._request_cost_bytes

    def wait(self, connection: Sharer) -> None:
        """Let the connection continue in a later turn."""
        self._waiting[connection] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._used_bytes = 0
        try:
            for connection in list(self._waiting):
                if self.is_used_up:
                    break
                del self._waiting[connection]  # it may wait again, at the end of the queue
                connection.go_on()
        finally:
            if self._waiting:
                self._schedule()


class TurnTransport(asyncio.Transport):
    """Collects writes for the transport below; passes all other calls straight on to it."""

    def __init__(self, below: asyncio.Transport) -> None:
        super().__init__()
        self._below = below
        self._loop = asyncio.get_running_loop()
        self._parts: list[_Data] = []
        self._size = 0

    # Writing

    def write(self, data: _Data) -> None:
        parts = self._parts
        if not parts:
            self._loop.call_soon(self._flush)
        parts.append(data)
        self._size += len(data)
        if self._size > _TURN_BYTES_MAX:
            self._flush()

    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        parts = self._parts
        if not parts:
            self._loop.call_soon(self._flush)
        before = len(parts)
        parts += list_of_data
        self._size += sum(map(len, parts[before:]))
        if self._size > _TURN_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        parts, size = self._parts, self._size
        if not parts:
            return
        self._parts, self._size = [], 0
        if self._below.is_closing():
            return
        if len(parts) == 1:
            self._below.write(parts[0])
        elif size <= _JOIN_BYTES_MAX:
            self._below.write(b"".join(parts))
        else:
            self._below.writelines(parts)

    def write_eof(self) -> None:
        self._flush()
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        return self._below.can_write_eof()

    def get_write_buffer_size(self) -> int:
        return self._size + self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    # The rest

    def close(self) -> None:
        self._flush()
        self._below.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # asyncio's
        return self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._below.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._below.get_protocol()


class Opening(asyncio.Protocol):
    """Takes a protocol's place until its connection is made; gives it a `TurnTransport`."""

    transport: TurnTransport
    """Set once the connection is made."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        below = cast(asyncio.Transport, transport)
        self.transport = TurnTransport(below)
        below.set_protocol(self._protocol)
        self._protocol.connection_made(self.transport)


def opening(factory: Callable[[], asyncio.Protocol]) -> Callable[[], Opening]:
    """Return a factory for servers whose protocols get a `TurnTransport`."""
    return lambda: Opening(factory())
