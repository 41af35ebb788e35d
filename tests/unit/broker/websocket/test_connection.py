"""One web socket without network: idleness, pings, back-pressure, closing."""

import asyncio
from typing import cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.uri import parse_uri

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.websocket.connection import PING, WebSocketConnection
from magnetar.broker.websocket.errors import BadFrameError, Code, UpgradeRefusedError
from magnetar.broker.websocket.session import Session, Socket, Traffic
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName
from tests.waiting import until


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_now = True
        self.has_eof = self.is_closed = self.is_aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_eof
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True


class FakeSession:
    discovers = False
    topics: list[TopicName] = []

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.texts: list[bytes] = []
        self.writable = 0
        self.socket: Socket | None = None

    async def open(self) -> None:
        """Nothing."""

    def begin(self, socket: Socket) -> None:
        self.socket = socket

    def on_text(self, data: bytes) -> None:
        if data == b"bad":
            raise BadFrameError(Code.BAD_JSON, "ü" * 100)
        if data == b"defect":
            raise RuntimeError("defect")
        self.texts.append(data)

    def on_writable(self) -> None:
        self.writable += 1

    async def discover(self) -> None:
        """Nothing."""

    async def check_rights(self) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


class FakeHost:
    def __init__(self, **settings: int) -> None:
        self.settings = BrokerSettings.model_validate(settings)
        self.fake_clock = FakeClock()
        self.clock: Clock = cast(Clock, self.fake_clock)
        self.session = FakeSession()
        self.lost: list[Session | None] = []
        self.ended: list[Session] = []
        self.end_gate = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None

    def admit(self, connection: WebSocketConnection) -> None:
        """Everybody."""

    async def session_for(self, connection: WebSocketConnection, request: Request) -> Session:
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.session

    def end(self, session: Session) -> asyncio.Task[None]:
        async def wait() -> None:
            await self.end_gate.wait()

        self.ended.append(session)
        return asyncio.create_task(wait())

    def on_lost(self, connection: WebSocketConnection, session: Session | None) -> None:
        self.lost.append(session)


