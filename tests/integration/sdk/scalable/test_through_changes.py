"""Producers and the three consumers of a scalable topic, while it is split and merged."""

import asyncio

import pytest

from magnetar.sdk import (
    Checkpoint,
    Client,
    Consumer,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    ReaderSettings,
)
from magnetar.sdk.errors import NotSupportedError
from magnetar.sdk.scalable.scalable_producer import ScalableProducer
from magnetar.sdk.schemas import STRING
from magnetar.testing import Broker
from tests.integration.sdk.embedded import make_partitioned
from tests.integration.sdk.scalable.scene import (
    KEYS,
    RECEIVE_S,
    Layouts,
    Load,
    Received,
    consume,
)
from tests.waiting import until

EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)


async def _read_all(client: Client, topic: str) -> Received:
    received = Received()
    async with client.checkpoint_consumer(topic) as reader:
        while await reader.has_message_available():
            received.add_all(await reader.read_many(1_000, timeout_s=RECEIVE_S))
    return received


@pytest.mark.parametrize("batching", [True, False])
async def test_a_producer_loses_doubles_and_reorders_nothing(
    broker: Broker, client: Client, topic: str, batching: bool
) -> None:
    settings = ProducerSettings(batching=batching, name="p")
    async with client.producer(topic, settings) as producer:
        load = Load(producer)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await Layouts(broker.admin_url, topic).several()
            load.stop()
        await load.round(2)
        stats = producer.stats()
        assert (stats.messages_stored, stats.messages_failed) == (load.total, 0)
        assert (producer.pending_messages, producer.pending_bytes) == (0, 0)
    received = await _read_all(client, topic)
    received.assert_exact(load.sent)


async def test_messages_without_a_key_go_to_all_segments(
    broker: Broker, client: Client, topic: str
) -> None:
    async with client.producer(topic, ProducerSettings(batching=False)) as producer:
        await Layouts(broker.admin_url, topic).split(0)
        assert isinstance(producer, ScalableProducer)
        await until(lambda: len(producer.segments) == 2)
        await producer.send_many([b"%d" % at for at in range(20)])
        await producer.flush()
    async with client.checkpoint_consumer(topic) as reader:
        taken = [await reader.read_next(timeout_s=RECEIVE_S) for _ in range(20)]
    assert sorted(int(each.data) for each in taken) == list(range(20))
    assert len({each.topic for each in taken}) == 2


async def test_stream_consumers_get_each_key_in_order_once(
    broker: Broker, client: Client, topic: str
) -> None:
    """The second one joins in the middle, and the first one leaves."""
    received = Received()
    async with (
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s", EARLIEST) as leaving,
        asyncio.TaskGroup() as group,
    ):
        load, layouts = Load(producer), Layouts(broker.admin_url, topic)
        sending = group.create_task(load.run())
        first = group.create_task(consume(leaving, received))
        await layouts.split(0)
        async with client.stream_consumer(topic, "s", EARLIEST) as other:
            second = group.create_task(consume(other, received))
            await layouts.several()
            load.stop()
            await sending
            await until(lambda: received.distinct == load.total, within_s=RECEIVE_S)
            received.assert_exact(load.sent)
            assert other.topics, "the second one has segments, too"
            first.cancel()
            await asyncio.wait([first])
            await leaving.close()
            await load.round(3)
            await until(lambda: received.distinct == load.total, within_s=RECEIVE_S)
            second.cancel()
    received.assert_exact(load.sent)


async def _each_gets_more(received: list[Received]) -> None:
    counts = [each.count for each in received]
    await until(
        lambda: all(
            each.count > before + 100 for each, before in zip(received, counts, strict=True)
        ),
        within_s=RECEIVE_S,
    )


