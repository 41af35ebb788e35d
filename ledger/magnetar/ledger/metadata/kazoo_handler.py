"""The threads and sockets of kazoo, changed so that many concurrent calls cost little more than
one.

kazoo's connection thread makes some ten system calls per request. It builds a selector for every
wait, reads four bytes and then the rest, is woken by a byte for each request, and passes each
result to a thread of its own. Each of these releases the interpreter's lock, and while the event
loop is busy, the thread waits each time to get it back. This module uses kazoo's hooks for making
sockets. Waiting requests are found without a system call and sent together, arrived bytes are read
at once, and results are delivered by the thread that reads them.

kazoo sees no difference: sockets report readiness correctly, and bytes come in order.
"""

import asyncio
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Queue

import structlog
from kazoo.handlers.threading import SequentialThreadingHandler

from magnetar.ledger.metadata.server_patience import ServerPatience
from magnetar.ledger.system import SystemClock

_log = structlog.get_logger(__name__)
_CLOCK = SystemClock()

_READ_BYTES = 64 * 1024
"""Most bytes of one read from the server."""
_UNSENT_BYTES_MAX = 64 * 1024
"""Bytes of collected requests at which they are sent, even if more requests wait."""
_FOREVER_S = float("inf")
_TLS_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors that a TLS connection raises instead of `BlockingIOError`."""


class _ServerSocket:
    """The connection to the server: reads ahead, and sends when kazoo has no more requests."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._received = b""
        self._at = 0
        self._unsent = bytearray()
        self.unanswered_since_s: float | None = None
        """Time of the first send since the last bytes arrived; None if nothing is unanswered."""

    def fileno(self) -> int:
        return self._inner.fileno()

    def setblocking(self, flag: object) -> None:
        self._inner.setblocking(bool(flag))

    def close(self) -> None:
        self._inner.close()

    def pending(self) -> int:
        """Return the number of received bytes that kazoo has not read yet; kazoo reads those
        without waiting."""
        return len(self._received) - self._at

    def recv(self, size: int) -> bytes:
        if self._at == len(self._received):
            self._received, self._at = self._inner.recv(_READ_BYTES), 0
            self.unanswered_since_s = None
        part = self._received[self._at : self._at + size]
        self._at += len(part)
        return part

    def send(self, data: bytes | memoryview) -> int:
        """Take all of the data; `flush` sends it."""
        self._unsent += data
        return len(data)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        """Send as much as the system accepts.

        Raises:
            OSError: the connection is broken.
        """
        if self._unsent and self.unanswered_since_s is None:
            self.unanswered_since_s = _CLOCK.monotonic_s()
        while self._unsent:
            try:
                sent = self._inner.send(self._unsent)
            except (BlockingIOError, InterruptedError, *_TLS_WAITS):
                return
            del self._unsent[:sent]

    @property
    def is_full(self) -> bool:
        """Whether the buffer must drain before more may be collected."""
        return len(self._unsent) >= _UNSENT_BYTES_MAX

    def wait_sendable(self, timeout_s: float | None) -> None:
        """Sleep until the system accepts data, or until the timeout."""
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        poll.poll(None if timeout_s is None else timeout_s * 1000)


