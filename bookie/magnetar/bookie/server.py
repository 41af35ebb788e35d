"""The bookie's sockets: bytes to frames, replies to bytes, and the limits on both.

The bookie reads a connection only while its client takes the replies, its earlier frames are
handled and the journal keeps up. So every buffer here is bounded, and TCP pushes back to the
client. The totals of all connections are bounded as well (defect B23): while pending reads may
return `reads_bytes_max`, nothing is read; when the clients that do not take their replies hold
`replies_bytes_max`, the next one that falls behind, or further behind, is disconnected. The
system's keep-alive detects clients whose machine is gone; each would hold one of `connections_max`
for ever.
"""

import asyncio
import socket
from typing import cast

import structlog

from magnetar.bookie.journaling.journal import JournalSet
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.ledger.errors import BookieProtocolError, BookieVersionError, WrongBookieError
from magnetar.ledger.ports import Listener, Network
from magnetar.ledger.turns import TurnShares
from magnetar.ledger.wire import RESPONSE, Frame, FrameDecoder, Op, Status, encode_frame
from magnetar.ledger.wire_adds import count_of

_log = structlog.get_logger(__name__)

REQUEST_COST_BYTES = 2 << 10
"""Bytes that a request counts in a turn beside its own bytes, since it takes a few microseconds."""
READ_COST_REQUESTS = 4
"""Requests that a read counts for: data in the page cache is read on the loop, which takes tens of
microseconds."""


class BookieServer:
    """The listening socket and all connections of a bookie."""

    def __init__(
        self,
        handler: RequestHandler,
        journals: JournalSet[BatchContext],
        *,
        network: Network,
        metrics: BookieMetrics,
        frame_bytes_max: int,
        connections_max: int,
        connection_buffer_bytes_max: int,
        connection_read_bytes_max: int,
        journal_queue_bytes_max: int,
        reads_bytes_max: int,
        replies_bytes_max: int,
        turn_bytes_max: int,
    ) -> None:
        self.handler = handler
        self.metrics = metrics
        self.shares = TurnShares(turn_bytes_max, request_cost_bytes=REQUEST_COST_BYTES)
        self.frame_bytes_max = frame_bytes_max
        self.connection_buffer_bytes_max = connection_buffer_bytes_max
        self.connection_read_bytes_max = connection_read_bytes_max
        self._connections_max = connections_max
        self._journals = journals
        self._journal_queue_bytes_max = journal_queue_bytes_max
        self._reads_bytes_max = reads_bytes_max
        self._reads_bytes = 0
        self.has_too_many_reads = False
        """Whether the pending reads use up all the memory for reads."""
        self._replies_bytes_max = replies_bytes_max
        self._unsent_bytes = 0
        """Unsent reply bytes of the clients that are behind."""
        self._network = network
        # A dict serves as an ordered set, so that actions on all connections have a fixed order.
        self._connections: dict[BookieConnection, None] = {}
        self._listener: Listener | None = None
        self.is_reading = True
        """False while the journal queue is over its limit, or the bookie stops."""
        self._is_stopping = False
        self._emptied = asyncio.Event()

    @property
    def port(self) -> int:
        assert self._listener is not None, "start() comes first"
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen on an address.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
        """
        self._listener = await self._network.listen(host, port, lambda: BookieConnection(self))

    async def stop_reading(self) -> None:
        """Take no more connections and requests; replies are still sent."""
        self._is_stopping = True
        self._set_reading(False)
        if self._listener is not None:
            await self._listener.close()

    def close_connections(self, *, abort: bool = False) -> None:
        """Close every connection and take no more. Pending replies are sent first unless
        `abort`."""
        self._is_stopping = True
        for connection in list(self._connections):
            connection.close(abort=abort)

    async def wait_closed(self, *, timeout_s: float) -> None:
        """Wait, after `close_connections`, until all connections are closed; abort the rest at the
        timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def on_requests(self) -> None:
        """Stop reading if the journal queue is over its limit, after requests were handed over."""
        if self.is_reading and self._journals.queued_bytes > self._journal_queue_bytes_max:
            self._set_reading(False)

    def on_committed(self) -> None:
        """Read again if the journal queue is short enough, after a journal has committed."""
        if (
            not self.is_reading
            and not self._is_stopping
            and self._journals.queued_bytes <= self._journal_queue_bytes_max // 2
        ):
            self._set_reading(True)

    def on_reads_bytes(self, change: int) -> None:
        """Count the bytes that pending reads may return, and pause or resume reading."""
        self._reads_bytes += change
        self.metrics.reads_pending_bytes = self._reads_bytes
        if self._reads_bytes >= self._reads_bytes_max:
            self.has_too_many_reads = True
        elif self.has_too_many_reads and self._reads_bytes <= self._reads_bytes_max // 2:
            self.has_too_many_reads = False
            asyncio.get_running_loop().call_soon(self._try_all_again)

    def on_unsent(self, connection: "BookieConnection", before: int, now: int) -> bool:
        """Count the unsent reply bytes of a client that is behind; False: disconnect it.

        Counting the clients would not do: a client that falls behind still gets the replies to all
        reads that it has asked for. One that falls behind alone is tolerated.

        Args:
            connection: the client's.
            before: the bytes that count for this client so far; 0 if it was not behind.
            now: the bytes that count for it from now on; 0 if it is not behind any more.
        """
        others = self._unsent_bytes - before
        if now > before and self._is_over(others, before, now):
            # No transport says what a client has taken, until it is no longer behind: those that
            # are merely slow count too much by now.
            others = sum(
                each.count_unsent() for each in self._connections if each is not connection
            )
            if self._is_over(others, before, now):
                self.metrics.slow_clients_cut += 1
                self._unsent_bytes = others
                return False
        self._unsent_bytes = others + now
        return True

    def _is_over(self, others: int, before: int, now: int) -> bool:
        return others + now > self._replies_bytes_max and (before > 0 or others > 0)

    def admit(self, connection: "BookieConnection") -> bool:
        """Register a connection; return whether there is room for it."""
        if self._is_stopping or len(self._connections) >= self._connections_max:
            self.metrics.connections_refused += 1
            return False
        self._connections[connection] = None
        self.metrics.connections = len(self._connections)
        return True

    def forget(self, connection: "BookieConnection") -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)
        self.metrics.connections = len(self._connections)
        self.handler.forget(connection)
        if not self._connections:
            self._emptied.set()

    def _set_reading(self, is_reading: bool) -> None:
        self.is_reading = is_reading
        self._try_all_again()

    def _try_all_again(self) -> None:
        for connection in list(self._connections):
            connection.try_again()


