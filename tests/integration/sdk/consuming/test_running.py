"""`Consumer.run`: handlers, retries, dead letters, and an end in good order."""

import asyncio
import os
import re
import signal
from collections import Counter
from dataclasses import replace

import pytest

from magnetar.sdk import (
    Client,
    Consumer,
    ConsumerSettings,
    DeadLetterPolicy,
    GiveUp,
    Message,
    ProducerSettings,
    RetryLater,
    SubscriptionType,
)
from magnetar.sdk.errors import NotSupportedError
from magnetar.testing import Broker
from tests.integration.sdk.embedded import EARLIEST, admin, data, numbered, send, take
from tests.waiting import until

FROM_START = ConsumerSettings(initial_position=EARLIEST)
SHARED = ConsumerSettings(
    initial_position=EARLIEST,
    subscription_type=SubscriptionType.SHARED,
    nack_delay_ms=10,
    ack_group_ms=1,
)


async def backlog_of(consumer: Consumer) -> int:
    (stats,) = await consumer.broker_stats()
    return stats.backlog_messages


async def test_what_was_handled_is_acknowledged_and_a_stop_ends_it(
    client: Client, topic: str
) -> None:
    await send(client, topic, numbered(5))
    stop = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 5:
            stop.set()

    async with client.consumer(topic, "s", FROM_START) as consumer:
        await consumer.run(handle, stop=stop)
        assert seen == numbered(5)
        assert await backlog_of(consumer) == 0


async def test_at_most_so_many_handlers_run_at_a_time(client: Client, topic: str) -> None:
    await send(client, topic, numbered(12))
    stop, running, most, done = asyncio.Event(), 0, 0, 0

    async def handle(_: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        for _turn in range(10):
            await asyncio.sleep(0)
        running -= 1
        done += 1
        if done == 12:
            stop.set()

    async with client.consumer(topic, "s", SHARED) as consumer:
        await consumer.run(handle, concurrency=3, stop=stop)
    assert most == 3


async def test_messages_of_a_key_are_handled_in_order(client: Client, topic: str) -> None:
    async with client.producer(topic, ProducerSettings(batching=False)) as producer:
        for number in range(40):
            await producer.send(b"%d" % number, key=f"k{number % 4}")
    stop = asyncio.Event()
    seen: dict[str | None, list[int]] = {}

    async def handle(message: Message) -> None:
        for _turn in range(int(message.data) % 5):
            await asyncio.sleep(0)
        seen.setdefault(message.key, []).append(int(message.data))
        if sum(map(len, seen.values())) == 40:
            stop.set()

    settings = replace(SHARED, subscription_type=SubscriptionType.KEY_SHARED)
    async with client.consumer(topic, "s", settings) as consumer:
        await consumer.run(handle, concurrency=8, stop=stop)
    assert seen == {f"k{key}": list(range(key, 40, 4)) for key in range(4)}


async def test_a_handler_that_fails_gets_the_message_again_and_then_it_is_a_dead_letter(
    client: Client, topic: str
) -> None:
    await send(client, topic, [b"good", b"bad"])
    stop = asyncio.Event()
    seen: Counter[bytes] = Counter()
    settings = replace(
        SHARED,
        dead_letters=DeadLetterPolicy(redeliveries_max=2, initial_subscription="letters"),
    )

    async def handle(message: Message) -> None:
        seen[message.data] += 1
        if message.data == b"bad":
            raise ValueError("this one never succeeds")

    async with client.consumer(topic, "s", settings) as consumer:
        running = asyncio.create_task(consumer.run(handle, stop=stop))
        async with client.consumer(f"{topic}-s-DLQ", "letters", FROM_START) as letters:
            assert data(await take(letters, 1)) == [b"bad"]
        stop.set()
        await running
        assert await backlog_of(consumer) == 0
    assert seen == {b"good": 1, b"bad": 3}


async def test_a_handler_can_put_off_and_give_up(client: Client, topic: str) -> None:
    await send(client, topic, [b"later", b"never"])
    stop = asyncio.Event()
    seen: Counter[bytes] = Counter()
    settings = replace(
        SHARED,
        retry_topic=True,
        dead_letters=DeadLetterPolicy(redeliveries_max=9, initial_subscription="letters"),
    )

    async def handle(message: Message) -> None:
        seen[message.data] += 1
        if message.data == b"never":
            raise GiveUp
        if seen[message.data] == 1:
            raise RetryLater(0.01)
        stop.set()

    async with client.consumer(topic, "s", settings) as consumer:
        await asyncio.wait_for(consumer.run(handle, stop=stop), 60)
        await until(lambda: consumer.stats().given_up == 1)
    assert seen == {b"later": 2, b"never": 1}
    async with client.reader(f"{topic}-s-DLQ") as letters:
        assert (await letters.read_next(timeout_s=30)).data == b"never"


async def test_a_handler_can_give_up_a_message_of_any_topic_of_a_pattern(
    client: Client, topic: str
) -> None:
    names = [f"{topic}-{each}" for each in "ab"]
    for name in names:
        await send(client, name, [b"never"])
    stop = asyncio.Event()
    policy = DeadLetterPolicy(redeliveries_max=9, initial_subscription="letters")

    seen: Counter[str] = Counter()

    async def handle(message: Message) -> None:
        seen[message.topic] += 1
        raise GiveUp

    pattern = re.compile(f"{topic.rpartition('/')[2]}-[ab]")
    async with client.consumer(pattern, "s", replace(SHARED, dead_letters=policy)) as consumer:
        running = asyncio.create_task(consumer.run(handle, stop=stop))
        await until(lambda: consumer.stats().given_up == 2)
        stop.set()
        await running
    assert seen == dict.fromkeys(names, 1)
    for name in names:
        async with client.reader(f"{name}-s-DLQ") as letters:
            assert (await letters.read_next(timeout_s=30)).data == b"never"
    async with client.consumer(pattern, "none", FROM_START) as consumer:
        with pytest.raises(NotSupportedError, match="dead_letters"):
            await consumer.give_up(await consumer.receive(timeout_s=30))


async def test_a_stop_waits_for_handlers_and_gives_back_the_rest(
    client: Client, topic: str
) -> None:
    await send(client, topic, numbered(6))
    stop, go = asyncio.Event(), asyncio.Event()
    begun: list[bytes] = []
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.data)
        await go.wait()
        seen.append(message.data)

    async with client.consumer(topic, "s", FROM_START) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2, stop=stop))
        await until(lambda: len(begun) == 2)
        stop.set()
        for _turn in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        go.set()
        await running
        left = data(await take(consumer, 6 - len(seen)))
    assert seen == numbered(2)
    assert left == numbered(4, 2)


