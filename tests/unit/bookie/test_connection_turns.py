"""All busy clients together get one share of each turn of the event loop, and take turns at it."""

import asyncio
from collections.abc import Sequence

from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.server import READ_COST_REQUESTS, REQUEST_COST_BYTES, BookieConnection
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.turns import TurnShares
from magnetar.ledger.wire import FRAME_BYTES_MAX, HEADER_BYTES, Frame, Op, encode_frame
from magnetar.ledger.wire_adds import NO_ID, encode_count
from tests.ledger_storage import turn_loop

TURN_BYTES_MAX = BookieSettings.model_fields["turn_bytes_max"].default
REQUESTS_MAX = TURN_BYTES_MAX // REQUEST_COST_BYTES
LARGE_BYTES = 100 << 10


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
        self.shares = TurnShares(TURN_BYTES_MAX, request_cost_bytes=REQUEST_COST_BYTES)
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

    def abort(self) -> None:
        """Nothing to drop."""

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False


def join(server: FakeServer) -> tuple[BookieConnection, FakeTransport]:
    transport = FakeTransport()
    connection = BookieConnection(server)  # type: ignore[arg-type]
    connection.connection_made(transport)
    return connection, transport


def connect() -> tuple[FakeServer, BookieConnection, FakeTransport]:
    server = FakeServer()
    return server, *join(server)


def requests(numbers: range, body: bytes = b"") -> bytes:
    return b"".join(
        encode_frame(Op.INFO, request_id=number, ledger_id=0, body=body) for number in numbers
    )


def large(number: int) -> bytes:
    return requests(range(number, number + 1), bytes(LARGE_BYTES))


async def test_thousands_of_requests_in_one_read_are_spread_over_turns() -> None:
    server, connection, transport = connect()
    connection.data_received(requests(range(1000)))
    # The bytes they came with count as well.
    first = (TURN_BYTES_MAX - 1000 * HEADER_BYTES) // REQUEST_COST_BYTES
    assert len(server.taken) == first
    assert transport.is_reading_paused
    await turn_loop(10)
    assert server.taken == list(range(1000))
    sizes = [len(turn) for turn in server.turns]
    assert sizes == [first, REQUESTS_MAX, REQUESTS_MAX, 1000 - first - 2 * REQUESTS_MAX]
    assert not transport.is_reading_paused


async def test_adds_that_share_a_frame_count_each() -> None:
    server, connection, _ = connect()
    adds = REQUESTS_MAX // 2 - 1  # so that two frames fit, with their bytes
    body = encode_count(adds)
    frames = [
        encode_frame(Op.ADDS, request_id=number, ledger_id=NO_ID, body=body) for number in range(5)
    ]
    connection.data_received(b"".join(frames))
    await turn_loop(10)
    assert server.turns == [[0, 1], [2, 3], [4]]


async def test_a_read_counts_more_than_what_only_goes_to_the_journal() -> None:
    server, connection, _ = connect()
    reads = [
        encode_frame(Op.READ, request_id=number, ledger_id=0) for number in range(2 * REQUESTS_MAX)
    ]
    connection.data_received(b"".join(reads))
    assert len(server.taken) <= REQUESTS_MAX // READ_COST_REQUESTS
    await turn_loop(20)
    assert server.taken == list(range(2 * REQUESTS_MAX))
    assert max(map(len, server.turns)) == REQUESTS_MAX // READ_COST_REQUESTS


async def test_a_frame_with_more_adds_than_a_share_has_is_obeyed_alone() -> None:
    server, connection, _ = connect()
    body = encode_count(2 * REQUESTS_MAX)
    frame = encode_frame(Op.ADDS, request_id=0, ledger_id=NO_ID, body=body)
    connection.data_received(frame + requests(range(1, 3)))
    await turn_loop(10)
    assert server.turns == [[0], [1, 2]]


async def test_after_the_share_of_a_turn_the_others_come_first() -> None:
    server, connection, transport = connect()
    count = TURN_BYTES_MAX // (LARGE_BYTES + REQUEST_COST_BYTES)
    for number in range(count):
        connection.data_received(large(number))
        assert not transport.is_reading_paused
    connection.data_received(large(count))
    assert transport.is_reading_paused
    await turn_loop()
    assert not transport.is_reading_paused
    assert server.taken == list(range(count + 1))


