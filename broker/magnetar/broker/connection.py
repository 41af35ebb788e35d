"""One client connection: the core of the binary protocol.

Bytes come in through `receive`, frames go out through the `ConnectionIO` that the shell
(`server.py`) passes in. Commands are handled in the order of arrival; requests that have to wait
(for a topic to load, for a cursor) become tasks and are answered when they are done. Request ids
are only echoed, never used as keys: clients use the same number twice at a time (trap 3).

States: nothing but CONNECT is allowed first, and only once. Whatever breaks the protocol ends the
connection with one log line; it never harms others.

Back-pressure: a connection is not read while it has too many unpersisted publishes, while the
broker as a whole has, or while the client leaves too many answers unread. All connections together
have a share of each turn of the event loop (`TurnShares`); what came beyond it waits here, unread
connections wait with it, and so a turn stays short whatever clients send.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

import structlog

from magnetar.broker import replies
from magnetar.broker.consumer import Consumer
from magnetar.broker.consuming import Consuming
from magnetar.broker.consuming.acknowledging import split_ids
from magnetar.broker.errors import (
    BrokerPersistenceError,
    ProtocolViolationError,
    RequestError,
    TooManyRequestsError,
    UnknownFailureError,
)
from magnetar.broker.lookups import Lookups
from magnetar.broker.ownership.protocol import Destination
from magnetar.broker.producer import Producer, PublishBatch
from magnetar.broker.publishing import Publishing
from magnetar.broker.security.login import Login
from magnetar.broker.services import Services
from magnetar.broker.token_bucket import TokenBucket
from magnetar.broker.topic_watch import TopicWatchers
from magnetar.broker.transactions.commands import TransactionCommands
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import (
    ACK_START,
    COMMAND_FIELDS,
    FRAME_SLACK_BYTES,
    PING_FRAME,
    PONG_FRAME,
    SEND_START,
    BaseCommand,
    FrameDecoder,
    FrameError,
    parse_command,
    parse_send,
    parse_single_ack,
    send_of,
)
from magnetar.sdk.wire.pulsar_pb2 import CommandConnect

_log = structlog.get_logger()

PROTOCOL_VERSION = 21
"""The highest version this broker speaks; 21 is AUTO_CONSUME in the schema of a consumer."""

HANDSHAKE_FRAME_BYTES_MAX = 128 * 1024
"""Before CONNECT nobody may make the broker buffer more than a large token."""

COMMAND_COST_BYTES = 2 << 10
"""What a command counts of a turn beside its bytes: all that follows from one takes some tens of
microseconds."""

REQUEST_COST_BYTES = 32 << 10
"""What a request counts of a turn that opens, closes, moves or looks up something: some tenths of
a millisecond."""

IDS_PER_TURN = 500
"""Message ids of one command that are handled in a turn; the others wait for further ones."""
ID_COST_BYTES = 512
"""What one of them counts in the share of a turn, beside its bytes."""

_CHEAP = frozenset(
    {BaseCommand.ACK, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG, BaseCommand.SEND}
)

_CLIENT_VERSION_LENGTH_MAX = 256

Refuse = Callable[[RequestError], bytes]
"""Turns an error into the answer to one request."""


class ConnectionIO(Protocol):
    """The shell's side of a connection."""

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


