"""A turn of the event loop at sockets: its writes leave together, and what it reads is bounded.

`TurnTransport`: an event loop hands each write to the system at once: a call that takes longer than
all that went before it, and at the other end a wake-up and a read. Servers and the channels between
them write small pieces, many in one turn: a receipt here, a message there, adds of many ledgers for
the same bookie. They are gathered until the turn is over, and leave in one call. What is large
leaves at once. The protocol sees nothing of it; pauses and limits are those of the transport below,
to which at most `_TURN_BYTES_MAX` have not come yet.

`TurnShares`: an event loop reads a socket again and again in one turn while data keeps coming, and
does so for each of them. The bound is one for all: thirty busy clients must not hold the loop
thirty times as long as one does. Beyond it a connection waits, and is not read, until later turns
have come round to it; who waits longest is first. A client that is alone and slower than that never
waits: nothing is scheduled before the share is used up, and what was used in earlier turns only
means that a rest comes a little early.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

_TURN_BYTES_MAX = 64 << 10
"""More than this does not wait for the end of the turn."""
_JOIN_BYTES_MAX = 16 << 10
"""Up to this one copy is cheaper than a list of buffers."""

_Data = bytes | bytearray | memoryview


class Sharer(Protocol):
    """A connection."""

    def go_on(self) -> None:
        """Obey what waits, use the share for it, and be read again; it may wait once more."""
        ...


class TurnShares:
    """The share of the current turn, and the connections that wait for a later one."""

    def __init__(self, bytes_max: int, *, request_cost_bytes: int) -> None:
        """`request_cost_bytes`: what a request counts beside its bytes; it takes some time however
        small it is."""
        self._bytes_max = bytes_max
        self._request_cost_bytes = request_cost_bytes
        self._used_bytes = 0
        # A dict for a set that keeps its order.
        self._waiting: dict[Sharer, None] = {}
        self._is_scheduled = False

    @property
    def is_used_up(self) -> bool:
        """Nothing more is to be done in this turn."""
        return self._used_bytes >= self._bytes_max

    @property
    def requests_left(self) -> int:
        """How many requests may be obeyed yet; one at least, so that it goes on in any case."""
        return max(1, (self._bytes_max - self._used_bytes) // self._request_cost_bytes)

    def use_bytes(self, count: int) -> None:
        """Bytes were received, or obeyed that had been received in an earlier turn."""
        self._used_bytes += count

    def use_requests(self, count: int) -> None:
        """Requests were obeyed."""
        self._used_bytes += count * self._request_cost_bytes

    def wait(self, connection: Sharer) -> None:
        """Let it go on in a later turn."""
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
                del self._waiting[connection]  # it may wait again, behind all others
                connection.go_on()
        finally:
            if self._waiting:
                self._schedule()


class TurnTransport(asyncio.Transport):
    """Gathers writes for the transport below; everything else goes straight to that."""

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
    """Stands in for a protocol until its connection is made, and gives it a `TurnTransport`."""

    transport: TurnTransport
    """Once the connection is made."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        below = cast(asyncio.Transport, transport)
        self.transport = TurnTransport(below)
        below.set_protocol(self._protocol)
        self._protocol.connection_made(self.transport)


def opening(factory: Callable[[], asyncio.Protocol]) -> Callable[[], Opening]:
    """A factory for servers, whose protocols get a `TurnTransport`."""
    return lambda: Opening(factory())
