"""The SDK over WebSocket: the same messages, where only HTTP passes."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.sdk import (
    ClientSettings,
    Compression,
    ConsumerSettings,
    DeadLetterPolicy,
    InitialPosition,
    MessageId,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.errors import (
    AlreadyClosedError,
    InvalidUrlError,
    OperationTimeoutError,
    ServiceError,
)
from magnetar.sdk.web_socket import WebSocketClient
from magnetar.sdk.wire.errors import ConsumerBusyError, TopicNameError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.testing import Broker

EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
QUICK = ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=100)


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(server: Broker) -> str:
    return server.new_topic("web: 100% sockets ü?")


@pytest.fixture
async def web(server: Broker) -> AsyncIterator[WebSocketClient]:
    async with WebSocketClient(server.web_socket_url, QUICK) as client:
        yield client


async def test_messages_arrive_as_they_were_sent(
    server: Broker, web: WebSocketClient, topic: str
) -> None:
    settings = ProducerSettings(name="made-up", compression=Compression.ZLIB)
    async with await web.producer(topic, settings) as producer:
        message_id = await producer.send(
            b"\x00one", key="k", properties={"a": "b"}, event_time_ms=1_700_000_000_123
        )
        await producer.send_many([b"two", b""])
    async with await web.consumer(topic, "s/1", EARLIEST) as consumer:
        messages = [await consumer.receive(timeout_s=30) for _ in range(3)]
    first = messages[0]
    assert [each.data for each in messages] == [b"\x00one", b"two", b""]
    assert (first.message_id, first.key, first.properties) == (message_id, "k", {"a": "b"})
    assert first.event_time_ms == 1_700_000_000_123
    assert first.publish_time_ms > 0
    # It is the same message for clients of the other protocol.
    async with server.client() as client, await client.reader(topic) as reader:
        same = await reader.read_next(timeout_s=30)
        assert (same.data, same.message_id) == (first.data, first.message_id)
        assert (same.publish_time_ms, same.producer_name) == (first.publish_time_ms, "made-up")


async def test_what_is_acknowledged_is_done_and_what_is_refused_comes_again(
    web: WebSocketClient, topic: str
) -> None:
    settings = ConsumerSettings(
        subscription_type=SubscriptionType.SHARED,
        initial_position=InitialPosition.EARLIEST,
        nack_delay_ms=10,
        receiver_queue_messages=2,
        dead_letters=DeadLetterPolicy(redeliveries_max=1, initial_subscription="morgue"),
    )
    async with await web.producer(topic) as producer:
        await producer.send_many([b"%d" % at for at in range(10)])
    async with await web.consumer(topic, "s", settings) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.data)
            if message.data == b"5":
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
            if len(seen) == 11:
                break
        assert sorted(seen) == sorted([*(b"%d" % at for at in range(10)), b"5"])
        # The server gives it up: the session must not end before.
        async with await web.reader(f"{topic}-s-DLQ") as reader:
            assert (await reader.read_next(timeout_s=30)).data == b"5"
        async with await web.consumer(f"{topic}-s-DLQ", "morgue") as morgue:
            assert (await morgue.receive(timeout_s=30)).data == b"5"
    async with await web.consumer(topic, "s", settings) as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.3)
        await consumer.unsubscribe()


async def test_nulls_and_keys_of_bytes_pass_both_ways(
    web: WebSocketClient, server: Broker, topic: str
) -> None:
    sent: list[tuple[bytes | None, str | bytes | None]] = [
        (None, "gone"),
        (b"", b"\xffkey"),
        (b"text", "/2tleQ=="),
    ]
    async with await web.producer(topic) as producer:
        for value, key in sent:
            await producer.send(value, key=key)
    async with (
        await web.reader(topic) as there,
        server.client() as client,
        await client.reader(topic) as here,
    ):
        for reader in (there, here):
            found = [await reader.read_next(timeout_s=30) for _ in sent]
            assert [(each.value(), each.given_key) for each in found] == sent


async def test_readers_begin_where_they_are_told(web: WebSocketClient, topic: str) -> None:
    async with await web.producer(topic) as producer:
        ids = await producer.send_many([b"%d" % at for at in range(5)])
        async with await web.reader(topic, ids[2]) as reader:
            assert (await reader.read_next(timeout_s=30)).data == b"3"
            assert not await reader.reached_end()
        async with await web.reader(topic, MessageId.LATEST) as reader:
            await producer.send(b"late")
            assert (await reader.read_next(timeout_s=30)).data == b"late"


async def test_a_cancelled_receive_loses_nothing(web: WebSocketClient, topic: str) -> None:
    async with (
        await web.consumer(topic, "s") as consumer,
        await web.producer(topic) as producer,
    ):
        sending = asyncio.ensure_future(producer.send_many([b"%d" % at for at in range(50)]))
        seen: list[bytes] = []
        while len(seen) < 50:
            receiving = asyncio.ensure_future(consumer.receive())
            await asyncio.wait([receiving], timeout=0.001)
            receiving.cancel()
            try:
                seen.append((await receiving).data)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
        await sending
    assert sorted(seen) == sorted(b"%d" % at for at in range(50))


async def test_a_restart_of_the_broker_loses_nothing(topic: str, tmp_path: object) -> None:
    broker = Broker(directory=str(tmp_path))
    await asyncio.to_thread(broker.start)
    try:
        async with WebSocketClient(broker.web_socket_url, QUICK) as web:
            producer = await web.producer("t")
            consumer = await web.consumer("t", "s", EARLIEST)
            reader = await web.reader("t")
            await producer.send(b"before")
            first = await consumer.receive(timeout_s=30)
            assert (await reader.read_next(timeout_s=30)).data == first.data == b"before"
            await asyncio.to_thread(broker.stop)
            sending = asyncio.ensure_future(producer.send(b"meanwhile"))
            await asyncio.to_thread(broker.start)
            await sending
            # What was not acknowledged comes again; a reader goes on where it was.
            assert (await consumer.receive(timeout_s=60)).data == b"before"
            assert (await consumer.receive(timeout_s=60)).data == b"meanwhile"
            assert (await reader.read_next(timeout_s=60)).data == b"meanwhile"
    finally:
        await asyncio.to_thread(broker.stop)


async def test_refusals_have_classes_and_the_brokers_words(
    web: WebSocketClient, topic: str
) -> None:
    async with await web.consumer(topic, "s"):
        with pytest.raises(ConsumerBusyError, match="409"):
            await web.consumer(topic, "s")
    with pytest.raises(ServiceError, match="no-such-tenant"):
        await web.producer("persistent://no-such-tenant/ns/t")
    with pytest.raises(TopicNameError):
        await web.producer("a/b")
    with pytest.raises(InvalidUrlError, match="ws://"):
        WebSocketClient("http://127.0.0.1:8080")
    quick = ClientSettings(operation_timeout_ms=50)
    with pytest.raises(OperationTimeoutError, match="does not answer"):
        await WebSocketClient("ws://127.0.0.1:1", quick).producer("t")


async def test_those_who_wait_hear_of_the_end(web: WebSocketClient, topic: str) -> None:
    consumer = await web.consumer(topic, "s")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await web.close()
    with pytest.raises(AlreadyClosedError):
        await waiting
    with pytest.raises(AlreadyClosedError):
        consumer.acknowledge(MessageId(1, 1))
    with pytest.raises(AlreadyClosedError):
        await web.producer(topic)


@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_a_reader_continues_between_chunks_without_losing_their_message(
    server: Broker, web: WebSocketClient, topic: str, taken: int
) -> None:
    """The id of a message says where the next reader has to begin."""
    async with (
        server.client() as client,
        await client.producer(topic, ProducerSettings(batching=False)) as producer,
    ):
        for name in ("a0", "b0", "x", "a1", "y", "b1", "z"):
            metadata = MessageMetadata()
            if name[-1].isdigit():
                metadata.uuid, metadata.chunk_id = name[:-1], int(name[-1])
                metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = 2, 4
            producer.send_encoded_nowait(name.encode(), metadata)
        await producer.flush()
    async with await web.reader(topic) as reader:
        first = [await reader.read_next(timeout_s=30) for _ in range(taken)]
    async with await web.reader(topic, first[-1].message_id) as reader:
        rest = [await reader.read_next(timeout_s=30) for _ in range(5 - taken)]
    assert [each.data for each in first + rest] == [b"x", b"a0a1", b"y", b"b0b1", b"z"]
