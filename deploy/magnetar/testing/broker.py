"""An embedded broker: metadata, bookies and broker in this process, on a thread of their own.

async with Broker() as broker, broker.client() as client:
    producer = await client.producer(broker.new_topic())

It is what `magnetar standalone` runs, with nothing left out: what is acknowledged is on disk.
The thread has its own event loop, so tests may block theirs, use blocking clients, and change loops
between tests that share one broker. Several run at once, each on free ports and its own directory.
"""

import asyncio
import itertools
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
import uvicorn  # noqa: F401  # the server imports it late: here, so that no start waits for it
import uvloop

import magnetar.broker.http.app  # noqa: F401  # as uvicorn
from magnetar.deploy.broker_server import broker_settings
from magnetar.deploy.options import Listen, Sources, default_quorum
from magnetar.deploy.standalone import Standalone
from magnetar.sdk import Client, ClientSettings

_HOST = "127.0.0.1"


class Broker:
    """A whole server for tests; a context manager, with and without `async`."""

    def __init__(
        self,
        *,
        directory: Path | str | None = None,
        bookies: int = 1,
        port: int = 0,
        http_port: int = 0,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        """Nothing runs before `start`.

        Args:
            directory: where the data is kept, and stays; None: a temporary one, deleted at the end.
            bookies: 3 and more have each message on up to three of them.
            port, http_port: 0 for free ones.
            settings: of components, by name (`metadata`, `ledger`, `bookie`, `broker`), as in the
                file of `magnetar --config`. The environment is not looked at.
            start_timeout_s: after that `start` gives up.
        """
        self._directory = None if directory is None else Path(directory)
        self._bookies = bookies
        self._ports = (port, http_port)
        self._tables = {name: dict(table) for name, table in (settings or {}).items()}
        self._start_timeout_s = start_timeout_s
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._has_given_up = False
        self._failure: BaseException | None = None
        self._topic_numbers = itertools.count(1)

    # -- what runs

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, for clients."""
        assert self._thread is not None, "the broker does not run: use it in `with`, or start() it"
        return f"pulsar://{_HOST}:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        """`http://host:port`, for the admin interface, metrics and health."""
        assert self._thread is not None, "the broker does not run: use it in `with`, or start() it"
        return f"http://{_HOST}:{self._ports[1]}"

    @property
    def web_socket_url(self) -> str:
        """`ws://host:port`, for WebSocket clients."""
        return "ws" + self.admin_url.removeprefix("http")

    def client(self, settings: ClientSettings | None = None) -> Client:
        """Return a client that the caller closes: `async with broker.client() as …`."""
        return Client(self.service_url, settings)

    def new_topic(self, name: str = "topic") -> str:
        """The name of a topic that nobody has had from this broker before."""
        return f"persistent://public/default/{name}-{next(self._topic_numbers)}"

    # -- start and stop

    def start(self) -> None:
        """Start, and return when clients are served.

        Raises:
            DeployError: it cannot; the message says what to do.
            TimeoutError: not within `start_timeout_s`.
        """
        started = self._begin()
        try:
            # Kept for a restart: clients come back to where they were.
            self._ports = started.result(self._start_timeout_s)
        except BaseException:
            self._give_up()
            raise

    def _begin(self) -> "Future[tuple[int, int]]":
        """Start the thread; return its ports once clients are served."""
        assert self._thread is None, "the broker runs already"
        if not structlog.is_configured():
            _log_to_standard_library()
        directory = self._directory
        if directory is None:
            self._temporary = tempfile.mkdtemp(prefix="magnetar-")
            directory = Path(self._temporary)
        started: Future[tuple[int, int]] = Future()
        thread = threading.Thread(
            target=self._run, args=(directory, started), name="magnetar-broker", daemon=True
        )
        self._failure = None
        self._has_given_up = False
        self._thread = thread
        thread.start()
        return started

    def _give_up(self) -> None:
        """Stop a server that has not started, whenever it gets so far."""
        thread, self._thread = self._thread, None
        assert thread is not None, "it was begun"
        self._has_given_up = True
        self._ask_to_stop()
        thread.join(self._start_timeout_s)
        self._remove_temporary()

    def stop(self) -> None:
        """Stop, highest part first, and delete a temporary directory.

        Raises:
            Exception: what went wrong while it stopped.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ask_to_stop()
        thread.join()
        self._remove_temporary()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        started = self._begin()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._ports = await asyncio.wrap_future(started)
        except BaseException:
            # Runs to its end even if the caller is cancelled again: nothing else would stop it.
            await asyncio.shield(asyncio.to_thread(self._give_up))
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    # -- on the thread

    def _run(self, directory: Path, started: "Future[tuple[int, int]]") -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(directory, started))
        except BaseException as error:  # noqa: BLE001  # told to the thread that waits
            if started.done():
                self._failure = error
            else:
                started.set_exception(error)

    async def _serve(self, directory: Path, started: "Future[tuple[int, int]]") -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        if self._has_given_up:  # before there was an event to set
            return
        port, http_port = self._ports
        sources = Sources(tables=self._tables, environment={})
        settings = broker_settings(
            sources,
            listen=Listen(_HOST),
            port=port,
            http_port=http_port,
            quorum=default_quorum(self._bookies),
        )
        data = directory / "data" if self._temporary else directory
        server = Standalone(data, settings, sources, bookies=self._bookies)
        await server.start()
        try:
            started.set_result((server.broker.port, server.broker.http_port))
            await self._stop_asked.wait()
        finally:
            await server.stop()

    def _ask_to_stop(self) -> None:
        loop, stop_asked = self._loop, self._stop_asked
        if loop is not None and stop_asked is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop_asked.set)

    def _remove_temporary(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            shutil.rmtree(temporary)


def _log_to_standard_library() -> None:
    """Events go where the application's own go; pytest shows those of a failed test."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    logger = logging.getLogger("magnetar")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
