"""A busy client gets its share of each turn of the event loop, and no more."""

import asyncio
from collections.abc import Sequence

from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.server import BookieConnection
from magnetar.ledger.wire import FRAME_BYTES_MAX, Frame, Op, encode_frame
from tests.ledger_storage import turn_loop


class FakeServer:
    """What a connection needs of its server; takes every frame, or stops at some."""

    def __init__(self) -> None:
        self.metrics = BookieMetrics()
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.connection_buffer_bytes_max = 1 << 20
        self.connection_read_bytes_max = 1 << 20
        self.has_too_many_reads = False
        self.is_reading = True
        self.handler = self
        self.turns: list[list[int]] = []
        self.takes_max = 1 << 30

    def admit(self, connection: BookieConnection) -> bool:
        return True

    def on_requests(self) -> None:
        """Nobody journals."""

    def handle(self, connection: BookieConnection, frames: Sequence[Frame]) -> int:
        taken = frames[: self.takes_max]
        self.turns.append([frame.request_id for frame in taken])
        return len(taken)

    @property
    def taken(self) -> list[int]:
        return [number for turn in self.turns for number in turn]


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_reading_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No limits."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to send."""

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False


def connect() -> tuple[FakeServer, BookieConnection, FakeTransport]:
    server, transport = FakeServer(), FakeTransport()
    connection = BookieConnection(server)  # type: ignore[arg-type]
    connection.connection_made(transport)
    return server, connection, transport


def requests(numbers: range, body: bytes = b"") -> bytes:
    return b"".join(
        encode_frame(Op.INFO, request_id=number, ledger_id=0, body=body) for number in numbers
    )


async def test_thousands_of_requests_in_one_read_are_spread_over_turns() -> None:
    server, connection, transport = connect()
    connection.data_received(requests(range(1000)))
    assert len(server.taken) == 256
    assert transport.is_reading_paused
    await turn_loop(10)
    assert server.taken == list(range(1000))
    assert [len(turn) for turn in server.turns] == [256, 256, 256, 232]
    assert not transport.is_reading_paused


async def test_after_a_megabyte_the_others_come_first() -> None:
    server, connection, transport = connect()
    for number in range(10):
        connection.data_received(requests(range(number, number + 1), bytes(100 << 10)))
        assert not transport.is_reading_paused
    connection.data_received(requests(range(10, 11), bytes(100 << 10)))
    assert transport.is_reading_paused
    await turn_loop()
    assert not transport.is_reading_paused
    assert server.taken == list(range(11))


async def test_somebody_who_says_try_again_does_not_end_the_rest() -> None:
    server, connection, _ = connect()
    connection.data_received(requests(range(600)))
    connection.try_again()
    assert len(server.taken) == 256
    await turn_loop(10)
    assert server.taken == list(range(600))


async def test_requests_that_cannot_be_taken_wait_for_somebody_to_say_so() -> None:
    server, connection, transport = connect()
    server.takes_max = 5
    connection.data_received(requests(range(12)))
    await turn_loop(10)
    assert server.taken == list(range(5))
    assert transport.is_reading_paused
    server.takes_max = 1 << 30
    connection.try_again()
    assert server.taken == list(range(12))
    assert not transport.is_reading_paused


async def test_a_connection_that_ends_while_it_rests_is_left_alone() -> None:
    server, connection, _ = connect()
    connection.data_received(requests(range(600)))
    connection.close(abort=False)
    await turn_loop(10)
    assert server.taken == list(range(256))