async def test_handlers_that_outlast_the_grace_are_cancelled_and_their_messages_come_again(
    client: Client, topic: str
) -> None:
    await send(client, topic, [b"slow"])
    stop = asyncio.Event()

    async def handle(_: Message) -> None:
        stop.set()
        await asyncio.Event().wait()

    async with client.consumer(topic, "s", SHARED) as consumer:
        await consumer.run(handle, stop=stop, grace_s=0.01)
        assert data(await take(consumer, 1)) == [b"slow"]


async def test_a_cancelled_run_loses_no_message(client: Client, topic: str) -> None:
    await send(client, topic, numbered(4))
    begun: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.data)
        await asyncio.Event().wait()

    async with client.consumer(topic, "s", SHARED) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await until(lambda: len(begun) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(data(await take(consumer, 4))) == numbered(4)


async def test_a_signal_ends_it_in_good_order(client: Client, topic: str) -> None:
    await send(client, topic, numbered(2))
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    async with client.consumer(topic, "s", FROM_START) as consumer:
        await consumer.run(handle, stop_on_signals=True)
        assert seen[0] == b"0"
    assert signal.getsignal(signal.SIGTERM) == before


async def test_the_end_of_a_topic_ends_it(client: Client, topic: str, server: Broker) -> None:
    await send(client, topic, numbered(3))
    await admin(server, "POST", f"{topic.replace('://', '/')}/terminate")
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)

    async with client.consumer(topic, "s", FROM_START) as consumer:
        await asyncio.wait_for(consumer.run(handle), 60)
    assert seen == numbered(3)


async def test_no_handler_at_a_time_is_refused(client: Client, topic: str) -> None:
    async def handle(_: Message) -> None: ...

    async with client.consumer(topic, "s") as consumer:
        with pytest.raises(ValueError, match="concurrency is 0"):
            await consumer.run(handle, concurrency=0)


async def test_batches_are_full_or_wait_no_longer(client: Client, topic: str) -> None:
    await send(client, topic, [b"x" * 10_000 for _ in range(10)])
    sizes: list[int] = []
    async with client.consumer(topic, "s", FROM_START) as consumer:
        await until(lambda: consumer.stats().received_bytes > 100_000)
        async for batch in consumer.batches(4, wait_s=0.01):
            sizes.append(len(batch))
            await consumer.acknowledge_many(batch)
            if sum(sizes) == 10:
                break
    assert sizes == [4, 4, 2]


async def test_batches_end_with_the_topic(client: Client, topic: str, server: Broker) -> None:
    await send(client, topic, numbered(3))
    await admin(server, "POST", f"{topic.replace('://', '/')}/terminate")
    async with client.consumer(topic, "s", FROM_START) as consumer:
        found: list[bytes] = []
        async for batch in consumer.batches(wait_s=0.01):
            found += data(batch)
            await consumer.acknowledge_many(batch)
    assert found == numbered(3)