class Pair:
    """A connection, and `websockets`' client core at the other end."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.connection = WebSocketConnection(host, set())
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)
        self.client = ClientProtocol(parse_uri("ws://h/ws/v2/x"))

    def request(self) -> None:
        self.client.send_request(self.client.connect())
        self.flush()

    def flush(self) -> None:
        """What the client wants to say."""
        for part in self.client.data_to_send():
            if part:
                self.connection.data_received(part)

    def events(self) -> list[Frame | Response]:
        """What the server has said since."""
        data, self.transport.written = bytes(self.transport.written), bytearray()
        self.client.receive_data(data)
        return [each for each in self.client.events_received() if not isinstance(each, Request)]

    def send(self, text: bytes) -> None:
        self.client.send_text(text)
        self.flush()

    def close_code(self) -> int | None:
        """The code of the close frame that came."""
        self.events()
        return None if self.client.close_rcvd is None else self.client.close_rcvd.code


@pytest.fixture
async def opened() -> Pair:
    return await open_pair()


async def open_pair(**settings: int) -> Pair:
    pair = Pair(FakeHost(**settings))
    pair.request()
    await until(lambda: pair.host.session.socket is not None)
    assert isinstance(pair.events()[0], Response)
    return pair


async def test_a_silent_session_is_closed_and_a_ping_is_a_sign_of_life(opened: Pair) -> None:
    clock = opened.host.fake_clock
    clock.now_s += 299
    opened.connection.look(clock.now_s)
    opened.client.send_ping(b"there?")
    opened.flush()
    assert [each.opcode for each in opened.events() if isinstance(each, Frame)] == [Opcode.PONG]
    clock.now_s += 299
    opened.connection.look(clock.now_s)
    assert opened.close_code() is None
    clock.now_s += 1
    opened.connection.look(clock.now_s)
    assert opened.close_code() == 1001


async def test_pings_are_sent_when_asked_for_and_only_answers_count() -> None:
    pair = await open_pair(websocket_ping_interval_s=10, websocket_idle_timeout_ms=25_000)
    clock = pair.host.fake_clock
    for _ in range(2):
        clock.now_s += 10
        pair.connection.look(clock.now_s)
        frames = pair.events()
        assert [(f.opcode, bytes(f.data)) for f in frames if isinstance(f, Frame)] == [
            (Opcode.PING, PING)
        ]
    pair.flush()  # the client's pongs
    clock.now_s += 24
    pair.connection.look(clock.now_s)
    assert pair.close_code() is None
    clock.now_s += 1
    pair.connection.look(clock.now_s)
    assert pair.close_code() == 1001


async def test_a_client_that_does_not_read_is_not_read_and_given_nothing(opened: Pair) -> None:
    assert opened.transport.high == 256 * 1024
    opened.connection.pause_writing()
    assert not opened.connection.is_writable
    assert not opened.transport.is_reading_now
    opened.connection.resume_writing()
    assert opened.connection.is_writable
    assert opened.transport.is_reading_now
    assert opened.host.session.writable == 1


async def test_a_full_session_is_not_read_until_it_has_room(opened: Pair) -> None:
    opened.connection.hold_reading(True)
    opened.connection.hold_reading(True)
    assert not opened.transport.is_reading_now
    opened.connection.pause_writing()
    opened.connection.hold_reading(False)
    assert not opened.transport.is_reading_now
    opened.connection.resume_writing()
    assert opened.transport.is_reading_now


async def test_a_session_that_is_not_read_is_not_idle(opened: Pair) -> None:
    clock = opened.host.fake_clock
    opened.connection.hold_reading(True)
    clock.now_s += 1000
    opened.connection.look(clock.now_s)
    opened.connection.hold_reading(False)
    clock.now_s += 299
    opened.connection.look(clock.now_s)
    opened.connection.hold_reading(False)
    assert opened.close_code() is None
    clock.now_s += 1
    opened.connection.look(clock.now_s)
    assert opened.close_code() == 1001


async def test_fragments_are_put_together_and_pings_may_come_between(opened: Pair) -> None:
    opened.client.send_text(b"one ", fin=False)
    opened.client.send_ping(b"")
    opened.client.send_continuation(b"", fin=False)
    opened.client.send_continuation(b"two", fin=True)
    opened.flush()
    assert opened.host.session.texts == [b"one two"]


@pytest.mark.parametrize(("text", "code"), [(b"bad", 1007), (b"defect", 1011)])
async def test_a_session_that_cannot_go_on_is_closed_with_a_reason(
    opened: Pair, text: bytes, code: int
) -> None:
    opened.send(text)
    assert opened.close_code() == code
    assert opened.client.close_rcvd is not None
    assert opened.client.close_rcvd.reason
    opened.send(b"nobody listens") if opened.client.state.name == "OPEN" else None
    assert opened.host.session.texts == []


async def test_a_client_that_does_not_answer_a_close_is_cut_off() -> None:
    pair = await open_pair(websocket_close_timeout_ms=1)
    pair.connection.close(1001, "over")
    assert not pair.transport.is_aborted
    await until(lambda: pair.transport.is_aborted)


async def test_a_close_of_the_client_is_answered_once_its_session_is_given_back(
    opened: Pair,
) -> None:
    opened.send(b"last word")
    opened.client.send_close(1000)
    opened.flush()
    assert opened.host.session.texts == [b"last word"]
    assert opened.host.ended == [opened.host.session]
    await asyncio.sleep(0)
    assert opened.close_code() is None
    opened.host.end_gate.set()
    await until(lambda: opened.transport.has_eof)
    assert opened.close_code() == 1000
    opened.connection.connection_lost(None)
    assert opened.host.lost == [None]


async def test_a_client_that_leaves_is_cut_off_if_its_session_takes_too_long() -> None:
    pair = await open_pair(websocket_close_timeout_ms=1)
    pair.client.send_close(1000)
    pair.flush()
    await until(lambda: pair.transport.is_aborted)
    pair.connection.connection_lost(None)
    pair.host.end_gate.set()
    await asyncio.sleep(0)
    assert pair.host.ended == [pair.host.session]


async def test_who_leaves_before_the_upgrade_leaves_nothing_behind() -> None:
    pair = Pair(FakeHost())
    pair.host.gate.clear()
    pair.request()
    await asyncio.sleep(0)
    pair.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert pair.host.lost == [None]
    assert pair.host.session.socket is None


async def test_frames_before_the_upgrade_wait_within_a_bound() -> None:
    pair = Pair(FakeHost())
    pair.host.gate.clear()
    pair.request()
    await asyncio.sleep(0)
    early = Frame(Opcode.TEXT, b"early").serialize(mask=True)
    pair.connection.data_received(early)
    pair.host.gate.set()
    await until(lambda: pair.host.session.texts == [b"early"])
    other = Pair(FakeHost())
    other.host.gate.clear()
    other.request()
    other.connection.data_received(bytes(64 * 1024))
    assert other.transport.is_aborted
    other.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("refusal", "status"), [(UpgradeRefusedError(409, "busy"), 409), (RuntimeError("defect"), 500)]
)
async def test_a_refusal_is_an_http_status(refusal: Exception, status: int) -> None:
    pair = Pair(FakeHost())
    pair.host.refusal = refusal
    pair.request()
    await until(lambda: pair.transport.is_closed)
    response = pair.events()[0]
    assert isinstance(response, Response)
    assert response.status_code == status
    pair.connection.connection_lost(None)
    assert pair.host.lost == [None]


async def test_what_is_no_request_is_cut_off() -> None:
    pair = Pair(FakeHost())
    pair.connection.data_received(b"\r\n\r\nnonsense\r\n\r\n")
    assert pair.transport.is_aborted
    pair.connection.connection_lost(None)