async def test_stream_consumers_share_a_segment_that_has_entry_buckets(
    broker: Broker, client: Client, topic: str
) -> None:
    """Three consumers of one segment: each key stays with one of them, and comes in order, while
    the second and third one join and leave."""
    received = [Received() for _ in range(3)]
    whole = Received()

    async def take(consumer: Consumer, own: Received) -> None:
        async for message in consumer:
            own.add(message)
            whole.add(message)
            consumer.acknowledge(message)

    async with (
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s", EARLIEST) as first,
        asyncio.TaskGroup() as group,
    ):
        await Layouts(broker.admin_url, topic).rebucket(0, 8)
        load = Load(producer)
        sending = group.create_task(load.run())
        tasks = [group.create_task(take(first, received[0]))]
        async with (
            client.stream_consumer(topic, "s", EARLIEST) as second,
            client.stream_consumer(topic, "s", EARLIEST) as third,
        ):
            tasks.append(group.create_task(take(second, received[1])))
            tasks.append(group.create_task(take(third, received[2])))
            await _each_gets_more(received)
            # From here on nobody takes buckets of another one.
            before = [
                {key: len(numbers) for key, numbers in each.numbers.items()} for each in received
            ]
            await _each_gets_more(received)
            keys = [
                {key for key, numbers in each.numbers.items() if len(numbers) > had.get(key, 0)}
                for each, had in zip(received, before, strict=True)
            ]
            assert sum(map(len, keys)) == len(set().union(*keys)), f"a key is at one: {keys}"
            load.stop()
            await sending
            await until(lambda: whole.distinct == load.total, within_s=RECEIVE_S)
            for each in tasks[1:]:
                each.cancel()
            await asyncio.wait(tasks[1:])
        await load.round(3)
        await until(lambda: whole.distinct == load.total, within_s=RECEIVE_S)
        tasks[0].cancel()
    whole.assert_in_order(load.sent)


async def test_what_is_shared_is_not_acknowledged_cumulatively(
    broker: Broker, client: Client, topic: str
) -> None:
    async with (
        client.producer(topic) as producer,
        client.stream_consumer(topic, "s", EARLIEST) as one,
        client.stream_consumer(topic, "s", EARLIEST) as other,
    ):
        await Layouts(broker.admin_url, topic).rebucket(0, 2)
        await until(lambda: len(one.topics) == len(other.topics) == 1, within_s=RECEIVE_S)
        await producer.send(b"1", key="k")
        takes = [asyncio.create_task(each.receive()) for each in (one, other)]
        done, rest = await asyncio.wait(
            takes, timeout=RECEIVE_S, return_when=asyncio.FIRST_COMPLETED
        )
        (taken,) = done
        holder = one if taken is takes[0] else other
        with pytest.raises(NotSupportedError, match="other consumers have keys"):
            holder.acknowledge_cumulative(taken.result())
        holder.acknowledge(taken.result())
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def test_queue_consumers_get_all_messages_between_them(
    broker: Broker, client: Client, topic: str
) -> None:
    received = Received()
    async with (
        client.producer(topic) as producer,
        client.queue_consumer(topic, "q") as one,
        client.queue_consumer(topic, "q") as other,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(consume(each, received)) for each in (one, other)]
        load = Load(producer)
        sending = group.create_task(load.run())
        await Layouts(broker.admin_url, topic).several()
        load.stop()
        await sending
        await until(lambda: received.distinct == load.total, within_s=RECEIVE_S)
        for each in tasks:
            each.cancel()
    assert received.count == load.total, "nothing came twice"


async def test_a_checkpoint_holds_over_splits_and_merges(
    broker: Broker, client: Client, topic: str
) -> None:
    received, layouts = Received(), Layouts(broker.admin_url, topic)
    async with client.producer(topic, ProducerSettings(batch_messages_max=7)) as producer:
        load = Load(producer)
        await load.round(4)
        kept = Checkpoint.EARLIEST.to_bytes()
        for _ in range(3):
            async with client.checkpoint_consumer(topic, Checkpoint.from_bytes(kept)) as reader:
                for _ in range(30):  # In the middle of a batch.
                    received.add(await reader.read_next(timeout_s=RECEIVE_S))
                kept = reader.checkpoint().to_bytes()
            await layouts.split(0)
            await load.round(2)
        await layouts.merge(0)
        await load.round(2)
    async with client.checkpoint_consumer(topic, Checkpoint.from_bytes(kept)) as reader:
        while await reader.has_message_available():
            received.add(await reader.read_next(timeout_s=RECEIVE_S))
    received.assert_exact(load.sent)


