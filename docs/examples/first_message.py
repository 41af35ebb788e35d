"""From first message to acknowledgement: `python docs/examples/first_message.py pulsar://…`."""

import asyncio
import sys

from magnetar.sdk import Client, ConsumerSettings, InitialPosition


async def main(url: str) -> None:
    async with Client(url) as client:
        producer = await client.producer("letters")
        await producer.send(b"hello", key="k", properties={"lang": "en"})

        settings = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
        consumer = await client.consumer("letters", "desk", settings)
        async for message in consumer:
            print(message.data, message.key, dict(message.properties))
            await consumer.acknowledge_confirmed(message)  # now it is not delivered again
            break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
