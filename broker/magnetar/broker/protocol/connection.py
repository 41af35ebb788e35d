"""Client connections of the binary protocol: the core of each, its socket, and the listening
server.

`Connection` is the core. Bytes come in through `receive`, and frames go out through the `Link`. The
link has the socket, the tasks and the timers; the core has none. Commands are handled in the order
of arrival. Requests that must wait (for a topic to load, for a cursor) become tasks of the link,
and are answered when they are done. Request ids are only echoed, never used as keys: clients may
use one number twice at a time (trap 3).

The first command must be CONNECT, and only the first. A protocol violation ends the connection with
one log line, and never affects others.

Back-pressure: a connection is not read while it has too many unpersisted publishes, while the
broker as a whole has too many, or while the client leaves too many answers unread. All connections
together have a share of each turn of the event loop (`TurnShares`). Commands beyond that share wait
here for a later turn, and the connection is not read meanwhile. So a turn stays short whatever
clients send.

`BinaryServer` is the shell: it listens, and gives each socket a connection and a timer.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import cast

import structlog

from magnetar.broker.base import replies
from magnetar.broker.base.connection_places import ConnectionPlaces
from magnetar.broker.base.errors import ListenError, ProtocolViolationError
from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.protocol.consuming import Consuming, LongCommand, ids_of
from magnetar.broker.protocol.layout_sessions import LayoutSessions
from magnetar.broker.protocol.link import Link, LinkIO
from magnetar.broker.protocol.login import Login
from magnetar.broker.protocol.lookups import Lookups
from magnetar.broker.protocol.publishing import Publishing
from magnetar.broker.protocol.scalable_watches import ScalableWatches
from magnetar.broker.protocol.segment_consumers import SegmentConsumers
from magnetar.broker.protocol.topic_watchers import TopicWatchers
from magnetar.broker.protocol.transaction_commands import TransactionCommands
from magnetar.broker.security.identity import role_of
from magnetar.broker.topics.services import Services
from magnetar.ledger.ports import Listener, Network
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
"""Highest protocol version of this broker; 21 adds AUTO_CONSUME in the schema of a consumer."""

ENTRY_METADATA_VERSION_MIN = 18
"""Lowest protocol version whose clients may be sent broker entry metadata."""

HANDSHAKE_FRAME_BYTES_MAX = 128 * 1024
"""Frame limit before CONNECT, in bytes: room for a large token, and no more for unauthenticated
clients."""

_LEAVING_S_MAX = 0.005
"""Time for connections to leave in one turn of the event loop, in seconds. The last one may exceed
it."""

COMMAND_COST_BYTES = 2 << 10
"""Cost of a command in the share of a turn, in bytes, beside its own: handling one takes some tens
of microseconds."""

REQUEST_COST_BYTES = 32 << 10
"""Cost of a request that opens, closes, moves or looks up something, in bytes of a turn's share: it
takes some tenths of a millisecond."""

IDS_PER_TURN = 500
"""Most message ids of one command that are handled in a turn; the others wait for later turns."""
ID_COST_BYTES = 512
"""Cost of one message id in the share of a turn, in bytes, beside its own."""

UNREAD_INTERVALS_MAX = 3
"""Keep-alive intervals without progress after which a client that reads no answers is disconnected.
One is too few: a socket takes bytes in steps of more than a MiB, so that a client of 40 KB/s shows
no progress for half a minute."""

_CHEAP = frozenset(
    {BaseCommand.ACK, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG, BaseCommand.SEND}
)

_CLIENT_VERSION_LENGTH_MAX = 256


class Connection:
    """State of one connection. The shell calls `receive`, `on_*` and `lost`."""

    def __init__(
        self, io: LinkIO, services: Services, address: str, *, certificate_role: str = ""
    ) -> None:
        """`certificate_role`: name in the client's certificate, if the TLS handshake has verified
        one."""
        self.services = services
        self.link = link = Link(io, services.settings, services.counters, services.clock, address)
        link.on_room = self._check_pressure
        link.on_end = self.lost
        self.login = Login(link, services, certificate_role)
        self.publishing = Publishing(link, services, self.login)
        self.consuming = Consuming(link, services, self.login)
        self.lookups = Lookups(link, services, self.login)
        self.watchers = TopicWatchers(link, services, self.login)
        self.transactions = TransactionCommands(link, services, self.login)
        self.layouts = LayoutSessions(link, services, self.login)
        self.segment_consumers = SegmentConsumers(link, services, self.login)
        self.scalable_watches = ScalableWatches(link, services, self.login)
        self._is_connected = False
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX)
        self._has_heard = False
        self._is_ping_unanswered = False
        self._unread_at: int | None = None
        """Bytes sent until the last tick if the connection was full of answers then, else None."""
        self._unread_ticks = 0
        """Keep-alive intervals in a row without progress while the connection was full."""
        self._shares = services.shares
        self._is_resting = False
        """Whether the turn of the loop is used up, so that the connection waits for a later one."""
        self._frames: list[tuple[bytes, bytes]] = []
        """Received commands, with their payloads, that wait for a later turn."""
        self._long: LongCommand | None = None
        """Command of many ids that is being handled in this turn and later ones; None if there is
        none."""
        self._held_bytes = 0
        """Bytes received after the turn was used up."""
        limit = services.settings.commands_per_s_max
        self._commands: TokenBucket | None = None
        """Rate limit for commands other than SEND; None if there is no limit."""
        if limit:
            now_s = services.clock.monotonic_s
            self._commands = TokenBucket(now_s, per_period=limit, period_s=1.0)
        self._handlers = self._make_handlers()

    @property
    def _told_of_changes(
        self,
    ) -> tuple[TopicWatchers | LayoutSessions | SegmentConsumers | ScalableWatches, ...]:
        """Parts that notify the client of changes, as far as it reads."""
        return self.watchers, self.layouts, self.segment_consumers, self.scalable_watches

    @property
    def is_connected(self) -> bool:
        """Whether the handshake is complete."""
        return self._is_connected

    @property
    def is_closed(self) -> bool:
        return self.link.is_closed

    # Input

    def receive(self, data: bytes) -> None:
        """Handle the commands that `data` completes.

        If this turn of the loop has no room for them, later turns handle them.
        """
        if self.link.is_closed:
            return
        self._has_heard = True
        self.link.heard()
        is_late = self._is_resting or self._shares.is_used_up
        self._shares.use_bytes(len(data))
        try:
            frames = self._decoder.split(data)
        except FrameError as error:
            self.link.end_for(str(error))
            return
        if is_late:
            self._frames += frames
            self._held_bytes += len(data)
            self._rest()
        else:
            self._handle(frames)

    def _handle(self, frames: list[tuple[bytes, bytes]]) -> None:
        """Handle as many frames as the turn has room for; the rest waits for later turns."""
        self.link.heard_ms = (
            self.services.clock.wall_ms()
        )  # read once for all of these commands, whatever they note it for
        count = self._shares.requests_left
        now, self._frames = (
            (frames, []) if len(frames) <= count else (frames[:count], frames[count:])
        )
        handled = len(now)
        try:
            handled = self._handle_all(now)
        except (FrameError, ProtocolViolationError) as error:
            self.link.end_for(str(error))
        if self.link.is_closed:
            return
        if handled < len(now):
            self._frames = now[handled:] + self._frames
        self._shares.use_requests(handled)
        if self._long is not None or self._frames or self._shares.is_used_up:
            self._rest()
        else:
            self._check_pressure()

    def _go_on_with(self, long: LongCommand) -> None:
        """Handle the next piece of a command of many ids."""
        self._shares.use_bytes(IDS_PER_TURN * ID_COST_BYTES)
        self._handle_any(long.take(IDS_PER_TURN), b"")
        if long.is_done:
            self._long = None

    def _handle_all(self, frames: list[tuple[bytes, bytes]]) -> int:
        """Handle frames until a request has used up the turn; return how many were handled."""
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
                # The beginning of a frame proves nothing: of fields that occur twice, the last
                # counts.
                command = parse_command(raw)
                messages += command.type == BaseCommand.SEND
                ids = len(ids_of(command))
                if ids > IDS_PER_TURN and self.consuming.may_split(command):
                    # Everything after it waits until its last piece is handled.
                    self._long = LongCommand(command)
                    self._go_on_with(self._long)
                    break
                self._handle_any(command, payload)
                if self.link.is_closed:
                    return handled
                if ids:
                    self._shares.use_bytes(ids * ID_COST_BYTES)
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
        # A command after a SEND must find that message appended.
        self.publishing.flush()
        if not self._is_connected and kind != BaseCommand.CONNECT:
            raise ProtocolViolationError(f"{COMMAND_FIELDS[kind]} before connect")
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolViolationError(f"{COMMAND_FIELDS[kind]} is not for a broker")
        handler(command)

    def _rest(self) -> None:
        """Continue in a later turn of the loop, so that busy clients do not monopolize it."""
        if not self._is_resting:
            self._is_resting = True
            self._shares.wait(self)
        self._check_pressure()

    def go_on(self) -> None:
        """Continue: a later turn of the loop has room."""
        self._is_resting = False
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._shares.use_bytes(held_bytes)
        if self.link.is_closed:
            return
        try:
            if self._long is not None:
                self._go_on_with(self._long)
                self._rest()
            else:
                self._handle(self._frames)
        except BaseException:
            self.drop()  # as the event loop does if `receive` raises
            raise

    def _make_handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        table: dict[int, Callable[[BaseCommand], None]] = {
            BaseCommand.CONNECT: lambda command: self._on_connect(command.connect),
            BaseCommand.PING: lambda _: self.link.write(PONG_FRAME),
            BaseCommand.PONG: lambda _: None,
            BaseCommand.AUTH_RESPONSE: lambda command: self.login.answered(command.authResponse),
        }
        for part in (
            self.lookups,
            self.publishing,
            self.consuming,
            self.watchers,
            self.transactions,
            self.layouts,
            self.segment_consumers,
            self.scalable_watches,
        ):
            table.update(part.handlers())
        return table

    def _on_connect(self, connect: CommandConnect) -> None:
        if self._is_connected:
            raise ProtocolViolationError("a second connect")
        link = self.link
        link.client_version = connect.client_version[:_CLIENT_VERSION_LENGTH_MAX]
        link.is_partial_producer = connect.feature_flags.supports_partial_producer
        link.protocol_version = max(0, min(PROTOCOL_VERSION, connect.protocol_version))
        link.takes_entry_metadata = (
            self.services.settings.entry_metadata_to_clients
            and link.protocol_version >= ENTRY_METADATA_VERSION_MIN
            and connect.feature_flags.supports_broker_entry_metadata
        )
        # Apache's replicator counts metadata as part of the message, adds to them, and skips for
        # good what is then too large: a chunk that fills the limit would be lost (rule 18.12).
        is_replicator = connect.feature_flags.supports_repl_dedup_by_lid_and_eid
        self.login.begin(connect, partial(self._welcome, FRAME_SLACK_BYTES if is_replicator else 0))

    def _welcome(self, slack_bytes: int) -> None:
        """Complete the handshake.

        `slack_bytes`: how much the limit announced to the client exceeds that of payloads; 0 if it
        is no replicator.
        """
        settings = self.services.settings
        takes_acks = (
            settings.replicated_subscriptions_enabled
            and settings.replicated_subscriptions_acks_enabled
            and slack_bytes > 0
        )
        self._is_connected = True
        limit = settings.message_bytes_max + slack_bytes
        self._decoder.frame_bytes_max = limit + FRAME_SLACK_BYTES
        self.link.write(
            replies.connected(
                server_version=(
                    self.services.server_version
                    + (replies.TAKES_ACKS if takes_acks else "")
                    + ("" if self.services.is_serving() else replies.WITHOUT_LEASE)
                ),
                protocol_version=self.link.protocol_version,
                message_bytes_max=limit,
                has_layouts=settings.scalable_topics,
                has_coordinator_watches=(
                    settings.scalable_topics and settings.transaction_coordinator_enabled
                ),
            )
        )

    # The socket

    def on_writable(self, is_writable: bool) -> None:
        """Handle that the transport's buffer has passed its high or low mark."""
        self.link.set_writable(is_writable)
        if is_writable:
            self.consuming.wake()
            for part in self._told_of_changes:
                part.wake()
        self._check_pressure()

    # Keeping alive

    def on_tick(self) -> None:
        """Handle the end of a keep-alive interval, also while the socket closes after sending."""
        if self.link.is_closed:
            self.link.abort_if_stuck()
            return
        self.publishing.on_tick()
        self.consuming.on_tick()
        if not self._is_connected:
            self.link.end_dead("no handshake in time")
        elif self._is_ping_unanswered and not self._has_heard and not self.link.is_paused:
            self.link.end_dead("no answer to a ping")
        elif self._is_stuck():
            self.link.end_dead("no answers read")
        else:
            self._has_heard = False
            self._is_ping_unanswered = True
            self.link.write(PING_FRAME)

    def _is_stuck(self) -> bool:
        """Whether the client has read nothing for several intervals, while answers fill the
        connection.

        Its answer to a PING cannot be read then, so silence proves nothing. Over TLS, the bytes
        sent seem to become fewer as the PING of each tick is written: the unsent bytes grow by more
        than was written, by the overhead of its record.
        """
        before, self._unread_at = self._unread_at, None
        if self._is_unread:
            self._unread_at = self.link.sent_bytes
        if self._unread_at is None or before is None or self._unread_at > before:
            self._unread_ticks = 0
        else:
            self._unread_ticks += 1
        return self._unread_ticks >= UNREAD_INTERVALS_MAX

    # Back-pressure

    @property
    def _is_unread(self) -> bool:
        """Whether so many answers wait for the client that nothing more is read from it."""
        link = self.link
        bytes_max = self.services.settings.write_buffer_bytes_max
        return not link.is_writable and link.unsent_bytes > bytes_max

    def _check_pressure(self) -> None:
        """Resume or pause reading, depending on the pressure."""
        link = self.link
        if link.is_closed:
            return
        is_full = self.publishing.is_full(was_paused=link.is_full)
        is_full = is_full or self._is_unread
        wait_s = self._commands.wait_s() if self._commands is not None else 0.0
        if wait_s > 0:
            is_full = True
            link.look_again_in(wait_s)
        if is_full and not link.is_full:
            self.services.counters.publish_pauses += 1
        link.is_full = is_full
        link.read(is_wanted=not (is_full or self._is_resting))

    # Closing

    def drop(self) -> None:
        """Close at once, and release everything that the connection holds."""
        self.link.drop()

    def close(self) -> None:
        """Close after sending what was written, and release everything."""
        self.link.close()

    def lost(self) -> None:
        """Handle the loss of the connection: its producers and consumers leave at once.

        Its parts no longer refer to it, so it is freed as soon as no running request needs it.
        """
        if self.link.is_closed:
            return
        self.link.lost()
        self._handlers = {}
        self._frames = []
        self.login.close()
        self.publishing.lost()
        self.consuming.lost()
        for part in self._told_of_changes:
            part.lost()


