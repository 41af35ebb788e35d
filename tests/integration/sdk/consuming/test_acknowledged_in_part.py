"""What a consumer knows of batches that are acknowledged in part, and how long it knows it."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from magnetar.sdk import (
    Client,
    Consumer,
    ConsumerSettings,
    Message,
    MessageId,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.web_socket import WebSocketClient
from magnetar.testing import Broker
from tests.integration.sdk.embedded import EARLIEST, admin, compact, data, numbered, send, take
from tests.waiting import until

FROM_START = ConsumerSettings(initial_position=EARLIEST, nack_delay_ms=50, ack_group_ms=1)
SHARED = replace(FROM_START, subscription_type=SubscriptionType.SHARED)
KEY_SHARED = replace(FROM_START, subscription_type=SubscriptionType.KEY_SHARED)


async def send_batch(client: Client, topic: str, count: int, start: int = 0) -> None:
    """Messages as one entry."""
    settings = ProducerSettings(batching=True, batch_messages_max=count, batch_delay_ms=10_000)
    async with await client.producer(topic, settings) as producer:
        await producer.send_many(numbered(count, start))


async def backlog(server: Broker, topic: str, subscription: str = "s") -> int:
    """Entries that are not acknowledged."""
    stats = await admin(server, "GET", f"{topic.replace('://', '/')}/stats")
    assert isinstance(stats, dict)
    found = stats["subscriptions"][subscription]["msgBacklog"]
    assert isinstance(found, int)
    return found


async def reset_to_start(server: Broker, topic: str) -> None:
    path = f"{topic.replace('://', '/')}/subscription/s/resetcursor/0"
    await admin(server, "POST", path)


async def rest_of(consumer: Consumer) -> list[bytes]:
    """What comes until nothing comes for a while."""
    found: list[bytes] = []
    while messages := await consumer.receive_many(100, timeout_s=0.5):
        found += data(messages)
    return found


async def await_no_backlog(server: Broker, topic: str) -> None:
    async def is_done() -> bool:
        return await backlog(server, topic) == 0

    await until(is_done, "all is acknowledged")


@pytest.mark.parametrize("batch_index_ack", [False, True])
@pytest.mark.parametrize("refuses_first", [False, True])
@pytest.mark.parametrize("settings", [SHARED, FROM_START], ids=["shared", "exclusive"])
async def test_a_refused_message_of_a_batch_comes_again_though_its_neighbours_are_done(
    server: Broker,
    client: Client,
    topic: str,
    settings: ConsumerSettings,
    refuses_first: bool,
    batch_index_ack: bool,
) -> None:
    await send_batch(client, topic, 4)
    settings = replace(settings, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 4)
        if refuses_first:
            consumer.negative_acknowledge(messages[1])
        for neighbour in (messages[0], messages[2], messages[3]):
            consumer.acknowledge(neighbour)
        if not refuses_first:
            consumer.negative_acknowledge(messages[1])
            consumer.acknowledge(messages[3])
        (again,) = await take(consumer, 1)
        assert again.data == b"1"
        consumer.acknowledge(again)
        assert await rest_of(consumer) == []
        await await_no_backlog(server, topic)


async def test_refused_messages_of_a_batch_are_done_when_all_of_them_are_acknowledged_after_all(
    server: Broker, client: Client, topic: str
) -> None:
    await send_batch(client, topic, 3)
    async with await client.consumer(topic, "s", replace(SHARED, nack_delay_ms=500)) as consumer:
        messages = await take(consumer, 3)
        for message in messages[:2]:
            consumer.negative_acknowledge(message)
        consumer.acknowledge_many(messages)
        await await_no_backlog(server, topic)
        await asyncio.sleep(0.5)  # for what should not happen
        assert await rest_of(consumer) == []


@pytest.mark.parametrize("refuses_first", [False, True])
async def test_a_refused_message_of_a_batch_comes_again_over_web_sockets(
    server: Broker, client: Client, topic: str, refuses_first: bool
) -> None:
    await send_batch(client, topic, 4)
    async with (
        WebSocketClient(server.web_socket_url) as web,
        await web.consumer(topic, "s", SHARED) as consumer,
    ):
        messages = [await consumer.receive(timeout_s=30) for _ in range(4)]
        if refuses_first:
            consumer.negative_acknowledge(messages[1])
        for neighbour in (messages[0], messages[2], messages[3]):
            consumer.acknowledge(neighbour)
        if not refuses_first:
            consumer.negative_acknowledge(messages[1])
            consumer.acknowledge(messages[3])
        again = await consumer.receive(timeout_s=30)
        assert again.data == b"1"
        consumer.acknowledge(again)
        await await_no_backlog(server, topic)


@pytest.mark.parametrize("batch_index_ack", [False, True])
async def test_one_message_of_a_batch_done_in_a_transaction_leaves_the_others_their_timeouts(
    server: Broker, client: Client, topic: str, batch_index_ack: bool
) -> None:
    await send_batch(client, topic, 4)
    settings = replace(SHARED, ack_timeout_ms=1_000, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 4)
        async with client.transaction() as transaction:
            await consumer.acknowledge(messages[0], transaction=transaction)
        again = await take(consumer, 3)
        assert data(again) == numbered(3, 1)
        consumer.acknowledge_many(again)
        await await_no_backlog(server, topic)


@pytest.mark.parametrize("batch_index_ack", [False, True])
@pytest.mark.parametrize("commits", [True, False])
async def test_one_message_of_a_batch_done_in_a_transaction_leaves_a_refused_one_refused(
    server: Broker, client: Client, topic: str, batch_index_ack: bool, commits: bool
) -> None:
    await send_batch(client, topic, 4)
    settings = replace(SHARED, nack_delay_ms=300, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 4)
        consumer.negative_acknowledge(messages[2])
        consumer.acknowledge(messages[3])
        transaction = await client.transaction().begin()
        await consumer.acknowledge(messages[0], transaction=transaction)
        consumer.acknowledge(messages[1])
        if commits:
            await transaction.commit()
        else:
            await transaction.abort()
        wanted = {b"2"} if commits else {b"0", b"2"}
        found: set[bytes] = set()
        while found < wanted:
            message = await consumer.receive(timeout_s=30)
            found.add(message.data)
            consumer.acknowledge(message)
        assert found == wanted
        await await_no_backlog(server, topic)


@pytest.mark.parametrize("batch_index_ack", [False, True])
async def test_a_batch_done_partly_in_a_transaction_and_partly_without_is_done(
    server: Broker, client: Client, topic: str, batch_index_ack: bool
) -> None:
    settings = replace(FROM_START, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        for plain_first in (True, False):
            await send_batch(client, topic, 3)
            messages = await take(consumer, 3)
            if plain_first:
                consumer.acknowledge_many(messages[:2])
            async with client.transaction() as transaction:
                await consumer.acknowledge(messages[2], transaction=transaction)
            if not plain_first:
                consumer.acknowledge_many(messages[:2])
            await await_no_backlog(server, topic)


@pytest.mark.parametrize("settings", [SHARED, FROM_START], ids=["shared", "exclusive"])
@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("batch_index_ack", [False, True])
async def test_after_a_reset_by_others_all_of_a_batch_comes_that_was_done_in_part(
    server: Broker,
    client: Client,
    topic: str,
    settings: ConsumerSettings,
    in_transaction: bool,
    batch_index_ack: bool,
) -> None:
    await send_batch(client, topic, 4)
    settings = replace(settings, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 4)
        consumer.acknowledge(messages[0])
        if in_transaction:
            async with client.transaction() as transaction:
                await consumer.acknowledge(messages[1], transaction=transaction)
        else:
            consumer.acknowledge(messages[1])
        await consumer.flush_acks(confirmed=True)
        await reset_to_start(server, topic)
        again = await take(consumer, 4)
        assert data(again) == numbered(4)
        for message in again:
            consumer.acknowledge(message)
        assert await rest_of(consumer) == []
        await await_no_backlog(server, topic)


@pytest.mark.parametrize("settings", [SHARED, FROM_START], ids=["shared", "exclusive"])
@pytest.mark.parametrize("batch_index_ack", [False, True])
async def test_a_reset_by_others_undoes_an_earlier_seek_into_a_batch(
    server: Broker, client: Client, topic: str, settings: ConsumerSettings, batch_index_ack: bool
) -> None:
    for start in (0, 5, 10):
        await send_batch(client, topic, 5, start)
    settings = replace(settings, batch_index_ack=batch_index_ack)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 15)
        await consumer.seek(messages[12].message_id)
        assert data(await take(consumer, 3)) == numbered(3, 12)
        await reset_to_start(server, topic)
        again = await take(consumer, 15)
        assert data(again) == numbered(15)
        consumer.acknowledge_many(again)
        assert await rest_of(consumer) == []
        await await_no_backlog(server, topic)


async def test_a_seek_into_a_batch_holds_for_whoever_gets_the_batch(
    client: Client, topic: str
) -> None:
    await send_batch(client, topic, 5)
    async with await client.consumer(topic, "s", SHARED) as consumer:
        messages = await take(consumer, 5)
        await consumer.seek(messages[3].message_id)
        assert data(await take(consumer, 2)) == numbered(2, 3)
    async with await client.consumer(topic, "s", SHARED) as consumer:
        assert data(await take(consumer, 2)) == numbered(2, 3)
        assert await rest_of(consumer) == []


@pytest.mark.parametrize("batch_index_ack", [False, True])
@pytest.mark.parametrize("by_entry", [False, True])
async def test_compacted_batches_are_done_when_all_that_came_is_acknowledged(
    server: Broker, client: Client, topic: str, batch_index_ack: bool, by_entry: bool
) -> None:
    async with await client.consumer(topic, "s", FROM_START):
        pass
    batches = ProducerSettings(batching=True, batch_messages_max=3, batch_delay_ms=10_000)
    async with await client.producer(topic, batches) as producer:
        for at in range(3):
            keys = ("old", f"a{at}", f"b{at}")
            sending = [producer.send(key.encode(), key=key) for key in keys]
            await asyncio.gather(*sending)
    await send(client, topic, [b"last"], key="old")
    await compact(server, topic)
    settings = replace(FROM_START, read_compacted=True, batch_index_ack=batch_index_ack)
    wanted = [f"{name}{at}".encode() for at in range(3) for name in "ab"] + [b"last"]
    async with await client.consumer(topic, "s", settings) as consumer:
        messages: list[Message] = []
        while len(messages) < len(wanted):
            if by_entry:
                for batch in await consumer.receive_batches(10, timeout_s=30):
                    messages += batch.messages()
            else:
                messages += await take(consumer, 1)
        assert data(messages) == wanted
        for message in messages:
            consumer.acknowledge(message)
        await await_no_backlog(server, topic)
        await consumer.flush_acks(confirmed=True)
        consumer.redeliver_unacknowledged()
        assert await rest_of(consumer) == []
    async with await client.consumer(topic, "s", settings) as consumer:
        assert await rest_of(consumer) == []


@pytest.mark.parametrize("settings", [SHARED, KEY_SHARED, FROM_START])
@pytest.mark.parametrize("batch", [1, 5])
async def test_what_lies_in_the_queue_comes_once_when_all_is_asked_for_again(
    client: Client, topic: str, settings: ConsumerSettings, batch: int
) -> None:
    for start in range(0, 10, batch):
        await send_batch(client, topic, batch, start)
    async with await client.consumer(topic, "s", settings) as consumer:
        await until(lambda: consumer.stats().received_bytes > 0)
        await consumer.last_message_ids()  # all that was sent before it has come, too
        taken = await take(consumer, 2)
        consumer.redeliver_unacknowledged()
        assert Counter(await rest_of(consumer)) == Counter(numbered(10))
        assert data(taken) == numbered(2)


async def test_untaken_neighbours_of_a_refused_message_come_once(
    client: Client, topic: str
) -> None:
    await send_batch(client, topic, 4)
    async with await client.consumer(topic, "s", SHARED) as consumer:
        first, second = await take(consumer, 2)
        consumer.acknowledge(second)
        consumer.redeliver([first])
        assert Counter(await rest_of(consumer)) == Counter([b"0", b"2", b"3"])


@pytest.mark.parametrize("settings", [SHARED, FROM_START], ids=["shared", "exclusive"])
@pytest.mark.parametrize("by", ["timeout", "refusal"])
async def test_what_comes_again_with_an_attachment_does_not_come_once_more_for_an_old_reason(
    server: Broker, client: Client, topic: str, settings: ConsumerSettings, by: str
) -> None:
    await send(client, topic, numbered(3))
    settings = replace(settings, nack_delay_ms=800)
    if by == "timeout":
        settings = replace(settings, ack_timeout_ms=1_000)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 3)
        if by == "refusal":
            for message in messages:
                consumer.negative_acknowledge(message)
        await reset_to_start(server, topic)
        again = await take(consumer, 3)
        assert sorted(data(again)) == numbered(3)
        if by == "timeout":
            consumer.acknowledge_many(again[1:])
            # Its time runs from when it was taken again.
            assert data(await take(consumer, 1)) == data(again[:1])
            assert consumer.stats().timed_out == 1
        else:
            await asyncio.sleep(0.8)  # for what should not happen
            assert await rest_of(consumer) == []


@pytest.mark.parametrize("settings", [SHARED, FROM_START], ids=["shared", "exclusive"])
@pytest.mark.parametrize("comes_again", ["with an attachment", "because all was asked for"])
async def test_what_comes_again_anyway_is_not_asked_for_once_more_by_a_late_refusal(
    server: Broker, client: Client, topic: str, settings: ConsumerSettings, comes_again: str
) -> None:
    await send_batch(client, topic, 3)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 3)
        if comes_again == "with an attachment":
            await reset_to_start(server, topic)
        else:
            consumer.redeliver_unacknowledged()
        again = await take(consumer, 3)
        assert data(again) == numbered(3)
        for message in messages:
            consumer.negative_acknowledge(message)
        consumer.redeliver(messages)
        assert await rest_of(consumer) == []
        consumer.negative_acknowledge(again[0])
        assert data(await take(consumer, 3)) == numbered(3)


async def test_an_entry_refused_twice_on_an_exclusive_subscription_comes_again_once(
    client: Client, topic: str
) -> None:
    """What comes again with one refused message is not asked for once more for another."""
    await send(client, topic, numbered(2))
    settings = replace(FROM_START, nack_delay_ms=50)
    async with await client.consumer(topic, "s", settings) as consumer:
        first, second = await take(consumer, 2)
        consumer.negative_acknowledge(second)
        consumer.redeliver([first])
        again = await take(consumer, 2)
        assert data(again) == numbered(2)
        await asyncio.sleep(0.1)  # for what should not happen
        assert await rest_of(consumer) == []


@pytest.mark.parametrize("moved_by", ["an operator", "a seek"])
async def test_chunks_of_a_message_taken_before_an_attachment_are_all_acknowledged(
    server: Broker, client: Client, topic: str, moved_by: str
) -> None:
    chunking = ProducerSettings(batching=False, chunking=True, chunk_bytes_max=100)
    async with await client.producer(topic, chunking) as producer:
        await producer.send(bytes(350))
    async with await client.consumer(topic, "s", SHARED) as consumer:
        (message,) = await take(consumer, 1)
        consumer.pause()
        if moved_by == "a seek":
            await consumer.seek(message.message_id)
        else:
            await reset_to_start(server, topic)
            await until(lambda: consumer.is_connected)
        consumer.acknowledge(message)
        await await_no_backlog(server, topic)


async def test_a_seek_to_a_message_id_without_size_still_leaves_out_what_is_before_it(
    client: Client, topic: str
) -> None:
    await send_batch(client, topic, 5)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        third = (await take(consumer, 3))[2].message_id
        bare = MessageId(third.ledger_id, third.entry_id, third.batch_index)
        await consumer.seek(bare)
        assert data(await take(consumer, 3)) == numbered(3, 2)
