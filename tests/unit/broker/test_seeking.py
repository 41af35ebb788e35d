"""Seeks, and readers, through the whole core."""

import asyncio

import pytest

from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import (
    Client,
    Harness,
    batch,
    consuming,
    delivered_to,
    entry,
    id_of,
    position_in,
)
from tests.waiting import settle, until

_SHARED = pb.CommandSubscribe.Shared
_LATEST = pb.CommandSubscribe.Latest
_MAX = (1 << 63) - 1


async def test_a_seek_closes_the_consumer_then_succeeds() -> None:
    """Trap 12; a SUBSCRIBE in between waits."""
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    client = await consuming(harness)
    await client.messages(5)
    client.ack(*(Position(7, each) for each in range(5)))
    request_id = await client.seek(message_id=id_of(Position(7, 2)))
    assert (await client.next()).close_consumer.consumer_id == 0
    client.send_subscribe()
    assert (await client.next()).success.request_id == request_id
    assert (await client.next()).type == BaseCommand.SUCCESS
    client.flow(10)
    await settle()
    assert delivered_to(client) == [2, 3, 4]


async def test_a_subscribe_during_a_seek_waits_for_it() -> None:
    harness = Harness()
    harness.log.store(*(entry(publish_time=each) for each in range(5)))
    client = await consuming(harness, permits=0)
    harness.log.read_gate = asyncio.Event()
    await client.seek(message_publish_time=3)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    client.send_subscribe()
    await settle()
    assert client.received() == []
    harness.log.read_gate.set()
    assert [(await client.next()).type for _ in range(2)] == [BaseCommand.SUCCESS] * 2
    client.flow(10)
    await settle()
    assert delivered_to(client) == [3, 4]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Position(-1, -1), [0, 1, 2]),
        (Position(_MAX, _MAX), []),
        (Position(7, 1), [1, 2]),
        (Position(7, 99), []),
        (Position(3, 5), [0, 1, 2]),
    ],
)
async def test_a_seek_to_what_does_not_exist_goes_to_the_next_entry(
    target: Position, expected: list[int]
) -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(3)))
    client = await consuming(harness, permits=0)
    await client.seek(message_id=id_of(target))
    await client.next(BaseCommand.CLOSE_CONSUMER)
    await client.next(BaseCommand.SUCCESS)
    await client.subscribe()
    client.flow(10)
    await settle()
    assert delivered_to(client) == expected


async def test_a_seek_into_a_batch_skips_its_passed_messages() -> None:
    harness = Harness()
    harness.log.store(batch(4), entry())
    client = await consuming(harness, permits=0)
    await client.seek(message_id=pb.MessageIdData(ledgerId=7, entryId=0, ack_set=[0b1100]))
    await client.next(BaseCommand.CLOSE_CONSUMER)
    await client.next(BaseCommand.SUCCESS)
    await client.subscribe()
    client.flow(10)
    (first, _), (second, _) = await client.messages(2)
    assert list(first.ack_set) == [0b1100]
    assert position_in(second) == (7, 1)


async def test_a_seek_on_shared_closes_everybody() -> None:
    harness = Harness()
    harness.log.store(entry())
    one, two = [await consuming(harness, permits=0, subType=_SHARED) for _ in range(2)]
    await one.seek(message_id=id_of(Position(-1, -1)))
    await one.next(BaseCommand.CLOSE_CONSUMER)
    await two.next(BaseCommand.CLOSE_CONSUMER)
    await one.next(BaseCommand.SUCCESS)


async def test_a_seek_is_finished_even_if_its_client_is_gone() -> None:
    harness = Harness()
    harness.log.store(*(entry(publish_time=each) for each in range(5)))
    client = await consuming(harness)
    await client.messages(5)
    client.ack(*(Position(7, each) for each in range(5)))
    harness.log.read_gate = asyncio.Event()
    await client.seek(message_publish_time=3)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    client.connection.lost()
    harness.log.read_gate.set()
    again = await consuming(harness)
    await settle()
    assert delivered_to(again) == [3, 4]


