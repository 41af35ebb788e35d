"""A worker of the drill: takes messages, makes a result of each, and does both in one transaction.

usage: python -m tests.chaos.transactions.transform URL SEED

It is killed at any moment. Some transactions it aborts itself, after writing results that nobody
may ever see. Whatever fails, it aborts and goes on; what becomes of the messages is the broker's.
"""

import asyncio
import random
import sys

from magnetar.sdk import (
    Client,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    InitialPosition,
    Message,
    Producer,
    SubscriptionType,
    Transaction,
)
from magnetar.sdk.errors import SdkError

SOURCE = "transactions-in"
RESULTS = ("transactions-out-0", "transactions-out-1")
SUBSCRIPTION = "transform"
ABORTED = b"aborted"
TIMEOUT_MS = 15_000
ABORTS = 0.1
MESSAGES_MAX = 5
_SETTINGS = ConsumerSettings(
    subscription_type=SubscriptionType.SHARED,
    initial_position=InitialPosition.EARLIEST,
    nack_delay_ms=200,
    receiver_queue_messages=50,
)


def name_of(message: Message) -> bytes:
    """What a result says of its source: where it lies."""
    found = message.message_id
    return f"{found.ledger_id}:{found.entry_id}".encode()


async def _in_transaction(
    txn: Transaction,
    consumer: Consumer,
    producers: list[Producer],
    messages: list[Message],
    *,
    aborts: bool,
) -> None:
    for message in messages:
        name = name_of(message)
        await producers[sum(name) % len(producers)].send(
            ABORTED if aborts else name, transaction=txn
        )
        await consumer.acknowledge(message, transaction=txn)
    if aborts:
        await txn.abort()
    else:
        await txn.commit()


async def work(url: str, rng: random.Random) -> None:
    """Until somebody kills it."""
    settings = ClientSettings(operation_timeout_ms=120_000)
    async with Client(url, settings) as client:
        consumer = await client.consumer(SOURCE, SUBSCRIPTION, _SETTINGS)
        producers = [await client.producer(each) for each in RESULTS]
        while True:
            messages = await consumer.receive_many(rng.randint(1, MESSAGES_MAX), timeout_s=5)
            if not messages:
                continue
            txn = client.transaction(TIMEOUT_MS)
            try:
                await txn.begin()
                await _in_transaction(
                    txn, consumer, producers, messages, aborts=rng.random() < ABORTS
                )
            except SdkError as error:
                sys.stderr.write(f"transaction {txn.id}: {type(error).__name__}: {error}\n")
                try:
                    await txn.abort()
                except SdkError:
                    pass  # it has ended, or the broker ends it when its time is over
                for message in messages:
                    consumer.negative_acknowledge(message)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], random.Random(int(sys.argv[2]))))