class _Bell:
    """Both ends of the socket pair that signals each request to kazoo's connection thread.

    A byte goes through the sockets only if that thread waits for one; other signals are only
    counted.
    """

    def __init__(self, reading: socket.socket, writing: socket.socket) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._rings = 0
        self._is_waited_for = False
        self._is_closed = False

    # The end of the threads with a request

    def send(self, data: bytes) -> int:
        """Signal one request per byte.

        Raises:
            OSError: the connection is closed.
        """
        with self._lock:
            if self._is_closed:
                raise OSError("the connection is closed")
            self._rings += len(data)
            must_wake, self._is_waited_for = self._is_waited_for, False
            if must_wake:
                self._writing.send(b"\0")
        return len(data)

    # The end of the connection thread

    def fileno(self) -> int:
        return self._reading.fileno()

    @property
    def has_rung(self) -> bool:
        return self._rings > 0

    def recv(self, size: int) -> bytes:
        """Return one byte per pending signal, at most `size`.

        Raises:
            BlockingIOError: there are none.
        """
        with self._lock:
            count = min(size, self._rings)
            self._rings -= count
        if not count:
            raise BlockingIOError("nothing has been asked for")
        return b"\0" * count

    def begin_wait(self) -> bool:
        """Make signals wake the waiting thread from now on; return False if one is pending
        already."""
        with self._lock:
            self._is_waited_for = not self._rings
            return self._is_waited_for

    def end_wait(self) -> None:
        """Return to counting signals, after `begin_wait` returned True. Removes the byte of a
        signal that came."""
        with self._lock:
            was_woken, self._is_waited_for = not self._is_waited_for, False
        if was_woken:
            self._reading.recv(_READ_BYTES)

    def close(self) -> None:
        """Close both ends; called once for each."""
        with self._lock:
            self._is_closed = True
            self._reading.close()
            self._writing.close()


class _RunsAtOnce(Queue[object]):
    """Replacement for the queue to kazoo's thread for results: runs each at once, since it only
    notifies the event loop."""

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        if not callable(item):  # the item that ends the thread
            super().put(item, block, timeout)
            return
        try:
            item()
        except Exception:  # noqa: BLE001  # what kazoo's own thread does with it
            _log.exception("metadata_result_not_told")


class CallsToLoop:
    """Calls from other threads to the event loop, which one wakeup delivers in bulk."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def __call__(self, call: Callable[[], None]) -> None:
        """Schedule a call; from any thread. Calls are made in order."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._make)
            except RuntimeError:
                pass  # The loop is closed: no receiver is left.

    def _make(self) -> None:
        self._is_woken = False  # First, so that a call added from now on wakes the loop again.
        while self._calls:
            self._loop.call_soon(self._calls.popleft())