class Connection:
    """State of one connection. The shell calls `receive`, `on_*` and `lost`."""

    def __init__(
        self, io: ConnectionIO, services: Services, address: str, *, certificate_role: str = ""
    ) -> None:
        """`certificate_role`: the name in the client's certificate, if the handshake of TLS has
        verified one."""
        self.services = services
        self.protocol_version = 0
        self.client_version = ""
        self.listener: str | None = None
        """The listener that it looked topics up by; None: it has looked none up."""
        self.heard_ms = services.clock.wall_ms()
        self.is_writable = True
        self.is_closed = False
        self.publishing = Publishing(self)
        self.consuming = Consuming(self)
        self.lookups = Lookups(self)
        self.watchers = TopicWatchers(self)
        self.transactions = TransactionCommands(self)
        self.login = Login(self, certificate_role)
        self._io = io
        self._address = address
        self._is_connected = False
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Requests under way, and whether they must finish."""
        self._has_heard = False
        self._is_ping_unanswered = False
        self._probe: asyncio.Future[bool] | None = None
        self._is_reading_paused = False
        self._is_full = False
        """There is no room for what it may send, whoever's turn it is."""
        self._shares = services.shares
        self._is_resting = False
        """The turn of the loop is used up; it waits for a later one."""
        self._frames: list[tuple[bytes, bytes]] = []
        """Received, and not handled in their turn: commands with their payloads."""
        self._pieces: list[tuple[bytes, bytes]] = []
        """Of a command with very many ids, what a turn has no room for."""
        self._held_bytes = 0
        """Received when the turn was used up already."""
        limit = services.settings.commands_per_s_max
        self._commands: TokenBucket | None = None
        """Room for commands beside messages; None: there is no limit."""
        self._look_again: asyncio.TimerHandle | None = None
        """When there is room for commands again."""
        if limit:
            now_s = services.clock.monotonic_s
            self._commands = TokenBucket(now_s, per_period=limit, period_s=1.0)
        self._handlers = self._make_handlers()

    @property
    def address(self) -> str:
        return self._address

    @property
    def is_connected(self) -> bool:
        """The handshake is done."""
        return self._is_connected

    @property
    def role(self) -> str:
        return self.login.identity.role

    @property
    def is_partial_producer(self) -> bool:
        return self.publishing.is_partial

    # Input

    def receive(self, data: bytes) -> None:
        """Handle the commands that `data` completes: now, or in later turns of the loop if there
        is too much to do in this one."""
        if self.is_closed:
            return
        self._has_heard = True
        if self._probe is not None:
            self._probe_answered(is_alive=True)
        is_late = self._is_resting or self._shares.is_used_up
        self._shares.use_bytes(len(data))
        try:
            frames = self._decoder.split(data)
        except FrameError as error:
            self._end_for(str(error))
            return
        if is_late:
            self._frames += frames
            self._held_bytes += len(data)
            self._rest()
        else:
            self._handle(frames)

    def _handle(self, frames: list[tuple[bytes, bytes]]) -> None:
        """Handle what the turn has room for; the rest waits for others."""
        self.heard_ms = self.services.clock.wall_ms()  # once, whatever the commands note it for
        count = self._shares.requests_left
        now, self._frames = (
            (frames, []) if len(frames) <= count else (frames[:count], frames[count:])
        )
        handled = len(now)
        try:
            handled = self._handle_all(now)
        except (FrameError, ProtocolViolationError) as error:
            self._end_for(str(error))
        if self.is_closed:
            return
        if handled < len(now):
            self._frames = now[handled:] + self._frames
        if self._pieces:
            self._frames = self._pieces + self._frames
            self._pieces = []
        self._shares.use_requests(handled)
        if self._frames or self._shares.is_used_up:
            self._rest()
        else:
            self._check_pressure()

    def _handle_all(self, frames: list[tuple[bytes, bytes]]) -> int:
        """Handle frames until a request has used up the turn; returns how many."""
        publishing = self.publishing
        messages = handled = 0
        for raw, payload in frames:
            handled += 1
            start = raw[:3]
            if start == SEND_START and self._is_connected and (send := parse_send(raw)):
                messages += 1
                publishing.on_send(send, payload)
            elif start == ACK_START and self._is_connected and (ack := parse_single_ack(raw)):
                self.consuming.on_single_ack(ack)
            else:
                # How a frame begins says nothing of it: of fields that come twice the last counts.
                command = parse_command(raw)
                messages += command.type == BaseCommand.SEND
                pieces = split_ids(command, IDS_PER_TURN)
                self._handle_any(command, payload)
                if self.is_closed:
                    return handled
                if pieces:
                    # Before all that comes behind it, in later turns.
                    self._pieces = [(each.SerializeToString(), b"") for each in pieces]
                    break
                if command.type == BaseCommand.ACK:
                    self._shares.use_bytes(len(command.ack.message_id) * ID_COST_BYTES)
                    if self._shares.is_used_up:
                        break
                if command.type not in _CHEAP:
                    self._shares.use_bytes(REQUEST_COST_BYTES)
                    if self._shares.is_used_up:
                        break
        publishing.flush()
        if self._commands is not None:
            self._commands.spend(handled - messages)
        return handled

    def _handle_any(self, command: BaseCommand, payload: bytes) -> None:
        kind = command.type
        if kind == BaseCommand.SEND and self._is_connected:
            self.publishing.on_send(send_of(command.send), payload)
            return
        # Whatever follows a SEND must find it on its way to the log.
        self.publishing.flush()
        if not self._is_connected and kind != BaseCommand.CONNECT:
            raise ProtocolViolationError(f"{COMMAND_FIELDS[kind]} before connect")
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolViolationError(f"{COMMAND_FIELDS[kind]} is not for a broker")
        handler(command)

    def _rest(self) -> None:
        """Go on in a later turn of the loop: busy clients must not keep it to themselves."""
        if not self._is_resting:
            self._is_resting = True
            self._shares.wait(self)
        self._check_pressure()

    def go_on(self) -> None:
        """A later turn of the loop has room for it."""
        self._is_resting = False
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._shares.use_bytes(held_bytes)
        if self.is_closed:
            return
        try:
            self._handle(self._frames)
        except BaseException:
            self.drop()  # as the loop does with a connection whose `receive` fails
            raise

    def _make_handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        table: dict[int, Callable[[BaseCommand], None]] = {
            BaseCommand.CONNECT: lambda command: self._on_connect(command.connect),
            BaseCommand.PING: lambda _: self.write(PONG_FRAME),
            BaseCommand.PONG: lambda _: None,
            BaseCommand.AUTH_RESPONSE: lambda command: self.login.answered(command.authResponse),
        }
        parts = (self.lookups, self.publishing, self.consuming, self.watchers, self.transactions)
        for part in parts:
            table.update(part.handlers())
        return table

    def _on_connect(self, connect: CommandConnect) -> None:
        if self._is_connected:
            raise ProtocolViolationError("a second connect")
        self.client_version = connect.client_version[:_CLIENT_VERSION_LENGTH_MAX]
        self.publishing.is_partial = connect.feature_flags.supports_partial_producer
        self.protocol_version = max(0, min(PROTOCOL_VERSION, connect.protocol_version))
        self.login.begin(connect, self._welcome)

    def _welcome(self) -> None:
        settings = self.services.settings
        self._is_connected = True
        self._decoder.frame_bytes_max = settings.message_bytes_max + FRAME_SLACK_BYTES
        self.write(
            replies.connected(
                server_version=(
                    self.services.server_version
                    + ("" if self.services.is_serving() else replies.WITHOUT_LEASE)
                ),
                protocol_version=self.protocol_version,
                message_bytes_max=settings.message_bytes_max,
            )
        )

    # Output

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens if the connection is gone."""
        if not self.is_closed:
            self._io.write(data)

    def on_writable(self, is_writable: bool) -> None:
        """The transport's buffer has passed its high or low mark."""
        self.is_writable = is_writable
        if is_writable:
            self.consuming.wake()
            self.watchers.wake()
        self._check_pressure()

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
        most = self.services.settings.requests_per_connection_max
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
        self.services.counters.requests_failed += 1
        if isinstance(error, RequestError):
            self.write(refuse(error))
        elif isinstance(error, ProtocolViolationError):
            self._end_for(str(error))
        elif isinstance(error, (LedgerError, CursorError)):
            self.write(refuse(BrokerPersistenceError(str(error))))
        else:
            _log.error("request_failed", address=self._address, exc_info=error)
            self.write(refuse(UnknownFailureError(f"the broker failed: {type(error).__name__}")))

    # Keeping alive

    def on_tick(self) -> None:
        """One keep-alive interval has passed."""
        self.publishing.on_tick()
        self.consuming.on_tick()
        if not self._is_connected:
            self._end_for("no handshake in time")
        elif self._is_ping_unanswered and not self._has_heard and not self._is_reading_paused:
            self._end_for("no answer to a ping")
        else:
            self._has_heard = False
            self._is_ping_unanswered = True
            self.write(PING_FRAME)

    async def is_alive(self) -> bool:
        """Probe the client: any command within the timeout will do. The dead are disconnected."""
        if self.is_closed:
            return False
        if self._is_reading_paused:
            # It sent more than could be stored just now: that is alive enough, and its answer
            # could not be read anyway.
            return True
        if self._probe is None:
            loop = asyncio.get_running_loop()
            probe = self._probe = loop.create_future()
            timeout_s = self.services.settings.liveness_probe_timeout_ms / 1000
            timer = loop.call_later(timeout_s, self._probe_timed_out, probe)
            probe.add_done_callback(lambda _: timer.cancel())
            self.write(PING_FRAME)
        return await asyncio.shield(self._probe)

    def _probe_answered(self, *, is_alive: bool) -> None:
        probe, self._probe = self._probe, None
        if probe is not None and not probe.done():
            probe.set_result(is_alive)

    def _probe_timed_out(self, probe: "asyncio.Future[bool]") -> None:
        if self._probe is probe:
            self._end_for("no answer to a liveness probe")

    # Back-pressure

    def on_publishes_done(self, batch: PublishBatch) -> None:
        self.publishing.on_publishes_done(batch)
        if self._is_full:
            self._check_pressure()

    def resume_publishing(self) -> None:
        """The broker has room for publishes again."""
        self._check_pressure()

    def _check_pressure(self) -> None:
        """Read, or not."""
        if self.is_closed:
            return
        is_full = self.publishing.is_full(was_paused=self._is_full)
        is_full = is_full or (
            not self.is_writable
            and self._io.unsent_bytes > self.services.settings.write_buffer_bytes_max
        )
        wait_s = self._commands.wait_s() if self._commands is not None else 0.0
        if wait_s > 0:
            is_full = True
            if self._look_again is None:
                loop = asyncio.get_running_loop()
                self._look_again = loop.call_later(wait_s, self._on_look_again)
        if is_full and not self._is_full:
            self.services.counters.publish_pauses += 1
        self._is_full = is_full
        pauses = is_full or self._is_resting
        if pauses and not self._is_reading_paused:
            self._is_reading_paused = True
            self._io.pause_reading()
        elif not pauses and self._is_reading_paused:
            self._is_reading_paused = False
            self._io.resume_reading()

    def _on_look_again(self) -> None:
        self._look_again = None
        self._check_pressure()

    # Closing

    def producer_closed(self, producer: Producer, destination: Destination | None) -> None:
        self.publishing.closed_by_broker(producer, self._url_of(destination))

    def consumer_closed(self, consumer: Consumer, destination: Destination | None) -> None:
        self.consuming.closed_by_broker(consumer, self._url_of(destination))

    def _url_of(self, destination: Destination | None) -> str:
        return destination.url_for(self.listener) if destination is not None else ""

    def _end_for(self, reason: str) -> None:
        """The client broke the protocol or is dead: one line, and out."""
        if self.is_closed:
            return
        self.services.counters.protocol_violations += 1
        _log.info(
            "connection_dropped",
            address=self._address,
            client=self.client_version[:64],
            reason=reason,
        )
        self.drop()

    def drop(self) -> None:
        """Close at once and give up everything the connection holds."""
        self._io.abort()
        self.lost()

    def close(self) -> None:
        """Close after what was written is sent, and give up everything."""
        self._io.close()
        self.lost()

    def lost(self) -> None:
        """The connection is gone: its producers and consumers leave at once.

        What it has leads to it no more: it is freed as soon as nothing under way needs it.
        """
        if self.is_closed:
            return
        self.is_closed = True
        self.is_writable = False
        self._handlers = {}
        self._frames = []
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        self._probe_answered(is_alive=False)
        for task, must_finish in self._tasks.items():
            if not must_finish:
                task.cancel()
        self.services.budget.forget(self)
        self.login.close()
        self.publishing.lost()
        self.consuming.lost()
        self.watchers.lost()
