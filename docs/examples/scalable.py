"""A scalable topic: keyed messages, a stream consumer, and a reader that stores its position."""

import asyncio
import sys

from magnetar.sdk import Checkpoint, Client, ConsumerSettings, InitialPosition

TOPIC = "topic://public/default/payments"


async def main(url: str) -> None:
    earliest = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
    async with Client(url) as client:
        async with client.producer(TOPIC) as producer:
            for amount in range(4):
                await producer.send(b"%d" % amount, key=f"account {amount % 2}")

        # The messages of a key arrive in order, even when segments are split or merged.
        async with client.stream_consumer(TOPIC, "ledger", earliest) as consumer:
            for _ in range(4):
                message = await consumer.receive(timeout_s=60)
                print("ledger", message.key, message.data.decode())
                consumer.acknowledge(message)

        # The application stores its position as bytes, beside its results.
        async with client.checkpoint_consumer(TOPIC) as reader:
            first = await reader.read_many(2, timeout_s=60)
            kept = reader.checkpoint().to_bytes()
        async with client.checkpoint_consumer(TOPIC, Checkpoint.from_bytes(kept)) as reader:
            count = len(first)
            while await reader.has_message_available():
                await reader.read_next(timeout_s=60)
                count += 1
        print("read", count)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
