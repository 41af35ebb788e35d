"""One WebSocket session that reconnects after a loss: connect, read, write, repeat.

The server creates the producer, consumer or reader before it accepts a connection, and drops it
with the connection. The user of the link decides what to send again: the link calls it after each
opening. `WebSocketContext` has what all sessions of a client share.
"""

import asyncio
import base64
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from magnetar.sdk.backoff import Backoff
from magnetar.sdk.errors import (
    AlreadyClosedError,
    BrokerUnavailableError,
    OperationTimeoutError,
    SdkError,
    WireError,
)
from magnetar.sdk.ports import Clock
from magnetar.sdk.session import FINAL_ERRORS
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.web_socket.frames import busy, refusal
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a frame from the server: the largest message in base64, with room."""


class Session(Protocol):
    """A producer, consumer or reader, as the client sees it when it closes."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WebSocketContext:
    """The shared context of all sessions of a client."""

    base_url: str
    """`ws://host:port` or `wss://host:port`"""
    settings: ClientSettings
    make_tls: Callable[[], ssl.SSLContext] | None
    """Called for each session, on a thread; None: without TLS."""
    clock: Clock
    random: random.Random
    forget: Callable[[Session], None]

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate the client, with its current credentials.

        Raises:
            CredentialsError: the client has no credentials.
        """
        method_name, data = await self.settings.current_credentials()
        if method_name == "token":
            return {"Authorization": f"Bearer {data.decode()}"}
        if method_name == "basic":
            return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
        return {}

    def url(
        self, kind: str, topic: TopicName, parameters: dict[str, object], subscription: str = ""
    ) -> str:
        """Return the URL of a session of this kind: `producer`, `consumer` or `reader`."""
        parts = [
            topic.domain,
            topic.tenant,
            topic.namespace,
            quote(topic.local_name, safe=""),
        ]
        if subscription:
            parts.append(quote(subscription, safe=""))
        query = urlencode({key: _text(value) for key, value in parameters.items()})
        return f"{self.base_url}/ws/v2/{kind}/{'/'.join(parts)}?{query}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class WebSocketLink:
    """A session that reconnects until it is closed, or the server refuses it for good."""

    def __init__(
        self,
        context: WebSocketContext,
        url: Callable[[], str],
        name: str,
        *,
        produces: bool,
        on_open: Callable[[], None],
        on_text: Callable[[str | bytes], None],
        on_failed: Callable[[], None],
    ) -> None:
        """`url` is called for each connection.

        `on_open` is called after each opening, `on_text` for each frame, `on_failed` when the link
        is over.
        """
        self.failure: SdkError | None = None
        """Why the link is over; None while it is alive."""
        self.name = name
        self._context = context
        self._url = url
        self._produces = produces
        self._on_open, self._on_text, self._on_failed = on_open, on_text, on_failed
        self._out: deque[str] = deque()
        self._has_out = asyncio.Event()
        self._is_written = asyncio.Event()
        self._opened: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            SdkError: the reason for the failure.
        """
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"magnetar {self.name}")
        self._task.add_done_callback(self._on_task_done)
        try:
            await self._opened
        except BaseException:
            await self.close()
            raise

    def send(self, text: str) -> None:
        """Send a frame on the current connection. If that is lost, unsent frames are dropped."""
        if self._connection is not None:
            self._out.append(text)
            self._is_written.clear()
            self._has_out.set()

    def check_usable(self) -> None:
        """Check that the link is not over.

        Raises:
            SdkError: the link is over.
        """
        if self.failure is not None:
            raise self.failure

    async def flush(self) -> None:
        """Wait until all frames are handed to the system, or the connection is lost."""
        if self._out and self._connection is not None:
            await self._is_written.wait()

    async def close(self) -> None:
        if self.failure is None:
            self.failure = AlreadyClosedError(f"{self.name} is closed")
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(self.failure)
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            self._on_failed()  # waiting callers must be notified, even after a cancellation

    # -- inside

    async def _run(self) -> None:
        settings, clock = self._context.settings, self._context.clock
        backoff = Backoff(
            min_s=settings.reconnect_delay_min_ms / 1000,
            max_s=settings.reconnect_delay_max_ms / 1000,
            random=self._context.random,
        )
        deadline_s = clock.monotonic_s() + settings.operation_timeout_ms / 1000
        while True:
            try:
                connection = await self._connect()
            except SdkError as error:
                if self._is_over(error, late=clock.monotonic_s() >= deadline_s):
                    return
                _log.info("web_socket_retry %s: %s", self.name, error)
                await asyncio.sleep(backoff.next_s())
                continue
            try:
                opened_s = clock.monotonic_s()
                await self._use(connection)
            finally:
                self._connection = None
                self._out.clear()
                self._is_written.set()
                await connection.close()
            if clock.monotonic_s() - opened_s > 1:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Report a defect of the client, or its users would wait for ever."""
        defect = None if task.cancelled() else task.exception()
        if defect is None or self.failure is not None:
            return
        self.failure = SdkError(f"{self.name}: defect in the client: {defect!r}")
        self.failure.__cause__ = defect
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(self.failure)
        self._on_failed()

    def _is_over(self, error: SdkError, *, late: bool) -> bool:
        """Return whether to give up after an error.

        Before the first opening, only retryable errors are retried, until the timeout. Afterwards,
        all errors are, except those that no server will take back.
        """
        opened = self._opened
        assert opened is not None
        if opened.done():
            if not isinstance(error, FINAL_ERRORS):
                return False
            self.failure = error
            self._on_failed()
            return True
        if error.retryable and not late:
            return False
        if error.retryable:
            timeout_ms = self._context.settings.operation_timeout_ms
            error = OperationTimeoutError(
                f"{self.name}: not ready within {timeout_ms} ms; last: {error}"
            )
        self.failure = error
        opened.set_exception(error)
        return True

    async def _connect(self) -> ClientConnection:
        context = self._context
        settings = context.settings
        headers = await context.headers()
        make_tls = context.make_tls
        tls = None if make_tls is None else await asyncio.to_thread(make_tls)
        try:
            return await connect(
                self._url(),
                additional_headers=headers,
                ssl=tls,
                open_timeout=settings.connect_timeout_ms / 1000,
                close_timeout=settings.close_timeout_ms / 1000,
                ping_interval=settings.keep_alive_ms / 1000,
                ping_timeout=settings.keep_alive_ms / 1000,
                max_size=_FRAME_BYTES_MAX,
                compression=None,
                user_agent_header=None,
            )
        except InvalidStatus as error:
            response = error.response
            body = response.body.decode(errors="replace") if response.body else ""
            if response.status_code == 409:
                raise busy(self.name, body, produces=self._produces) from error
            if response.status_code == 401:
                settings.credentials_refused()
            raise refusal(response.status_code, body, self.name) from error
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
            raise BrokerUnavailableError(
                f"{self.name}: {context.base_url} does not answer: {error!r}"
            ) from error

    async def _use(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._out.clear()
        self._on_open()
        assert self._opened is not None
        if not self._opened.done():
            self._opened.set_result(None)
        writing = asyncio.create_task(self._write(connection), name=f"magnetar {self.name} writer")
        try:
            async for text in connection:
                self._on_text(text)
        except ConnectionClosed as error:
            _log.info("web_socket_lost %s: %s", self.name, error)
        except WireError as error:
            _log.warning("web_socket_bad_frame %s: %s", self.name, error)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            while self._out:
                try:
                    await connection.send(self._out[0])
                except ConnectionClosed:
                    return  # the reading task notices, and reconnects
                self._out.popleft()
            self._is_written.set()
            self._has_out.clear()
            await self._has_out.wait()
