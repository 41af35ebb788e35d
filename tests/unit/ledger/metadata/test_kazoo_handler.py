"""kazoo's sockets: what waits is found at once, what is sent leaves together, nothing is lost."""

import asyncio
import gc
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from magnetar.ledger.metadata.kazoo_handler import BatchingHandler, CallsToLoop
from magnetar.ledger.metadata.server_patience import ServerPatience
from tests.certificates import Authority

WAIT_S = 10.0
"""Nothing that a test waits for takes this long, unless it never comes."""


@pytest.fixture
def handler() -> BatchingHandler:
    return BatchingHandler(ServerPatience(30_000))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        yield listening


class Connection:
    """What kazoo sees, and the other end of it."""

    def __init__(self, handler: BatchingHandler, server: socket.socket) -> None:
        self.here: Any = handler.create_connection(
            address=server.getsockname(), hostname="localhost", timeout=WAIT_S, use_ssl=False
        )
        self.here.setblocking(0)
        self.there, _ = server.accept()
        self.there.settimeout(WAIT_S)


@pytest.fixture
def connection(handler: BatchingHandler, server: socket.socket) -> Iterator[Connection]:
    made = Connection(handler, server)
    yield made
    made.here.close()
    made.there.close()


def connect_by_tls(handler: BatchingHandler, address: object) -> None:
    """As kazoo does it, to a server that anybody may be."""
    handler.create_connection(
        address=address,
        hostname="localhost",
        timeout=WAIT_S,
        use_ssl=True,
        keyfile=None,
        certfile=None,
        ca=None,
        keyfile_password=None,
        verify_certs=False,
        check_hostname=False,
    )


def test_tries_to_connect_by_tls_that_fail_leave_no_socket_open(
    handler: BatchingHandler, server: socket.socket
) -> None:
    def hang_up() -> None:
        there, _ = server.accept()
        there.close()

    address = server.getsockname()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect_by_tls(handler, address)
        hanging_up.join()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            connect_by_tls(handler, address)
        gc.collect()
    assert [str(each.message) for each in told] == []


class TlsServer:
    """Accepts one connection, and asks for a certificate that `authority` signed."""

    def __init__(self, listening: socket.socket, authority: Authority) -> None:
        self.address = listening.getsockname()
        self.names: list[str] = []
        """Of the clients whose certificates were accepted."""
        self._listening = listening
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.issue("server"))
        self._context.load_verify_locations(authority.path)
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> "TlsServer":
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._accepting.join(WAIT_S)

    def _accept(self) -> None:
        plain, _ = self._listening.accept()
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as there:
            found: Any = there.getpeercert() or {}
            self.names += [value for ((_, value),) in found.get("subject", ())]


def connect_securely(
    handler: BatchingHandler, server: TlsServer, ca: Path, certificate: Path | None = None
) -> None:
    """Connect by TLS; `certificate` holds the key as well."""
    handler.create_connection(
        address=server.address,
        hostname="localhost",
        timeout=WAIT_S,
        use_ssl=True,
        keyfile=None,
        certfile=None if certificate is None else str(certificate),
        ca=str(ca),
        keyfile_password=None,
        verify_certs=True,
        check_hostname=True,
    ).close()


