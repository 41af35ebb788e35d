"""Every call may be cancelled at any of its turns: nothing is lost, sent twice, or left waiting."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random

import pytest

from magnetar.sdk import (
    Client,
    ConsumerSettings,
    DeadLetterPolicy,
    InitialPosition,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.errors import AlreadyClosedError
from magnetar.sdk.producing.partitioned_producer import PartitionedProducer
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.topic_name import TopicName
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import ScriptedBroker
from tests.standalone import Standalone
from tests.waiting import until


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cancelled") / "data") as server:
        yield server


async def cancelled_after(turns: int, call: Coroutine[object, object, object]) -> object:
    """The result of a call that is cancelled after some turns of the loop, or its cancellation."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0]


@pytest.mark.parametrize("batching", [True, False])
async def test_cancelled_sends_are_stored_at_most_once_and_block_nobody(
    standalone: Standalone, batching: bool
) -> None:
    topic = f"sends-{batching}"
    random = Random(7)
    settings = ProducerSettings(batching=batching, pending_messages_max=3)
    async with Client(standalone.url) as client:
        producer = await client.producer(topic, settings)
        results = await asyncio.gather(
            *(cancelled_after(random.randrange(60), producer.send(b"%d" % at)) for at in range(100))
        )
        await producer.send(b"last")  # the room of cancelled ones was given back
        assert producer.pending_messages == 0
        reader = await client.reader(topic)
        found: list[bytes] = []
        while b"last" not in found:
            found += [message.data for message in await reader.read_many(200, timeout_s=30)]
    assert len(found) == len(set(found))
    done = {b"%d" % at for at, each in enumerate(results) if not isinstance(each, BaseException)}
    assert done <= set(found)


async def test_cancelled_receives_lose_no_message(standalone: Standalone) -> None:
    random = Random(8)
    async with Client(standalone.url) as client:
        producer = await client.producer("receives")
        settings = ConsumerSettings(
            initial_position=InitialPosition.EARLIEST, receiver_queue_messages=5
        )
        consumer = await client.consumer("receives", "s", settings)
        sent = [b"%d" % at for at in range(100)]
        sending = asyncio.create_task(producer.send_many(sent))
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) < 100:
                result = await cancelled_after(random.randrange(8), consumer.receive())
                if not isinstance(result, BaseException):
                    found.append(result.data)  # type: ignore[attr-defined]  # A message.
                else:
                    await asyncio.sleep(0.001)  # lets the network in; nothing waits for it
        await sending
        assert found == sent


async def test_cancelled_creations_leave_no_name_and_no_subscription_taken(
    standalone: Standalone,
) -> None:
    async with Client(standalone.url) as client:
        for turns in range(0, 40, 3):
            settings = ProducerSettings(name="the only one")
            made = await cancelled_after(turns, client.producer("creations", settings))
            if not isinstance(made, BaseException):
                await made.close()  # type: ignore[attr-defined]  # A producer.
        async with asyncio.timeout(30):
            await client.producer("creations", ProducerSettings(name="the only one"))


async def test_a_cancelled_flush_or_close_can_be_called_again(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        producer = await client.producer("flushes")
        for turns in range(5):
            producer.send_nowait(b"%d" % turns)
            await cancelled_after(turns, producer.flush())
        await producer.flush()
        assert producer.stats().messages_stored == 5
        await cancelled_after(1, producer.close())
        await producer.close()


Made = tuple[Callable[[], Coroutine[object, object, None]], "asyncio.Task[object]"]
"""What closes something, and somebody who waits for it."""


WITH_LETTERS = ConsumerSettings(
    subscription_type=SubscriptionType.SHARED, dead_letters=DeadLetterPolicy(redeliveries_max=1)
)


async def one_topic(client: Client, _: ScriptedBroker) -> Made:
    consumer = await client.consumer("t", "s", WITH_LETTERS)
    assert consumer._letters is not None
    await consumer._letters._copies._sender(TopicName.parse("dead"), "", None)
    return consumer.close, asyncio.create_task(consumer.receive())


async def two_topics(client: Client, _: ScriptedBroker) -> Made:
    consumer = await client.consumer(["t", "u"], "s")
    return consumer.close, asyncio.create_task(consumer.receive())


async def lazy_partitions(client: Client, broker: ScriptedBroker) -> Made:
    broker.partitions = 2
    other: list[int] = []
    settings = ProducerSettings(lazy_partitions=True, routing=lambda *_: other[0])
    producer = await client.producer("t", settings)
    assert isinstance(producer, PartitionedProducer)
    other += {0, 1} - set(producer.stats_by_partition())
    broker.faults.append(lambda _, command: command.type == BaseCommand.PRODUCER)
    return partial(producer.close, flush=False), asyncio.create_task(producer.send(b"waits"))


async def table_view(client: Client, _: ScriptedBroker) -> Made:
    view = await client.table_view("t")
    changes = view.changes()

    async def wait() -> object:
        return await anext(changes)

    return view.close, asyncio.create_task(wait())


@pytest.mark.parametrize("turns", range(20))
@pytest.mark.parametrize("make", [one_topic, two_topics, lazy_partitions, table_view])
async def test_a_close_that_is_cancelled_wherever_leaves_nobody_waiting_and_no_task(
    make: Callable[[Client, ScriptedBroker], Coroutine[object, object, Made]], turns: int
) -> None:
    before = asyncio.all_tasks()
    async with ScriptedBroker() as broker, Client(broker.url, FAST) as client:
        close, waiting = await make(client, broker)
        await asyncio.sleep(0)
        await cancelled_after(turns, close())
        await close()
        async with asyncio.timeout(5):
            with pytest.raises(AlreadyClosedError):
                await waiting
    await until(lambda: asyncio.all_tasks() == before, "no task is left", within_s=5)


@pytest.mark.parametrize("turns", range(20))
async def test_the_close_of_a_client_that_is_cancelled_can_be_called_again(turns: int) -> None:
    before = asyncio.all_tasks()
    async with ScriptedBroker() as broker:
        client = Client(broker.url, FAST)
        _, receiving = await two_topics(client, broker)
        _, viewing = await table_view(client, broker)
        await asyncio.sleep(0)
        await cancelled_after(turns, client.close())
        await client.close()
        async with asyncio.timeout(5):
            for waiting in (receiving, viewing):
                with pytest.raises(AlreadyClosedError):
                    await waiting
        await until(lambda: not broker.peers, "no connection is left", within_s=5)
    await until(lambda: asyncio.all_tasks() == before, "no task is left", within_s=5)
