"""Channels to bookies: one connection each, requests matched to replies, everything bounded.

A channel sends frames as they come (the network joins the writes of one turn) and calls back once
per reply frame. A request ends exactly once: with a reply frame or with a `BookieUnavailableError`.
The error means that the connection failed, the bookie is not registered, the time is up, or too
much is outstanding. The channel retries nothing; the quorum logic above decides.

A connection that brought nothing for the time of a request is dropped. The host may be gone without
a notice, and unsent frames would fill the memory while their requests time out.

The channel sends nothing before the intended bookie has answered the hello (`hello.py`). It drops
the connection when the bookie registers at another address: any process may listen at the old one.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieSecretError,
    BookieUnavailableError,
    SecretRefusedError,
)
from magnetar.ledger.hello import check_answer, encode_hello
from magnetar.ledger.ports import Clock, Network
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Frame, FrameDecoder, Op, encode_header

OnReply = Callable[[Frame | BookieUnavailableError], None]

OnPart = Callable[[Frame], bool]
"""Callback for each reply to a request that has several; returns whether it was the last one.

Raises:
    BookieProtocolError: the reply does not answer the request.
"""


class _Request:
    __slots__ = ("deadline_s", "on_part", "on_reply", "question", "size_bytes")

    def __init__(
        self,
        question: tuple[int, int, int],
        on_reply: OnReply,
        deadline_s: float,
        size_bytes: int,
        on_part: OnPart | None,
    ) -> None:
        self.question = question
        """Operation, ledger id and entry id, which the reply must repeat."""
        self.on_reply = on_reply
        self.deadline_s = deadline_s
        self.size_bytes = size_bytes
        self.on_part = on_part
        """Callback for the replies if several may come; then `on_reply` gets only an error."""


class _Connection(asyncio.Protocol):
    """Bytes of one TCP connection; reports replies and the end to its channel."""

    def __init__(self, channel: "BookieChannel", info: BookieInfo) -> None:
        self._channel = channel
        self._meant = info.identity
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the intended bookie has answered the hello."""
        self.greeted.add_done_callback(_retrieve)
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        # The channel bounds what is outstanding; the transport must not add a bound of its own.
        self._transport.set_write_buffer_limits(high=1 << 30)
        self._transport.write(encode_hello(self._meant))

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._decoder.feed(data)
            if frames and not self.greeted.done():
                check_answer(frames[0], self._meant)
                self.greeted.set_result(None)
                frames = frames[1:]
        except (BookieProtocolError, ConnectionError) as error:
            assert self._transport is not None
            self._transport.abort()
            self.connection_lost(error)
            return
        if frames:
            self._channel.on_frames(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.greeted.done():
            error = exc or "closed by the bookie"
            self.greeted.set_exception(
                exc
                if isinstance(exc, ConnectionError)
                else ConnectionError(f"the connection was lost in the hello: {error}")
            )
        self._channel.on_connection_lost(self, exc)


class BookieChannel:
    """Sends requests to one bookie. Connects on demand, and again after a failure."""

    def __init__(
        self,
        bookie_id: str,
        registry: BookieRegistry,
        network: Network,
        clock: Clock,
        settings: LedgerSettings,
        *,
        is_closed: bool = False,
    ) -> None:
        self.bookie_id = bookie_id
        self._registry = registry
        self._network = network
        self._clock = clock
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._address: tuple[str, int] | None = None
        """The address of the current connection or connection attempt."""
        self._waiting: dict[int, tuple[bytes, ...]] = {}
        """Frames that wait for a connection, by request id."""
        self._requests: dict[int, _Request] = {}
        self._outstanding_bytes = 0
        self._next_request_id = 0
        self._heard_at_s = 0.0
        """Monotonic time when the connection was made, or last brought an answer."""
        self._failed: BookieInfo | None = None
        """The registration that could not be connected to, until `_retry_at_s`. Another address is
        tried at once: it means that the bookie is back."""
        self._retry_at_s = 0.0
        self._last_failure = BookieUnavailableError("")
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        """Set when nothing is outstanding; None if no caller has waited for that."""
        self._closed = is_closed

    def send(
        self,
        op: int,
        body: Sequence[bytes],
        on_reply: OnReply,
        *,
        ledger_id: int,
        entry_id: int = -1,
        flags: int = 0,
        on_part: OnPart | None = None,
    ) -> None:
        """Send one request; `on_reply` runs later, exactly once, on the event loop.

        With `on_part`, that callback gets the replies, and `on_reply` gets only the error that ends
        them.
        """
        size = sum(map(len, body))
        if self._outstanding_bytes + size > self._settings.channel_bytes_max and self._requests:
            self._refuse(
                on_reply,
                f"{self._outstanding_bytes} bytes are unanswered, "
                f"channel_bytes_max is {self._settings.channel_bytes_max}",
            )
            return
        if self._transport is None and not self._start_connecting(on_reply):
            return
        request_id = self._next_request_id
        self._next_request_id += 1
        deadline_s = self._clock.monotonic_s() + self._settings.request_timeout_s
        question = (op, ledger_id, entry_id)
        self._requests[request_id] = _Request(question, on_reply, deadline_s, size, on_part)
        self._outstanding_bytes += size
        self._watch_deadlines()
        header = encode_header(
            op,
            size,
            request_id=request_id,
            ledger_id=ledger_id,
            entry_id=entry_id,
            flags=flags,
        )
        if self._transport is None:
            self._waiting[request_id] = (header, *body)
        else:
            self._transport.writelines((header, *body))

    def _refuse(self, on_reply: OnReply, reason: str) -> None:
        error = BookieUnavailableError(f"bookie {self.bookie_id}: {reason}")
        asyncio.get_running_loop().call_soon(on_reply, error)

    def _start_connecting(self, on_reply: OnReply) -> bool:
        if self._closed:
            self._refuse(on_reply, "the client is closed")
            return False
        if self._connecting is None:
            info = self._registry.resolve(self.bookie_id)
            if info is None:
                self._refuse(on_reply, "cannot connect: it is not registered")
                return False
            if info == self._failed and self._clock.monotonic_s() < self._retry_at_s:
                asyncio.get_running_loop().call_soon(on_reply, self._last_failure)
                return False
            self._connect_to(info)
        return True

    def _connect_to(self, info: BookieInfo) -> None:
        self._address = info.address
        self._connecting = asyncio.get_running_loop().create_task(
            self._connect(info), name=f"connect-bookie-{self.bookie_id}"
        )

    def on_registrations(self) -> None:
        """Drop the connection if the bookie has registered at another address.

        A bookie that is not registered now may have lost only its session, so its connection is
        kept.
        """
        info = self._registry.resolve(self.bookie_id)
        if info is None or info.address == self._address:
            return
        if self._transport is not None:
            self._give_up_connection(f"it listens at {info.host}:{info.port} now")
        elif self._connecting is not None:
            self._connecting.cancel()
            self._connect_to(info)

    async def _connect(self, info: BookieInfo) -> None:
        try:
            connection, transport = await self._greet(info)
        except (OSError, TimeoutError, ValueError) as error:
            # ValueError: an invalid host, from a registration that any process may write.
            self._on_not_connected(info, error)
            return
        except Exception as error:  # noqa: BLE001  # handed on to the loop's handler
            # Such as a RuntimeError if the thread that resolves the name cannot be started. If this
            # task died, later requests would wait for it, and nobody would connect.
            self._on_not_connected(info, error)
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"connecting to bookie {self.bookie_id} broke", "exception": error}
            )
            return
        self._connecting = None
        self._connection = connection
        self._transport = transport
        self._heard_at_s = self._clock.monotonic_s()
        if self._waiting:
            transport.writelines(list(chain.from_iterable(self._waiting.values())))
            self._waiting = {}

    def _on_not_connected(self, info: BookieInfo, error: Exception) -> None:
        self._connecting = None
        reason = f"cannot connect: {error or type(error).__name__}"
        self._failed = info
        self._retry_at_s = self._clock.monotonic_s() + self._settings.reconnect_delay_s
        is_secret = isinstance(error, SecretRefusedError)
        self._fail_all(reason, BookieSecretError if is_secret else BookieUnavailableError)

    async def _greet(self, info: BookieInfo) -> tuple[_Connection, asyncio.Transport]:
        """Connect, and return once the intended bookie has answered.

        Raises:
            WrongBookieError: a ConnectionError; another bookie listens there.
            OSError, TimeoutError, ValueError: from the network.
        """
        connection = _Connection(self, info)
        timeout_s = self._settings.connect_timeout_s
        async with asyncio.timeout(timeout_s):
            transport = await self._network.connect(
                info.host, info.port, lambda: connection, timeout_s=timeout_s
            )
            try:
                await connection.greeted
                if connection.is_lost:
                    raise ConnectionError("the connection was lost as soon as it was made")
            except BaseException:
                transport.abort()
                raise
        return connection, transport

    def on_frames(self, frames: list[Frame]) -> None:
        self._heard_at_s = self._clock.monotonic_s()
        for frame in frames:
            request = self._requests.get(frame.request_id)
            if request is None:
                continue  # the reply to a request that timed out
            wrong = ""
            answered = (frame.op, frame.ledger_id, frame.entry_id)
            if answered != request.question or not frame.is_response:
                kind = "response" if frame.is_response else "request"
                wrong = (
                    f"asked for (operation, ledger, entry) {request.question}, was answered by a "
                    f"{kind} for {answered}"
                )
            elif request.on_part is not None:
                try:
                    if not request.on_part(frame):
                        continue  # more answers are to come
                except BookieProtocolError as error:
                    wrong = str(error)
            if self._requests.pop(frame.request_id, None) is None:
                continue  # the callback has closed the channel
            self._outstanding_bytes -= request.size_bytes
            if wrong:
                self._on_wrong_answer(request, frame, wrong)
                break
            if request.on_part is None:
                self._report(request, frame)
        if self._idle is not None and not self._requests:
            self._idle.set()

    def _on_wrong_answer(self, request: _Request, frame: Frame, reason: str) -> None:
        """Drop the connection after an answer to another question.

        Such an answer must not count for any request, above all an OK to another add. A peer that
        mixes up answers may have done so before.
        """
        if frame.op == Op.AUTH and frame.is_response:
            text = frame.body.decode("utf-8", "replace")
            self._report(request, BookieSecretError(f"bookie {self.bookie_id}: {text}"))
            if self._transport is not None:
                self._give_up_connection(text, BookieSecretError)
            return
        self._report(request, BookieUnavailableError(f"bookie {self.bookie_id}: {reason}"))
        if self._transport is not None:
            self._give_up_connection(reason)

    def on_connection_lost(self, connection: _Connection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._transport = None
        self._fail_all(f"connection lost: {error or 'closed by the bookie'}")

    def _fail_all(
        self, reason: str, kind: type[BookieUnavailableError] = BookieUnavailableError
    ) -> None:
        error = self._last_failure = kind(f"bookie {self.bookie_id}: {reason}")
        self._waiting = {}
        requests, self._requests = self._requests, {}
        self._outstanding_bytes = 0
        for request in requests.values():
            self._report(request, error)
        if self._idle is not None and not self._requests:
            self._idle.set()

    def _report(self, request: _Request, reply: Frame | BookieUnavailableError) -> None:
        """Run a request's callback. A bug in it must not affect other requests of this channel."""
        try:
            request.on_reply(reply)
        except Exception as error:  # noqa: BLE001  # handed on to the loop's handler
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the reply of bookie {self.bookie_id} broke", "exception": error}
            )

    def _watch_deadlines(self) -> None:
        if self._timer is None:
            interval_s = max(0.05, self._settings.request_timeout_s / 4)
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        timeout_s = self._settings.request_timeout_s
        expired: list[_Request] = []
        # Requests are in the order of their deadlines, since every request gets the same time.
        while self._requests:
            request_id, request = next(iter(self._requests.items()))
            if request.deadline_s > now_s:
                break
            del self._requests[request_id]
            self._waiting.pop(request_id, None)  # else its bytes would exceed the channel's bound
            self._outstanding_bytes -= request.size_bytes
            expired.append(request)
        if expired and self._is_stuck(sent_at_s=expired[-1].deadline_s - timeout_s):
            self._give_up_connection(f"nothing was heard for {timeout_s} s")
        error = BookieUnavailableError(f"bookie {self.bookie_id}: no answer within {timeout_s} s")
        for request in expired:
            self._report(request, error)
        if self._requests:
            self._watch_deadlines()
        elif self._idle is not None:
            self._idle.set()

    def _is_stuck(self, *, sent_at_s: float) -> bool:
        """Return whether the connection brought nothing since then, or is far too slow."""
        if self._transport is None:
            return False
        return (
            self._heard_at_s < sent_at_s
            or self._transport.get_write_buffer_size() > self._settings.channel_bytes_max
        )

    def _give_up_connection(
        self, reason: str, kind: type[BookieUnavailableError] = BookieUnavailableError
    ) -> None:
        assert self._transport is not None
        self._transport.abort()
        self._connection = None
        self._transport = None
        self._fail_all(reason, kind)

    async def wait_idle(self) -> None:
        """Wait until no request is outstanding."""
        if self._idle is None:
            self._idle = asyncio.Event()
        while self._requests:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Close the connection; outstanding requests fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            self._connection = None
        self._fail_all("the client is closed")


