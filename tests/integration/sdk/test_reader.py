"""Readers: where they begin, where they go on, and whether there is more."""

import asyncio

import pytest

from magnetar.sdk import (
    Client,
    ConsumerSettings,
    InitialPosition,
    MessageId,
    ProducerSettings,
    ReaderSettings,
)
from magnetar.sdk.settings import BatchReceivePolicy
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker, once
from tests.integration.sdk.scripted_topic import numbered, publish
from tests.waiting import until


@pytest.mark.parametrize(
    ("start", "inclusive", "first"),
    [
        (MessageId.EARLIEST, False, b"0"),
        (MessageId(1, 0, 1), False, b"2"),
        (MessageId(1, 0, 1), True, b"1"),
        (MessageId(1, 0, 2), False, b"3"),
        (MessageId(1, 1, 0), True, b"3"),
    ],
)
async def test_reader_begins_behind_its_start_or_with_it(
    client: Client, start: MessageId, inclusive: bool, first: bytes
) -> None:
    await publish(client, numbered(6), batch=3)
    reader = await client.reader("t", start, ReaderSettings(start_inclusive=inclusive))
    assert (await reader.read_next(timeout_s=10)).data == first


async def test_reader_is_not_durable_and_tells_its_start(
    client: Client, broker: ScriptedBroker
) -> None:
    await client.reader("t", MessageId(7, 8, 2))
    subscribe = (await broker.wait_command(BaseCommand.SUBSCRIBE)).subscribe
    assert not subscribe.durable
    assert subscribe.subscription.startswith("reader-")
    start = subscribe.start_message_id
    assert (start.ledgerId, start.entryId, start.batch_index) == (7, 8, 2)


async def test_nothing_comes_twice_after_a_lost_connection(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6), batch=3)
    reader = await client.reader("t")
    taken = [(await reader.read_next(timeout_s=10)).data for _ in range(2)]
    broker.drop_connections()
    subscribe = (await broker.wait_command(BaseCommand.SUBSCRIBE, 2)).subscribe
    await broker.wait_command(BaseCommand.FLOW, 2)
    start = subscribe.start_message_id
    assert (start.ledgerId, start.entryId, start.batch_index) == (1, 0, 1)
    broker.acked.clear()
    taken += [(await reader.read_next(timeout_s=10)).data for _ in range(4)]
    assert taken == [b"%d" % at for at in range(6)]


async def test_what_is_taken_while_it_attaches_again_does_not_come_twice(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(4), batch=4)
    reader = await client.reader("t")
    taken = [(await reader.read_next(timeout_s=10)).data]
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SUBSCRIBE:
            return False
        go_on.add_done_callback(lambda _: peer.serve(command, b""))
        asked.set_result(None)
        return True

    broker.faults.append(hold)
    broker.drop_connections()
    await asked
    taken += [(await reader.read_next(timeout_s=10)).data for _ in range(2)]
    go_on.set_result(None)
    await broker.wait_command(BaseCommand.FLOW, 2)
    taken.append((await reader.read_next(timeout_s=10)).data)
    assert taken == [b"0", b"1", b"2", b"3"]


async def test_reader_that_has_read_all_has_no_more_after_a_lost_connection(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(3))
    reader = await client.reader("t")
    for _ in range(3):
        await reader.read_next(timeout_s=10)
    broker.drop_connections()
    await broker.wait_command(BaseCommand.FLOW, 2)
    assert not await reader.has_message_available()


@pytest.mark.parametrize("batching", [False, True])
async def test_what_a_call_put_back_comes_after_a_lost_connection(
    client: Client, broker: ScriptedBroker, batching: bool
) -> None:
    async with await client.producer("t", ProducerSettings(batching=batching)) as producer:
        await producer.send_many([b"aa", b"bb", b"cc"])
    policy = BatchReceivePolicy(bytes_max=3, timeout_ms=5_000)
    settings = ConsumerSettings(
        durable=False, initial_position=InitialPosition.EARLIEST, batch_receive=policy
    )
    consumer = await client.consumer("t", "s", settings)
    taken: list[bytes] = []
    for attached in (2, 3):
        taken += [message.data for message in await consumer.receive_batch()]
        broker.drop_connections()
        await broker.wait_command(BaseCommand.FLOW, attached)
    taken.append((await consumer.receive(timeout_s=10)).data)
    assert taken == [b"aa", b"bb", b"cc"]


