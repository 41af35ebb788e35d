"""Whatever arrives on the port: a clear error or a clean close for that connection, nothing else.

Beside every case a healthy client publishes all the time. In the end it has lost nothing, nothing
was sent twice (so it never had to reconnect), and the server's log holds no traceback.
"""

import random
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pulsar
import pytest

from magnetar.sdk.wire import (
    FRAME_BYTES_MAX,
    BaseCommand,
    checksum,
    encode_command,
    encode_payload_command,
    pulsar_pb2,
)
from tests.integration.broker.raw_connection import RawConnection, send_command, send_frame
from tests.integration.pulsar_client.support import connect, receive
from tests.processes import HOST
from tests.standalone import Standalone

_TOPIC = "persistent://public/default/attacked"
_HEALTHY_TOPIC = "persistent://public/default/healthy"
_HALF_OPEN = 3000
_SEED = 7

_U32 = struct.Struct(">I")


class _HealthyClient:
    """Publishes one message after the other; waiting for more of them shows that it still does."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)
        self.consumer = self._client.subscribe(_HEALTHY_TOPIC, "s")
        self._producer = self._client.create_producer(_HEALTHY_TOPIC)
        self._progress = threading.Condition()
        self._stop = False
        self._error: pulsar.PulsarException | None = None
        self.published = 0
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def wait_published(self, more: int) -> None:
        """Wait until so many further messages are acknowledged."""
        with self._progress:
            goal = self.published + more
            # Each of them is synced to the disk.
            assert self._progress.wait_for(lambda: self.published >= goal or self._error, 120)
            assert self._error is None, self._error

    def stop(self) -> None:
        self._stop = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self._client.close()

    def _publish(self) -> None:
        try:
            while not self._stop:
                self._producer.send(b"%d" % self.published)
                with self._progress:
                    self.published += 1
                    self._progress.notify_all()
        except pulsar.PulsarException as error:
            with self._progress:
                self._error = error
                self._progress.notify_all()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    # The server inherits the limit: each of the half-open connections is a file on both sides.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Standalone(tmp_path_factory.mktemp("bad-input") / "data") as standalone:
            yield standalone
            assert standalone.process.returncode is None, "the server ended"
            assert standalone.terminate() == 0
            standalone.assert_log_clean()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def healthy(server: Standalone) -> Iterator[_HealthyClient]:
    client = _HealthyClient(server.url)
    yield client
    client.stop()
    for number in range(client.published):
        message = receive(client.consumer)
        assert message.data() == b"%d" % number
        client.consumer.acknowledge(message)
    client.close()


@pytest.fixture(autouse=True)
def _others_are_unaffected(healthy: _HealthyClient) -> Iterator[None]:
    healthy.wait_published(1)
    yield
    healthy.wait_published(20)


@pytest.fixture
def raw(server: Standalone) -> Iterator[RawConnection]:
    """A connection that has said nothing yet."""
    with RawConnection(server.port) as connection:
        yield connection


@pytest.fixture
def connected(raw: RawConnection) -> RawConnection:
    """A connection after the handshake."""
    raw.connect()
    return raw


@pytest.fixture
def producing(connected: RawConnection) -> RawConnection:
    """A connection with producer 1."""
    connected.open_producer(_TOPIC)
    return connected


def _assert_closed(connection: RawConnection) -> None:
    """The broker closes; the most it says before is an error."""
    kinds = {command.type for command in connection.receive_until_closed()}
    assert kinds <= {BaseCommand.ERROR}


def _framed(command: bytes, rest: bytes = b"") -> bytes:
    return _U32.pack(4 + len(command) + len(rest)) + _U32.pack(len(command)) + command + rest


# --- frames ---------------------------------------------------------------------------------------

_PING = encode_command(BaseCommand(type=BaseCommand.PING, ping=pulsar_pb2.CommandPing()))[8:]

_BAD_FRAMES = {
    "larger than allowed": _U32.pack(FRAME_BYTES_MAX + 1) + _U32.pack(10) + bytes(10),
    "of 4 GB": b"\xff" * 64,
    "with a command larger than itself": _U32.pack(20) + _U32.pack(100) + bytes(200),
    "of size zero": bytes(64),
    "without a command": _framed(b""),
    "with garbage as command": _framed(b"\xff\xff\xff\xff\xff\xff"),
    "of an unknown type": _framed(b"\x08\xfa\x01"),
    "of an unknown type with a field": _framed(b"\x08\xfa\x01\xd2\x0f\x02\x08\x01"),
    "of a type whose field is missing": _framed(b"\x08\x05"),
    "with a required field missing": _framed(b"\x08\x05\x2a\x00"),
}


@pytest.mark.parametrize("name", _BAD_FRAMES)
def test_a_bad_first_frame_closes_the_connection(raw: RawConnection, name: str) -> None:
    raw.send_all_it_takes(_BAD_FRAMES[name])
    _assert_closed(raw)


@pytest.mark.parametrize("name", _BAD_FRAMES)
def test_a_bad_frame_closes_an_open_connection(producing: RawConnection, name: str) -> None:
    producing.send_all_it_takes(_BAD_FRAMES[name])
    _assert_closed(producing)


@pytest.mark.parametrize("kept", [1, 3, 4, 7, 8, 9, 20, 60, 1000])
def test_a_truncated_frame_ends_the_connection_and_stores_nothing(
    producing: RawConnection, kept: int
) -> None:
    frame = send_frame(bytes(2000))
    producing.send(frame[:kept])
    producing.finish_sending()
    _assert_closed(producing)


def test_random_bytes_close_the_connection(server: Standalone) -> None:
    chance = random.Random(_SEED)
    for _ in range(100):
        with RawConnection(server.port) as connection:
            connection.send_all_it_takes(chance.randbytes(chance.randrange(8, 4000)))
            connection.finish_sending()
            _assert_closed(connection)


def test_random_bytes_after_the_handshake_close_the_connection(server: Standalone) -> None:
    chance = random.Random(_SEED + 1)
    for _ in range(50):
        with RawConnection(server.port) as connection:
            connection.connect()
            connection.send_all_it_takes(chance.randbytes(chance.randrange(8, 4000)))
            connection.finish_sending()
            _assert_closed(connection)


def test_flipped_bits_in_good_frames_never_break_the_server(server: Standalone) -> None:
    """The nearest miss: everything is right but one bit."""
    chance = random.Random(_SEED + 2)
    good = send_frame(b"payload" * 10)
    for _ in range(300):
        with RawConnection(server.port) as connection:
            connection.connect()
            connection.open_producer(_TOPIC)
            data = bytearray(good)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            connection.send(bytes(data))
            connection.finish_sending()
            connection.receive_until_closed()


# --- commands -------------------------------------------------------------------------------------


def _before_connect() -> dict[str, bytes]:
    producer = BaseCommand(type=BaseCommand.PRODUCER)
    producer.producer.topic = _TOPIC
    producer.producer.producer_id = producer.producer.request_id = 1
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic = _TOPIC
    lookup.lookupTopic.request_id = 1
    return {
        "SEND": send_frame(b"too early"),
        "PRODUCER": encode_command(producer),
        "LOOKUP": encode_command(lookup),
        "PING": _framed(_PING),
    }


@pytest.mark.parametrize("name", _before_connect())
def test_a_command_before_connect_closes_the_connection(raw: RawConnection, name: str) -> None:
    raw.send(_before_connect()[name])
    _assert_closed(raw)


def test_a_second_connect_closes_the_connection(connected: RawConnection) -> None:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "raw"
    connected.send_command(command)
    _assert_closed(connected)


def test_a_command_that_only_brokers_send_closes_the_connection(connected: RawConnection) -> None:
    connected.send_command(
        BaseCommand(type=BaseCommand.SUCCESS, success=pulsar_pb2.CommandSuccess(request_id=1))
    )
    _assert_closed(connected)


def test_send_to_an_unknown_producer_closes_the_connection(connected: RawConnection) -> None:
    connected.send(send_frame(b"nobody's", producer_id=12345))
    _assert_closed(connected)


def _nowhere() -> list[BaseCommand]:
    return [
        BaseCommand(
            type=BaseCommand.NEW_TXN,
            newTxn=pulsar_pb2.CommandNewTxn(request_id=5, tc_id=1000, txn_ttl_millis=1),
        ),
        BaseCommand(
            type=BaseCommand.TC_CLIENT_CONNECT_REQUEST,
            tcClientConnectRequest=pulsar_pb2.CommandTcClientConnectRequest(
                request_id=5, tc_id=1000
            ),
        ),
    ]


@pytest.mark.parametrize("command", _nowhere(), ids=lambda command: f"type-{command.type}")
def test_a_command_for_nobody_gets_an_error_not_silence(
    connected: RawConnection, command: BaseCommand
) -> None:
    connected.send_command(command)
    text = str(connected.receive())
    assert "NotAllowedError" in text or "UnsupportedVersionError" in text
    connected.ping()


def test_bad_topic_names_are_refused_by_name(connected: RawConnection) -> None:
    for topic in ("persistent://a/b", "ftp://public/default/x", "persistent://public/default/", ""):
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = 3
        command.producer.request_id = 9
        connected.send_command(command)
        answer = connected.receive()
        assert answer.type == BaseCommand.ERROR
        assert answer.error.request_id == 9
        assert answer.error.error == pulsar_pb2.InvalidTopicName
        assert answer.error.message
    connected.ping()


def test_flow_ack_and_close_of_unknown_consumers_do_no_harm(connected: RawConnection) -> None:
    connected.send_command(
        BaseCommand(
            type=BaseCommand.FLOW, flow=pulsar_pb2.CommandFlow(consumer_id=99, messagePermits=10)
        )
    )
    ack = BaseCommand(type=BaseCommand.ACK)
    ack.ack.consumer_id = 99
    ack.ack.ack_type = pulsar_pb2.CommandAck.Individual
    ack.ack.message_id.add(ledgerId=1 << 60, entryId=(1 << 64) - 1)
    connected.send_command(ack)
    close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    close.close_consumer.consumer_id = 99
    close.close_consumer.request_id = 4
    connected.send_command(close)
    assert connected.receive().type == BaseCommand.SUCCESS
    connected.ping()


# --- payloads -------------------------------------------------------------------------------------


def _corrupt(frame: bytes) -> bytes:
    """Flip the last bit of the body: the checksum no longer holds."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


