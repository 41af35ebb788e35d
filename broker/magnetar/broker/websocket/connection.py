"""One WebSocket connection: bytes and frames, the upgrade, pings, idleness, back-pressure, closing.

This is the shell around the protocol core of `websockets`. uvicorn hands the socket over when a
client requests an upgrade. The session opens before the upgrade is answered, so a refusal is an
HTTP status. Source: WebSocket sheet, sections 6 and 7.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol, cast

import structlog
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.identity import role_of
from magnetar.broker.websocket.errors import (
    CLOSE_BAD_DATA,
    CLOSE_GOING_AWAY,
    CLOSE_INTERNAL,
    CLOSE_UNSUPPORTED,
    BadFrameError,
    UpgradeRefusedError,
    refusal_here,
    refusal_of,
)
from magnetar.broker.websocket.session import Session
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.sdk.errors import SdkError

_log = structlog.get_logger()
_silent = logging.getLogger("magnetar.websocket")
_silent.setLevel(logging.CRITICAL)

PING: Final = b"PING"
_EARLY_BYTES_MAX = 64 * 1024
"""Bytes that a client may send before the upgrade is answered."""
_REASON_BYTES_MAX = 123


class Host(Protocol):
    """The service, as a connection sees it."""

    settings: BrokerSettings
    clock: Clock

    def admit(self, connection: "WebSocketConnection") -> None:
        """Count the connection in. Raises: UpgradeRefusedError: too many, or the service stops."""
        ...

    async def session_for(self, connection: "WebSocketConnection", request: Request) -> Session:
        """Return an open session for a request.

        Raises:
            UpgradeRefusedError, SdkError, RequestError
        """
        ...

    def end(self, session: Session) -> asyncio.Task[None]:
        """Close a session; the task is done when the session has released everything at the
        brokers."""
        ...

    def on_lost(self, connection: "WebSocketConnection", session: Session | None) -> None:
        """Forget a connection that ended, and close its session, if there is one."""
        ...


class WebSocketConnection(asyncio.Protocol):
    """One socket: frames between the client and a session."""

    def __init__(self, host: Host, shutting_down: set[object]) -> None:
        """`shutting_down`: connections whose `shutdown` uvicorn calls when it stops."""
        settings = host.settings
        self._host = host
        self._settings = settings
        self._clock = host.clock
        self._listed = shutting_down
        self._loop = asyncio.get_running_loop()
        self._protocol = ServerProtocol(max_size=settings.websocket_frame_bytes_max, logger=_silent)
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._early: list[Frame] = []
        self._early_bytes = 0
        self._text: bytearray | None = None
        self._is_client_reading = True
        self._is_held = False
        self._is_reading = True
        self._is_closing = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self._active_s = self._pinged_s = self._clock.monotonic_s()

    # -- the transport

    @property
    def peer(self) -> str:
        """The client's address."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "unknown"

    @property
    def certificate_role(self) -> str:
        """Common name of the client certificate that TLS has verified; empty if there is none."""
        if self._transport is None:
            return ""
        return role_of(self._transport.get_extra_info("peercert"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._settings.websocket_write_buffer_bytes)
        self._listed.add(self)

    def data_received(self, data: bytes) -> None:
        self._active_s = self._clock.monotonic_s()
        if self._is_closing and self._protocol.state is State.CLOSED:
            return
        if self._session is None:
            self._early_bytes += len(data)
            if self._early_bytes > _EARLY_BYTES_MAX:
                self._abort()
                return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        if self._protocol.handshake_exc is not None and not self._is_closing:
            # The client sent no HTTP request, so there is nothing to answer.
            self._abort()
            return
        if self._protocol.close_rcvd is not None and self._session is not None:
            self._take_leave(self._session)
            return
        self._write_out()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_client_reading = False
        self._set_reading()

    def resume_writing(self) -> None:
        self._is_client_reading = True
        self._active_s = self._clock.monotonic_s()
        self._set_reading()
        if self._session is not None and self.is_writable:
            self._session.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._transport = None
        self._listed.discard(self)
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        session, self._session = self._session, None
        self._host.on_lost(self, session)
        _break_circles(self._protocol)

    def shutdown(self) -> None:
        """Close because the server stops. Called by uvicorn."""
        self.close(CLOSE_GOING_AWAY, "the broker stops")

    # -- the upgrade

    def _on_request(self, request: Request) -> None:
        response = self._protocol.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._answer(response)
            return
        try:
            self._host.admit(self)
        except UpgradeRefusedError as error:
            self._refuse(error)
            return
        self._opening = self._loop.create_task(
            self._open(request, response), name="websocket-upgrade"
        )

    async def _open(self, request: Request, response: Response) -> None:
        try:
            session = await self._host.session_for(self, request)
        except UpgradeRefusedError as error:
            self._refuse(error)
        except SdkError as error:
            self._refuse(refusal_of(error))
        except (RequestError, LedgerError) as error:
            self._refuse(refusal_here(error))
        except Exception:  # noqa: BLE001
            # A defect of the broker: refuse the client instead of letting it wait, and log the
            # error.
            _log.exception("websocket_upgrade_failed", peer=self.peer)
            self._refuse(UpgradeRefusedError(500, "internal error of the broker"))
        else:
            self._begin(session, response)

    def _begin(self, session: Session, response: Response) -> None:
        if self._transport is None or self._is_closing:
            self._host.on_lost(self, session)
            return
        self._session = session
        self._answer(response)
        session.begin(self)
        early, self._early = self._early, []
        for frame in early:
            self._on_frame(frame)
        self._write_out()

    def _refuse(self, error: UpgradeRefusedError) -> None:
        _log.info("websocket_refused", peer=self.peer, status=error.status, reason=str(error))
        self._answer(self._protocol.reject(error.status, f"{error}\n"))

    def _answer(self, response: Response) -> None:
        if self._protocol.state is State.CONNECTING:
            self._protocol.send_response(response)
        self._write_out()
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._end()

    # -- frames

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._text = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._text is not None:
            self._text += frame.data
        elif frame.opcode is Opcode.BINARY:
            self.close(CLOSE_UNSUPPORTED, "frames are text")
            return
        else:
            return  # The protocol core answers pings; data_received handles closes.
        if self._is_closing or not frame.fin:
            return
        if self._session is None:
            self._early.append(Frame(Opcode.TEXT, bytes(self._text)))
            return
        text, self._text = bytes(self._text), None
        try:
            self._session.on_text(text)
        except BadFrameError as error:
            self.close(CLOSE_BAD_DATA, error.text)
        except Exception:  # noqa: BLE001
            # A defect of the broker must not leave the client waiting for an answer.
            _log.exception("websocket_frame_failed", peer=self.peer)
            self.close(CLOSE_INTERNAL, "internal error of the broker")

    @property
    def is_writable(self) -> bool:
        return self._is_client_reading and not self._is_closing

    def send(self, frames: Sequence[bytes]) -> None:
        if self._is_closing or self._protocol.state is not State.OPEN:
            return
        for frame in frames:
            self._protocol.send_text(frame)
        self._write_out()

    def hold_reading(self, is_held: bool) -> None:
        if self._is_held and not is_held:
            self._active_s = self._clock.monotonic_s()
        self._is_held = is_held
        self._set_reading()

    def _set_reading(self) -> None:
        """Pause reading while the session is full or the client reads no answers; else resume."""
        wanted = self._is_closing or (self._is_client_reading and not self._is_held)
        if self._transport is None or wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _write_out(self) -> None:
        """Write the protocol core's output to the socket, and its end of file if the core is
        done."""
        parts = self._protocol.data_to_send()
        if self._transport is None or self._transport.is_closing():
            return
        if parts:
            is_over = parts[-1] == b""
            self._transport.write(b"".join(parts))
            if self._is_client_reading:
                self._active_s = self._clock.monotonic_s()
            if is_over:
                self._await_end()
                # Unread bytes from the client would reset a closed socket and destroy the close
                # frame. So read on until the client closes.
                if self._transport.can_write_eof():
                    self._transport.write_eof()
                else:
                    self._transport.close()
                return
        if self._protocol.state is not State.OPEN and self._session is not None:
            self._await_end()

    # -- the end

    def look(self, now_s: float) -> None:
        """Close if idle; send a ping if one is due. The service calls this periodically."""
        settings = self._settings
        if self._is_closing or self._session is None:
            return
        is_idle = now_s - self._active_s >= settings.websocket_idle_timeout_ms / 1000
        if is_idle and not self._is_held:  # A held socket is not read, so it may look idle.
            self.close(CLOSE_GOING_AWAY, "idle")
            return
        interval_s = settings.websocket_ping_interval_s
        if 0 < interval_s <= now_s - self._pinged_s and self._protocol.state is State.OPEN:
            self._pinged_s = now_s
            active_s = self._active_s
            self._protocol.send_ping(PING)
            self._write_out()
            self._active_s = active_s  # Only an answer is a sign of life.

    def close(self, code: int, reason: str) -> None:
        if self._is_closing or self._transport is None:
            return
        if self._protocol.state is State.CONNECTING:
            self._refuse(UpgradeRefusedError(503, reason))
            return
        try:
            self._protocol.send_close(code, _shortened(reason))
        except InvalidState:
            pass  # The client closed first.
        self._write_out()
        self._await_end()

    def _take_leave(self, session: Session) -> None:
        """Close the session first, then answer the client's close frame.

        So a client that reconnects at once does not meet its own session: an exclusive subscription
        is free, and a non-durable one is gone.
        """
        self._session = None
        self._await_end()
        self._host.end(session).add_done_callback(lambda _: self._write_out())

    def _await_end(self) -> None:
        """Give the client limited time to close its side, after a close frame was sent or
        received."""
        self._is_closing = True
        self._set_reading()
        if self._abort_timer is None:
            self._abort_timer = self._loop.call_later(
                self._settings.websocket_close_timeout_ms / 1000, self._abort
            )

    def _end(self) -> None:
        """Close the transport once everything is sent; abort it after the timeout."""
        self._await_end()
        # A TLS transport that was closed twice can no longer be aborted.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _break_circles(protocol: ServerProtocol) -> None:
    """Break the reference cycles of a protocol with its parser and with the tracebacks that it
    keeps. Without this, only a full garbage collection would free it."""
    protocol.parser.close()
    protocol.handshake_exc = protocol.parser_exc = None


ProtocolFactory = Callable[..., asyncio.Protocol]
"""Factory that uvicorn calls for an upgrade, with its `config`, `server_state` and `app_state`."""


def _shortened(reason: str) -> str:
    """Return as much of a reason as fits into a close frame."""
    return reason.encode(errors="replace")[:_REASON_BYTES_MAX].decode(errors="ignore")
