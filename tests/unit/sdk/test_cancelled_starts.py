"""Producers and consumers whose start is cancelled, at each turn of the loop: nothing is left."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from magnetar.sdk import Checkpoint, Client, MessageId, ProducerSettings
from magnetar.sdk.consuming.topics_consumer import TopicsConsumer
from tests.unit.sdk.memory_broker import URL, MemoryBroker
from tests.waiting import settle

SCALABLE = "topic://public/default/t"

Make = Callable[[Client], Coroutine[Any, Any, object]]

PLAIN: dict[str, Make] = {
    "consumer": lambda client: client.consumer("t", "s"),
    "reader": lambda client: client.reader("t"),
    "reader of the newest": lambda client: client.reader("t", MessageId.LATEST),
    "producer": lambda client: client.producer("t", ProducerSettings(name="n")),
    "lazy producer": lambda client: client.producer("t", ProducerSettings(lazy_partitions=True)),
    "table view": lambda client: client.table_view("t"),
}
OF_SEGMENTS: dict[str, Make] = {
    "producer": lambda client: client.producer(SCALABLE),
    "stream consumer": lambda client: client.stream_consumer(SCALABLE, "s"),
    "queue consumer": lambda client: client.queue_consumer(SCALABLE, "s"),
    "checkpoint consumer": lambda client: client.checkpoint_consumer(SCALABLE, Checkpoint.LATEST),
}


async def cancelled(task: "asyncio.Future[Any]", turns: int) -> bool:
    """Cancel a task after some turns; return whether it had ended before."""
    for _ in range(turns):
        await asyncio.sleep(0)
    has_ended = task.done()
    task.cancel()
    return has_ended


async def check_each_turn(make: Make, partitions: int) -> None:
    """Cancel the making after each number of turns, and once more after each number."""
    for turns in count():
        for more in count(1):
            broker = MemoryBroker(partitions)
            async with Client(URL, network=broker) as client:
                await client.partitions("another")  # The connection is there.
                task = asyncio.ensure_future(make(client))
                has_ended = await cancelled(task, turns)
                had_ended_again = await cancelled(task, more)
                await asyncio.gather(task, return_exceptions=True)
                await settle()
                left = dict(broker.live)
            if has_ended:
                assert left, "what was made is there until the client closes"
                return
            assert not left, f"cancelled after {turns} turns, and again after {more} more"
            if had_ended_again:
                break


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("what", PLAIN)
async def test_a_cancelled_start_leaves_nothing_at_the_broker(what: str, partitions: int) -> None:
    await check_each_turn(PLAIN[what], partitions)


@pytest.mark.parametrize("what", OF_SEGMENTS)
async def test_a_cancelled_start_on_a_scalable_topic_leaves_nothing_at_the_broker(
    what: str,
) -> None:
    await check_each_turn(OF_SEGMENTS[what], 0)


async def test_a_consumer_that_closes_while_topics_go_leaves_none_of_them() -> None:
    for turns in range(12):
        broker = MemoryBroker()
        async with Client(URL, network=broker) as client:
            consumer = await client.consumer(["t", "u"], "s")
            assert isinstance(consumer, TopicsConsumer)
            task = asyncio.ensure_future(consumer._apply([]))
            await cancelled(task, turns)  # As the close of the consumer does.
            await consumer.close()
            await settle()
            assert not broker.live, f"closed after {turns} turns"