def test_a_wrong_checksum_is_refused_and_the_connection_goes_on(producing: RawConnection) -> None:
    producing.send(_corrupt(send_frame(b"damaged on the way")))
    answer = producing.receive()
    assert answer.type == BaseCommand.SEND_ERROR
    assert answer.send_error.error == pulsar_pb2.ChecksumError
    assert (answer.send_error.producer_id, answer.send_error.sequence_id) == (1, 0)
    producing.send(send_frame(b"whole", sequence_id=1))
    answer = producing.receive()
    assert answer.type == BaseCommand.SEND_RECEIPT
    assert answer.send_receipt.sequence_id == 1


def _checked(content: bytes) -> bytes:
    return b"\x0e\x01" + _U32.pack(checksum(content)) + content


_BAD_PAYLOADS: dict[str, bytes] = {
    "empty": b"",
    "metadata of no size": b"\x0e\x01" + bytes(4),
    "metadata larger than the frame": _checked(_U32.pack(1 << 30) + b"abc"),
    "metadata that is none": _checked(_U32.pack(8) + b"\xff" * 8),
    "metadata without required fields": _checked(_U32.pack(0) + b"body"),
    "a checksum and nothing else": b"\x0e\x01\x00\x00\x00\x00",
    "half a magic": b"\x0e",
}


