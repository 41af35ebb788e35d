"""Shared subscriptions: round robin, redelivery with counts, limits on what is unacknowledged."""

from typing import Any

import pytest

from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, position_in
from tests.waiting import settle

_SHARED = pb.CommandSubscribe.Shared


def _at(*entry_ids: int) -> list[Position]:
    return [Position(7, each) for each in entry_ids]


async def _join(harness: Harness, permits: int = 0, **fields: Any) -> Client:
    client = harness.client()
    answer = await client.subscribe(subType=_SHARED, **fields)
    assert answer.type == BaseCommand.SUCCESS
    if permits:
        client.flow(permits)
    return client


async def _got(client: Client) -> list[tuple[int, int]]:
    """(entry id, redelivery count) of everything that has arrived."""
    await settle()
    return [
        (command.message.message_id.entryId, command.message.redelivery_count)
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


async def _ids(client: Client) -> list[int]:
    return [entry_id for entry_id, _ in await _got(client)]


def _stored(count: int, **fields: int) -> Harness:
    harness = Harness(**fields)
    harness.log.store(*(entry() for _ in range(count)))
    return harness


async def test_turns_of_twenty_messages() -> None:
    harness = _stored(100)
    one, two = await _join(harness), await _join(harness)
    subscription = harness.topic.subscriptions["s"]
    for consumer in subscription.consumers:
        consumer.permits = 50
    subscription.wake()
    assert await _ids(one) == [*range(20), *range(40, 60), *range(80, 90)]
    assert await _ids(two) == [*range(20, 40), *range(60, 80), *range(90, 100)]


async def test_everything_is_sent_once() -> None:
    harness = _stored(300)
    clients = [await _join(harness, permits=100) for _ in range(3)]
    found = [entry_id for client in clients for entry_id in await _ids(client)]
    assert sorted(found) == list(range(300))


async def test_credit_of_each_consumer_is_respected() -> None:
    harness = _stored(100)
    one, two = await _join(harness, permits=7), await _join(harness, permits=5)
    assert len(await _ids(one)) == 7
    assert len(await _ids(two)) == 5


async def test_lower_priority_levels_wait_for_the_higher() -> None:
    harness = _stored(50)
    low = await _join(harness, priority_level=1)
    high = await _join(harness, permits=10, priority_level=0)
    assert len(await _ids(high)) == 10
    low.flow(10)
    assert len(await _ids(low)) == 10
    high.flow(5)
    low.flow(5)
    assert await _ids(high) == [20, 21, 22, 23, 24]


async def test_a_negative_acknowledgement_brings_the_entry_back_with_a_count() -> None:
    harness = _stored(3)
    client = await _join(harness, permits=10)
    assert await _got(client) == [(0, 0), (1, 0), (2, 0)]
    client.redeliver(*_at(1))
    assert await _got(client) == [(1, 1)]
    client.redeliver(*_at(1))
    assert await _got(client) == [(1, 2)]


async def test_only_what_is_pending_at_the_consumer_is_redelivered() -> None:
    harness = _stored(2)
    client = await _join(harness, permits=10)
    await _ids(client)
    client.ack(*_at(0))
    client.redeliver(*_at(0, 5))
    assert await _ids(client) == []


async def test_redelivery_of_everything() -> None:
    harness = _stored(4)
    client = await _join(harness, permits=4)
    await _ids(client)
    client.ack(*_at(2))
    client.redeliver()
    assert await _ids(client) == []  # redelivery changes no credit
    client.flow(10)
    assert await _got(client) == [(0, 1), (1, 1), (3, 1)]


async def test_redelivery_goes_before_new_entries() -> None:
    harness = _stored(5)
    client = await _join(harness, permits=3)
    assert await _ids(client) == [0, 1, 2]
    client.redeliver(*_at(2, 0))
    client.flow(4)
    assert await _ids(client) == [0, 2, 3, 4]


async def test_what_a_lost_consumer_had_goes_to_the_others_uncounted() -> None:
    harness = _stored(4)
    one, two = await _join(harness, permits=3), await _join(harness)
    assert await _ids(one) == [0, 1, 2]
    one.ack(*_at(1))
    one.connection.lost()
    two.flow(10)
    assert await _got(two) == [(0, 0), (2, 0), (3, 0)]


async def test_the_last_one_to_leave_resets_counts_and_place() -> None:
    harness = _stored(3)
    one = await _join(harness, permits=10)
    await _ids(one)
    one.redeliver()
    await _ids(one)
    one.ack(*_at(1))
    one.connection.lost()
    two = await _join(harness, permits=10)
    assert await _got(two) == [(0, 0), (2, 0)]


async def test_any_consumer_may_acknowledge_for_another() -> None:
    harness = _stored(2)
    one, two = await _join(harness, permits=2), await _join(harness)
    await _ids(one)
    two.ack(*_at(0, 1))
    subscription = harness.topic.subscriptions["s"]
    assert subscription.unacked_messages == 0
    one.connection.lost()
    two.flow(10)
    assert await _ids(two) == []


async def test_partly_acknowledged_batches_come_back_with_what_is_open() -> None:
    harness = Harness()
    harness.log.store(entry(num_messages_in_batch=4))
    client = await _join(harness, permits=10)
    await _ids(client)
    consumer = harness.topic.subscriptions["s"].consumers[0]
    client.ack_indexes(Position(7, 0), [0b1010])
    assert (consumer.unacked_messages, consumer.permits) == (2, 6)
    client.redeliver(*_at(0))
    [(again, _)] = await client.messages(1)
    assert (list(again.ack_set), again.redelivery_count) == ([0b1010], 1)
    assert (consumer.unacked_messages, consumer.permits) == (2, 4)


@pytest.mark.parametrize(("limit", "expected"), [(3, 3), (4, 4)])
async def test_a_consumer_with_too_much_unacknowledged_is_sent_nothing(
    limit: int, expected: int
) -> None:
    harness = _stored(20, unacked_per_consumer_max=limit)
    client = await _join(harness, permits=20)
    assert len(await _ids(client)) == expected
    client.ack(*_at(0))
    assert await _ids(client) == []
    client.ack(*_at(1))  # at half of the limit it goes on; its credit was kept
    assert len(await _ids(client)) == 2


async def test_a_redelivery_request_unblocks() -> None:
    harness = _stored(10, unacked_per_consumer_max=4)
    client = await _join(harness, permits=20)
    assert await _ids(client) == [0, 1, 2, 3]
    client.redeliver()
    assert await _ids(client) == [0, 1, 2, 3]


async def test_a_subscription_with_too_much_unacknowledged_is_blocked_as_a_whole() -> None:
    harness = _stored(100, unacked_per_subscription_max=30)
    one, two = await _join(harness, permits=50), await _join(harness, permits=50)
    first, second = await _ids(one), await _ids(two)
    assert len(first) + len(second) == 30
    one.ack(*_at(*first[:15]))
    assert len(await _ids(one)) + len(await _ids(two)) == 15


async def test_redelivery_reads_what_the_cache_no_longer_has_in_ranges() -> None:
    harness = _stored(10)
    client = await _join(harness, permits=10)
    await _ids(client)
    harness.log.reads.clear()
    client.redeliver(*_at(1, 2, 3, 7, 8))
    client.flow(10)
    assert await _ids(client) == [1, 2, 3, 7, 8]
    assert harness.log.reads == _at(1, 7)


async def test_a_failed_read_for_redelivery_is_repeated() -> None:
    harness = _stored(3, read_retry_ms=1)
    client = await _join(harness, permits=10)
    await _ids(client)
    harness.log.read_error = LogUnavailableError("bookies are away")
    client.redeliver()
    assert await _ids(client) == []
    harness.log.read_error = None
    assert [position_in(message) for message, _ in await client.messages(3)] == _at(0, 1, 2)


async def test_what_was_trimmed_meanwhile_is_not_redelivered() -> None:
    harness = _stored(2)
    harness.log.roll(9)
    harness.log.store(entry())
    client = await _join(harness, permits=10)
    assert len(await _ids(client)) == 3
    harness.log.trim()
    client.redeliver()
    found = [position_in(message) for message, _ in await client.messages(1)]
    assert found == [Position(9, 0)]
    assert await _ids(client) == []


async def test_new_messages_are_spread_as_they_arrive() -> None:
    harness = Harness(round_robin_messages_max=1)
    clients = [await _join(harness, permits=100) for _ in range(2)]
    producer = harness.client()
    await producer.produce()
    producer.publish(*range(10))
    found = [await _ids(client) for client in clients]
    assert sorted(map(len, found)) == [5, 5]
    assert sorted([*found[0], *found[1]]) == list(range(10))