def _retrieve(greeted: asyncio.Future[None]) -> None:
    """Mark the future's error as retrieved: a cancelled connection attempt does not read it."""
    if not greeted.cancelled():
        greeted.exception()


class ChannelPool:
    """The channels of one client: one per bookie, made on first use."""

    def __init__(
        self, registry: BookieRegistry, network: Network, clock: Clock, settings: LedgerSettings
    ) -> None:
        self._registry = registry
        self._network = network
        self._clock = clock
        self._settings = settings
        self._channels: dict[str, BookieChannel] = {}
        self._is_closed = False
        registry.on_change(self.on_registrations)

    def on_registrations(self) -> None:
        """Pass a change of registrations on to every channel."""
        for channel in list(self._channels.values()):
            channel.on_registrations()

    def get(self, bookie_id: str) -> BookieChannel:
        channel = self._channels.get(bookie_id)
        if channel is None:
            channel = self._channels[bookie_id] = BookieChannel(
                bookie_id,
                self._registry,
                self._network,
                self._clock,
                self._settings,
                is_closed=self._is_closed,
            )
        return channel

    async def wait_idle(self, *, timeout_s: float) -> None:
        """Wait until no request is outstanding anywhere, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                for channel in list(self._channels.values()):
                    await channel.wait_idle()
        except TimeoutError:
            pass  # outstanding requests fail when the channels close

    async def close(self) -> None:
        """Close all channels. Callbacks that then ask for a bookie get a closed channel."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            await channel.close()
        self._channels.clear()