class BookieConnection(asyncio.Protocol):
    """One client connection. It holds frames that must wait, and is not read meanwhile."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._decoder = FrameDecoder(server.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._ending: asyncio.Transport | None = None
        """The transport after `close`, while it sends the remaining replies."""
        self._backlog: list[Frame] = []
        self._is_handling = False
        self._is_paused = False
        self._is_write_paused = False
        self._unsent_bytes = 0
        """Unsent reply bytes that count as those of a client that is behind."""
        self._is_resting = False
        """Whether the turn of the loop is used up and the connection waits for a later one
        (`TurnShares`)."""
        self._held_bytes = 0
        """Bytes received after the turn was used up."""
        self._reads_bytes = 0

    @property
    def reads_bytes(self) -> int:
        """Bytes that the pending reads of this connection may return."""
        return self._reads_bytes

    @reads_bytes.setter
    def reads_bytes(self, value: int) -> None:
        change, self._reads_bytes = value - self._reads_bytes, value
        self._server.on_reads_bytes(change)

    @property
    def is_congested(self) -> bool:
        server = self._server
        return (
            self._is_write_paused
            or server.has_too_many_reads
            or self._reads_bytes >= server.connection_read_bytes_max
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            transport.abort()
            return
        self._transport = transport
        beneath = transport.get_extra_info("socket")
        if beneath is not None:  # a simulated network has none
            beneath.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=self._server.connection_buffer_bytes_max)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._ending = None
        self._backlog = []
        self._catch_up()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        shares = self._server.shares
        has_room = not shares.is_used_up and not self._is_resting
        self._server.metrics.received_bytes += len(data)
        shares.use_bytes(len(data))
        try:
            frames = self._decoder.feed(data)
        except BookieVersionError as error:
            self._on_other_version(error)
            return
        except BookieProtocolError as error:
            self._on_malformed(error)
            return
        if frames and self._backlog:
            frames = self._backlog + frames
        if not has_room:
            self._backlog = frames or self._backlog
            self._held_bytes += len(data)
            self._rest()
        elif frames:
            self._handle(frames)
        elif shares.is_used_up:
            self._rest()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._fall_behind()
        self._update_reading()

    def resume_writing(self) -> None:
        self._catch_up()
        self.try_again()

    def _fall_behind(self) -> None:
        """Count what the client does not take, and cut it if all those that are behind hold too
        much."""
        transport = self._transport
        if transport is None:
            return
        unsent_bytes = transport.get_write_buffer_size()
        if self._server.on_unsent(self, self._unsent_bytes, unsent_bytes):
            self._unsent_bytes = unsent_bytes
            return
        self._unsent_bytes = 0
        peer = transport.get_extra_info("peername")
        _log.warning("bookie_slow_client_cut", peer=str(peer))
        self.close(abort=True)

    def count_unsent(self) -> int:
        """Return the unsent reply bytes that count for this client as of now."""
        transport = self._transport or self._ending
        if self._unsent_bytes and transport is not None:
            self._unsent_bytes = transport.get_write_buffer_size()
        return self._unsent_bytes

    def _catch_up(self) -> None:
        self._is_write_paused = False
        unsent_bytes, self._unsent_bytes = self._unsent_bytes, 0
        self._server.on_unsent(self, unsent_bytes, 0)

    def try_again(self) -> None:
        """Handle the waiting frames, and resume reading, if both are possible now."""
        if not self._backlog or self._is_handling or self._is_resting:
            self._update_reading()
        elif self._server.shares.is_used_up:
            self._rest()
        else:
            self._handle(self._backlog)

    def go_on(self) -> None:
        """Continue in a later turn of the loop, which has room."""
        self._is_resting = False
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._server.shares.use_bytes(held_bytes)
        if self._backlog:
            self._handle(self._backlog)
        else:
            self._update_reading()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._server.metrics.sent_bytes += len(data)
            self._transport.write(data)
            if self._is_write_paused:
                self._fall_behind()

    def close(self, *, abort: bool) -> None:
        """End the connection; waiting frames are dropped and never answered."""
        transport, self._transport = self._transport, None
        self._backlog = []
        if transport is not None:
            self._ending = transport
            if abort:
                transport.abort()
            elif not transport.is_closing():  # with TLS, a second close forbids an abort
                transport.close()

    def abort(self) -> None:
        """Cut a connection that `close` has not ended yet."""
        if self._ending is not None:
            self._ending.abort()

    def _handle(self, frames: list[Frame]) -> None:
        if self._transport is None:
            return
        shares = self._server.shares
        now = _within(frames, shares.requests_left)
        self._is_handling = True
        try:
            taken = self._server.handler.handle(self, now)
        except WrongBookieError as error:
            self._on_wrong_bookie(error)
            return
        except BookieProtocolError as error:
            self._on_malformed(error)
            return
        finally:
            self._is_handling = False
        shares.use_requests(sum(map(_requests_in, now[:taken])))
        self._backlog = frames[taken:]
        self._server.on_requests()
        if shares.is_used_up or taken == len(now) < len(frames):
            self._rest()
        else:
            self._update_reading()

    def _rest(self) -> None:
        """Continue in a later turn of the loop: busy clients must not monopolise it."""
        if not self._is_resting:
            self._is_resting = True
            self._server.shares.wait(self)
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        pause = (
            bool(self._backlog)
            or self._is_resting
            or self.is_congested
            or not self._server.is_reading
        )
        if pause == self._is_paused:
            return
        self._is_paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _on_other_version(self, error: BookieVersionError) -> None:
        """Answer in the header, the form that both releases know, and end the connection."""
        if self._transport is not None and error.op < RESPONSE:
            self._transport.write(
                encode_frame(
                    error.op | RESPONSE,
                    status=Status.BAD_VERSION,
                    request_id=error.request_id,
                    ledger_id=error.ledger_id,
                    entry_id=error.entry_id,
                    body=str(error).encode(),
                )
            )
        self._server.metrics.malformed_frames += 1
        peer = self._transport.get_extra_info("peername") if self._transport else None
        self.close(abort=False)
        _log.warning("bookie_version_unknown", peer=str(peer), error=str(error))

    def _on_wrong_bookie(self, error: WrongBookieError) -> None:
        """End the connection, and drop its frames: they are for another bookie. The client has the
        reply."""
        peer = self._transport.get_extra_info("peername") if self._transport else None
        self.close(abort=False)
        _log.warning("bookie_meant_is_another", peer=str(peer), error=str(error))

    def _on_malformed(self, error: BookieProtocolError) -> None:
        """End this connection, and only this one: the rest of its stream cannot be trusted."""
        self._server.metrics.malformed_frames += 1
        peer = self._transport.get_extra_info("peername") if self._transport else None
        self.close(abort=True)
        _log.warning("bookie_frame_malformed", peer=str(peer), error=str(error))


def _within(frames: list[Frame], requests_max: int) -> list[Frame]:
    """Return the first frames, up to `requests_max` requests, but at least one frame."""
    now = frames[:requests_max]
    requests = 0
    for at, frame in enumerate(now):
        requests += _requests_in(frame)
        if requests > requests_max:
            return now[: max(1, at)]
    return now


def _requests_in(frame: Frame) -> int:
    if frame.op == Op.READ:
        return READ_COST_REQUESTS
    return count_of(frame.body) if frame.op == Op.ADDS else 1
