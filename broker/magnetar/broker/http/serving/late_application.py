"""An application that is made when the first request for it comes, in a thread.

Hundreds of routes with their models take a second of processor time and thirty megabytes: too much
for the way to readiness, and for brokers that nobody asks. Requests wait until it is made, however
many come meanwhile; nobody is refused for it. The event loop goes on, slower for that second.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.broker.http.authentication import Application, Receive, Scope, Send

_log = structlog.get_logger()


class LateApplication:
    """An ASGI application in front of one that does not exist yet."""

    def __init__(self, make: Callable[[], Application]) -> None:
        """`make` runs in a thread; it may read what belongs to the loop, and change nothing. If it
        raises, the requests that waited fail, and the next one tries again."""
        self._make = make
        self._made: Application | None = None
        self._making: asyncio.Task[Application] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._made or await self._wait_made()
        await made(scope, receive, send)

    async def _wait_made(self) -> Application:
        making = self._making
        if making is None:
            making = asyncio.create_task(asyncio.to_thread(self._make), name="http-application")
            self._making = making
            making.add_done_callback(self._on_made)
        # Whoever gives up waiting must not take it from the others.
        return await asyncio.shield(making)

    def _on_made(self, making: "asyncio.Task[Application]") -> None:
        self._making = None
        if making.cancelled():
            return
        error = making.exception()
        if error is None:
            self._made = making.result()
        else:
            _log.error("http_application_failed", error=repr(error))