async def test_a_seek_without_consumer_or_target_is_refused() -> None:
    client = await consuming(Harness())
    await client.seek()
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    await client.seek(consumer_id=4, message_publish_time=1)
    assert (await client.next()).error.error == pb.ServerError.MetadataError


async def _reading(harness: Harness, start: Position | None) -> Client:
    return await consuming(
        harness,
        durable=False,
        initialPosition=_LATEST,
        start_message_id=None if start is None else id_of(start),
    )


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Position(-1, -1), [0, 1, 2]),
        (Position(7, 1), [1, 2]),  # inclusive: the client drops the first one itself
        (Position(_MAX, _MAX), []),
        (Position(7, 50), []),
        (None, []),
    ],
)
async def test_a_reader_starts_at_its_message(start: Position | None, expected: list[int]) -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(3)))
    client = await _reading(harness, start)
    await settle()
    assert delivered_to(client) == expected


async def test_a_reader_leaves_no_subscription_behind() -> None:
    harness = Harness()
    client = await _reading(harness, None)
    assert harness.topic.subscriptions
    client.connection.lost()
    assert not harness.topic.subscriptions


async def test_a_reader_keeps_its_place_over_a_seek_only() -> None:
    """Trap 12: the official client sends its old start id again after a seek by time."""
    harness = Harness()
    harness.log.store(*(entry(publish_time=each) for each in range(4)))
    client = await _reading(harness, Position(-1, -1))
    await client.messages(4)
    await client.seek(message_publish_time=2)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    await client.next(BaseCommand.SUCCESS)
    await client.subscribe(durable=False, start_message_id=id_of(Position(-1, -1)))
    client.flow(10)
    await settle()
    assert delivered_to(client) == [2, 3]


async def test_a_reader_that_does_not_come_back_after_a_seek_is_forgotten() -> None:
    harness = Harness(seek_return_timeout_ms=1)
    harness.log.store(entry())
    client = await _reading(harness, None)
    await client.seek(message_id=id_of(Position(7, 0)))
    await client.next(BaseCommand.CLOSE_CONSUMER)
    await client.next(BaseCommand.SUCCESS)
    assert harness.topic.subscriptions
    async with asyncio.timeout(5):
        while harness.topic.subscriptions:
            await settle()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_reader_that_does_not_come_back_after_a_failed_seek_is_forgotten(
    is_lost: bool,
) -> None:
    harness = Harness(seek_return_timeout_ms=1)
    harness.log.store(entry(), entry())
    client = await _reading(harness, None)
    harness.log.read_gate = asyncio.Event()
    await client.seek(message_publish_time=5)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    if is_lost:
        client.connection.lost()
    harness.log.read_error = LogUnavailableError("the bookies are away")
    harness.log.read_gate.set()
    if not is_lost:
        assert (await client.next()).error.error == pb.ServerError.UnknownError
        assert harness.topic.subscriptions
    await until(lambda: not harness.topic.subscriptions, "the subscription is gone")


async def test_a_reader_keeps_its_place_over_a_failed_seek() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(3)))
    client = await _reading(harness, Position(7, 0))
    await client.messages(3)
    client.ack(Position(7, 0))
    harness.log.read_error = LogUnavailableError("the bookies are away")
    await client.seek(message_publish_time=5)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    assert (await client.next()).error.error == pb.ServerError.UnknownError
    harness.log.read_error = None
    await client.subscribe(durable=False, start_message_id=id_of(Position(7, 0)))
    client.flow(10)
    await settle()
    assert delivered_to(client) == [1, 2]


async def test_rolling_back_starts_at_a_time() -> None:
    harness = Harness()
    now_ms = harness.services.clock.wall_ms()
    harness.log.store(entry(publish_time=now_ms - 100_000), entry(publish_time=now_ms - 1_000))
    client = await consuming(harness, start_message_rollback_duration_sec=50)
    await settle()
    assert delivered_to(client) == [1]
