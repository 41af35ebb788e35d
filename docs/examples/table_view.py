"""A topic as a table: the newest value of each key."""

import asyncio
import sys

from magnetar.sdk import Client


async def main(url: str) -> None:
    async with Client(url) as client:
        producer = await client.producer("prices")
        await producer.send(b"3", key="apples")
        await producer.send(b"4", key="pears")
        await producer.send(b"5", key="apples")

        async with await client.table_view("prices") as prices:
            print({key: int(price) for key, price in sorted(prices.items())})
            await producer.send(b"", key="pears")  # an empty value removes the key
            await prices.refresh()
            print(sorted(prices))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