async def test_the_share_ends_with_its_last_byte() -> None:
    for more, is_used_up in ((-1, False), (0, True)):
        server, connection, transport = connect()
        size = TURN_BYTES_MAX + more - REQUEST_COST_BYTES - HEADER_BYTES
        connection.data_received(requests(range(1), bytes(size)))
        assert server.taken == [0]
        assert transport.is_reading_paused is is_used_up


async def test_a_frame_that_arrives_in_pieces_uses_the_share_too() -> None:
    server, connection, transport = connect()
    data = requests(range(1), bytes(2 * TURN_BYTES_MAX))
    connection.data_received(data[:TURN_BYTES_MAX])
    assert transport.is_reading_paused
    await turn_loop()
    assert not transport.is_reading_paused
    connection.data_received(data[TURN_BYTES_MAX:])
    assert server.taken == [0]


async def test_busy_connections_share_a_turn_and_none_waits_twice_as_long() -> None:
    server = FakeServer()
    peers = [join(server) for _ in range(8)]
    half = bytes(TURN_BYTES_MAX // 2)
    for number, (connection, _) in enumerate(peers):
        connection.data_received(requests(range(number, number + 1), half))
    # Two of them used it up; what the others had sent was received in the same turn, and waits.
    assert server.taken == [0, 1]
    assert [transport.is_reading_paused for _, transport in peers] == [False] + [True] * 7
    for round_number in range(1, 4):
        await turn_loop()
        # The first to be let on brings as much again at once: it stands behind the others now.
        assert server.taken[: 2 + 2 * round_number] == list(range(2 + 2 * round_number))
    await turn_loop()
    assert server.taken == list(range(8))
    assert not any(transport.is_reading_paused for _, transport in peers)


async def test_who_brings_more_stands_behind_those_that_wait() -> None:
    server = FakeServer()
    (greedy, _), (modest, _) = join(server), join(server)
    greedy.data_received(requests(range(1000)))
    modest.data_received(requests(range(5000, 5100)))
    await turn_loop()
    greedy.data_received(requests(range(1000, 2000)))
    await turn_loop(20)
    # It came second and had to wait for one share of the other one, not for the whole of it.
    assert 500 < server.taken.index(5099) < 1000
    assert [number for number in server.taken if number < 5000] == list(range(2000))
    assert [number for number in server.taken if number >= 5000] == list(range(5000, 5100))


async def test_a_client_below_the_share_is_obeyed_at_once_and_nothing_is_scheduled() -> None:
    server, connection, transport = connect()
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    call_soon = loop.call_soon
    loop.call_soon = lambda *args, **kwargs: calls.append(args) or call_soon(*args, **kwargs)  # type: ignore[method-assign,func-returns-value]
    try:
        for number in range(10):
            connection.data_received(requests(range(number, number + 1)))
            assert server.taken == list(range(number + 1))
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    assert not calls
    assert not transport.is_reading_paused


async def test_somebody_who_says_try_again_does_not_end_the_rest() -> None:
    server, connection, _ = connect()
    connection.data_received(requests(range(600)))
    count = len(server.taken)
    connection.try_again()
    assert len(server.taken) == count
    await turn_loop(10)
    assert server.taken == list(range(600))


async def test_those_that_may_try_again_share_the_turn() -> None:
    server = FakeServer()
    server.takes_max = 0
    peers = [join(server) for _ in range(4)]
    for number, (connection, _) in enumerate(peers):
        start = number * 100
        connection.data_received(requests(range(start, start + 100)))
    server.takes_max = 1 << 30
    for connection, _ in peers:
        connection.try_again()
    assert len(server.taken) <= REQUESTS_MAX
    await turn_loop(5)
    for start in range(0, 400, 100):
        own = [number for number in server.taken if start <= number < start + 100]
        assert own == list(range(start, start + 100))


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
    count = len(server.taken)
    connection.close(abort=False)
    await turn_loop(10)
    assert server.taken == list(range(count))


async def test_a_connection_that_ends_keeps_nobody_else_waiting() -> None:
    server = FakeServer()
    (ending, _), (other, transport) = join(server), join(server)
    for number, connection in enumerate((ending, other)):
        connection.data_received(requests(range(number, number + 1), bytes(TURN_BYTES_MAX)))
    ending.close(abort=True)
    await turn_loop(3)
    assert server.taken == [0, 1]
    assert not transport.is_reading_paused
