"""Channels to bookies that hang, talk nonsense or cannot be reached: each request ends, once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from magnetar.ledger.channel import BookieChannel, ChannelPool
from magnetar.ledger.errors import BookieUnavailableError
from magnetar.ledger.hello import HELLO_ID
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.wire import RESPONSE, Frame, FrameDecoder, Op, Status, encode_frame
from tests.processes import free_ports
from tests.waiting import until

SETTINGS = LedgerSettings(request_timeout_s=5, connect_timeout_s=5, reconnect_delay_s=0.01)
IMPATIENT = SETTINGS.model_copy(update={"request_timeout_s": 2})


class ScriptedBookie(asyncio.Protocol):
    """What a test makes of a bookie: `answer` gets each request and returns bytes to send.

    `greet` does so with the hello.
    """

    def __init__(self, name: str = "b1", instance_id: str = "") -> None:
        self.greet: Callable[[Frame], bytes] = partial(greet_as, name, instance_id)
        self.heard: list[Frame] = []
        """Without the hellos."""
        self.connections = 0
        self.lost = asyncio.Event()
        self.is_reading = True
        self.answer: Callable[[Frame], bytes] = lambda frame: b""
        self._server: asyncio.Server

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        self._server.close()


class _Served(asyncio.Protocol):
    def __init__(self, bookie: ScriptedBookie) -> None:
        self._bookie = bookie
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._bookie.connections += 1

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            is_hello = frame.request_id == HELLO_ID
            if not is_hello:
                self._bookie.heard.append(frame)
            answer = self._bookie.greet if is_hello else self._bookie.answer
            if reply := answer(frame):
                self._transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.lost.set()


class OneBookie(BookieRegistry):
    """Knows the address of one bookie."""

    def __init__(self, host: str, port: int) -> None:
        self.info: BookieInfo | None = BookieInfo("b1", host, port, readonly=False)
        self._callbacks: list[Callable[[], None]] = []

    def register_at(self, port: int) -> None:
        """b1 is registered at another port, and who follows the registrations hears of it."""
        self.info = BookieInfo("b1", "127.0.0.1", port, readonly=False)
        for callback in self._callbacks:
            callback()

    def resolve(self, bookie_id: str) -> BookieInfo | None:
        return self.info


class SlowToConnect(SystemNetwork):
    """Connects once `is_up` is set."""

    def __init__(self) -> None:
        self.is_up = asyncio.Event()

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        await self.is_up.wait()
        return await super().connect(host, port, factory, timeout_s=timeout_s)


class BrokenOnce(SystemNetwork):
    """Fails its first connection in a way that nobody foresaw."""

    error: Exception | None = RuntimeError("can't start new thread")

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return await super().connect(host, port, factory, timeout_s=timeout_s)


def greet_as(name: str, instance_id: str, frame: Frame) -> bytes:
    """The hello of such a bookie; one of a release before says nothing of its cluster."""
    facts = {"bookie_id": name, "version": "1", "writable": True}
    if instance_id:
        facts["instance_id"] = instance_id
    return encode_frame(
        Op.INFO | RESPONSE,
        request_id=frame.request_id,
        ledger_id=frame.ledger_id,
        entry_id=frame.entry_id,
        body=json.dumps(facts).encode(),
    )


def answer_ok(frame: Frame) -> bytes:
    return encode_frame(frame.op | 0x80, request_id=frame.request_id, ledger_id=frame.ledger_id)


def channel_to(host: str, port: int, settings: LedgerSettings = SETTINGS) -> BookieChannel:
    return channel_of(OneBookie(host, port), settings)


def channel_of(registry: OneBookie, settings: LedgerSettings) -> BookieChannel:
    return BookieChannel("b1", registry, SystemNetwork(), SystemClock(), settings)


def send(channel: BookieChannel) -> asyncio.Future[Frame]:
    future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    def on_reply(reply: Frame | BookieUnavailableError) -> None:
        if isinstance(reply, BookieUnavailableError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    channel.send(Op.INFO, (), on_reply, ledger_id=1)
    return future


async def request(channel: BookieChannel) -> Frame:
    async with asyncio.timeout(30):
        return await send(channel)


async def reconnected(channel: BookieChannel) -> None:
    """Ask until the time is up in which a bookie that could not be connected to is left alone."""

    async def is_answered() -> bool:
        try:
            return (await request(channel)).status == Status.OK
        except BookieUnavailableError:
            return False

    await until(is_answered)


@pytest.fixture
async def bookie() -> AsyncIterator[ScriptedBookie]:
    bookie = ScriptedBookie()
    yield bookie
    bookie.stop()


@pytest.fixture
async def channel(bookie: ScriptedBookie) -> AsyncIterator[BookieChannel]:
    channel = channel_to("127.0.0.1", await bookie.start())
    yield channel
    await channel.close()


@pytest.fixture
async def impatient(bookie: ScriptedBookie) -> AsyncIterator[BookieChannel]:
    """For the tests that wait until a request is given up."""
    channel = channel_to("127.0.0.1", await bookie.start(), IMPATIENT)
    yield channel
    await channel.close()


async def test_a_connection_on_which_nothing_is_heard_is_given_up(
    bookie: ScriptedBookie, impatient: BookieChannel
) -> None:
    bookie.answer = answer_ok
    await request(impatient)
    bookie.answer = lambda frame: b""
    with pytest.raises(BookieUnavailableError, match=r"no answer within 2 s"):
        await request(impatient)
    async with asyncio.timeout(30):
        await bookie.lost.wait()
    bookie.answer = answer_ok
    assert (await request(impatient)).status == 0
    assert bookie.connections == 2


async def test_a_connection_with_other_answers_survives_a_timeout(
    bookie: ScriptedBookie, impatient: BookieChannel
) -> None:
    first_ids: list[int] = []

    def answer_all_but_the_first(frame: Frame) -> bytes:
        if not first_ids:
            first_ids.append(frame.request_id)
        return b"" if frame.request_id in first_ids else answer_ok(frame)

    bookie.answer = answer_all_but_the_first
    first = send(impatient)
    while not first.done():
        await request(impatient)
    with pytest.raises(BookieUnavailableError):
        await first
    await request(impatient)
    assert bookie.connections == 1


async def test_nonsense_ends_the_connection_and_the_next_request_makes_a_new_one(
    bookie: ScriptedBookie, channel: BookieChannel
) -> None:
    greet = bookie.greet
    bookie.greet = lambda frame: b"SSH-2.0-OpenSSH_9.6 and more of it, as long as a header\r\n"
    with pytest.raises(BookieUnavailableError, match="expected magic"):
        await request(channel)
    bookie.greet = greet
    bookie.answer = answer_ok
    await reconnected(channel)
    bookie.answer = lambda frame: b"SSH-2.0-OpenSSH_9.6 and more of it, as long as a header\r\n"
    with pytest.raises(BookieUnavailableError, match="expected magic"):
        await request(channel)
    bookie.answer = answer_ok
    await request(channel)
    assert bookie.connections == 3


async def test_an_answer_of_another_version_is_named_as_such(
    bookie: ScriptedBookie, channel: BookieChannel
) -> None:
    def answer_in_version_2(frame: Frame) -> bytes:
        reply = bytearray(answer_ok(frame))
        reply[6] = 2
        return bytes(reply)

    bookie.greet = answer_in_version_2
    with pytest.raises(
        BookieUnavailableError, match=r"in version 2; this release speaks version 1"
    ):
        await request(channel)


@pytest.mark.parametrize(
    ("op", "ledger_id", "entry_id"),
    [(Op.ADD | 0x80, 1, -1), (Op.INFO, 1, -1), (Op.INFO | 0x80, 2, -1), (Op.INFO | 0x80, 1, 0)],
)
async def test_an_answer_to_another_question_counts_for_nobody(
    bookie: ScriptedBookie, channel: BookieChannel, op: int, ledger_id: int, entry_id: int
) -> None:
    bookie.answer = lambda frame: encode_frame(
        op, request_id=frame.request_id, ledger_id=ledger_id, entry_id=entry_id
    )
    with pytest.raises(BookieUnavailableError, match="was answered"):
        await request(channel)
    bookie.answer = answer_ok
    await request(channel)
    assert bookie.connections == 2


async def test_a_caller_that_breaks_does_not_keep_others_from_their_answers(
    bookie: ScriptedBookie, impatient: BookieChannel
) -> None:
    broken: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: broken.append(context["exception"]))

    def break_down(reply: Frame | BookieUnavailableError) -> None:
        raise KeyError("a bug")

    bookie.answer = answer_ok
    impatient.send(Op.INFO, (), break_down, ledger_id=1)
    await request(impatient)
    assert bookie.connections == 1
    bookie.answer = lambda frame: b""
    impatient.send(Op.INFO, (), break_down, ledger_id=1)
    with pytest.raises(BookieUnavailableError):
        await request(impatient)
    assert [type(error) for error in broken] == [KeyError, KeyError]


async def test_an_address_that_cannot_be_one_fails_the_request() -> None:
    channel = channel_to("a..b", 4181)
    for _ in range(2):
        with pytest.raises(BookieUnavailableError, match="cannot connect"):
            await request(channel)
    await channel.close()


async def test_an_unforeseen_error_of_a_connection_fails_its_requests_and_no_later_ones(
    bookie: ScriptedBookie,
) -> None:
    """As when the process cannot start the thread that resolves a name."""
    port = await bookie.start()
    bookie.answer = answer_ok
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    now = SETTINGS.model_copy(update={"reconnect_delay_s": 0.0})
    registry = OneBookie("127.0.0.1", port)
    channel = BookieChannel("b1", registry, BrokenOnce(), SystemClock(), now)
    with pytest.raises(BookieUnavailableError, match="can't start new thread"):
        await request(channel)
    assert (await request(channel)).status == 0
    assert [type(error) for error in told] == [RuntimeError]
    await channel.close()


@pytest.mark.parametrize("before", ["not registered", "registered where nobody listens"])
async def test_a_bookie_that_registers_anew_is_asked_at_once(
    bookie: ScriptedBookie, before: str
) -> None:
    port = await bookie.start()
    bookie.answer = answer_ok
    registry = OneBookie("127.0.0.1", port)
    there, registry.info = registry.info, None
    if before != "not registered":
        (nobodys,) = free_ports(1)
        registry.info = BookieInfo("b1", "127.0.0.1", nobodys, readonly=False)
    patient = SETTINGS.model_copy(update={"reconnect_delay_s": 60.0})
    channel = channel_of(registry, patient)
    with pytest.raises(BookieUnavailableError, match="cannot connect"):
        await request(channel)
    registry.info = there
    assert (await request(channel)).status == 0
    await channel.close()


@pytest.mark.parametrize(
    ("name", "instance_id", "reason"),
    [
        ("b2", "", "expected bookie b1 of cluster c1, but bookie b2 answered"),
        ("b2", "c1", "expected bookie b1 of cluster c1, but bookie b2 of cluster c1 answered"),
        ("b1", "c2", "expected bookie b1 of cluster c1, but bookie b1 of cluster c2 answered"),
    ],
)
async def test_another_bookie_at_the_address_hears_of_no_request(
    name: str, instance_id: str, reason: str
) -> None:
    bookie = ScriptedBookie(name, instance_id)
    bookie.answer = answer_ok
    registry = OneBookie("127.0.0.1", 0)
    registry.info = BookieInfo(
        "b1", "127.0.0.1", await bookie.start(), readonly=False, instance_id="c1"
    )
    channel = channel_of(registry, SETTINGS)
    with pytest.raises(BookieUnavailableError, match=reason):
        await request(channel)
    async with asyncio.timeout(30):
        await bookie.lost.wait()
    assert bookie.heard == []
    await channel.close()
    bookie.stop()


async def test_a_bookie_of_a_release_without_hello_is_known_by_its_id() -> None:
    bookie = ScriptedBookie("b1")
    bookie.answer = answer_ok
    registry = OneBookie("127.0.0.1", 0)
    registry.info = BookieInfo(
        "b1", "127.0.0.1", await bookie.start(), readonly=False, instance_id="c1"
    )
    channel = channel_of(registry, SETTINGS)
    assert (await request(channel)).status == Status.OK
    await channel.close()
    bookie.stop()


@pytest.mark.parametrize("op", [Op.ADD | RESPONSE, Op.INFO])
async def test_a_hello_that_is_not_answered_as_one_ends_the_connection(
    bookie: ScriptedBookie, channel: BookieChannel, op: int
) -> None:
    bookie.greet = lambda frame: encode_frame(op, request_id=frame.request_id, ledger_id=0)
    with pytest.raises(BookieUnavailableError, match="the hello was answered by"):
        await request(channel)
    assert bookie.heard == []


async def test_a_hello_without_an_answer_fails_what_waits_for_it(
    bookie: ScriptedBookie, impatient: BookieChannel
) -> None:
    bookie.greet = lambda frame: b""
    with pytest.raises(BookieUnavailableError):
        await request(impatient)
    assert bookie.heard == []


async def test_a_request_that_times_out_during_a_connect_is_dropped_with_its_bytes() -> None:
    """The bytes of such a request do not count as unanswered any more, so none may be kept."""
    bookie = ScriptedBookie()
    bookie.answer = answer_ok
    network = SlowToConnect()
    settings = IMPATIENT.model_copy(update={"connect_timeout_s": 30})
    registry = OneBookie("127.0.0.1", await bookie.start())
    channel = BookieChannel("b1", registry, network, SystemClock(), settings)
    with pytest.raises(BookieUnavailableError, match=r"no answer within 2 s"):
        await request(channel)
    in_time = send(channel)
    network.is_up.set()
    async with asyncio.timeout(30):
        await in_time
    assert [frame.request_id for frame in bookie.heard] == [1]
    await channel.close()
    bookie.stop()


@pytest.mark.parametrize("when", ["connected", "connecting"])
async def test_a_bookie_that_is_registered_elsewhere_is_asked_there(when: str) -> None:
    """Although the connection to where it was is as good as ever."""
    before, after = ScriptedBookie(), ScriptedBookie()
    before.answer = after.answer = answer_ok
    registry = OneBookie("127.0.0.1", await before.start())
    port = await after.start()
    pool = ChannelPool(registry, SystemNetwork(), SystemClock(), SETTINGS)
    channel = pool.get("b1")
    if when == "connected":
        await request(channel)
        asked = None
    else:
        before.greet = lambda frame: b""
        asked = send(channel)
        await until(lambda: before.connections == 1)
    registry.register_at(port)
    async with asyncio.timeout(30):
        await before.lost.wait()
        if asked is not None:
            await asked
    await request(channel)
    assert after.connections == 1
    assert len(before.heard) + len(after.heard) == 2
    await pool.close()
    before.stop()
    after.stop()


async def test_a_bookie_that_is_not_registered_for_a_while_keeps_its_connection() -> None:
    bookie = ScriptedBookie()
    bookie.answer = answer_ok
    registry = OneBookie("127.0.0.1", await bookie.start())
    pool = ChannelPool(registry, SystemNetwork(), SystemClock(), SETTINGS)
    await request(pool.get("b1"))
    there, registry.info = registry.info, None
    pool.on_registrations()
    registry.info = there
    pool.on_registrations()
    await request(pool.get("b1"))
    assert bookie.connections == 1
    await pool.close()
    bookie.stop()
