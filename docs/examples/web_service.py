"""A FastAPI web service that publishes each order, and answers when the order is stored."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.request import Request as Call
from urllib.request import urlopen

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request

from magnetar.sdk import Client, Producer, SdkError


def service(url: str) -> FastAPI:
    """Return the application. It has one client and one producer, from its start to its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Client(url) as client, client.producer("orders") as producer:
            app.state.producer = producer
            yield

    def orders(request: Request) -> Producer[bytes]:
        found: Producer[bytes] = request.app.state.producer
        return found

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(
        order: dict[str, Any], producer: Annotated[Producer[bytes], Depends(orders)]
    ) -> dict[str, str]:
        try:
            # The order is on disk when this returns. Simultaneous requests share a batch.
            stored = await producer.send(json.dumps(order).encode(), key=str(order.get("number")))
        except SdkError as error:
            # After a SendTimeoutError the order may still be stored.
            raise HTTPException(503, str(error)) from error
        return {"id": str(stored)}

    return app


async def main(url: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service(url), log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))

    def order(number: int) -> int:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/orders"
        body = json.dumps({"number": number}).encode()
        call = Call(address, body, {"Content-Type": "application/json"})
        with urlopen(call, timeout=60) as answer:
            return int(answer.status)

    print("answers", *[await asyncio.to_thread(order, number) for number in range(2)])
    server.should_exit = True
    await serving
    async with Client(url) as client, await client.reader("orders") as reader:
        for _ in range(2):
            message = await reader.read_next(timeout_s=60)
            print("stored", message.key, message.data.decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
