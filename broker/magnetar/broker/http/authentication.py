"""Authentication of HTTP and WebSocket requests: a layer around the whole application.

The layer puts the identity of the sender into the request's state, as `identity`. It answers 401 to
requests that prove no identity. The routes check what the identity may do. `/health` and
`/status.html` are open to all, since load balancers have no credentials, and so is `/metrics` if
the settings say so.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from magnetar.broker.base.errors import AuthenticationError, RequestError
from magnetar.broker.security.audit import Audit
from magnetar.broker.security.authenticator import Authenticator
from magnetar.broker.security.identity import NOBODY, Identity

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class Authentication:
    """Authenticates requests; an ASGI application around another one."""

    def __init__(
        self,
        app: Application,
        authenticator: Authenticator,
        audit: Audit,
        *,
        certificate_roles: Mapping[tuple[str, int], str],
        open_paths: frozenset[str],
    ) -> None:
        """`certificate_roles`: names in verified certificates, by the client's address and port."""
        self._app = app
        self._authenticator = authenticator
        self._audit = audit
        self._roles = certificate_roles
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["identity"] = NOBODY
        if not self._authenticator.is_on or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        address = address_of(scope)
        try:
            identity = await self._identify(scope, address)
        except AuthenticationError as error:
            await _refuse(scope, receive, send, error)
            return
        state["identity"] = identity
        if scope["type"] == "http" and scope["method"] not in _READS:
            send = self._audited(scope, send, identity, address)
        await self._app(scope, receive, send)

    async def _identify(self, scope: Scope, address: str) -> Identity:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        query_token = ""
        if scope["type"] == "websocket":
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            query_token = query.get("token", [""])[0]
        client = scope.get("client")
        return await self._authenticator.of_request(
            headers,
            address=address,
            certificate_role=self._roles.get(tuple(client), "") if client else "",
            query_token=query_token,
        )

    def _audited(self, scope: Scope, send: Send, identity: Identity, address: str) -> Send:
        async def audited(message: Message) -> None:
            if message["type"] == "http.response.start":
                what = f"{scope['method']} {scope['path']}"
                self._audit.changed(identity, what, status=message["status"], address=address)
            await send(message)

        return audited


def address_of(scope: Scope) -> str:
    """Return the address that a request came from, as host:port."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "?"


async def _refuse(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
    body = json.dumps({"reason": str(error)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b'Bearer realm="magnetar"'),
    ]
    kind = "http"
    if scope["type"] == "websocket":
        await receive()  # The request to connect; the refusal answers it.
        kind = "websocket.http"
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": "not authenticated"})
            return
    await send({"type": f"{kind}.response.start", "status": 401, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
