"""Bounds of what one HTTP request may bring: a layer around the whole application.

Whoever reads a body keeps all of it in memory, and reads it before anybody asks what the sender
may do. A request that says that it is longer is refused before anything of it is read; one that
does not say it is cut off where it becomes too long.
"""

import json

from magnetar.broker.http.authentication import Application, Message, Receive, Scope, Send


class BodyLimit:
    """The layer; an ASGI application around another one."""

    def __init__(self, app: Application, *, bytes_max: int) -> None:
        """`bytes_max`: of one body."""
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _stated_bytes(scope) > self._bytes_max:
            await self._refuse(send)
            return
        got = 0
        is_too_long = has_begun = False

        async def counted() -> Message:
            nonlocal got, is_too_long
            message = await receive()
            got += len(message.get("body", b""))
            if got <= self._bytes_max:
                return message
            is_too_long = True
            # The end for whoever reads, with nothing that could be taken for a body.
            return {"type": "http.disconnect"}

        async def watched(message: Message) -> None:
            nonlocal has_begun
            if is_too_long and not has_begun:
                return  # Whatever is said of half a body: it is too long.
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counted, watched)
        except Exception:
            if not is_too_long:
                raise  # else it is what the application made of half a body
        if is_too_long and not has_begun:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        body = json.dumps(
            {"reason": f"the body of a request has at most {self._bytes_max} bytes"}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _stated_bytes(scope: Scope) -> int:
    """What the header says; 0 without one. Servers refuse what is no number themselves."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