class _ConnectionShell(asyncio.Protocol):
    """One socket: feeds its connection, and carries out the connection's decisions."""

    def __init__(self, server: "BinaryServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._tick: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        certificate = transport.get_extra_info("peercert")
        self._connection = self._server.admit(self, f"{host}:{port}", role_of(certificate))
        if self._connection is None:
            transport.abort()
            return
        high = self._server.services.settings.write_buffer_bytes_high
        transport.set_write_buffer_limits(high=high, low=high // 2)
        self._schedule_tick()

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.on_writable(False)

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        # Shell and connection refer to each other: without this, only a garbage collection frees
        # them.
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.lost(connection)

    # The connection's side

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._connection is not None:  # else it is lost, and may not have left yet
            self._transport.write(data)

    def close(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():  # TLS: a second close forbids an abort
            self._transport.close()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        assert self._transport is not None
        return self._transport.get_write_buffer_size()

    def _schedule_tick(self) -> None:
        interval_s = self._server.services.settings.keep_alive_interval_ms / 1000
        self._tick = asyncio.get_running_loop().call_later(interval_s, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self._connection is not None:
            self._connection.on_tick()
            self._schedule_tick()


class BinaryServer:
    """Server for clients of the binary protocol."""

    def __init__(self, services: Services, network: Network) -> None:
        self.services = services
        self._network = network
        self._listener: Listener | None = None
        self._tls_listener: Listener | None = None
        settings = services.settings
        self._connections: ConnectionPlaces[Connection] = ConnectionPlaces(
            connections_max=settings.connections_max,
            per_address_max=settings.connections_per_address_max,
            kept_for_loopback=settings.connections_kept_for_loopback,
            is_silent=lambda connection: not connection.is_connected,
            cut=Connection.drop,
        )
        self._is_accepting = False
        self._is_full = False
        self._leaving: deque[Connection] = deque()
        """Connections without a socket, whose producers and consumers have not all left yet."""
        self._leave_until_s: float | None = None
        """End of the time for leaving in this turn of the event loop; None if none has left in
        it."""

    @property
    def port(self) -> int:
        """Port that clients connect to."""
        assert self._listener is not None, "the server is not started"
        return self._listener.port

    @property
    def tls_port(self) -> int | None:
        """Port for TLS; None if TLS is off."""
        return self._tls_listener.port if self._tls_listener is not None else None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def clients(self) -> Collection[Connection]:
        """Connections of this server."""
        return self._connections.all

    async def start(self, tls: Network | None = None) -> None:
        """Listen; with a network for TLS, on its port, too.

        Raises:
            ListenError: an address is in use, or is not one of this host.
        """
        settings = self.services.settings
        self._is_accepting = True
        host = settings.plain_host or settings.host
        self._listener = await self._listen(self._network, host, settings.port)
        if tls is not None and settings.tls_port is not None:
            try:
                self._tls_listener = await self._listen(tls, settings.host, settings.tls_port)
            except ListenError:
                await self._listener.close()
                raise

    async def _listen(self, network: Network, host: str, port: int) -> Listener:
        try:
            return await network.listen(host, port, lambda: _ConnectionShell(self))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ListenError(
                f"cannot listen on {host}:{port}: {reason}; "
                "is another broker running there? Choose another port"
            ) from error

    async def stop_accepting(self) -> None:
        """Accept no more connections; existing ones stay."""
        self._is_accepting = False
        for listener in (self._listener, self._tls_listener):
            if listener is not None:
                await listener.close()

    def close_connections(self) -> None:
        """Close every connection, after sending what was written."""
        for connection in list(self._connections.all):
            connection.close()

    def admit(
        self, shell: _ConnectionShell, address: str, certificate_role: str
    ) -> Connection | None:
        """Return a connection for a new socket; None if there are too many."""
        counters = self.services.counters
        if not self._is_accepting:
            return None
        host, now_s = address.rpartition(":")[0], self.services.clock.monotonic_s()
        if not self._connections.make_room(host, now_s):
            counters.connections_refused += 1
            if self._connections.is_full and not self._is_full:  # one line, not one per client
                self._is_full = True
                _log.warning("connections_full", connections=len(self._connections))
            return None
        connection = Connection(shell, self.services, address, certificate_role=certificate_role)
        self._connections.take(connection, host, now_s)
        counters.connections_opened += 1
        return connection

    def lost(self, connection: Connection) -> None:
        """Handle the loss of a connection's socket.

        Its producers and consumers leave at once. If many connections are lost in one turn of the
        event loop, some leave in later turns.
        """
        connection.link.is_lost = True  # now, not in its turn: others must not be refused for it
        self._connections.give_back(connection)
        self._is_full = False
        self._leaving.append(connection)
        if self._leave_until_s is None:
            self._begin_leaving()
        self._leave()

    def _begin_leaving(self) -> None:
        self._leave_until_s = self.services.clock.monotonic_s() + _LEAVING_S_MAX
        asyncio.get_running_loop().call_soon(self._go_on_leaving)

    def _go_on_leaving(self) -> None:
        """Continue leaving in a later turn."""
        self._leave_until_s = None
        if self._leaving:
            self._begin_leaving()
            self._leave()

    def _leave(self) -> None:
        assert self._leave_until_s is not None
        now_s = self.services.clock.monotonic_s
        while self._leaving and now_s() < self._leave_until_s:
            self._leaving.popleft().lost()
