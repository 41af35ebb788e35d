"""PRODUCER, SEND and their answers: order, names, refusals, back-pressure."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.features.transactions.errors import AlreadyStoredError
from magnetar.broker.topic import PublishBatch
from magnetar.broker.topic.producer import Producer
from magnetar.ledger.errors import LogFencedError, LogUnavailableError
from magnetar.sdk.wire import BaseCommand, Send
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

_RECEIPT = BaseCommand.SEND_RECEIPT
_ERROR = BaseCommand.SEND_ERROR


def _answers(client: Client) -> list[tuple[str, int]]:
    """("receipt" or "error", sequence id) of everything that was answered to SENDs."""
    found = []
    for command, _ in client.received():
        if command.type == _RECEIPT:
            found.append(("receipt", command.send_receipt.sequence_id))
        elif command.type == _ERROR:
            found.append(("error", command.send_error.sequence_id))
    return found


async def _producing(harness: Harness) -> Client:
    client = harness.client()
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS
    return client


# PRODUCER


async def test_a_generated_name_is_told_and_unique() -> None:
    client = Harness().client()
    first = (await client.produce(0)).producer_success
    second = (await client.produce(1)).producer_success
    assert first.producer_name != second.producer_name
    assert first.last_sequence_id == -1
    assert first.producer_ready


async def test_a_given_name_is_kept() -> None:
    client = Harness().client()
    answer = await client.produce(producer_name="mine")
    assert answer.producer_success.producer_name == "mine"


async def test_the_same_id_again_is_answered_again() -> None:
    client = Harness().client()
    first = await client.produce(0)
    again = await client.produce(0, request_id=77)
    assert again.producer_success.request_id == 77
    assert again.producer_success.producer_name == first.producer_success.producer_name


async def test_a_name_in_use_on_a_live_connection_is_busy() -> None:
    harness = Harness()
    holder, other = harness.client(), harness.client()
    await holder.produce(producer_name="mine")
    other.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=1, producer_name="mine"),
    )
    await holder.next(BaseCommand.PING)
    holder.send(BaseCommand.PONG, pong=pb.CommandPong())
    assert (await other.next()).error.error == pb.ServerError.ProducerBusy
    assert not holder.io.is_closed


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("count", [1, 80])
async def test_names_held_by_a_dead_connection_are_taken_over(count: int) -> None:
    harness = Harness()
    zombie = harness.client()
    for producer_id in range(count):
        answer = await zombie.produce(producer_id, producer_name=f"p{producer_id}")
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
    other = await harness.connected()
    for producer_id in range(count):
        other.send(
            BaseCommand.PRODUCER,
            producer=pb.CommandProducer(
                topic=TOPIC,
                producer_id=producer_id,
                request_id=producer_id,
                producer_name=f"p{producer_id}",
            ),
        )
    answers = [(await other.next()).producer_success for _ in range(count)]
    assert {each.producer_name for each in answers} == {f"p{each}" for each in range(count)}
    assert zombie.io.is_closed
    await settle()  # The producers of the dead connection have left, and take nothing along.
    peer = other.connection.publishing
    assert [each.peer for each in harness.topic.producers.values()] == [peer] * count


@pytest.mark.usefixtures("few_probes")
async def test_a_name_of_a_lost_connection_is_free_before_its_producers_have_all_left() -> None:
    harness = Harness()
    former = harness.client()
    for producer_id in range(80):
        await former.produce(producer_id, producer_name=f"p{producer_id}")
    former.publish(0, producer_id=79)
    other = await harness.connected()
    former.connection.lost()
    assert "p79" in harness.topic.producers
    answer = await other.produce(producer_name="p79")
    assert answer.producer_success.producer_name == "p79"
    other.publish(1)
    assert (await other.next(_RECEIPT)).send_receipt.sequence_id == 1
    await settle()
    assert list(harness.topic.producers) == ["p79"]
    assert len(harness.log.entries[7]) == 2


async def test_a_name_in_use_on_the_same_connection_is_busy() -> None:
    client = Harness().client()
    await client.produce(0, producer_name="mine")
    answer = await client.produce(1, producer_name="mine")
    assert answer.error.error == pb.ServerError.ProducerBusy


@pytest.mark.parametrize(
    "fields",
    [
        {"txn_enabled": True},
    ],
)
async def test_what_is_switched_off_is_refused(fields: dict[str, Any]) -> None:
    client = Harness(transaction_coordinator_enabled=False).client()
    answer = await client.produce(**fields)
    assert answer.error.error == pb.ServerError.NotAllowedError


async def test_producers_of_one_connection_are_bounded() -> None:
    client = Harness(producers_per_connection_max=2).client()
    await client.produce(0)
    await client.produce(1)
    assert (await client.produce(2)).error.error == pb.ServerError.NotAllowedError


@pytest.mark.parametrize(("length", "is_taken"), [(1018, True), (1019, False)])
async def test_the_metadata_of_a_producer_is_bounded(length: int, is_taken: bool) -> None:
    client = Harness(client_metadata_bytes_max=1124).client()
    metadata = [pb.KeyValue(key="a" * 32, value="v" * length)]
    answer = await client.produce(producer_name="0123456789", metadata=metadata)
    assert answer.HasField("producer_success") == is_taken
    if not is_taken:
        assert answer.error.error == pb.ServerError.NotAllowedError
        assert "client_metadata_bytes_max" in answer.error.message


@pytest.mark.parametrize("count", [256, 257])
async def test_empty_properties_of_a_producer_are_bounded_as_well(count: int) -> None:
    client = Harness(client_metadata_bytes_max=256 * 64).client()
    metadata = [pb.KeyValue(key="", value="")] * count
    answer = await client.produce(metadata=metadata)
    assert answer.HasField("producer_success") == (count == 256)


async def test_an_initial_subscription_is_there_before_the_first_message() -> None:
    harness = Harness()
    client = harness.client()
    for producer_id in range(2):
        answer = await client.produce(producer_id, initial_subscription_name="dead letters")
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
    client.publish(0)
    await client.next(_RECEIPT)
    assert harness.topics.cursors["dead letters"].backlog_entries == 1
    answer = await client.produce(2, initial_subscription_name="pulsar.dedup")
    assert answer.error.error == pb.ServerError.ProducerBusy


# SEND


async def test_the_entry_is_exactly_what_was_sent() -> None:
    """Trap 8: stored from the magic on, never serialized again."""
    harness = Harness()
    client = await _producing(harness)
    payload = entry(b"unchanged", compression=pb.CompressionType.ZSTD)
    client.send_bytes(send_frame(0, 0, payload=payload))
    await client.next(_RECEIPT)
    assert harness.log.entries[7] == [payload]


async def test_sends_of_one_read_are_one_batch_and_one_write() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(*range(50))
    assert [len(batch.payloads) for batch in harness.log.waiting] == [50]
    writes = client.io.writes
    harness.log.confirm()
    assert client.io.writes == writes + 1
    assert _answers(client) == [("receipt", each) for each in range(50)]


async def test_receipts_tell_where_each_message_is() -> None:
    harness = Harness()
    client = await _producing(harness)
    client.publish(5, 6)
    ids = [(await client.next(_RECEIPT)).send_receipt.message_id for _ in range(2)]
    assert [(each.ledgerId, each.entryId) for each in ids] == [(7, 0), (7, 1)]
    assert not ids[0].HasField("partition")


async def test_a_highest_sequence_id_is_echoed() -> None:
    harness = Harness()
    client = await _producing(harness)
    client.send_bytes(send_frame(0, 10, num_messages=5, highest_sequence_id=14))
    receipt = (await client.next(_RECEIPT)).send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (10, 14)


async def test_a_damaged_message_is_refused_in_its_place() -> None:
    """Trap 4: answers in order, errors included."""
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    damaged = bytearray(entry(b"damaged"))
    damaged[-1] ^= 1
    client.send_bytes(
        send_frame(0, 0) + send_frame(0, 1, payload=bytes(damaged)) + send_frame(0, 2)
    )
    assert _answers(client) == []
    harness.log.confirm(1)
    assert _answers(client) == [("receipt", 0), ("error", 1)]
    harness.log.confirm(1)
    assert _answers(client) == [("receipt", 2)]
    assert len(harness.log.entries[7]) == 2


async def test_a_damaged_message_alone_is_refused_at_once() -> None:
    client = await _producing(Harness())
    damaged = entry(b"damaged")[:-1] + b"?"
    client.send_bytes(send_frame(0, 3, payload=damaged))
    error = client.take(_ERROR).send_error
    assert (error.sequence_id, error.error) == (3, pb.ServerError.ChecksumError)
    assert not client.io.is_closed


async def test_a_message_without_checksum_is_taken() -> None:
    harness = Harness()
    client = await _producing(harness)
    payload = entry(b"plain")[6:]
    client.send_bytes(send_frame(0, 0, payload=payload))
    await client.next(_RECEIPT)
    assert harness.log.entries[7] == [payload]


async def test_the_limit_is_for_the_payload_without_its_metadata() -> None:
    """Trap 9, at the limit and one above."""
    harness = Harness(message_bytes_max=2000)
    client = await _producing(harness)
    client.send_bytes(send_frame(0, 0, payload=entry(b"x" * 2000)))
    await client.next(_RECEIPT)
    client.send_bytes(send_frame(0, 1, payload=entry(b"x" * 2001)))
    error = client.take(_ERROR).send_error
    assert (error.sequence_id, error.error) == (1, pb.ServerError.NotAllowedError)


async def test_a_frame_above_the_slack_ends_the_connection() -> None:
    client = await _producing(Harness(message_bytes_max=2000))
    client.send_bytes(send_frame(0, 0, payload=entry(b"x" * 13_000)))
    assert client.io.is_closed


async def test_a_message_of_a_transaction_is_refused_where_there_are_none() -> None:
    client = await _producing(Harness())
    client.send_bytes(send_frame(0, 0, txnid_most_bits=1, txnid_least_bits=2))
    assert client.take(_ERROR).send_error.error == pb.ServerError.NotAllowedError


async def test_a_message_of_an_unknown_producer_ends_the_connection() -> None:
    client = Harness().client()
    client.publish(0, producer_id=4)
    assert client.io.is_closed


async def test_messages_for_a_producer_that_the_broker_closed_are_ignored_for_a_while() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.topic.disconnect_all()
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]
    client.publish(0)
    assert not client.io.is_closed
    assert client.received() == []


async def test_a_close_command_carries_no_request_id() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.topic.disconnect_all()
    close = client.take(BaseCommand.CLOSE_PRODUCER).close_producer
    assert (close.producer_id, close.request_id) == (0, 2**64 - 1)


# Failures of the log


async def test_a_failed_publish_is_reported_and_closes_the_producer() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0, 1)
    client.publish(2)
    harness.log.waiting.popleft().on_failed(LogUnavailableError("the disk is full"))
    received = client.received()
    assert [command.type for command, _ in received] == [
        _ERROR,
        _ERROR,
        BaseCommand.CLOSE_PRODUCER,
    ]
    assert received[0][0].send_error.error == pb.ServerError.PersistenceError
    assert "the disk is full" in received[0][0].send_error.message
    # What is behind the failed one is not answered: the client sends it again, in order.
    harness.log.confirm()
    assert client.received() == []
    assert not harness.topic.producers


async def test_a_refusal_before_earlier_answers_waits_for_them() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0)
    client.publish(1)
    first, second = harness.log.waiting
    second.on_failed(LogUnavailableError("too much waits"))
    assert _answers(client) == []
    first.on_appended(7, 0)
    assert _answers(client) == [("receipt", 0), ("error", 1)]


async def test_nothing_is_stored_ahead_of_a_refused_message_that_waits_for_its_answer() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0)
    client.publish(1)
    harness.log.waiting.pop().on_failed(LogUnavailableError("too much waits"))
    client.publish(2)
    harness.log.confirm()
    assert client.commands() == [_RECEIPT, _ERROR, BaseCommand.CLOSE_PRODUCER]
    await client.produce()
    client.publish(1, 2)  # what has no receipt
    harness.log.confirm()
    assert _answers(client) == [("receipt", 1), ("receipt", 2)]
    assert [each[-6:] for each in harness.log.entries[7]] == [b"body-0", b"body-1", b"body-2"]


async def test_a_fenced_log_closes_producers_without_blaming_messages() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0, 1)
    harness.log.fail(LogFencedError("another owner"))
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]


async def _refused_at_once(monkeypatch: pytest.MonkeyPatch) -> tuple[Client, Producer]:
    """A producer whose topic refuses publishes before they return, which closes the producer."""
    harness = Harness()
    client = await _producing(harness)
    fenced = LogFencedError("another owner")
    monkeypatch.setattr(harness.log, "append", lambda batch: batch.on_failed(fenced))
    (producer,) = client.connection.publishing.producers()
    return client, producer


async def test_a_message_stored_before_gets_no_receipt_from_a_producer_closed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, producer = await _refused_at_once(monkeypatch)

    def check(batch: PublishBatch, send: Send, *_: object) -> None:
        if send.sequence_id == 1:
            raise AlreadyStoredError("sent before")

    monkeypatch.setattr(producer.line, "checks", (check,))
    client.publish(0, 1)
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]
    assert not client.io.is_closed


async def test_a_producer_closed_while_its_topic_gets_ready_for_transactions_can_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, producer = await _refused_at_once(monkeypatch)
    monkeypatch.setattr(producer.line, "takes_transactions", lambda: False)
    client.send_bytes(send_frame(0, 0) + send_frame(0, 1, txnid_most_bits=1, txnid_least_bits=1))
    assert client.commands() == [BaseCommand.CLOSE_PRODUCER]
    monkeypatch.undo()
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS
    client.publish(0)
    await settle()
    assert _answers(client) == [("receipt", 0)]


# Closing


async def test_close_waits_for_the_publishes_under_way() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0)
    client.send(
        BaseCommand.CLOSE_PRODUCER,
        close_producer=pb.CommandCloseProducer(producer_id=0, request_id=9),
    )
    await settle()
    assert client.received() == []
    harness.log.confirm()
    assert client.commands() == [_RECEIPT, BaseCommand.SUCCESS]
    assert not harness.topic.producers


async def test_closing_an_unknown_producer_succeeds() -> None:
    client = Harness().client()
    client.send(
        BaseCommand.CLOSE_PRODUCER,
        close_producer=pb.CommandCloseProducer(producer_id=8, request_id=9),
    )
    assert client.take(BaseCommand.SUCCESS).success.request_id == 9


async def test_closing_a_producer_that_is_being_created_cancels_it() -> None:
    harness = Harness()
    harness.topics.gate = asyncio.Event()
    client = harness.client()
    client.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=1),
    )
    client.send(
        BaseCommand.CLOSE_PRODUCER,
        close_producer=pb.CommandCloseProducer(producer_id=0, request_id=2),
    )
    harness.topics.gate.set()
    await settle()
    assert client.commands() == [BaseCommand.SUCCESS]
    assert not harness.topic.producers


# Back-pressure


@pytest.mark.parametrize(("in_flight", "is_paused"), [(99, False), (100, True)])
async def test_a_connection_is_not_read_at_the_limit(in_flight: int, is_paused: bool) -> None:
    harness = Harness(publishes_per_connection_max=100)
    client = await _producing(harness)
    harness.log.is_immediate = False
    for sequence_id in range(in_flight):
        client.publish(sequence_id)
    assert client.io.is_paused is is_paused
    if is_paused:
        harness.log.confirm(49)
        assert client.io.is_paused
        harness.log.confirm(2)
        assert not client.io.is_paused


async def test_a_full_broker_reads_no_publisher_until_half_is_free() -> None:
    harness = Harness(publish_bytes_max=10_000, publish_bytes_per_connection_max=10_000)
    one, two = await _producing(harness), await _producing(harness)
    harness.log.is_immediate = False
    for client in (one, two):
        client.send_bytes(send_frame(0, 0, payload=entry(b"x" * 5_000)))
    assert two.io.is_paused
    harness.log.confirm()
    assert not one.io.is_paused
    assert not two.io.is_paused
    assert harness.services.budget.pending_bytes == 0


async def test_an_idle_connection_is_read_however_full_the_broker_is() -> None:
    harness = Harness(publish_bytes_max=1_000, publish_bytes_per_connection_max=1_000)
    busy, idle = await _producing(harness), harness.client()
    harness.log.is_immediate = False
    busy.send_bytes(send_frame(0, 0, payload=entry(b"x" * 5_000)))
    assert busy.io.is_paused
    idle.flow(1, consumer_id=3)
    assert not idle.io.is_paused
