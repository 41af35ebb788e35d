"""Chunked messages: all chunks of one reach the same consumer."""

from typing import Any

from magnetar.broker.base.chunks import ChunkOf, chunk_of
from magnetar.broker.topic.dispatch.affinity import ChunkAffinity
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, MessageMetadata
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry
from tests.waiting import settle


def _chunk(uuid: str, number: int, of: int) -> bytes:
    return entry(uuid=uuid, chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of)


async def _join(harness: Harness, permits: int = 0, **fields: Any) -> Client:
    client = harness.client()
    answer = await client.subscribe(subType=pb.CommandSubscribe.Shared, **fields)
    assert answer.type == BaseCommand.SUCCESS
    if permits:
        client.flow(permits)
    return client


async def _ids(client: Client) -> list[int]:
    await settle()
    return [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


def _wake(harness: Harness) -> None:
    harness.topic.subscriptions["s"].wake()


def test_what_a_chunk_is() -> None:
    assert chunk_of(_chunk("u", 0, 2)) == ChunkOf("u", is_last=False)
    assert chunk_of(_chunk("u", 1, 2)) == ChunkOf("u", is_last=True)
    assert chunk_of(_chunk("u", 0, 1)) is None
    assert chunk_of(entry()) is None
    assert chunk_of(entry(num_chunks_from_msg=3)) is None  # of which message?
    assert chunk_of(b"") is None
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, uuid="u", num_chunks_from_msg=2
    ).SerializeToString()
    bare = len(metadata).to_bytes(4, "big") + metadata
    assert chunk_of(bare) == ChunkOf("u", is_last=False)


def test_a_body_that_looks_like_the_tag_makes_no_chunk() -> None:
    assert chunk_of(entry(b"\xd8\x01")) is None
    assert chunk_of(entry(properties=[pb.KeyValue(key="a", value="\u0601b")])) is None


async def test_affinities_are_bounded() -> None:
    harness = Harness()
    await _join(harness)
    (consumer,) = harness.topic.subscriptions["s"].consumers
    affinity = ChunkAffinity(2)
    for uuid in "abc":
        affinity.sent(ChunkOf(uuid, is_last=False), consumer)
    assert len(affinity) == 2
    assert affinity.consumer_of(ChunkOf("a", is_last=False)) is None
    assert affinity.consumer_of(ChunkOf("c", is_last=True)) is consumer
    affinity.sent(ChunkOf("c", is_last=True), consumer)
    assert affinity.consumer_of(ChunkOf("c", is_last=True)) is None


async def test_chunks_of_several_producers_reach_one_consumer_each() -> None:
    harness = Harness(round_robin_messages_max=1)
    harness.log.store(*(_chunk(uuid, number, 4) for number in range(4) for uuid in "abcde"))
    one, two = await _join(harness), await _join(harness)
    for consumer in harness.topic.subscriptions["s"].consumers:
        consumer.permits = 100
    _wake(harness)
    of_one, of_two = await _ids(one), await _ids(two)
    assert sorted(of_one + of_two) == list(range(20))
    assert of_one
    assert of_two
    assert {each % 5 for each in of_one}.isdisjoint({each % 5 for each in of_two})
    assert of_one == sorted(of_one)


async def test_a_chunk_waits_for_its_consumer_while_the_rest_goes_on() -> None:
    harness = Harness()
    harness.log.store(_chunk("u", 0, 3))
    one = await _join(harness, permits=1)
    assert await _ids(one) == [0]
    two = await _join(harness, permits=10)
    harness.log.store(_chunk("u", 1, 3), entry(), _chunk("u", 2, 3), entry())
    _wake(harness)
    assert await _ids(two) == [2, 4]
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, SharedDispatcher)
    assert dispatcher.waiting_entries == 2
    one.flow(5)
    assert await _ids(one) == [1, 3]
    assert dispatcher.waiting_entries == 0
    dispatcher.check()


async def test_a_chunk_that_is_acknowledged_or_skipped_while_it_waits_waits_no_more() -> None:
    harness = Harness()
    harness.log.store(*(_chunk("u", number, 4) for number in range(4)))
    full, other = await _join(harness, permits=1), await _join(harness)
    assert await _ids(full) == [0]
    other.flow(10)
    await settle()
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, SharedDispatcher)
    assert dispatcher.waiting_entries == 3
    other.ack(Position(7, 1))
    assert dispatcher.waiting_entries == 2
    harness.topic.subscriptions["s"].cursor.ack_range(7, 3, 3)
    dispatcher.forget(Position(7, 3))
    assert dispatcher.waiting_entries == 1
    full.flow(10)
    assert await _ids(full) == [2]


async def test_a_lower_priority_consumer_keeps_a_message_that_it_began() -> None:
    harness = Harness()
    harness.log.store(_chunk("u", 0, 2))
    low = await _join(harness, permits=10, priority_level=1)
    assert await _ids(low) == [0]
    high = await _join(harness, permits=10, priority_level=0)
    harness.log.store(_chunk("u", 1, 2), entry())
    _wake(harness)
    assert await _ids(low) == [1]
    assert await _ids(high) == [2]


async def test_when_the_consumer_leaves_the_whole_message_goes_to_another() -> None:
    harness = Harness()
    harness.log.store(_chunk("u", 0, 3), _chunk("u", 1, 3))
    one = await _join(harness, permits=1)
    assert await _ids(one) == [0]
    two = await _join(harness, permits=10)
    assert await _ids(two) == []
    one.connection.lost()
    assert await _ids(two) == [0, 1]
    harness.log.store(_chunk("u", 2, 3))
    _wake(harness)
    assert await _ids(two) == [2]


async def test_a_chunked_message_that_is_not_acknowledged_comes_again_to_one_consumer() -> None:
    harness = Harness(round_robin_messages_max=1)
    harness.log.store(*(_chunk("u", number, 4) for number in range(4)))
    one, two = await _join(harness), await _join(harness)
    for consumer in harness.topic.subscriptions["s"].consumers:
        consumer.permits = 100
    _wake(harness)
    first = one if await _ids(one) else two
    await _ids(two)
    first.redeliver(*(Position(7, each) for each in range(4)))
    assert sorted([await _ids(one), await _ids(two)]) == [[], [0, 1, 2, 3]]