async def test_a_checkpoint_at_the_latest_messages_leaves_out_what_was_there(
    client: Client, topic: str
) -> None:
    async with client.producer(topic) as producer:
        load = Load(producer)
        await load.round(2)
        before = dict(load.sent)
        async with client.checkpoint_consumer(topic, Checkpoint.LATEST) as reader:
            kept = reader.checkpoint()
        await load.round(1)
        async with client.checkpoint_consumer(topic, kept, ReaderSettings(name="r")) as reader:
            taken = [await reader.read_next(timeout_s=RECEIVE_S) for _ in KEYS]
            assert not await reader.has_message_available()
    assert {each.key: int(each.data) for each in taken} == before


async def test_a_schema_is_that_of_the_whole_topic(
    broker: Broker, client: Client, topic: str
) -> None:
    async with (
        client.producer(topic, schema=STRING) as producer,
        client.stream_consumer(topic, "s", schema=STRING) as consumer,
    ):
        await producer.send("one", key="k")
        message = await consumer.receive(timeout_s=RECEIVE_S)
        assert message.value() == "one"
        consumer.acknowledge(message)
        await Layouts(broker.admin_url, topic).split(0)
        await producer.send("two", key="k")
        assert (await consumer.receive(timeout_s=RECEIVE_S)).value() == "two"


async def test_a_topic_that_is_migrated_keeps_its_producers_and_consumers(
    broker: Broker, client: Client
) -> None:
    topic = "persistent://public/default/migrated"
    received, read = Received(), Received()
    async with (
        client.producer(topic, ProducerSettings(follow_layout=True)) as producer,
        client.stream_consumer(topic, "s", EARLIEST) as consumer,
        client.checkpoint_consumer(topic) as reader,
        asyncio.TaskGroup() as group,
    ):
        load, layouts = Load(producer), Layouts(broker.admin_url, topic)
        sending = group.create_task(load.run())
        task = group.create_task(consume(consumer, received))
        await until(lambda: received.count > 100)
        await layouts.migrate()
        await layouts.split(0)
        load.stop()
        await sending
        await until(lambda: received.distinct == load.total, within_s=RECEIVE_S)
        while read.count < load.total:
            some = await reader.read_many(500, timeout_s=RECEIVE_S)
            assert some, f"{read.count} of {load.total} messages are read"
            read.add_all(some)
        task.cancel()
    received.assert_exact(load.sent)
    read.assert_exact(load.sent)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_ordinary_topics_have_the_three_consumers(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic = f"persistent://public/default/ordinary-{partitions}"
    if partitions:
        await make_partitioned(broker, topic, partitions)
    received = [Received() for _ in range(3)]
    async with (
        client.producer(topic, ProducerSettings(follow_layout=True)) as producer,
        client.stream_consumer(topic, "s", EARLIEST) as stream,
        client.queue_consumer(topic, "q", EARLIEST) as queue,
        client.checkpoint_consumer(topic) as reader,
    ):
        load = Load(producer)
        await load.round(3)
        for _ in range(load.total):
            for into, one in zip(received, (stream, queue), strict=False):
                message = await one.receive(timeout_s=RECEIVE_S)
                one.acknowledge(message)
                into.add(message)
            received[2].add(await reader.read_next(timeout_s=RECEIVE_S))
        assert len(stream.topics) == max(1, partitions)
    received[0].assert_exact(load.sent)
    received[2].assert_exact(load.sent)
    assert received[1].distinct == received[1].count == load.total
