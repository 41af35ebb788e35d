"""Workers that share topics, redeliver failed jobs, and dead-letter jobs that never succeed."""

import asyncio
import re
import sys

from magnetar.sdk import (
    Client,
    ConsumerSettings,
    DeadLetterPolicy,
    InitialPosition,
    SubscriptionType,
)


async def main(url: str) -> None:
    async with Client(url) as client:
        for name in ("jobs-mail", "jobs-print"):
            async with await client.producer(name) as producer:
                await producer.send(name.encode())

        # All topics of this pattern, including future ones.
        settings = ConsumerSettings(
            subscription_type=SubscriptionType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            nack_delay_ms=10,
            dead_letters=DeadLetterPolicy(redeliveries_max=2, topic="broken-jobs"),
        )
        worker = await client.consumer(re.compile("jobs-.*"), "workers", settings)
        for _ in range(4):
            job = await worker.receive(timeout_s=60)
            if job.data == b"jobs-print":
                print("refused, delivery", job.redelivery_count + 1)
                worker.negative_acknowledge(job)
            else:
                print("done:", job.data.decode())
                worker.acknowledge(job)

        async with await client.reader("broken-jobs") as reader:
            letter = await reader.read_next(timeout_s=60)
            print("given up:", letter.properties["REAL_TOPIC"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
