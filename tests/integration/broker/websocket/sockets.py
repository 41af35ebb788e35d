"""WebSocket clients of tests: the `websockets` library, and JSON in and out."""

import asyncio
import contextlib
import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.protocol import State

from tests.http_calls import Answer, ask

WAIT_S = 30.0
"""Nothing that a test waits for takes this long, unless it never comes."""


class Refused(Exception):
    """The upgrade was refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class Socket:
    """One client."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._contexts = itertools.count()

    async def send(self, frame: object) -> None:
        """An object as JSON, or text as it is."""
        await self.connection.send(frame if isinstance(frame, str) else json.dumps(frame))

    async def receive(self) -> dict[str, Any]:
        """The next frame."""
        async with asyncio.timeout(WAIT_S):
            answer: dict[str, Any] = json.loads(await self.connection.recv())
        return answer

    async def closed(self) -> int:
        """The code with which the server ends it."""
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await self.receive()
        code = self.connection.close_code
        assert code is not None
        return code

    # -- producers

    async def publish(self, payload: bytes | str, **fields: object) -> dict[str, Any]:
        """Send one message; returns the answer."""
        content = payload.encode() if isinstance(payload, str) else payload
        context = str(next(self._contexts))
        await self.send({"payload": b64encode(content).decode(), "context": context, **fields})
        answer = await self.receive()
        assert answer.get("context") == str(fields.get("context", context))
        return answer

    async def publish_ok(self, *payloads: bytes | str, **fields: object) -> list[str]:
        """Send messages that must be stored; returns their ids."""
        ids = []
        for payload in payloads:
            answer = await self.publish(payload, **fields)
            assert answer["result"] == "ok", answer
            ids.append(answer["messageId"])
        return ids

    async def publish_ahead(self, *payloads: str) -> None:
        """Send messages that must be stored, and only then read the answers."""
        for payload in payloads:
            await self.send({"payload": b64encode(payload.encode()).decode()})
        for _ in payloads:
            answer = await self.receive()
            assert answer["result"] == "ok", answer

    # -- consumers and readers

    async def message(self) -> tuple[str, str]:
        """Payload and id of the next message."""
        answer = await self.receive()
        return b64decode(answer["payload"]).decode(), answer["messageId"]

    async def payload(self, *, ack: bool = True) -> str:
        """The payload of the next message, which is acknowledged."""
        payload, message_id = await self.message()
        if ack:
            await self.ack(message_id)
        return payload

    async def payloads(self, count: int, *, ack: bool = True) -> list[str]:
        return [await self.payload(ack=ack) for _ in range(count)]

    async def ack(self, message_id: str) -> None:
        await self.send({"messageId": message_id})

    async def nack(self, message_id: str) -> None:
        await self.send({"type": "negativeAcknowledge", "messageId": message_id})

    async def permit(self, count: int) -> None:
        await self.send({"type": "permit", "permitMessages": count})

    async def is_end(self) -> bool:
        """The answer to isEndOfTopic. No messages may be on their way."""
        await self.send({"type": "isEndOfTopic"})
        answer = await self.receive()
        assert list(answer) == ["endOfTopic"], answer
        return bool(answer["endOfTopic"])


@asynccontextmanager
async def open_socket(port: int, path: str, **options: Any) -> AsyncIterator[Socket]:
    """A socket at `/ws/…`. Raises: Refused."""
    # A client whose queue is full reads no answer to its close either, and waits for it in vain.
    options.setdefault("max_queue", None)
    try:
        connection = await connect(
            f"ws://127.0.0.1:{port}{path}", ping_interval=None, open_timeout=WAIT_S, **options
        )
    except websockets.InvalidStatus as error:
        response = error.response
        raise Refused(response.status_code, bytes(response.body or b"").decode()) from None
    try:
        yield Socket(connection)
    finally:
        if connection.state is State.OPEN:
            await connection.close()
        else:
            # One that the server ends is not closed again: asyncio cannot abort a transport that
            # has closed itself when the rest of its buffer was written.
            async with asyncio.timeout(WAIT_S):
                await connection.wait_closed()


class Topic:
    """A topic at one broker, and the ways to it."""

    def __init__(self, port: int, name: str, *, domain: str = "persistent") -> None:
        """`name` is `tenant/namespace/topic`."""
        tenant, namespace, local = name.split("/", 2)
        self.port = port
        self.path = f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"
        self.url = f"{domain}://{name}"

    def producer(self, query: str = "", **options: Any) -> Any:
        return open_socket(self.port, f"/ws/v2/producer/{self.path}?{query}", **options)

    def consumer(self, query: str = "", *, subscription: str = "s", **options: Any) -> Any:
        path = f"/ws/v2/consumer/{self.path}/{quote(subscription, safe='')}?{query}"
        return open_socket(self.port, path, **options)

    def reader(self, query: str = "", **options: Any) -> Any:
        return open_socket(self.port, f"/ws/v2/reader/{self.path}?{query}", **options)


async def status_of(opening: Any) -> int:
    """The status with which an upgrade is refused."""
    try:
        async with opening:
            pass
    except Refused as refused:
        return refused.status
    raise AssertionError("the upgrade was not refused")


async def admin(topic: Topic, method: str, path: str, body: object = None) -> Answer:
    """A request about the topic that must succeed."""
    answer = await ask(topic.port, method, f"{topic.path}/{path}", body)
    answer.ok()
    return answer


async def nothing_more(socket: Socket) -> None:
    """No message is on its way: the answer to a question would come behind it."""
    await socket.is_end()