def test_authorities_of_the_system_are_not_trusted_beside_the_given_ones(
    handler: BatchingHandler,
    server: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_system, own = Authority(tmp_path, "system"), Authority(tmp_path, "own")
    monkeypatch.setenv("SSL_CERT_FILE", str(of_system.path))
    with (
        TlsServer(server, of_system) as other,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        connect_securely(handler, other, own.path)


def test_a_certificate_in_one_file_with_its_key_is_presented(
    handler: BatchingHandler, server: socket.socket, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    with TlsServer(server, authority) as found:
        connect_securely(handler, found, authority.path, both)
    assert found.names == ["client"]


def test_what_was_read_ahead_is_ready_without_a_look(
    handler: BatchingHandler, connection: Connection
) -> None:
    connection.there.sendall(b"abcdef")
    assert handler.select([connection.here], [], [], WAIT_S)[0] == [connection.here]
    assert connection.here.recv(2) == b"ab"
    assert connection.here.pending() == 4
    assert handler.select([connection.here], [], [], 0)[0] == [connection.here]
    assert connection.here.recv(10) == b"cdef"
    assert handler.select([connection.here], [], [], 0)[0] == []


def test_requests_leave_together_before_anybody_waits(
    handler: BatchingHandler, connection: Connection
) -> None:
    bell, _ = handler.create_socket_pair()
    for part in (b"one", b"two"):
        bell.send(b"\0")
        assert handler.select([], [connection.here], [], WAIT_S)[1] == [connection.here]
        assert connection.here.send(part) == 3
        assert handler.select([connection.here, bell], [], [], WAIT_S)[0] == [bell]
        assert bell.recv(1) == b"\0"
    assert handler.select([connection.here, bell], [], [], 0)[0] == []
    assert connection.there.recv(100) == b"onetwo"
    bell.close()


def test_a_server_that_reads_slowly_is_waited_for(
    handler: BatchingHandler, connection: Connection
) -> None:
    sent = 0
    while handler.select([], [connection.here], [], 0)[1]:
        sent += connection.here.send(b"x" * 10_000)
    received = 0

    def read() -> None:
        nonlocal received
        while received < sent:
            received += len(connection.there.recv(1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    while connection.here.has_unsent:
        handler.select([connection.here], [], [], 0.01)
    reader.join(WAIT_S)
    assert received == sent
    assert handler.select([], [connection.here], [], 0)[1] == [connection.here]


def test_the_end_of_the_connection_is_something_to_read(
    handler: BatchingHandler, connection: Connection
) -> None:
    connection.there.close()
    assert handler.select([connection.here], [], [], WAIT_S)[0] == [connection.here]
    assert connection.here.recv(4) == b""


def test_a_ring_wakes_who_waits_and_none_is_lost(handler: BatchingHandler) -> None:
    bell, same = handler.create_socket_pair()
    rings = 20_000

    def ring() -> None:
        for _ in range(rings):
            bell.send(b"\0")

    ringing = threading.Thread(target=ring)
    ringing.start()
    heard = 0
    until_s = time.monotonic() + WAIT_S
    while heard < rings and time.monotonic() < until_s:
        if handler.select([same], [], [], WAIT_S)[0]:
            assert same.recv(1) == b"\0"
            heard += 1
    ringing.join()
    assert heard == rings
    assert handler.select([same], [], [], 0)[0] == []
    bell.close()


def test_nothing_to_do_ends_with_the_timeout(
    handler: BatchingHandler, connection: Connection
) -> None:
    bell, _ = handler.create_socket_pair()
    started_s = time.monotonic()
    assert handler.select([connection.here, bell], [], [], 0.05) == ([], [], [])
    assert 0.05 <= time.monotonic() - started_s < WAIT_S
    bell.close()


def test_a_closed_bell_refuses(handler: BatchingHandler) -> None:
    bell, same = handler.create_socket_pair()
    bell.close()
    same.close()
    with pytest.raises(OSError, match="closed"):
        bell.send(b"\0")


def test_a_server_that_takes_no_connection_is_given_up_in_time() -> None:
    patience = ServerPatience(1_000)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())  # nobody takes it: for others there is no room
        started_s = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            BatchingHandler(patience).create_connection(
                address=full.getsockname(), hostname="localhost", timeout=WAIT_S, use_ssl=False
            )
        assert time.monotonic() - started_s < WAIT_S / 2


def test_a_server_that_answers_nothing_is_given_up_though_there_is_always_more_to_ask(
    server: socket.socket,
) -> None:
    patience = ServerPatience(600)
    handler = BatchingHandler(patience)
    connection = Connection(handler, server)
    patience.connected(600)
    bell, _ = handler.create_socket_pair()
    connection.there.send(b"the handshake")
    assert handler.select([connection.here, bell], [], [], WAIT_S)[0] == [connection.here]
    connection.here.recv(100)
    started_s = time.monotonic()

    def ask_on_and_on() -> None:
        while time.monotonic() < started_s + WAIT_S:
            bell.send(b"\0")
            assert handler.select([connection.here, bell], [], [], WAIT_S)[0] == [bell]
            bell.recv(1)
            connection.here.send(b"a request")
            assert not handler.select([connection.here, bell], [], [], 0.01)[0]

    with pytest.raises(KazooTimeoutError, match="answers nothing"):
        ask_on_and_on()
    assert time.monotonic() - started_s >= 0.2
    bell.close()
    connection.here.close()
    connection.there.close()


def test_a_server_that_takes_nothing_is_given_up_while_there_is_more_to_send(
    server: socket.socket,
) -> None:
    patience = ServerPatience(600)
    handler = BatchingHandler(patience)
    connection = Connection(handler, server)
    patience.connected(600)
    connection.here.send(b"x" * (16 << 20))  # more than the system takes
    started_s = time.monotonic()
    with pytest.raises(KazooTimeoutError, match="answers nothing"):
        handler.select([], [connection.here], [], WAIT_S)
    assert time.monotonic() - started_s < WAIT_S / 2
    connection.here.close()
    connection.there.close()


def test_silence_does_not_count_before_the_end_of_the_handshake(server: socket.socket) -> None:
    handler = BatchingHandler(ServerPatience(300))
    connection = Connection(handler, server)
    connection.there.send(b"the answer to the first request")
    handler.select([connection.here], [], [], WAIT_S)
    connection.here.recv(100)
    connection.here.send(b"the second one")
    assert handler.select([connection.here], [], [], 0.6)[0] == []
    connection.here.close()
    connection.there.close()


def test_a_server_that_answers_is_kept_however_late_its_answers_are_looked_at(
    server: socket.socket,
) -> None:
    patience = ServerPatience(600)
    handler = BatchingHandler(patience)
    connection = Connection(handler, server)
    patience.connected(600)
    bell, _ = handler.create_socket_pair()
    connection.there.send(b"the handshake")
    handler.select([connection.here, bell], [], [], WAIT_S)
    connection.here.recv(100)
    connection.here.send(b"a request")
    handler.select([connection.here, bell], [], [], 0.0)
    connection.there.send(b"an answer")
    connection.here.unanswered_since_s -= 60.0  # stopped meanwhile
    bell.send(b"\0")
    assert connection.here in handler.select([connection.here, bell], [], [], WAIT_S)[0]
    bell.close()
    connection.here.close()
    connection.there.close()


async def test_calls_of_other_threads_are_made_in_their_order() -> None:
    calls = CallsToLoop(asyncio.get_running_loop())
    made: list[int] = []
    done = asyncio.Event()

    def work() -> None:
        for number in range(10_000):
            calls(lambda number=number: made.append(number))  # type: ignore[misc]
        calls(done.set)

    await asyncio.to_thread(work)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    assert made == list(range(10_000))


async def test_a_call_that_fails_holds_up_no_other() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    calls = CallsToLoop(loop)
    done = asyncio.Event()
    calls(lambda: [][0])
    calls(done.set)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    assert [type(failure) for failure in failures] == [IndexError]
