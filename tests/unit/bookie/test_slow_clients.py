"""Clients that do not take their replies hold a bounded amount of memory together."""

import asyncio
from typing import cast

from magnetar.bookie.journaling.journal import JournalSet
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.server import BookieConnection, BookieServer
from magnetar.ledger.system import SystemNetwork

BUFFER_BYTES = 100
REPLIES_BYTES_MAX = 1_000


class Handler:
    def forget(self, connection: BookieConnection) -> None:
        """Do nothing: no request of the connection is kept here."""


class Journals:
    queued_bytes = 0


class StuckTransport(asyncio.Transport):
    """A transport whose client takes nothing, until the test says so."""

    def __init__(self, connection: BookieConnection) -> None:
        super().__init__()
        self._connection = connection
        self._size_bytes = 0
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        was_full, self._size_bytes = self._size_bytes > BUFFER_BYTES, self._size_bytes + len(data)
        if not was_full and self._size_bytes > BUFFER_BYTES:
            self._connection.pause_writing()

    def drain(self, left_bytes: int = 0) -> None:
        """Let the client take its replies, except for some."""
        self._size_bytes = left_bytes
        if left_bytes <= BUFFER_BYTES // 4:
            self._connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._size_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == BUFFER_BYTES

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        """Do nothing: the rest is sent when the client takes it."""

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        """Do nothing: no test reads from a connection."""

    def resume_reading(self) -> None:
        """Do nothing: no test reads from a connection."""


class Clients:
    """A server with clients that are connected to it."""

    def __init__(self, count: int) -> None:
        self.metrics = BookieMetrics()
        server = BookieServer(
            cast(RequestHandler, Handler()),
            cast(JournalSet[BatchContext], Journals()),
            network=SystemNetwork(),
            metrics=self.metrics,
            frame_bytes_max=1 << 20,
            connections_max=10,
            connection_buffer_bytes_max=BUFFER_BYTES,
            connection_read_bytes_max=1 << 20,
            journal_queue_bytes_max=1 << 20,
            reads_bytes_max=1 << 20,
            replies_bytes_max=REPLIES_BYTES_MAX,
            turn_bytes_max=1 << 20,
        )
        self.connections = [BookieConnection(server) for _ in range(count)]
        self.transports = [StuckTransport(each) for each in self.connections]
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(transport)

    @property
    def cut(self) -> list[int]:
        assert self.metrics.slow_clients_cut == sum(each.is_aborted for each in self.transports)
        return [at for at, each in enumerate(self.transports) if each.is_aborted]


async def test_the_client_that_falls_behind_above_the_bound_is_cut() -> None:
    clients = Clients(4)
    for connection in clients.connections[:2]:
        connection.send(bytes(REPLIES_BYTES_MAX // 2))
    assert clients.cut == []
    clients.connections[3].send(bytes(BUFFER_BYTES))
    assert clients.cut == []  # it is not behind
    clients.connections[2].send(bytes(BUFFER_BYTES + 1))
    assert clients.cut == [2]


async def test_replies_to_a_client_that_is_behind_count() -> None:
    """A client falls behind with little, and the reads that it has asked for end afterwards."""
    clients = Clients(2)
    for connection in clients.connections:
        connection.send(bytes(BUFFER_BYTES + 1))
    clients.connections[0].send(bytes(REPLIES_BYTES_MAX - 2 * (BUFFER_BYTES + 1)))
    assert clients.cut == []
    clients.connections[0].send(b"x")
    assert clients.cut == [0]
    clients.connections[1].send(bytes(REPLIES_BYTES_MAX - BUFFER_BYTES - 1))
    assert clients.cut == [0]  # the client that was cut counts no more


async def test_a_client_that_takes_its_replies_again_counts_no_more() -> None:
    clients = Clients(2)
    for _ in range(3):
        for connection, transport in zip(clients.connections, clients.transports, strict=True):
            connection.send(bytes(REPLIES_BYTES_MAX))
            transport.drain()
    clients.connections[0].send(bytes(REPLIES_BYTES_MAX))
    clients.connections[0].connection_lost(None)
    clients.connections[1].send(bytes(REPLIES_BYTES_MAX))
    assert clients.cut == []


async def test_one_large_reply_to_a_client_that_is_behind_alone_is_sent() -> None:
    clients = Clients(1)
    clients.connections[0].send(bytes(2 * REPLIES_BYTES_MAX))
    assert clients.cut == []


async def test_what_clients_have_taken_since_they_were_counted_counts_no_more() -> None:
    clients = Clients(3)
    clients.connections[0].send(bytes(REPLIES_BYTES_MAX - 100))
    clients.transports[0].drain(BUFFER_BYTES // 2)  # slowly: writing is not resumed yet
    clients.connections[1].send(bytes(BUFFER_BYTES + 1))
    assert clients.cut == []
    held = BUFFER_BYTES // 2 + BUFFER_BYTES + 1
    clients.connections[1].send(bytes(REPLIES_BYTES_MAX - held))
    assert clients.cut == []
    clients.connections[2].send(bytes(BUFFER_BYTES + 1))
    assert clients.cut == [2]
    clients.connections[0].send(b"x")
    assert clients.cut == [0, 2]


async def test_what_is_left_of_a_connection_that_is_ending_counts() -> None:
    clients = Clients(2)
    clients.connections[0].send(bytes(REPLIES_BYTES_MAX))
    clients.connections[0].close(abort=False)
    clients.connections[1].send(bytes(BUFFER_BYTES + 1))
    assert clients.cut == [1]
