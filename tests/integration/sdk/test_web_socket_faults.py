"""How the SDK over WebSocket takes a server that misbehaves."""

import base64
import json

import pytest
from websockets.asyncio.server import ServerConnection, serve

from magnetar.sdk import MessageId
from magnetar.sdk.errors import SdkError
from magnetar.sdk.web_socket import WebSocketClient


async def test_who_waits_is_told_of_a_frame_that_the_client_cannot_take() -> None:
    async def answer(connection: ServerConnection) -> None:
        message_id = base64.b64encode(MessageId(1, 2).to_bytes()).decode()
        frame = {"messageId": message_id, "payload": "", "publishTime": "1960-01-01T00:00:00Z"}
        await connection.send(json.dumps(frame))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with WebSocketClient(f"ws://127.0.0.1:{port}") as web:
            consumer = await web.consumer("t", "s")
            with pytest.raises(SdkError, match="defect in the client"):
                await consumer.receive(timeout_s=5)