@pytest.mark.parametrize("name", _BAD_PAYLOADS)
def test_a_malformed_payload_is_refused_or_ends_the_connection(
    producing: RawConnection, name: str
) -> None:
    producing.send(encode_payload_command(send_command(), _BAD_PAYLOADS[name]))
    producing.finish_sending()
    for answer in producing.receive_until_closed():
        assert answer.type in (BaseCommand.SEND_ERROR, BaseCommand.ERROR), answer


# --- many -----------------------------------------------------------------------------------------


def _nothing(_: int) -> bytes:
    return b""


def _half_a_frame(number: int) -> bytes:
    return _framed(_PING)[: 1 + number % 9]


def _a_large_frame_that_never_comes(_: int) -> bytes:
    return _U32.pack(FRAME_BYTES_MAX) + _U32.pack(100) + b"x"


@pytest.mark.parametrize("say", [_nothing, _half_a_frame, _a_large_frame_that_never_comes])
def test_thousands_of_half_open_connections_disturb_nobody(
    server: Standalone, healthy: _HealthyClient, say: Callable[[int], bytes]
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(_HALF_OPEN, hard // 2)
    assert count >= 1000, f"the limit of open files, {hard}, is too low for this test"
    connections: list[socket.socket] = []
    try:
        for number in range(count):
            connection = socket.create_connection((HOST, server.port), 20)
            connections.append(connection)
            connection.sendall(say(number))
        healthy.wait_published(100)
        with RawConnection(server.port) as another:
            another.connect()
            another.open_producer(_TOPIC)
            another.send(send_frame(b"between them all"))
            assert another.receive().type == BaseCommand.SEND_RECEIPT
    finally:
        for connection in connections:
            connection.close()
    healthy.wait_published(100)
