"""Every call may be cancelled at any of its turns: nothing is lost, sent twice, or left waiting."""

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random

import pytest

from magnetar.sdk import Client, ConsumerSettings, InitialPosition, ProducerSettings
from tests.standalone import Standalone


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
