"""SUBSCRIBE and how a consumer leaves again, through the whole core."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.policies.model import Policies, SubscribeRate
from magnetar.cursors import (
    CursorError,
    CursorFencedError,
    CursorUnavailableError,
    InvalidCursorNodeError,
    SubscriptionCursor,
)
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, consuming, delivered_to, entry, id_of
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

_SHARED = pb.CommandSubscribe.Shared
_FAILOVER = pb.CommandSubscribe.Failover
_LATEST = pb.CommandSubscribe.Latest


async def test_success_comes_before_any_message() -> None:
    harness = Harness()
    harness.log.store(entry(b"0"))
    client = harness.client()
    client.send_subscribe()
    client.flow(10)  # too early: nobody is there yet, so the credit is lost
    assert (await client.next()).type == BaseCommand.SUCCESS
    await settle()
    assert client.received() == []
    client.flow(10)
    await client.messages(1)


@pytest.mark.parametrize(
    ("initial", "expected"), [(pb.CommandSubscribe.Earliest, [0, 1, 2]), (_LATEST, [2])]
)
async def test_a_new_subscription_starts_where_it_is_told(
    initial: int, expected: list[int]
) -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await consuming(harness, initialPosition=initial)
    producer = harness.client()
    await producer.produce()
    producer.publish(2)
    await settle()
    assert delivered_to(client) == expected


@pytest.mark.parametrize("start", [None, LATEST, Position(7, 3), Position(8, 0)])
@pytest.mark.parametrize(
    ("initial", "expected"), [(pb.CommandSubscribe.Earliest, [0, 1, 2, 3]), (_LATEST, [3])]
)
async def test_a_reader_without_a_start_in_the_topic_begins_at_its_initial_position(
    start: Position | None, initial: int, expected: list[int]
) -> None:
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    named: dict[str, Any] = {} if start is None else {"start_message_id": id_of(start)}
    client = await consuming(harness, durable=False, initialPosition=initial, **named)
    producer = harness.client()
    await producer.produce()
    producer.publish(3)
    await settle()
    assert delivered_to(client) == expected


@pytest.mark.parametrize(
    ("start", "expected"), [(EARLIEST, [0, 1, 2]), (Position(7, 1), [1, 2]), (Position(7, 2), [2])]
)
async def test_a_reader_with_a_start_in_the_topic_begins_there(
    start: Position, expected: list[int]
) -> None:
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    client = await consuming(
        harness, durable=False, initialPosition=_LATEST, start_message_id=id_of(start)
    )
    await settle()
    assert delivered_to(client) == expected


async def test_an_existing_subscription_goes_on_where_it_was() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    first = await consuming(harness)
    await first.messages(5)
    first.ack(Position(7, 0), Position(7, 1), Position(7, 3))
    first.connection.lost()
    second = await consuming(harness, initialPosition=_LATEST)
    await settle()
    # The hole at 3 was acknowledged: it does not come again.
    assert delivered_to(second) == [2, 4]


async def test_the_same_consumer_id_again_is_answered_again() -> None:
    client = await consuming(Harness())
    answer = await client.subscribe(0, request_id=55)
    assert answer.success.request_id == 55


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"subType": _SHARED, "read_compacted": True}, pb.ServerError.NotAllowedError),
        (
            {"subType": pb.CommandSubscribe.Key_Shared, "read_compacted": True},
            pb.ServerError.NotAllowedError,
        ),
        ({"subscription": ""}, pb.ServerError.ProducerBusy),
        ({"subscription": "pulsar.dedup"}, pb.ServerError.ProducerBusy),
        ({"subscription": "pulsar.repl.x"}, pb.ServerError.ProducerBusy),
        ({"force_topic_creation": False}, pb.ServerError.TopicNotFound),
    ],
)
async def test_what_cannot_be_subscribed_is_refused(
    fields: dict[str, Any], code: pb.ServerError
) -> None:
    client = Harness().client()
    answer = await client.subscribe(**fields)
    assert answer.error.error == code
    assert not client.io.is_closed


async def test_another_type_is_busy_while_somebody_is_connected() -> None:
    harness = Harness()
    holder = await consuming(harness, subType=_SHARED)
    other = harness.client()
    assert (await other.subscribe(subType=_FAILOVER)).error.error == pb.ServerError.ConsumerBusy
    holder.connection.lost()
    assert (await other.subscribe(subType=_FAILOVER)).type == BaseCommand.SUCCESS


async def test_a_durable_name_cannot_be_used_by_a_reader() -> None:
    harness = Harness()
    await consuming(harness)
    answer = await harness.client().subscribe(durable=False)
    assert answer.error.error == pb.ServerError.NotAllowedError


async def test_an_exclusive_subscription_with_a_live_consumer_is_busy() -> None:
    harness = Harness()
    holder = await consuming(harness)
    other = harness.client()
    other.send_subscribe()
    await holder.next(BaseCommand.PING)
    holder.send(BaseCommand.PONG, pong=pb.CommandPong())
    assert (await other.next()).error.error == pb.ServerError.ConsumerBusy


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("count", [1, 80])
@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/passing"])
async def test_exclusive_subscriptions_of_a_dead_client_are_taken_over(
    topic: str, count: int
) -> None:
    harness = Harness()
    dead = harness.client()
    for consumer_id in range(count):
        answer = await dead.subscribe(consumer_id, topic=topic, subscription=f"s{consumer_id}")
        assert answer.type == BaseCommand.SUCCESS
    other = await harness.connected()
    for consumer_id in range(count):
        other.send_subscribe(consumer_id, topic=topic, subscription=f"s{consumer_id}")
    for _ in range(count):
        await other.next(BaseCommand.SUCCESS)
    assert dead.io.is_closed
    await settle()  # The consumers of the dead client have left, and take nothing along.
    found = [each.consumers for each in harness.topics.topic(topic).subscriptions.values()]
    assert [[each.peer for each in here] for here in found] == [[other.connection.link]] * count


@pytest.mark.usefixtures("few_probes")
async def test_a_subscription_of_a_lost_connection_is_free_before_its_consumers_have_all_left() -> (
    None
):
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    former = harness.client()
    for consumer_id in range(80):
        await former.subscribe(consumer_id, subscription=f"s{consumer_id}", durable=False)
    former.flow(10, consumer_id=79)
    await former.messages(3)
    former.ack(Position(7, 1), consumer_id=79)
    other = await harness.connected()
    former.connection.lost()
    assert harness.topic.subscriptions["s79"].consumers
    await other.subscribe(subscription="s79", durable=False)
    other.flow(10)
    await settle()
    # What the former consumer did not acknowledge comes again, in order.
    assert delivered_to(other) == [0, 2]
    assert list(harness.topic.subscriptions) == ["s79"]


async def test_subscribe_waits_for_a_topic_that_loads() -> None:
    """Trap 10: a retryable error would hang the official client."""
    harness = Harness()
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    client.send_subscribe()
    client.send(BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=1))
    # Others go on meanwhile.
    assert (await client.next()).type == BaseCommand.LOOKUP_RESPONSE
    assert client.received() == []
    harness.topics.gate.set()
    assert (await client.next()).type == BaseCommand.SUCCESS


async def test_a_topic_that_does_not_load_ends_the_connection_not_the_subscribe() -> None:
    harness = Harness()
    harness.topics.is_unavailable = True
    client = harness.client()
    client.send_subscribe()
    await client.closed()
    assert client.received() == []
    counters = harness.services.counters
    assert (counters.requests_failed, counters.protocol_violations) == (1, 0)
    producer = harness.client()
    assert (await producer.produce()).error.error == pb.ServerError.ServiceNotReady


class _Cursors:
    """Fails to open cursors as often as it is told."""

    def __init__(self, harness: Harness, error: CursorError, times: int) -> None:
        self._open = harness.topics.open_cursor
        self._error = error
        self.failures_left = times

    async def open(self, *arguments: Any) -> SubscriptionCursor:
        if self.failures_left:
            self.failures_left -= 1
            raise self._error
        return await self._open(*arguments)


@pytest.mark.parametrize("error", [CursorUnavailableError, CursorFencedError])
async def test_subscribe_waits_for_a_cursor_that_cannot_be_opened_just_now(
    error: type[CursorError],
) -> None:
    """Trap 10, too."""
    harness = Harness(topic_load_retry_ms=1)
    cursors = _Cursors(harness, error("the store is away, or somebody else's"), 3)
    harness.topics.open_cursor = cursors.open  # type: ignore[assignment,method-assign]
    assert (await harness.client().subscribe()).type == BaseCommand.SUCCESS
    assert not cursors.failures_left


async def test_a_subscribe_that_waits_counts_once_towards_the_subscribe_rate() -> None:
    harness = Harness(topic_load_retry_ms=1)
    harness.policies.topics[parse_topic_name(TOPIC)] = Policies(
        subscribe_rate=SubscribeRate(per_consumer=1, period_s=3600)
    )
    harness.topics.apply_policies()
    cursors = _Cursors(harness, CursorUnavailableError("the store is away"), 3)
    harness.topics.open_cursor = cursors.open  # type: ignore[assignment,method-assign]
    assert (await harness.client().subscribe()).type == BaseCommand.SUCCESS


async def test_it_does_not_wait_for_ever() -> None:
    harness = Harness(topic_load_retry_ms=1, topic_load_timeout_ms=1000)
    cursors = _Cursors(harness, CursorUnavailableError("the store is away"), 1 << 30)
    harness.topics.open_cursor = cursors.open  # type: ignore[assignment,method-assign]
    client = harness.client()
    client.send_subscribe()
    await settle()
    assert client.received() == []
    harness.clock.advance(1000)
    await client.closed()
    assert client.received() == []


async def test_a_cursor_that_never_opens_is_told_at_once() -> None:
    harness = Harness()
    cursors = _Cursors(harness, InvalidCursorNodeError("garbage"), 1)
    harness.topics.open_cursor = cursors.open  # type: ignore[assignment,method-assign]
    answer = await harness.client().subscribe()
    assert answer.error.error == pb.ServerError.PersistenceError


async def test_the_compacted_view_of_a_topic_is_the_topic_while_nothing_compacts() -> None:
    """Table views of the official client read like this."""
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await consuming(harness, read_compacted=True)
    await client.messages(2)


# Leaving


async def test_closing_a_consumer_succeeds_known_or_not() -> None:
    harness = Harness()
    client = await consuming(harness)
    for request_id in (1, 2):
        client.send(
            BaseCommand.CLOSE_CONSUMER,
            close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=request_id),
        )
        assert client.take(BaseCommand.SUCCESS).success.request_id == request_id
    assert "s" in harness.topic.subscriptions


async def test_closing_a_consumer_that_is_being_created_cancels_it() -> None:
    harness = Harness()
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    client.send_subscribe()
    client.send(
        BaseCommand.CLOSE_CONSUMER,
        close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=2),
    )
    harness.topics.gate.set()
    await settle()
    assert client.commands() == [BaseCommand.SUCCESS]
    assert not harness.topic.subscriptions["s"].consumers


def _unsubscribe(client: Client, *, force: bool = False, consumer_id: int = 0) -> None:
    client.send(
        BaseCommand.UNSUBSCRIBE,
        unsubscribe=pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=8, force=force),
    )


async def test_unsubscribe_deletes_the_subscription() -> None:
    harness = Harness()
    client = await consuming(harness)
    _unsubscribe(client)
    assert (await client.next()).success.request_id == 8
    assert not harness.topic.subscriptions
    client.ack(Position(7, 0))  # grouped acknowledgements may follow
    assert not client.io.is_closed
    _unsubscribe(client)
    assert (await client.next()).error.error == pb.ServerError.MetadataError


async def test_unsubscribe_among_others_needs_force() -> None:
    harness = Harness()
    client, other = [await consuming(harness, subType=_SHARED) for _ in range(2)]
    _unsubscribe(client)
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    _unsubscribe(client, force=True)
    assert (await client.next()).type == BaseCommand.SUCCESS
    assert other.commands() == [BaseCommand.CLOSE_CONSUMER]
    assert not harness.topic.subscriptions


# A topic that goes away


async def test_a_closed_topic_sends_its_consumers_away_and_is_loaded_again() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await consuming(harness)
    await client.messages(1)
    old = harness.topic
    old.disconnect_all()
    close = client.take(BaseCommand.CLOSE_CONSUMER).close_consumer
    assert (close.consumer_id, close.request_id) == (0, 2**64 - 1)
    assert (await client.subscribe()).type == BaseCommand.SUCCESS
    assert harness.topic is not old


_PROPERTY = pb.KeyValue(key="k" * 100, value="v" * 836)
_RANGES = pb.KeySharedMeta(
    keySharedMode=pb.KeySharedMode.STICKY,
    hashRanges=[pb.IntRange(start=each, end=each) for each in range(15)],
)


@pytest.mark.parametrize(
    ("fields", "room"),
    [
        ({}, 1024),
        ({"metadata": [_PROPERTY]}, 24),
        ({"subscription_properties": [_PROPERTY]}, 24),
        ({"keySharedMeta": _RANGES}, 64),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
async def test_what_a_consumer_brings_is_bounded(
    fields: dict[str, Any], room: int, more: int
) -> None:
    client = Harness(client_metadata_bytes_max=1024).client()
    name = "n" * (room + more)
    answer = await client.subscribe(
        subType=pb.CommandSubscribe.Key_Shared, consumer_name=name, **fields
    )
    if more:
        assert answer.error.error == pb.ServerError.NotAllowedError
        assert "client_metadata_bytes_max" in answer.error.message
    else:
        assert answer.type == BaseCommand.SUCCESS
