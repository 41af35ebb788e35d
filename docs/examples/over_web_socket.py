"""Send and receive over a WebSocket, for networks that let only HTTP through:
`python docs/examples/over_web_socket.py ws://…`."""

import asyncio
import sys

from magnetar.sdk import ConsumerSettings, InitialPosition
from magnetar.sdk.web_socket import WebSocketClient


async def main(url: str) -> None:
    async with WebSocketClient(url) as client:
        producer = await client.producer("cards")
        await producer.send(b"greetings", key="k")
        settings = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
        consumer = await client.consumer("cards", "desk", settings)
        card = await consumer.receive(timeout_s=60)
        print(card.data, card.key)
        consumer.acknowledge(card)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
