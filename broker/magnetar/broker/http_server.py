"""The HTTP server: uvicorn in the event loop of the process.

Everything heavy is imported when the server starts, so that importing the broker stays cheap. It
serves whatever application it is given: a process without a broker shows its metrics by it too.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar.broker.errors import ListenError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI


class HttpServer:
    """Serves a FastAPI application."""

    def __init__(
        self,
        make_app: "Callable[[], FastAPI]",
        *,
        host: str,
        port: int,
        make_websocket: Callable[[], Callable[..., asyncio.Protocol] | None] = lambda: None,
    ) -> None:
        """Both are called when the server starts. `make_websocket` gives what takes sockets over
        whose clients ask for an upgrade (see `websocket/`); None: nothing does."""
        self._make_app = make_app
        self._make_websocket = make_websocket
        self._host = host
        self._port = port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address is taken or not ours.
        """
        listener = self._listen()
        self._port = listener.getsockname()[1]
        import uvicorn

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                """Leave the signals to the process: stopping is its owner's decision."""
                yield

        config = uvicorn.Config(
            self._make_app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            # Any callable will do, whatever the type says.
            ws=self._make_websocket() or "none",  # type: ignore[arg-type]
            timeout_graceful_shutdown=1,
        )
        self._server = Server(config)
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[listener]), name="http-server"
        )

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise ListenError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}; "
                "is another server running there? Choose another HTTP port"
            ) from error
        listener.setblocking(False)
        return listener

    async def stop(self) -> None:
        """Finish open requests, within a second."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=3.0)
        self._serving.cancel()