def _connect_tls(
    timeout_s: float,
    *,
    address: tuple[str, int],
    hostname: str,
    ca: str | None,
    certfile: str | None,
    keyfile: str | None,
    keyfile_password: str | None,
    verify_certs: bool,
    check_hostname: bool,
    use_ssl: object,
) -> ssl.SSLSocket:
    """Return a connection whose handshake is complete.

    kazoo's own function leaves the socket open after a failure, until the interpreter happens to
    collect it: one more for each attempt while a server is away.

    Raises:
        OSError: there is no connection, or none in time.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
    if ca:
        context.load_verify_locations(ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if certfile:  # which may hold the key as well
        context.load_cert_chain(certfile=certfile, keyfile=keyfile, password=keyfile_password)
    plain = socket.create_connection(address, timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=hostname)
    except BaseException:
        plain.close()  # unless the TLS socket has already done that
        raise


class BatchingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler for waiting and connecting."""

    def __init__(self, patience: ServerPatience) -> None:
        super().__init__()
        self._patience = patience
        self.completion_queue = _RunsAtOnce()

    def create_connection(
        self, *arguments: object, timeout: float, **options: object
    ) -> _ServerSocket:
        """Connect to a server within the time that `ServerPatience` allows.

        Raises:
            OSError: there is no connection, or none in time.
        """
        self._patience.is_connected = False
        timeout = min(timeout, self._patience.step_s)
        try:
            if options.get("use_ssl"):
                made = _connect_tls(timeout, **options)  # type: ignore[arg-type]  # of kazoo
            else:
                made = super().create_connection(*arguments, timeout=timeout, **options)
        except TimeoutError:
            self._patience.step_took_too_long()
            raise
        return _ServerSocket(made)

    def create_socket_pair(self) -> tuple[_Bell, _Bell]:
        bell = _Bell(*super().create_socket_pair())
        return bell, bell

    def select(
        self,
        reading: Sequence[_ServerSocket | _Bell],
        writing: Sequence[_ServerSocket],
        _: Sequence[_ServerSocket],
        timeout: float | None = None,
    ) -> tuple[list[_ServerSocket | _Bell], list[_ServerSocket], list[_ServerSocket]]:
        """Wait until sockets are ready; replaces `select.select`. kazoo waits for reading or for
        writing, never for both.

        Raises:
            KazooTimeoutError: the server has answered nothing for too long.
        """
        if writing:
            return [], [each for each in writing if self._has_room(each, timeout)], []
        sockets = [each for each in reading if isinstance(each, _ServerSocket)]
        bells = [each for each in reading if isinstance(each, _Bell)]
        until_s = _until(timeout)
        while True:
            rung = [each for each in bells if each.has_rung]
            if not rung:  # no more requests to collect
                for each in sockets:
                    each.flush()
            arrived = [each for each in sockets if each.pending()]
            patience_s = min((self._patience_left_s(each) for each in sockets), default=_FOREVER_S)
            if patience_s <= 0 and not arrived:
                arrived = self._last_look(sockets)
            if not rung and not arrived:
                left_s = _left(until_s)
                wait_s = patience_s if left_s is None else min(left_s, patience_s)
                arrived = _wait(sockets, bells, None if wait_s == _FOREVER_S else wait_s)
                rung = [each for each in bells if each.has_rung]
                if left_s != 0.0 and not rung and not arrived:
                    continue
            return [*arrived, *rung], [], []

    def _has_room(self, server: _ServerSocket, timeout_s: float | None) -> bool:
        """Return whether the server's socket can take more data, waiting at most the timeout.

        Raises:
            KazooTimeoutError: the server has answered nothing for too long.
        """
        until_s = _until(timeout_s)
        while server.is_full:
            server.flush()  # If this is the first send, the server's silence counts from here.
            if not server.is_full:
                break
            patience_s = self._patience_left_s(server)
            if patience_s <= 0:
                # kazoo reads what has arrived only after it could write.
                return bool(self._last_look([server]))
            left_s = _left(until_s)
            if left_s == 0.0:
                return False
            wait_s = patience_s if left_s is None else min(left_s, patience_s)
            server.wait_sendable(None if wait_s == _FOREVER_S else wait_s)
        return True

    def _last_look(self, sockets: Sequence[_ServerSocket]) -> list[_ServerSocket]:
        """Return the sockets with arrived data: perhaps this process was stopped, not the server.

        Raises:
            KazooTimeoutError: nothing has arrived.
        """
        arrived = _wait(sockets, [], 0.0)
        if not arrived:
            raise self.timeout_exception("the server answers nothing")
        return arrived

    def _patience_left_s(self, server: _ServerSocket) -> float:
        since_s = server.unanswered_since_s
        if since_s is None or not self._patience.is_connected:
            return _FOREVER_S
        return since_s + self._patience.silence_s - _CLOCK.monotonic_s()


def _wait(
    sockets: Sequence[_ServerSocket], bells: Sequence[_Bell], timeout_s: float | None
) -> list[_ServerSocket]:
    """Sleep until a socket has data or room, or a bell rings; return the sockets to be read."""
    poll = select.poll()
    by_descriptor = {each.fileno(): each for each in sockets}
    for each in sockets:
        poll.register(each, select.POLLIN | (select.POLLOUT if each.has_unsent else 0))
    listened = []
    try:
        for bell in bells:
            if not bell.begin_wait():
                return []
            listened.append(bell)
            poll.register(bell, select.POLLIN)
        found = poll.poll(None if timeout_s is None else timeout_s * 1000)
    finally:
        for bell in listened:
            bell.end_wait()
    # A socket that only has room is sent to in the next round. A closed one is read, so kazoo
    # notices.
    return [
        by_descriptor[descriptor]
        for descriptor, events in found
        if descriptor in by_descriptor and events & ~select.POLLOUT
    ]


def _until(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else _CLOCK.monotonic_s() + timeout_s


def _left(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - _CLOCK.monotonic_s())
