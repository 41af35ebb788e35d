"""Producers and consumers of scalable topics: closed, refused or misused, in every state."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.sdk import (
    AccessMode,
    Checkpoint,
    Client,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    DeadLetterPolicy,
    Message,
    Producer,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.errors import (
    AlreadyClosedError,
    CheckpointError,
    NotSupportedError,
    PendingLimitError,
    SdkError,
    ServiceError,
)
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.opening import Opening
from magnetar.sdk.wire.errors import TopicNameError, TopicNotFoundError
from magnetar.testing import Broker
from tests.integration.sdk.scalable.scene import RECEIVE_S, Layouts
from tests.processes import free_ports
from tests.waiting import until

_MAKE: list[Callable[[Client, str], Opening[Any]]] = [
    lambda client, topic: client.producer(topic),
    lambda client, topic: client.stream_consumer(topic, "s"),
    lambda client, topic: client.queue_consumer(topic, "q"),
    lambda client, topic: client.checkpoint_consumer(topic),
]
_KINDS = pytest.mark.parametrize("make", _MAKE, ids=["producer", "stream", "queue", "checkpoint"])


def _left() -> list[str]:
    """Names of tasks of the client that run still."""
    return [
        each.get_name() for each in asyncio.all_tasks() if each.get_name().startswith("magnetar")
    ]


@_KINDS
async def test_what_is_open_is_closed_with_the_client(
    broker: Broker, topic: str, make: Callable[[Client, str], Opening[Any]]
) -> None:
    client = broker.client()
    opened = await make(client, topic)
    await client.close()
    await opened.close()  # Once more does nothing.
    with pytest.raises(AlreadyClosedError):
        await make(client, topic)
    assert _left() == []


@_KINDS
async def test_opening_can_be_cancelled_while_no_broker_is_there(
    make: Callable[[Client, str], Opening[Any]],
) -> None:
    (port,) = free_ports(1)
    async with Client(f"pulsar://127.0.0.1:{port}") as client:
        task = asyncio.ensure_future(make(client, "topic://public/default/nowhere"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert _left() == []


@_KINDS
async def test_opening_ends_with_the_operation_timeout(
    make: Callable[[Client, str], Opening[Any]],
) -> None:
    (port,) = free_ports(1)
    settings = ClientSettings(operation_timeout_ms=50, reconnect_delay_min_ms=1)
    async with Client(f"pulsar://127.0.0.1:{port}", settings) as client:
        with pytest.raises(SdkError):
            await make(client, "topic://public/default/nowhere")


@_KINDS
async def test_a_broker_without_layouts_is_named(
    make: Callable[[Client, str], Opening[Any]],
) -> None:
    with Broker(settings={"broker": {"scalable_topics": False}}) as old:
        async with old.client() as client:
            with pytest.raises(NotSupportedError, match="does not support scalable topics"):
                await make(client, "topic://public/default/t")


async def test_what_is_pending_fails_when_the_producer_is_closed_without_a_flush(
    broker: Broker, client: Client, topic: str
) -> None:
    outcomes: list[SdkError | None] = []
    producer = await client.producer(topic, ProducerSettings(batch_delay_ms=60_000))
    for _ in range(3):
        producer.send_nowait(b"x", key="k", on_sent=lambda _, error: outcomes.append(error))
    await producer.close(flush=False)
    assert [type(each) for each in outcomes] == [AlreadyClosedError] * 3
    assert (producer.pending_messages, producer.pending_bytes) == (0, 0)
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"late")


async def test_the_limit_of_pending_messages_holds_over_all_segments(
    broker: Broker, client: Client, topic: str
) -> None:
    settings = ProducerSettings(pending_messages_max=4, batch_delay_ms=1)
    async with client.producer(topic, settings) as producer:
        await Layouts(broker.admin_url, topic).split(0)
        for number in range(4):
            producer.send_nowait(b"x", key=f"k{number}")
        with pytest.raises(PendingLimitError):
            producer.send_nowait(b"x", key="k")
        # With room the next ones go: nobody waits for ever.
        await asyncio.gather(*(producer.send(b"y", key=f"k{number}") for number in range(20)))


async def test_exclusive_access_is_that_to_all_segments_also_after_a_split(
    broker: Broker, client: Client, topic: str
) -> None:
    exclusive = ProducerSettings(access_mode=AccessMode.EXCLUSIVE)
    async with client.producer(topic, exclusive) as holder:
        await holder.send(b"1", key="k")
        await Layouts(broker.admin_url, topic).split(0)
        await asyncio.gather(*(holder.send(b"2", key=f"k{number}") for number in range(20)))
        with pytest.raises(ServiceError):
            await client.producer(topic, exclusive)
        with pytest.raises(ServiceError):
            await client.producer(topic)
        await holder.send(b"3", key="k")
    async with client.producer(topic, exclusive) as next_holder:
        await next_holder.send(b"4", key="k")


async def test_a_topic_that_may_not_be_made_is_not(client: Client, topic: str) -> None:
    settings = ConsumerSettings(create_topic=False)
    for opening in (
        client.stream_consumer(topic, "s", settings),
        client.queue_consumer(topic, "q", settings),
    ):
        with pytest.raises(TopicNotFoundError):
            await opening


async def test_settings_and_calls_that_do_not_fit_are_refused_by_name(
    client: Client, topic: str
) -> None:
    with pytest.raises(TopicNameError):
        await client.queue_consumer("topic://short", "q")
    shared = ConsumerSettings(subscription_type=SubscriptionType.SHARED)
    with pytest.raises(NotSupportedError, match="queue_consumer"):
        await client.stream_consumer(topic, "s", shared)
    with pytest.raises(NotSupportedError, match="checkpoint consumer"):
        await client.queue_consumer(topic, "q", ConsumerSettings(durable=False))
    with pytest.raises(NotSupportedError, match="routing"):
        await client.producer(topic, ProducerSettings(routing=lambda _message, _count: 0))
    inclusive = ReaderSettings(start_inclusive=True)
    with pytest.raises(NotSupportedError, match="start_inclusive"):
        await client.checkpoint_consumer(topic, Checkpoint.EARLIEST, inclusive)
    with pytest.raises(CheckpointError):
        Checkpoint.from_bytes(b"no checkpoint")
    async with client.stream_consumer(topic, "s") as consumer:
        for call in (
            consumer.seek(MessageId.EARLIEST),
            consumer.seek_to_time(0),
            consumer.unsubscribe(),
        ):
            with pytest.raises(NotSupportedError):
                await call
    async with client.producer(topic) as producer:
        with pytest.raises(NotSupportedError):
            await producer.send(b"x", transaction=client.transaction())


async def test_a_segment_is_handed_over_once_what_was_taken_is_acknowledged(
    broker: Broker, client: Client, topic: str
) -> None:
    def settings(name: str) -> ConsumerSettings:
        return ConsumerSettings(name=name, handover_ms=60_000)

    async with client.producer(topic) as producer:
        await Layouts(broker.admin_url, topic).rebucket(0, 1)  # It is not to be shared.
        first = await client.stream_consumer(topic, "s", settings("b"))
        await producer.send(b"1", key="k")
        held = await first.receive(timeout_s=RECEIVE_S)
        # By the order of their names the only segment is for this one now.
        opening = asyncio.ensure_future(client.stream_consumer(topic, "s", settings("a")))
        await until(lambda: not first.topics, "the first one lets go")
        await producer.send(b"2", key="k")
        assert not opening.done()
        first.acknowledge(held)
        second = await opening
        assert (await second.receive(timeout_s=RECEIVE_S)).data == b"2"
        assert not first.has_queued()


async def test_a_segment_is_handed_over_without_acknowledgements_after_a_while(
    broker: Broker, client: Client, topic: str
) -> None:
    async with client.producer(topic) as producer:
        await Layouts(broker.admin_url, topic).rebucket(0, 1)
        first = await client.stream_consumer(topic, "s", ConsumerSettings(name="b", handover_ms=1))
        await producer.send(b"1", key="k")
        await first.receive(timeout_s=RECEIVE_S)
        second = await client.stream_consumer(topic, "s", ConsumerSettings(name="a"))
        assert (await second.receive(timeout_s=RECEIVE_S)).data == b"1"
        # Its former place comes back when the other one leaves.
        second.acknowledge(await _sent_and_received(producer, second))
        await second.close()
        await until(lambda: bool(first.topics), "the segment comes back")


async def _sent_and_received(producer: Producer, consumer: Consumer) -> Message:
    await producer.send(b"2", key="k")
    return await consumer.receive(timeout_s=RECEIVE_S)


async def test_a_queue_consumer_gives_up_messages_to_an_ordinary_topic(
    client: Client, topic: str
) -> None:
    letters = "dead-letters-of-a-scalable-topic"
    settings = ConsumerSettings(
        subscription_type=SubscriptionType.SHARED,
        nack_delay_ms=1,
        dead_letters=DeadLetterPolicy(redeliveries_max=1, topic=letters),
    )
    async with (
        client.producer(topic) as producer,
        client.queue_consumer(topic, "q", settings) as consumer,
    ):
        await producer.send(b"bad", key="k")
        for _ in range(2):
            consumer.negative_acknowledge(await consumer.receive(timeout_s=RECEIVE_S))
        async with client.reader(letters) as reader:
            letter = await reader.read_next(timeout_s=RECEIVE_S)
    assert (letter.data, letter.key) == (b"bad", "k")
