"""SUBSCRIBE, credit, MESSAGE, acknowledgements and questions, through the whole core."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.policies.model import PolicySet, SubscribeRate
from magnetar.cursors import (
    CursorError,
    CursorFencedError,
    CursorUnavailableError,
    InvalidCursorNodeError,
    SubscriptionCursor,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, id_of, position_in, settle
from tests.unit.broker.memory_parts import TOPIC

_SHARED = pb.CommandSubscribe.Shared
_FAILOVER = pb.CommandSubscribe.Failover
_LATEST = pb.CommandSubscribe.Latest
_MAX = (1 << 63) - 1


def _batch(size: int, **fields: Any) -> bytes:
    return entry(b"batch", num_messages_in_batch=size, **fields)


def _positions(client: Client) -> list[int]:
    """Entry ids of all MESSAGEs that have arrived."""
    return [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


async def _consuming(harness: Harness, *, permits: int = 1000, **fields: Any) -> Client:
    client = harness.client()
    answer = await client.subscribe(**fields)
    assert answer.type == BaseCommand.SUCCESS, answer
    if permits:
        client.flow(permits)
    return client


# SUBSCRIBE


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
    client = await _consuming(harness, initialPosition=initial)
    producer = harness.client()
    await producer.produce()
    producer.publish(2)
    await settle()
    assert _positions(client) == expected


async def test_an_existing_subscription_goes_on_where_it_was() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    first = await _consuming(harness)
    await first.messages(5)
    first.ack(Position(7, 0), Position(7, 1), Position(7, 3))
    first.connection.lost()
    second = await _consuming(harness, initialPosition=_LATEST)
    await settle()
    # The hole at 3 was acknowledged: it does not come again.
    assert _positions(second) == [2, 4]


async def test_the_same_consumer_id_again_is_answered_again() -> None:
    client = await _consuming(Harness())
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
    holder = await _consuming(harness, subType=_SHARED)
    other = harness.client()
    assert (await other.subscribe(subType=_FAILOVER)).error.error == pb.ServerError.ConsumerBusy
    holder.connection.lost()
    assert (await other.subscribe(subType=_FAILOVER)).type == BaseCommand.SUCCESS


async def test_a_durable_name_cannot_be_used_by_a_reader() -> None:
    harness = Harness()
    await _consuming(harness)
    answer = await harness.client().subscribe(durable=False)
    assert answer.error.error == pb.ServerError.NotAllowedError


async def test_an_exclusive_subscription_with_a_live_consumer_is_busy() -> None:
    harness = Harness()
    holder = await _consuming(harness)
    other = harness.client()
    other.send_subscribe()
    await holder.next(BaseCommand.PING)
    holder.send(BaseCommand.PONG, pong=pb.CommandPong())
    assert (await other.next()).error.error == pb.ServerError.ConsumerBusy


async def test_an_exclusive_subscription_of_a_dead_client_is_taken_over() -> None:
    harness = Harness()
    dead = await _consuming(harness)
    other = harness.client()
    assert (await other.subscribe()).type == BaseCommand.SUCCESS
    assert dead.io.is_closed


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
    harness.policies.topics[parse_topic_name(TOPIC)] = PolicySet(
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
    client = await _consuming(harness, read_compacted=True)
    await client.messages(2)


# Credit and MESSAGE


async def test_messages_are_what_was_stored_and_carry_their_ids() -> None:
    harness = Harness()
    stored = [entry(b"a"), entry(b"b")]
    harness.log.store(*stored)
    client = await _consuming(harness)
    found = await client.messages(2)
    assert [payload for _, payload in found] == stored
    assert [position_in(message) for message, _ in found] == [(7, 0), (7, 1)]
    first = found[0][0]
    assert not first.message_id.HasField("partition")
    assert not first.message_id.HasField("batch_index")
    assert not first.HasField("redelivery_count")
    assert not first.HasField("consumer_epoch")
    assert not first.ack_set


async def test_messages_of_a_partition_carry_its_index() -> None:
    harness = Harness()
    name = f"{TOPIC}-partition-3"
    client = harness.client()
    await client.produce(topic=name)
    await client.subscribe(topic=name)
    client.flow(1)
    client.publish(0)
    await client.next(BaseCommand.SEND_RECEIPT)
    [(message, _)] = await client.messages(1)
    assert message.message_id.partition == 3


async def test_never_more_than_the_credit() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(10)))
    client = await _consuming(harness, permits=3)
    await settle()
    assert _positions(client) == [0, 1, 2]
    client.flow(1)
    assert _positions(client) == [3]


async def test_credit_counts_messages_not_entries() -> None:
    """Trap 6: a batch costs as much as it holds, and goes out while any credit is left."""
    harness = Harness()
    harness.log.store(*(_batch(10) for _ in range(4)))
    client = await _consuming(harness, permits=11)
    await settle()
    assert _positions(client) == [0, 1]
    client.flow(9)  # back to zero
    assert _positions(client) == []
    client.flow(1)
    assert _positions(client) == [2]


async def test_a_batch_of_one_is_a_batch_and_costs_one() -> None:
    harness = Harness()
    harness.log.store(_batch(1), _batch(1))
    client = await _consuming(harness, permits=1)
    await settle()
    assert _positions(client) == [0]


async def test_markers_are_neither_delivered_nor_left_open() -> None:
    harness = Harness()
    harness.log.store(entry(), entry(marker_type=21), entry())
    client = await _consuming(harness)
    await settle()
    assert _positions(client) == [0, 2]
    client.ack(Position(7, 0), Position(7, 2))
    assert harness.topics.cursors["s"].mark_delete == (7, 2)


async def test_an_old_client_gets_no_checksum() -> None:
    harness = Harness()
    harness.log.store(entry(b"a"))
    client = harness.client(version=10)
    await client.subscribe()
    client.flow(1)
    assert (await client.messages(1))[0][1] == entry(b"a")[6:]


async def test_dispatch_pauses_while_the_client_does_not_read() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await _consuming(harness, permits=0)
    client.connection.on_writable(False)
    client.flow(10)
    await settle()
    assert client.received() == []
    client.connection.on_writable(True)
    await settle()
    assert _positions(client) == [0, 1]


async def test_published_messages_reach_a_waiting_consumer_in_one_write() -> None:
    harness = Harness()
    consumer = await _consuming(harness)
    producer = harness.client()
    await producer.produce()
    writes = consumer.io.writes
    producer.publish(*range(20))
    producer.publish(*range(20, 40))
    await settle()
    assert _positions(consumer) == list(range(40))
    assert consumer.io.writes == writes + 1
    assert harness.log.reads == []


async def test_a_flow_of_nothing_or_for_nobody_is_ignored() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await _consuming(harness, permits=0)
    client.flow(0)
    client.flow(5, consumer_id=17)
    await settle()
    assert client.received() == []
    assert not client.io.is_closed


# Acknowledgements


async def test_a_single_acknowledgement_may_name_many() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    client = await _consuming(harness)
    client.ack(*(Position(7, each) for each in range(5)))
    assert harness.topics.cursors["s"].mark_delete == (7, 4)
    await settle()
    assert BaseCommand.ACK_RESPONSE not in client.commands()


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, _SHARED])
async def test_acknowledgements_in_any_order_with_repetitions_and_beyond_the_end(
    kind: int,
) -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(20)))
    client = await _consuming(harness, subType=kind)
    await client.messages(20)
    named = [0, 1, 2, 3, 4, 5, 5, 4, 9, 8, 8, 7, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 0]
    client.ack(*(Position(7, each) for each in named), Position(8, 0), Position(6, 0))
    cursor = harness.topics.cursors["s"]
    assert cursor.mark_delete == (7, 5)
    acked = [each for each in range(20) if cursor.is_acked(Position(7, each))]
    assert acked == [*range(6), 7, 8, 9, *range(12, 20)]
    assert cursor.backlog_entries == 3
    if kind == _SHARED:
        assert harness.topic.subscriptions["s"].unacked_messages == 3
    client.redeliver()
    await settle()
    assert _positions(client) == [6, 10, 11]


async def test_an_acknowledgement_with_a_request_id_is_answered() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await _consuming(harness, permits=0)
    client.ack(Position(7, 0), request_id=0)
    answer = client.take(BaseCommand.ACK_RESPONSE).ackResponse
    assert answer.HasField("request_id")
    assert not answer.HasField("error")


async def test_an_acknowledgement_for_nobody_is_ignored_but_answered() -> None:
    client = Harness().client()
    client.ack(Position(7, 0), consumer_id=3)
    assert client.received() == []
    client.ack(Position(7, 0), consumer_id=3, request_id=4)
    assert client.take(BaseCommand.ACK_RESPONSE).ackResponse.request_id == 4


async def test_an_acknowledgement_in_a_transaction_is_refused_where_there_are_none() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await _consuming(harness, permits=0)
    client.ack(Position(7, 0), request_id=4, txnid_most_bits=1, txnid_least_bits=1)
    answer = (await client.next(BaseCommand.ACK_RESPONSE)).ackResponse
    assert answer.error == pb.ServerError.NotAllowedError
    assert harness.topics.cursors["s"].mark_delete == (7, -1)


async def test_what_was_never_written_cannot_be_acknowledged() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await _consuming(harness, permits=0)
    client.ack(Position(7, 2), Position(9, 0))
    client.ack(Position(9, 0), ack_type=pb.CommandAck.Cumulative)
    client.send(
        BaseCommand.ACK,
        ack=pb.CommandAck(
            consumer_id=0, ack_type=pb.CommandAck.Individual, message_id=[id_of(Position(-1, -1))]
        ),
    )
    assert harness.topics.cursors["s"].backlog_entries == 2


async def test_cumulative_acknowledgement_covers_everything_before() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    client = await _consuming(harness)
    client.ack(Position(7, 3), ack_type=pb.CommandAck.Cumulative)
    assert harness.topics.cursors["s"].mark_delete == (7, 3)
    # More than one id makes no sense, and is ignored.
    client.ack(Position(7, 3), Position(7, 4), ack_type=pb.CommandAck.Cumulative)
    assert harness.topics.cursors["s"].mark_delete == (7, 3)


async def test_cumulative_acknowledgement_on_shared_is_ignored() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await _consuming(harness, subType=_SHARED)
    client.ack(Position(7, 1), ack_type=pb.CommandAck.Cumulative, request_id=1)
    await settle()
    assert harness.topics.cursors["s"].mark_delete == (7, -1)
    answers = [command for command, _ in client.received() if command.HasField("ackResponse")]
    assert not answers[0].ackResponse.HasField("error")


async def test_a_bit_that_is_set_means_not_acknowledged() -> None:
    """Trap 7, with the words that the official client sends."""
    harness = Harness()
    harness.log.store(_batch(3))
    client = await _consuming(harness)
    await client.messages(1)
    client.ack_indexes(Position(7, 0), [6])  # index 0 is done
    assert harness.topics.cursors["s"].remaining_words(Position(7, 0)) == (6,)
    client.redeliver()
    [(again, _)] = await client.messages(1)
    assert list(again.ack_set) == [6]
    client.ack_indexes(Position(7, 0), [5])  # index 1 is done, too
    assert harness.topics.cursors["s"].remaining_words(Position(7, 0)) == (4,)
    client.ack_indexes(Position(7, 0), [3])  # and index 2
    assert harness.topics.cursors["s"].mark_delete == (7, 0)


async def test_bits_beyond_the_batch_leave_nothing_open() -> None:
    harness = Harness()
    harness.log.store(_batch(3))
    client = await _consuming(harness)
    client.send(
        BaseCommand.ACK,
        ack=pb.CommandAck(
            consumer_id=0,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=7, entryId=0, ack_set=[-8], batch_size=3)],
        ),
    )
    assert harness.topics.cursors["s"].mark_delete == (7, 0)


async def test_credit_for_a_partly_acknowledged_batch_counts_what_is_open() -> None:
    harness = Harness()
    harness.log.store(_batch(10), entry(), entry())
    client = await _consuming(harness, permits=10)
    await client.messages(1)
    client.ack_indexes(Position(7, 0), [0b1100000000])  # two are open
    client.flow(3)
    await client.messages(2)  # 10 + 3 - 10 = 3: both single messages
    client.flow(1)  # 2 left
    client.redeliver()
    await settle()
    # The batch costs two now.
    assert _positions(client) == [0]


async def test_redelivery_on_exclusive_starts_at_the_first_open_entry() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(4)))
    client = await _consuming(harness)
    await client.messages(4)
    client.ack(Position(7, 0), Position(7, 2))
    client.redeliver(Position(7, 3))  # ids are ignored for this type
    await settle()
    found = [command.message for command, _ in client.received()]
    assert [position_in(message) for message in found] == [(7, 1), (7, 3)]
    assert not any(message.HasField("redelivery_count") for message in found)


async def test_the_epoch_of_a_client_is_stamped_on_its_messages() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await _consuming(harness, consumer_epoch=4)
    assert (await client.messages(1))[0][0].consumer_epoch == 4
    client.send(
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        redeliverUnacknowledgedMessages=pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=0, consumer_epoch=5
        ),
    )
    assert (await client.messages(1))[0][0].consumer_epoch == 5


# Leaving


async def test_closing_a_consumer_succeeds_known_or_not() -> None:
    harness = Harness()
    client = await _consuming(harness)
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
    client = await _consuming(harness)
    _unsubscribe(client)
    assert (await client.next()).success.request_id == 8
    assert not harness.topic.subscriptions
    client.ack(Position(7, 0))  # grouped acknowledgements may follow
    assert not client.io.is_closed
    _unsubscribe(client)
    assert (await client.next()).error.error == pb.ServerError.MetadataError


async def test_unsubscribe_among_others_needs_force() -> None:
    harness = Harness()
    client, other = [await _consuming(harness, subType=_SHARED) for _ in range(2)]
    _unsubscribe(client)
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    _unsubscribe(client, force=True)
    assert (await client.next()).type == BaseCommand.SUCCESS
    assert other.commands() == [BaseCommand.CLOSE_CONSUMER]
    assert not harness.topic.subscriptions


# Questions


def _ask_last_id(client: Client) -> None:
    client.send(
        BaseCommand.GET_LAST_MESSAGE_ID,
        getLastMessageId=pb.CommandGetLastMessageId(consumer_id=0, request_id=3),
    )


async def test_the_last_message_id_of_an_empty_topic() -> None:
    client = await _consuming(Harness())
    _ask_last_id(client)
    answer = (await client.next()).getLastMessageIdResponse
    last = answer.last_message_id
    # Trap 2: -1 travels as 2^64-1.
    assert (last.ledgerId, last.entryId, last.batch_index) == (2**64 - 1, 2**64 - 1, -1)
    assert answer.consumer_mark_delete_position.ledgerId == 7
    assert answer.consumer_mark_delete_position.entryId == 2**64 - 1


@pytest.mark.parametrize(("last", "index"), [(entry(), -1), (_batch(1), 0), (_batch(5), 4)])
async def test_the_last_message_id_points_into_a_batch(last: bytes, index: int) -> None:
    """Trap 5: the presence of the field makes a batch."""
    harness = Harness()
    harness.log.store(entry(), last)
    client = await _consuming(harness, permits=0)
    for _ in range(2):  # from the log, then remembered
        _ask_last_id(client)
        answer = (await client.next()).getLastMessageIdResponse.last_message_id
        assert (answer.ledgerId, answer.entryId, answer.batch_index) == (7, 1, index)
    assert len(harness.log.reads) == 1


async def test_statistics_of_a_consumer() -> None:
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    client = await _consuming(harness, permits=2, consumer_name="me", subType=_SHARED)
    await client.messages(2)

    def ask(consumer_id: int) -> pb.CommandConsumerStatsResponse:
        client.send(
            BaseCommand.CONSUMER_STATS,
            consumerStats=pb.CommandConsumerStats(request_id=1, consumer_id=consumer_id),
        )
        return client.take(BaseCommand.CONSUMER_STATS_RESPONSE).consumerStatsResponse

    stats = ask(0)
    assert (stats.consumerName, stats.type) == ("me", "Shared")
    assert (stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (0, 2, 3)
    assert ask(5).error_code == pb.ServerError.ConsumerNotFound


# Seek and readers


async def test_a_seek_closes_the_consumer_then_succeeds() -> None:
    """Trap 12; a SUBSCRIBE in between waits."""
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    client = await _consuming(harness)
    await client.messages(5)
    client.ack(*(Position(7, each) for each in range(5)))
    request_id = await client.seek(message_id=id_of(Position(7, 2)))
    assert (await client.next()).close_consumer.consumer_id == 0
    client.send_subscribe()
    assert (await client.next()).success.request_id == request_id
    assert (await client.next()).type == BaseCommand.SUCCESS
    client.flow(10)
    await settle()
    assert _positions(client) == [2, 3, 4]


async def test_a_subscribe_during_a_seek_waits_for_it() -> None:
    harness = Harness()
    harness.log.store(*(entry(publish_time=each) for each in range(5)))
    client = await _consuming(harness, permits=0)
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
    assert _positions(client) == [3, 4]


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
    client = await _consuming(harness, permits=0)
    await client.seek(message_id=id_of(target))
    await client.next(BaseCommand.CLOSE_CONSUMER)
    await client.next(BaseCommand.SUCCESS)
    await client.subscribe()
    client.flow(10)
    await settle()
    assert _positions(client) == expected


async def test_a_seek_into_a_batch_skips_its_passed_messages() -> None:
    harness = Harness()
    harness.log.store(_batch(4), entry())
    client = await _consuming(harness, permits=0)
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
    one, two = [await _consuming(harness, permits=0, subType=_SHARED) for _ in range(2)]
    await one.seek(message_id=id_of(Position(-1, -1)))
    await one.next(BaseCommand.CLOSE_CONSUMER)
    await two.next(BaseCommand.CLOSE_CONSUMER)
    await one.next(BaseCommand.SUCCESS)


async def test_a_seek_is_finished_even_if_its_client_is_gone() -> None:
    harness = Harness()
    harness.log.store(*(entry(publish_time=each) for each in range(5)))
    client = await _consuming(harness)
    await client.messages(5)
    client.ack(*(Position(7, each) for each in range(5)))
    harness.log.read_gate = asyncio.Event()
    await client.seek(message_publish_time=3)
    await client.next(BaseCommand.CLOSE_CONSUMER)
    client.connection.lost()
    harness.log.read_gate.set()
    again = await _consuming(harness)
    await settle()
    assert _positions(again) == [3, 4]


async def test_a_seek_without_consumer_or_target_is_refused() -> None:
    client = await _consuming(Harness())
    await client.seek()
    assert (await client.next()).error.error == pb.ServerError.MetadataError
    await client.seek(consumer_id=4, message_publish_time=1)
    assert (await client.next()).error.error == pb.ServerError.MetadataError


async def _reading(harness: Harness, start: Position | None) -> Client:
    return await _consuming(
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
    assert _positions(client) == expected


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
    assert _positions(client) == [2, 3]


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


async def test_rolling_back_starts_at_a_time() -> None:
    harness = Harness()
    now_ms = harness.services.clock.wall_ms()
    harness.log.store(entry(publish_time=now_ms - 100_000), entry(publish_time=now_ms - 1_000))
    client = await _consuming(harness, start_message_rollback_duration_sec=50)
    await settle()
    assert _positions(client) == [1]


# A topic that goes away


async def test_a_closed_topic_sends_its_consumers_away_and_is_loaded_again() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await _consuming(harness)
    await client.messages(1)
    old = harness.topic
    old.disconnect_all()
    close = client.take(BaseCommand.CLOSE_CONSUMER).close_consumer
    assert (close.consumer_id, close.request_id) == (0, 2**64 - 1)
    assert (await client.subscribe()).type == BaseCommand.SUCCESS
    assert harness.topic is not old
