"""Forward a browser's requests about topics that another broker owns.

A program follows the redirect to the owner. A page cannot: the owner is another origin, the browser
may not be able to resolve its host, and browsers drop credentials on the way. So for a request with
the header `X-Magnetar-Forward`, this broker follows the redirect itself. It sends the request's own
content and credentials, and none of the broker's, to the owner, and returns the answer. The owner
checks the rights as always. A page of another origin cannot set the header: browsers send a
preflight first, and no broker allows it.

Names in verified certificates cannot be forwarded: a user who authenticates by certificate has no
identity at the owner.
"""

import json
from collections.abc import Callable

from starlette.requests import ClientDisconnect

from magnetar.broker.base.http_client import Answer, HttpCallError, call
from magnetar.broker.http.authentication import Application, Message, Receive, Scope, Send
from magnetar.ledger.ports import Network

HEADER = b"x-magnetar-forward"
BODY_BYTES_MAX = 1 << 20
"""Bytes of a request body, at most; the page sends a few hundred."""
HOPS_MAX = 4
"""Redirects to follow: to the leader, to the broker that it chooses, and more if that just
changed."""

_PASSED = (b"authorization", b"content-type", b"accept")
_RETURNED = ("content-type", "www-authenticate")
_RETURNED_PREFIXES = ("x-pulsar-", "x-magnetar-")


class Forwarding:
    """A layer around the interface, which itself answers with redirects as always."""

    def __init__(
        self,
        app: Application,
        network: Network,
        *,
        timeout_s: float,
        tls_network: Callable[[], Network | None] = lambda: None,
    ) -> None:
        """`timeout_s`: for each broker that is asked. `tls_network` returns the network to brokers
        over TLS, which a redirect to TLS needs; None if there is none."""
        self._app = app
        self._network = network
        self._timeout_s = timeout_s
        self._tls_network = tls_network

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or HEADER not in headers:
            await self._app(scope, receive, send)
            return
        try:
            body = await _body_of(receive)
        except ClientDisconnect:
            # Half a body must have no effect.
            await _refuse(send, 400, "the client disconnected before it sent the whole request")
            return
        if body is None:
            await _refuse(send, 413, f"a request here has at most {BODY_BYTES_MAX} bytes")
            return
        redirect: list[str] = []
        is_replayed = False

        async def replay() -> Message:
            nonlocal is_replayed
            if is_replayed:
                # An answer in parts waits for the disconnect here.
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 307:
                location = dict(message["headers"]).get(b"location", b"")
                redirect.append(location.decode("latin-1"))
            if not redirect:
                await send(message)

        await self._app(scope, replay, watch)
        if redirect:
            passed = {
                name.decode(): value.decode("latin-1")
                for name, value in headers.items()
                if name in _PASSED
            }
            await self._forward(scope["method"], redirect[0], passed, body, send)

    async def _forward(
        self, method: str, url: str, headers: dict[str, str], body: bytes, send: Send
    ) -> None:
        for _ in range(HOPS_MAX):
            network = self._tls_network() if url.startswith("https:") else self._network
            if network is None:
                reason = f"it is served by {url.split('/')[2]}, which this broker cannot ask by TLS"
                await _refuse(send, 503, f"{reason}: open the console there")
                return
            try:
                answer = await call(
                    network, method, url, timeout_s=self._timeout_s, body=body, headers=headers
                )
            except HttpCallError as error:
                await _refuse(send, 503, f"cannot reach the broker that serves it: {error}")
                return
            if answer.status != 307:
                await _pass_on(answer, send)
                return
            url = answer.headers.get("location", "")
        await _refuse(send, 503, "the brokers redirect each other for its owner: try again")


async def _pass_on(answer: Answer, send: Send) -> None:
    headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in answer.headers.items()
        if name in _RETURNED or name.startswith(_RETURNED_PREFIXES)
    ]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _body_of(receive: Receive) -> bytes | None:
    """Return the whole body; None if it is too long.

    Raises:
        ClientDisconnect: the body was cut off.
    """
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return body


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"reason": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
