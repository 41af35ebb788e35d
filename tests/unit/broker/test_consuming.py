"""Credit, MESSAGE, acknowledgements and questions, through the whole core."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol import consuming as consuming_commands
from magnetar.broker.protocol.connection import IDS_PER_TURN
from magnetar.broker.protocol.consuming import LongCommand
from magnetar.broker.topic import last_message, subscription
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher
from magnetar.broker.topic.positions import position_of
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
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

_SHARED = pb.CommandSubscribe.Shared


# Credit and MESSAGE


async def test_messages_are_what_was_stored_and_carry_their_ids() -> None:
    harness = Harness()
    stored = [entry(b"a"), entry(b"b")]
    harness.log.store(*stored)
    client = await consuming(harness)
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
    client = await consuming(harness, permits=3)
    await settle()
    assert delivered_to(client) == [0, 1, 2]
    client.flow(1)
    assert delivered_to(client) == [3]


async def test_credit_counts_messages_not_entries() -> None:
    """Trap 6: a batch costs as much as it holds, and goes out while any credit is left."""
    harness = Harness()
    harness.log.store(*(batch(10) for _ in range(4)))
    client = await consuming(harness, permits=11)
    await settle()
    assert delivered_to(client) == [0, 1]
    client.flow(9)  # back to zero
    assert delivered_to(client) == []
    client.flow(1)
    assert delivered_to(client) == [2]


async def test_a_batch_of_one_is_a_batch_and_costs_one() -> None:
    harness = Harness()
    harness.log.store(batch(1), batch(1))
    client = await consuming(harness, permits=1)
    await settle()
    assert delivered_to(client) == [0]


async def test_markers_are_neither_delivered_nor_left_open() -> None:
    harness = Harness()
    harness.log.store(entry(), entry(marker_type=21), entry())
    client = await consuming(harness)
    await settle()
    assert delivered_to(client) == [0, 2]
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
    client = await consuming(harness, permits=0)
    client.connection.on_writable(False)
    client.flow(10)
    await settle()
    assert client.received() == []
    client.connection.on_writable(True)
    await settle()
    assert delivered_to(client) == [0, 1]


async def test_published_messages_reach_a_waiting_consumer_in_one_write() -> None:
    harness = Harness()
    consumer = await consuming(harness)
    producer = harness.client()
    await producer.produce()
    writes = consumer.io.writes
    producer.publish(*range(20))
    producer.publish(*range(20, 40))
    await settle()
    assert delivered_to(consumer) == list(range(40))
    assert consumer.io.writes == writes + 1
    assert harness.log.reads == []


async def test_a_flow_of_nothing_or_for_nobody_is_ignored() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await consuming(harness, permits=0)
    client.flow(0)
    client.flow(5, consumer_id=17)
    await settle()
    assert client.received() == []
    assert not client.io.is_closed


# Acknowledgements


async def test_a_single_acknowledgement_may_name_many() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(5)))
    client = await consuming(harness)
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
    client = await consuming(harness, subType=kind)
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
    assert delivered_to(client) == [6, 10, 11]


async def test_an_acknowledgement_with_a_request_id_is_answered() -> None:
    harness = Harness()
    harness.log.store(entry())
    client = await consuming(harness, permits=0)
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
    client = await consuming(harness, permits=0)
    client.ack(Position(7, 0), request_id=4, txnid_most_bits=1, txnid_least_bits=1)
    answer = (await client.next(BaseCommand.ACK_RESPONSE)).ackResponse
    assert answer.error == pb.ServerError.NotAllowedError
    assert harness.topics.cursors["s"].mark_delete == (7, -1)


async def test_more_acknowledgements_than_a_transaction_may_hold_are_refused_unread() -> None:
    harness = Harness(transaction_pending_acks_max=2)
    harness.topics.has_transactions = True
    harness.log.store(*(entry() for _ in range(2)))
    client = await consuming(harness, permits=0)
    beyond = Position(9, 9)  # a look at it would find that it does not exist
    client.ack(beyond, beyond, beyond, request_id=4, txnid_most_bits=1, txnid_least_bits=1)
    answer = (await client.next(BaseCommand.ACK_RESPONSE)).ackResponse
    assert answer.error == pb.ServerError.NotAllowedError


async def test_what_was_never_written_cannot_be_acknowledged() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await consuming(harness, permits=0)
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
    client = await consuming(harness)
    client.ack(Position(7, 3), ack_type=pb.CommandAck.Cumulative)
    assert harness.topics.cursors["s"].mark_delete == (7, 3)
    # More than one id makes no sense, and is ignored.
    client.ack(Position(7, 3), Position(7, 4), ack_type=pb.CommandAck.Cumulative)
    assert harness.topics.cursors["s"].mark_delete == (7, 3)


async def test_cumulative_acknowledgement_on_shared_is_ignored() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await consuming(harness, subType=_SHARED)
    client.ack(Position(7, 1), ack_type=pb.CommandAck.Cumulative, request_id=1)
    await settle()
    assert harness.topics.cursors["s"].mark_delete == (7, -1)
    answers = [command for command, _ in client.received() if command.HasField("ackResponse")]
    assert not answers[0].ackResponse.HasField("error")


async def test_a_bit_that_is_set_means_not_acknowledged() -> None:
    """Trap 7, with the words that the official client sends."""
    harness = Harness()
    harness.log.store(batch(3))
    client = await consuming(harness)
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
    harness.log.store(batch(3))
    client = await consuming(harness)
    client.send(
        BaseCommand.ACK,
        ack=pb.CommandAck(
            consumer_id=0,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=7, entryId=0, ack_set=[-8], batch_size=3)],
        ),
    )
    assert harness.topics.cursors["s"].mark_delete == (7, 0)


@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
@pytest.mark.parametrize("batch_size", [None, (1 << 31) - 1])
async def test_words_beyond_the_messages_of_an_entry_are_not_kept(
    kind: pb.CommandAck.AckType, batch_size: int | None
) -> None:
    harness = Harness()
    harness.log.store(batch(3))
    client = await consuming(harness)
    words = [1] + [0] * 500_000 + [1]
    message_id = pb.MessageIdData(ledgerId=7, entryId=0, ack_set=words, batch_size=batch_size)
    ack = pb.CommandAck(consumer_id=0, ack_type=kind, message_id=[message_id])
    client.send(BaseCommand.ACK, ack=ack)
    cursor = harness.topics.cursors["s"]
    assert cursor.remaining_words(Position(7, 0)) == (1,)
    assert cursor.batch_bytes == 1


async def test_acknowledgements_of_parts_fill_the_memory_only_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "PARTLY_ACKED_BYTES_MAX", 16)
    harness = Harness()
    harness.log.store(*(batch(3) for _ in range(50)))
    client = await consuming(harness)
    for entry_id in range(49):
        client.ack_indexes(Position(7, entry_id), [6])
    cursor = harness.topics.cursors["s"]
    assert (cursor.batch_count, cursor.batch_bytes) == (16, 16)
    client.ack_indexes(Position(7, 49), [0])  # the whole entry
    assert cursor.is_acked(Position(7, 49))


async def test_credit_for_a_partly_acknowledged_batch_counts_what_is_open() -> None:
    harness = Harness()
    harness.log.store(batch(10), entry(), entry())
    client = await consuming(harness, permits=10)
    await client.messages(1)
    client.ack_indexes(Position(7, 0), [0b1100000000])  # two are open
    client.flow(3)
    await client.messages(2)  # 10 + 3 - 10 = 3: both single messages
    client.flow(1)  # 2 left
    client.redeliver()
    await settle()
    # The batch costs two now.
    assert delivered_to(client) == [0]


async def test_redelivery_on_exclusive_starts_at_the_first_open_entry() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(4)))
    client = await consuming(harness)
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
    client = await consuming(harness, consumer_epoch=4)
    assert (await client.messages(1))[0][0].consumer_epoch == 4
    client.send(
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        redeliverUnacknowledgedMessages=pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=0, consumer_epoch=5
        ),
    )
    assert (await client.messages(1))[0][0].consumer_epoch == 5


# Questions


def _ask_last_id(client: Client) -> None:
    client.send(
        BaseCommand.GET_LAST_MESSAGE_ID,
        getLastMessageId=pb.CommandGetLastMessageId(consumer_id=0, request_id=3),
    )


async def test_the_last_message_id_of_an_empty_topic() -> None:
    client = await consuming(Harness())
    _ask_last_id(client)
    answer = (await client.next()).getLastMessageIdResponse
    last = answer.last_message_id
    # Trap 2: -1 travels as 2^64-1.
    assert (last.ledgerId, last.entryId, last.batch_index) == (2**64 - 1, 2**64 - 1, -1)
    assert answer.consumer_mark_delete_position.ledgerId == 7
    assert answer.consumer_mark_delete_position.entryId == 2**64 - 1


@pytest.mark.parametrize(("last", "index"), [(entry(), -1), (batch(1), 0), (batch(5), 4)])
async def test_the_last_message_id_points_into_a_batch(last: bytes, index: int) -> None:
    """Trap 5: the presence of the field makes a batch."""
    harness = Harness()
    harness.log.store(entry(), last)
    client = await consuming(harness, permits=0)
    for _ in range(2):  # from the log, then remembered
        _ask_last_id(client)
        answer = (await client.next()).getLastMessageIdResponse.last_message_id
        assert (answer.ledgerId, answer.entryId, answer.batch_index) == (7, 1, index)
    assert len(harness.log.reads) == 1


def _chunk(number: int, *, of: int = 3, uuid: str = "u", at_ms: int = 5) -> bytes:
    return entry(
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=of,
        total_chunk_msg_size=of,
        publish_time=at_ms,
    )


@pytest.mark.parametrize(
    ("stored", "first"),
    [
        ([entry(), _chunk(0), _chunk(1), _chunk(2)], 1),
        ([_chunk(0), entry(), _chunk(0, uuid="v"), _chunk(1), _chunk(2)], 0),
        ([_chunk(0), _chunk(1)], 0),  # its end is yet to come
        ([_chunk(0), _chunk(1), _chunk(2), _chunk(2)], 0),  # sent twice
        ([_chunk(0), entry()], None),
        ([entry(), _chunk(0)], None),  # the id itself says it
        ([_chunk(0, at_ms=4), _chunk(1, at_ms=4), _chunk(2, at_ms=4), _chunk(2)], None),
        ([_chunk(2)], None),  # the others were trimmed
    ],
)
async def test_the_last_message_id_of_a_message_in_chunks_tells_where_it_begins(
    stored: list[bytes], first: int | None
) -> None:
    harness = Harness()
    harness.log.store(*stored)
    client = await consuming(harness, permits=0)
    reads = 0
    for _ in range(2):  # looked for, then remembered
        _ask_last_id(client)
        last = (await client.next()).getLastMessageIdResponse.last_message_id
        assert (last.ledgerId, last.entryId) == (7, len(stored) - 1)
        assert last.HasField("first_chunk_message_id") == (first is not None)
        if first is not None:
            assert last.first_chunk_message_id.ledgerId == 7
            assert last.first_chunk_message_id.entryId == first
        reads = reads or len(harness.log.reads)
    assert len(harness.log.reads) == reads


async def test_the_beginning_of_a_message_in_chunks_is_looked_for_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bytes_each = len(entry())
    for entries_max, bytes_max, is_found in (
        (4, 1_000_000, True),
        (3, 1_000_000, False),
        (1_000, 3 * bytes_each, True),
        (1_000, 3 * bytes_each - 1, False),
    ):
        monkeypatch.setattr(last_message, "LOOK_BACK_ENTRIES_MAX", entries_max)
        monkeypatch.setattr(last_message, "LOOK_BACK_BYTES_MAX", bytes_max)
        harness = Harness()
        harness.log.store(_chunk(0), entry(), entry(), entry(), _chunk(2))
        client = await consuming(harness, permits=0)
        _ask_last_id(client)
        last = (await client.next()).getLastMessageIdResponse.last_message_id
        assert last.HasField("first_chunk_message_id") == is_found


async def test_statistics_of_a_consumer() -> None:
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    client = await consuming(harness, permits=2, consumer_name="me", subType=_SHARED)
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


@given(st.integers(1, 23), st.booleans())
def test_an_acknowledgement_of_many_ids_is_split_and_nothing_of_it_is_lost(
    count: int, is_answered: bool
) -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=each) for each in range(count)]
    ack = pb.CommandAck(consumer_id=3, ack_type=pb.CommandAck.Individual, message_id=ids)
    if is_answered:
        ack.request_id = 9
    command = pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack)
    long, pieces = LongCommand(command), []
    while not long.is_done:
        pieces.append(long.take(5))
    assert [each for piece in pieces for each in piece.ack.message_id] == ids
    assert all(len(piece.ack.message_id) <= 5 for piece in pieces)
    answered = [piece.ack.HasField("request_id") for piece in pieces]
    assert answered == [False] * (len(pieces) - 1) + [is_answered]
    assert {piece.ack.consumer_id for piece in pieces} == {3}


async def test_many_ids_are_acknowledged_in_turns_and_before_what_comes_behind_them() -> None:
    harness = Harness()
    harness.log.store(*(entry() for _ in range(3 * IDS_PER_TURN)))
    client = harness.client()
    await client.subscribe(subType=_SHARED)
    client.flow(3 * IDS_PER_TURN)
    await client.messages(3 * IDS_PER_TURN)
    cursor = harness.topic.subscriptions["s"].cursor
    # Every second one first: neighbours would be one range.
    order = [*range(0, 3 * IDS_PER_TURN, 2), *range(1, 3 * IDS_PER_TURN, 2)]
    client.ack(*(Position(7, each) for each in order))
    assert cursor.backlog_entries == 2 * IDS_PER_TURN
    client.send(
        BaseCommand.CLOSE_CONSUMER,
        close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=6),
    )
    await client.next(BaseCommand.SUCCESS)
    assert cursor.backlog_entries == 0


async def test_an_acknowledgement_in_a_transaction_stays_whole() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=each) for each in range(20)]
    ack = pb.CommandAck(
        consumer_id=3,
        ack_type=pb.CommandAck.Individual,
        message_id=ids,
        txnid_most_bits=0,
        txnid_least_bits=1,
    )
    command = pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack)
    client = await consuming(Harness(), permits=0)
    assert not client.connection.consuming.may_split(command)


@given(st.integers(1, 23), st.sampled_from([None, 0, 4]))
def test_a_redelivery_request_of_many_ids_is_split_and_nothing_of_it_is_lost(
    count: int, epoch: int | None
) -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=each) for each in range(count)]
    whole = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=3, message_ids=ids, consumer_epoch=epoch
    )
    command = pb.BaseCommand(
        type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=whole
    )
    long, found = LongCommand(command), []
    while not long.is_done:
        piece = long.take(5)
        assert piece.type == command.type
        found.append(piece.redeliverUnacknowledgedMessages)
    # A piece without ids would ask for everything.
    assert all(0 < len(each.message_ids) <= 5 for each in found)
    assert [message_id for each in found for message_id in each.message_ids] == ids
    for each in found:
        del each.message_ids[:]
    del whole.message_ids[:]
    assert found == [whole] * len(found)


@pytest.mark.parametrize("sub_type", [_SHARED, pb.CommandSubscribe.Key_Shared])
async def test_many_ids_are_sent_again_in_turns(
    monkeypatch: pytest.MonkeyPatch, sub_type: Any
) -> None:
    read = 0

    def note(message_id: pb.MessageIdData) -> Position:
        nonlocal read
        read += 1
        return position_of(message_id)

    monkeypatch.setattr(consuming_commands, "position_of", note)
    many = 3 * IDS_PER_TURN
    harness = Harness()
    harness.log.store(*(entry() for _ in range(many)))
    client = harness.client()
    await client.subscribe(subType=sub_type)
    client.flow(many)
    await client.messages(many)
    client.redeliver(*(Position(7, each) for each in range(many)))
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, AccountedDispatcher)
    assert dispatcher.accounts.unacked_messages == many - IDS_PER_TURN
    assert read == IDS_PER_TURN
    client.flow(many)
    found = await client.messages(many)
    assert sorted(message.message_id.entryId for message, _ in found) == list(range(many))
    assert {message.redelivery_count for message, _ in found} == {1}
    dispatcher.check()


async def test_many_ids_on_an_exclusive_subscription_send_everything_again_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0

    def note(_: pb.MessageIdData) -> Position:
        nonlocal read
        read += 1
        return Position(0, 0)

    monkeypatch.setattr(consuming_commands, "position_of", note)
    many = 3 * IDS_PER_TURN
    harness = Harness()
    harness.log.store(*(entry() for _ in range(many)))
    client = await consuming(harness, permits=many)
    await client.messages(many)
    client.redeliver(*(Position(7, each) for each in range(many)))
    assert read == 0
    client.flow(3 * many)
    found = await client.messages(many)
    assert [message.message_id.entryId for message, _ in found] == list(range(many))
    await settle()
    assert client.received() == []


@pytest.mark.parametrize("sub_type", [_SHARED, pb.CommandSubscribe.Key_Shared])
async def test_what_a_consumer_had_goes_to_others_some_at_a_time(sub_type: Any) -> None:
    many = 1200
    harness = Harness()
    harness.log.store(*(entry() for _ in range(many)))
    one, two = harness.client(), harness.client()
    await one.subscribe(subType=sub_type, consumer_name="one")
    one.flow(many)
    await one.messages(many)
    await two.subscribe(subType=sub_type, consumer_name="two")
    two.flow(many)
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, AccountedDispatcher)
    one.connection.lost()
    assert 0 < len(dispatcher.accounts.leaving[0].pending) < many
    dispatcher.check()
    # Acknowledged by another one before it was given back: it is not sent again.
    two.ack(Position(7, many - 1))
    found = await two.messages(many - 1)
    entries = [message.message_id.entryId for message, _ in found]
    assert sorted(entries) == list(range(many - 1))
    await settle()
    assert not dispatcher.accounts.leaving
    dispatcher.check()


@pytest.mark.parametrize("sub_type", [_SHARED, pb.CommandSubscribe.Key_Shared])
async def test_a_consumer_that_asks_for_everything_again_gets_it_some_at_a_time(
    sub_type: Any,
) -> None:
    many = 1200
    harness = Harness()
    harness.log.store(*(entry() for _ in range(many)))
    client = harness.client()
    await client.subscribe(subType=sub_type)
    client.flow(many)
    await client.messages(many)
    client.redeliver()
    dispatcher = harness.topic.subscriptions["s"].dispatcher
    assert isinstance(dispatcher, AccountedDispatcher)
    assert 0 < dispatcher.accounts.unacked_messages < many
    dispatcher.check()
    client.flow(many)
    found = await client.messages(many)
    assert sorted(message.message_id.entryId for message, _ in found) == list(range(many))
    assert {message.redelivery_count for message, _ in found} == {1}
    dispatcher.check()
