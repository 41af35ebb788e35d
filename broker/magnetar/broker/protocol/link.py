"""One client connection as its parts see it: the peer, and the means to answer.

A connection owns its parts (publishing, consuming, lookups, watchers, transactions, login), which
all share one link. The link knows neither the connection nor its parts, except for two callbacks
that the connection removes when it ends. So nothing that outlives the socket (a running request, a
producer whose publishes are not stored) keeps a closed connection alive. There is no reference
cycle either, which only a full garbage collection would free.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import structlog

from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    ProtocolViolationError,
    RequestError,
    TooManyRequestsError,
    UnknownFailureError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.protocol.answer_room import AnswerRoom
from magnetar.broker.topics.services import Counters
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import PING_FRAME

_log = structlog.get_logger()

Refuse = Callable[[RequestError], bytes]
"""Turns an error into the answer to one request."""


class LinkIO(Protocol):
    """A connection's socket."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close after sending what was written."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def unsent_bytes(self) -> int: ...


def _nobody() -> None:
    """Ignore a callback after the end of the connection."""


class Link:
    """The state and the operations that the parts of one connection share."""

    def __init__(
        self,
        io: LinkIO,
        settings: BrokerSettings,
        counters: Counters,
        clock: Clock,
        address: str,
    ) -> None:
        """`address`: host:port of the client."""
        self.address = address
        self.protocol_version = 0
        """Protocol version that both sides use."""
        self.takes_entry_metadata = False
        """Whether the client gets the prefixes that a broker stored in front of messages."""
        self.client_version = ""
        """Name and version that the client reports."""
        self.role = ""
        """Role that the client has authenticated as; empty if authentication is off."""
        self.is_partial_producer = False
        """Whether the client creates producers only for the partitions that it needs."""
        self.listener: str | None = None
        """Listener by which the client looked topics up; None if it has looked none up."""
        self.heard_ms = clock.wall_ms()
        """When the broker began to handle the current commands, ms since the epoch."""
        self.is_writable = True
        """Whether more may be written. False while too many bytes wait to be sent: dispatch must
        pause."""
        self.is_closed = False
        self.is_lost = False
        """Whether the socket is gone; the parts of the connection may leave in a later turn."""
        self.is_full = False
        """Whether there is no room for more input, so that the client is not read."""
        self.is_paused = False
        """Whether reading from the client is paused, for whatever reason."""
        self.on_room: Callable[[], None] = _nobody
        """Called when there may be room again; the connection then checks."""
        self.on_end: Callable[[], None] = _nobody
        """Called when this side closes the socket; the connection then releases everything."""
        self._written_bytes = 0
        self._room: AnswerRoom | None = None
        """Room for large answers; None until the first."""
        self._io = io
        self._settings = settings
        self._counters = counters
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Running requests, and whether each must finish."""
        self._probe: asyncio.Future[bool] | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._left_bytes: int | None = None
        """Bytes that the client had not read at the last call of `abort_if_stuck`."""

    # Output

    def write(self, data: bytes) -> None:
        """Send bytes; do nothing if the connection is gone."""
        if not self.is_closed:
            self._written_bytes += len(data)
            self._io.write(data)

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the socket has not taken yet."""
        return self._io.unsent_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes that the socket has taken: while that stays the same, the client reads nothing."""
        return self._written_bytes - self._io.unsent_bytes

    def room(self, size_bytes: int) -> AbstractAsyncContextManager[None]:
        """Return what waits for room for a large answer, and holds it until the answer is
        written."""
        if self._room is None:
            bytes_max = self._settings.write_buffer_bytes_max
            self._room = AnswerRoom(bytes_max, is_writable=self.is_writable)
        return self._room.hold(size_bytes)

    def set_writable(self, is_writable: bool) -> None:
        """Note whether more may be written."""
        self.is_writable = is_writable
        if self._room is not None:
            self._room.set_writable(is_writable)

    def url_of(self, destination: Destination | None) -> str:
        """Return the URL where the client finds the topic now; empty: the client must look it
        up."""
        return destination.url_for(self.listener) if destination is not None else ""

    # Requests that run as tasks

    def start(
        self,
        work: Coroutine[None, None, None],
        refuse: Refuse,
        *,
        must_finish: bool = False,
        is_bounded: bool = False,
    ) -> bool:
        """Run a request as a task; `refuse` makes the answer of an error.

        A request ends with its connection, unless it `must_finish`: half a seek or half a deletion
        would be worse than an answer that no client reads. `is_bounded`: there are never many
        requests of this kind, so it is accepted however many others run.

        Return False if there are too many requests. The request was then refused, and none of it
        has run, including its cleanup.
        """
        most = self._settings.requests_per_connection_max
        if len(self._tasks) >= most and not is_bounded:
            work.close()
            error = TooManyRequestsError(f"{len(self._tasks)} requests are not answered yet")
            self.write(refuse(error))
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = must_finish
        task.add_done_callback(partial(self._request_done, refuse))
        return True

    def _request_done(self, refuse: Refuse, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self._counters.requests_failed += 1
        if isinstance(error, RequestError):
            self.write(refuse(error))
        elif isinstance(error, ProtocolViolationError):
            self.end_for(str(error))
        elif isinstance(error, (LedgerError, CursorError)):
            self.write(refuse(BrokerPersistenceError(str(error))))
        else:
            _log.error("request_failed", address=self.address, exc_info=error)
            self.write(
                refuse(UnknownFailureError(f"internal error of the broker: {type(error).__name__}"))
            )

    # Liveness

    async def is_alive(self) -> bool:
        """Probe the client, and disconnect it if it is dead. Any command within the timeout proves
        it alive."""
        if self.is_lost:
            return False
        if self.is_paused:
            # It sent more than can be stored at once, which proves it alive. An answer could not be
            # read anyway.
            return True
        if self._probe is None:
            loop = asyncio.get_running_loop()
            probe = self._probe = loop.create_future()
            timeout_s = self._settings.liveness_probe_timeout_ms / 1000
            timer = loop.call_later(timeout_s, self._probe_timed_out, probe)
            probe.add_done_callback(lambda _: timer.cancel())
            self.write(PING_FRAME)
        return await asyncio.shield(self._probe)

    def heard(self) -> None:
        """Note that bytes have arrived: a probed client is alive."""
        if self._probe is not None:
            self._probe_answered(is_alive=True)

    def _probe_answered(self, *, is_alive: bool) -> None:
        probe, self._probe = self._probe, None
        if probe is not None and not probe.done():
            probe.set_result(is_alive)

    def _probe_timed_out(self, probe: "asyncio.Future[bool]") -> None:
        if self._probe is probe:
            self.end_dead("no answer to a liveness probe")

    # Back-pressure

    def read(self, *, is_wanted: bool) -> None:
        """Resume or pause reading from the socket."""
        if is_wanted and self.is_paused:
            self.is_paused = False
            self._io.resume_reading()
        elif not is_wanted and not self.is_paused:
            self.is_paused = True
            self._io.pause_reading()

    def look_again_in(self, wait_s: float) -> None:
        """Schedule another check for room, in `wait_s` seconds."""
        if self._look_again is None:
            loop = asyncio.get_running_loop()
            self._look_again = loop.call_later(wait_s, self._on_look_again)

    def _on_look_again(self) -> None:
        self._look_again = None
        self.on_room()

    # The end

    def end_for(self, reason: str) -> None:
        """Drop a client that broke the protocol, with one log line."""
        if not self.is_closed:
            self._counters.protocol_violations += 1
            self._end(reason)

    def end_dead(self, reason: str) -> None:
        """Drop a client that did not send in time what it had to, with one log line."""
        if not self.is_closed:
            self._counters.connections_timed_out += 1
            self._end(reason)

    def give_up(self, reason: str) -> None:
        """Drop a client whose request cannot be served now and has no answer that says so, with one
        log line."""
        if not self.is_closed:
            self._counters.requests_failed += 1
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._log_drop(reason)
        self.drop()

    def _log_drop(self, reason: str) -> None:
        _log.info(
            "connection_dropped",
            address=self.address,
            client=self.client_version[:64],
            reason=reason,
        )

    def drop(self) -> None:
        """Close at once, and release everything that the connection holds."""
        self._io.abort()
        self.on_end()

    def close(self) -> None:
        """Close after sending what was written, and release everything."""
        self._io.close()
        self.on_end()

    def abort_if_stuck(self) -> None:
        """Abort a socket that closes after sending, if the client has read nothing since the last
        call. Without this, the socket would keep its place and its buffer until the client goes."""
        before, self._left_bytes = self._left_bytes, self._io.unsent_bytes
        if before is not None and self._left_bytes >= before:
            self._counters.connections_timed_out += 1
            self._log_drop("it did not read what was sent before the close")
            self._io.abort()

    def lost(self) -> None:
        """Handle the loss of the socket: cancel running requests, except those that must finish."""
        self.is_closed = self.is_lost = True
        self.is_writable = False
        self.on_room = self.on_end = _nobody
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        self._probe_answered(is_alive=False)
        for task, must_finish in self._tasks.items():
            if not must_finish:
                task.cancel()
