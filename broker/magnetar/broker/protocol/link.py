"""One client connection as its parts know it: who is at the other end, and how to answer.

A connection owns its parts (publishing, consuming, lookups, watchers, transactions, login), and all
of them share one link. The link knows neither the connection nor its parts, but for two calls that
the connection takes back when it ends. So nothing that outlasts the socket (a request under way, a
producer whose publishes are not stored) keeps a closed connection alive, and none of it is a circle
that only a full garbage collection frees.
"""

import asyncio
from collections.abc import Callable, Coroutine
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
from magnetar.broker.topics.services import Counters
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import PING_FRAME

_log = structlog.get_logger()

Refuse = Callable[[RequestError], bytes]
"""Turns an error into the answer to one request."""


class LinkIO(Protocol):
    """The socket's side of a connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close after what was written is sent."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def unsent_bytes(self) -> int: ...


def _nobody() -> None:
    """The connection has ended: nobody is to be told."""


class Link:
    """What the parts of one connection share."""

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
        """The version that both sides speak."""
        self.takes_entry_metadata = False
        """Whether the client is sent what a broker stored in front of messages."""
        self.client_version = ""
        """What the client calls itself."""
        self.role = ""
        """Role that the client has authenticated as; empty: authentication is off."""
        self.is_partial_producer = False
        """The client makes producers of the partitions it needs only."""
        self.listener: str | None = None
        """The listener that it looked topics up by; None: it has looked none up."""
        self.heard_ms = clock.wall_ms()
        """When the commands that are being handled came to their turn, ms since the epoch."""
        self.is_writable = True
        """False while too many bytes wait to be sent: dispatch must pause."""
        self.is_closed = False
        self.is_full = False
        """There is no room for what the client may send: it is not read."""
        self.is_paused = False
        """Whether reading from the client is paused, for whatever reason."""
        self.on_room: Callable[[], None] = _nobody
        """There may be room again: the connection looks."""
        self.on_end: Callable[[], None] = _nobody
        """The socket is being closed from here: the connection gives everything up."""
        self._io = io
        self._settings = settings
        self._counters = counters
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Requests under way, and whether they must finish."""
        self._probe: asyncio.Future[bool] | None = None
        self._look_again: asyncio.TimerHandle | None = None

    # Output

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens if the connection is gone."""
        if not self.is_closed:
            self._io.write(data)

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the socket has not taken yet."""
        return self._io.unsent_bytes

    def url_of(self, destination: Destination | None) -> str:
        """Where the client finds the topic now; empty: it has to look that up."""
        return destination.url_for(self.listener) if destination is not None else ""

    # Requests that wait

    def start(
        self,
        work: Coroutine[None, None, None],
        refuse: Refuse,
        *,
        must_finish: bool = False,
        is_bounded: bool = False,
    ) -> bool:
        """Run a request as a task; an error of ours becomes its answer, made by `refuse`.

        A request ends with its connection, unless it `must_finish`: half a seek or half a deletion
        would be worse than one whose answer nobody reads. `is_bounded`: there are never many of
        its kind, and it is taken however many others there are. False: there are too many; it was
        refused, and nothing of it has run, what it would do in the end included.
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

    # Is anybody there?

    async def is_alive(self) -> bool:
        """Probe the client: any command within the timeout will do. The dead are disconnected."""
        if self.is_closed:
            return False
        if self.is_paused:
            # It sent more than could be stored just now: that is alive enough, and its answer
            # could not be read anyway.
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
        """Bytes came: who is being probed is alive."""
        if self._probe is not None:
            self._probe_answered(is_alive=True)

    def _probe_answered(self, *, is_alive: bool) -> None:
        probe, self._probe = self._probe, None
        if probe is not None and not probe.done():
            probe.set_result(is_alive)

    def _probe_timed_out(self, probe: "asyncio.Future[bool]") -> None:
        if self._probe is probe:
            self.end_for("no answer to a liveness probe")

    # Back-pressure

    def read(self, *, is_wanted: bool) -> None:
        """Read the socket, or leave what comes to it."""
        if is_wanted and self.is_paused:
            self.is_paused = False
            self._io.resume_reading()
        elif not is_wanted and not self.is_paused:
            self.is_paused = True
            self._io.pause_reading()

    def look_again_in(self, wait_s: float) -> None:
        """Have the connection look then whether there is room."""
        if self._look_again is None:
            loop = asyncio.get_running_loop()
            self._look_again = loop.call_later(wait_s, self._on_look_again)

    def _on_look_again(self) -> None:
        self._look_again = None
        self.on_room()

    # The end

    def end_for(self, reason: str) -> None:
        """The client broke the protocol or is dead: one line, and out."""
        if self.is_closed:
            return
        self._counters.protocol_violations += 1
        _log.info(
            "connection_dropped",
            address=self.address,
            client=self.client_version[:64],
            reason=reason,
        )
        self.drop()

    def drop(self) -> None:
        """Close at once and give up everything the connection holds."""
        self._io.abort()
        self.on_end()

    def close(self) -> None:
        """Close after what was written is sent, and give up everything."""
        self._io.close()
        self.on_end()

    def lost(self) -> None:
        """The socket is gone: what was asked for ends, unless it must finish."""
        self.is_closed = True
        self.is_writable = False
        self.on_room = self.on_end = _nobody
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        self._probe_answered(is_alive=False)
        for task, must_finish in self._tasks.items():
            if not must_finish:
                task.cancel()
