"""Read a topic without a subscription, up to its current end; then consume it in batches."""

import asyncio
import sys

from magnetar.sdk import BatchReceivePolicy, Client, ConsumerSettings, InitialPosition, MessageId


async def main(url: str) -> None:
    async with Client(url) as client:
        producer = await client.producer("readings")
        await producer.send_many([b"%d" % at for at in range(10)])
        await producer.flush()

        async with await client.reader("readings", MessageId.EARLIEST) as reader:
            total = 0
            while await reader.has_message_available():
                total += int((await reader.read_next()).data)
            print("sum", total)

        settings = ConsumerSettings(
            initial_position=InitialPosition.EARLIEST,
            batch_receive=BatchReceivePolicy(messages_max=4, timeout_ms=2_000),
        )
        async with await client.consumer("readings", "batches", settings) as consumer:
            while batch := await consumer.receive_batch():
                print("batch of", len(batch))
                consumer.acknowledge_many(batch)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