async def test_what_is_put_back_while_it_attaches_again_comes_all_the_same(
    client: Client, broker: ScriptedBroker
) -> None:
    """The broker was asked for what is behind it by then."""
    await publish(client, numbered(3))
    settings = ConsumerSettings(
        durable=False,
        initial_position=InitialPosition.EARLIEST,
        batch_receive=BatchReceivePolicy(messages_max=9, timeout_ms=0),
    )
    consumer = await client.consumer("t", "s", settings)
    collecting = asyncio.create_task(consumer.receive_batch())
    await until(lambda: consumer.last_taken == MessageId(1, 2))

    def cancel(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SUBSCRIBE:
            return False
        start = command.subscribe.start_message_id
        collecting.add_done_callback(lambda _: peer.serve(command, b""))
        collecting.add_done_callback(lambda _: setattr(peer, "next_entry", start.entryId))
        collecting.cancel()
        return True

    broker.faults.append(once(cancel))
    broker.drop_connections()
    await broker.wait_command(BaseCommand.FLOW, 2)
    taken = [(await consumer.receive(timeout_s=10)).data for _ in range(3)]
    assert taken == [b"0", b"1", b"2"]


async def test_reader_knows_whether_there_is_more(client: Client) -> None:
    reader = await client.reader("t")
    assert not await reader.has_message_available()
    await publish(client, numbered(3))
    taken = 0
    while await reader.has_message_available():
        taken += len(await reader.read_many(2, timeout_s=10))
    assert taken == 3
    assert await reader.last_message_id() == MessageId(1, 2)


async def test_reader_iterates(client: Client) -> None:
    await publish(client, numbered(3))
    reader = await client.reader("t")
    taken: list[bytes] = []
    async for message in reader:
        taken.append(message.data)
        if len(taken) == 3:
            break
    assert taken == [b"0", b"1", b"2"]


async def test_reader_seeks(client: Client) -> None:
    await publish(client, numbered(5))
    reader = await client.reader("t")
    await reader.read_next(timeout_s=10)
    await reader.seek(MessageId(1, 3))
    assert (await reader.read_next(timeout_s=10)).data == b"3"
    assert [batch.payloads() for batch in await reader.read_batches(5, timeout_s=10)] == [[b"4"]]


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("inclusive", [False, True])
async def test_start_at_the_last_message_has_more_only_if_it_counts_itself(
    client: Client, broker: ScriptedBroker, batch: int, inclusive: bool
) -> None:
    await publish(client, numbered(3), batch=batch)
    start = MessageId(1, 0, 2) if batch else MessageId(1, 2)
    reader = await client.reader("t", start, ReaderSettings(start_inclusive=inclusive))
    await broker.wait_command(BaseCommand.FLOW)
    assert await reader.has_message_available() == inclusive
    if inclusive:
        assert (await reader.read_next(timeout_s=10)).data == b"2"


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_reader_attaches_again_where_a_chunked_message_to_come_begins(
    client: Client, broker: ScriptedBroker, is_taken: bool
) -> None:
    """With the last message before it, not all chunks would come; nothing else comes twice."""
    async with await client.producer("t", ProducerSettings(batching=False)) as producer:
        for name in ("a0", "b0", "x", "a1", "y", "b1", "z"):
            metadata = MessageMetadata()
            if name[-1].isdigit():
                metadata.uuid, metadata.chunk_id = name[:-1], int(name[-1])
                metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = 2, 4
            producer.send_encoded_nowait(name.encode(), metadata)
        await producer.flush()
    reader = await client.reader("t")
    before = 4 if is_taken else 2
    taken = [(await reader.read_next(timeout_s=10)).data for _ in range(before)]
    broker.drop_connections()
    start = (await broker.wait_command(BaseCommand.SUBSCRIBE, 2)).subscribe.start_message_id
    assert start.entryId == (5 if is_taken else 1)
    await broker.wait_command(BaseCommand.FLOW, 2)
    taken += [(await reader.read_next(timeout_s=10)).data for _ in range(5 - before)]
    assert taken == [b"x", b"a0a1", b"y", b"b0b1", b"z"]
