"""Publishes messages that carry their due time.

`python -m tests.bench.spark_ticker URL TOPIC MSGS_PER_S SECONDS`. Each message is the wall clock in
nanoseconds, 8 bytes, and filling up to 100 bytes.
"""

import asyncio
import sys
import time

from magnetar.sdk import Client, ProducerSettings

_FILLING = b"x" * 92
_TICK_S = 0.005


async def _publish(url: str, topic: str, rate: float, seconds: float) -> None:
    async with Client(url) as client:
        producer = await client.producer(topic, ProducerSettings(batching=False))
        began_ns, sent, total = time.time_ns(), 0, round(rate * seconds)
        while sent < total:
            due = min(total, int((time.time_ns() - began_ns) / 1e9 * rate))
            stamps = [began_ns + round(number / rate * 1e9) for number in range(sent, due)]
            sent = due
            await producer.send_many([each.to_bytes(8, "big") + _FILLING for each in stamps])
            await asyncio.sleep(_TICK_S)


def main() -> None:
    url, topic, rate, seconds = sys.argv[1:]
    asyncio.run(_publish(url, topic, float(rate), float(seconds)))


if __name__ == "__main__":
    main()
