"""Topics whose broker may not serve them any more, and topics that move to another broker."""

import asyncio

import pytest

from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, consuming
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

ELSEWHERE = BrokerRecord(name="other", native_url="pulsar://other:6650", session_token="t")
LISTENING = ELSEWHERE.model_copy(
    update={
        "listeners": {"inside": "pulsar://other:6650", "outside": "pulsar://other.example:6650"}
    }
)
_ANSWERS_TO_SENDS = (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)


async def _producing(harness: Harness) -> Client:
    client = harness.client()
    await client.produce()
    return client


def _urls(client: Client) -> dict[int, str]:
    """The URLs in the CLOSE commands that have arrived, by their types."""
    urls: dict[int, str] = {}
    for command, _ in client.received():
        if command.type == BaseCommand.CLOSE_PRODUCER:
            urls[command.type] = command.close_producer.assignedBrokerServiceUrl
        elif command.type == BaseCommand.CLOSE_CONSUMER:
            urls[command.type] = command.close_consumer.assignedBrokerServiceUrl
    return urls


# The tenure has ended, and nobody has dropped the topic yet


async def test_m13_no_receipt_leaves_after_the_tenure_has_ended() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0, 1)
    harness.topics.tenure.is_held = False
    harness.log.confirm()
    await settle()
    assert not [kind for kind in client.commands() if kind in _ANSWERS_TO_SENDS]


@pytest.mark.parametrize(
    "kind",
    [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover, pb.CommandSubscribe.Shared],
)
async def test_m13_no_message_leaves_after_the_tenure_has_ended(kind: int) -> None:
    harness = Harness(failover_delay_ms=0)
    producer = await _producing(harness)
    consumer = await consuming(harness, subType=kind, permits=0)
    await settle()
    consumer.received()
    producer.publish(0)
    harness.topics.tenure.is_held = False
    consumer.flow(100)
    await settle()
    assert BaseCommand.MESSAGE not in consumer.commands()


async def test_m13_an_acknowledgement_is_not_confirmed_after_the_tenure_has_ended() -> None:
    harness = Harness()
    producer = await _producing(harness)
    consumer = await consuming(harness, permits=0)
    consumer.flow(100)
    producer.publish(0)
    ((message, _),) = await consumer.messages(1)
    place = Position(message.message_id.ledgerId, message.message_id.entryId)
    harness.topics.tenure.is_held = False
    consumer.ack(place, request_id=9)
    answer = (await consumer.next(BaseCommand.ACK_RESPONSE)).ackResponse
    assert answer.error == pb.ServerError.ServiceNotReady
    assert not harness.topics.cursors["s"].is_acked(place)


async def test_the_last_message_is_not_told_after_the_tenure_has_ended() -> None:
    harness = Harness()
    consumer = await consuming(harness, permits=0)
    harness.topics.tenure.is_held = False
    consumer.send(
        BaseCommand.GET_LAST_MESSAGE_ID,
        getLastMessageId=pb.CommandGetLastMessageId(consumer_id=0, request_id=5),
    )
    assert (await consumer.next()).error.error == pb.ServerError.ServiceNotReady


# A topic that moves


async def test_publishes_under_way_are_answered_before_the_producer_is_told_to_go() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0, 1)
    draining = asyncio.ensure_future(harness.topic.drain(5.0))
    await settle()
    assert not draining.done()
    harness.log.confirm()
    await draining
    harness.topic.disconnect_all(ELSEWHERE)
    kinds = client.commands()
    assert kinds == [BaseCommand.SEND_RECEIPT, BaseCommand.SEND_RECEIPT, BaseCommand.CLOSE_PRODUCER]


async def test_what_is_sent_to_a_topic_that_moves_is_neither_stored_nor_answered() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0)
    draining = asyncio.ensure_future(harness.topic.drain(5.0))
    await settle()
    client.publish(1, 2)
    assert len(harness.log.waiting) == 1
    harness.log.confirm()
    await draining
    assert client.commands() == [BaseCommand.SEND_RECEIPT]
    assert harness.services.budget.pending_bytes == 0


async def test_a_log_that_does_not_answer_holds_up_a_move_for_a_bounded_time() -> None:
    harness = Harness()
    client = await _producing(harness)
    harness.log.is_immediate = False
    client.publish(0)
    async with asyncio.timeout(5.0):
        await harness.topic.drain(0.01)


async def test_clients_are_told_where_the_topic_goes() -> None:
    harness = Harness()
    producer, consumer = await _producing(harness), await consuming(harness, permits=0)
    harness.topic.disconnect_all(ELSEWHERE)
    assert _urls(producer) == {BaseCommand.CLOSE_PRODUCER: "pulsar://other:6650"}
    assert _urls(consumer) == {BaseCommand.CLOSE_CONSUMER: "pulsar://other:6650"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("outside", "pulsar://other.example:6650"),
        ("", "pulsar://other:6650"),
        (None, ""),
        ("gone", ""),
    ],
)
async def test_a_client_is_told_an_address_that_it_can_reach_or_none(
    asked: str | None, told: str
) -> None:
    """A client that has looked nothing up on this connection may be in another network."""
    harness = Harness()
    client = await _producing(harness)
    client.connection.link.listener = asked
    harness.topic.disconnect_all(LISTENING)
    assert _urls(client) == {BaseCommand.CLOSE_PRODUCER: told}


async def test_a_lookup_shows_which_addresses_a_client_can_reach() -> None:
    harness = Harness()
    client = harness.client()
    client.send(
        BaseCommand.LOOKUP,
        lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=1, advertised_listener_name=""),
    )
    await client.next(BaseCommand.LOOKUP_RESPONSE)
    assert client.connection.link.listener == ""


async def test_an_unknown_listener_is_refused() -> None:
    client = Harness().client()
    client.send(
        BaseCommand.LOOKUP,
        lookupTopic=pb.CommandLookupTopic(
            topic=TOPIC, request_id=1, advertised_listener_name="nowhere"
        ),
    )
    answer = (await client.next(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse
    assert answer.error == pb.ServerError.NotAllowedError
    assert "nowhere" in answer.message


async def test_an_acknowledgement_that_comes_after_the_move_is_not_confirmed() -> None:
    harness = Harness()
    consumer = await consuming(harness, permits=0)
    harness.topic.disconnect_all(ELSEWHERE)
    consumer.received()
    consumer.ack(Position(7, 0), request_id=9)
    answer = (await consumer.next(BaseCommand.ACK_RESPONSE)).ackResponse
    assert answer.error == pb.ServerError.ServiceNotReady
