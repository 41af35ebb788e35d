"""Non-persistent topics: receipts at once, messages to whoever has credit, nothing kept."""

from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.policies.model import NamespaceRecord, Policies
from magnetar.broker.topics.non_persistent import BATCH_ENTRIES_MAX
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, position_in, send_frame
from tests.waiting import settle

TOPIC = "non-persistent://public/default/topic"
Sub = pb.CommandSubscribe


async def joined(harness: Harness, permits: int = 100, **fields: Any) -> Client:
    client = harness.client()
    answer = await client.subscribe(topic=TOPIC, **fields)
    assert answer.type == BaseCommand.SUCCESS, answer
    client.flow(permits)
    return client


async def producer(harness: Harness) -> Client:
    client = harness.client()
    assert (await client.produce(topic=TOPIC)).type == BaseCommand.PRODUCER_SUCCESS
    return client


def bodies(client: Client) -> list[bytes]:
    return [
        payload[-1:]
        for command, payload in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


async def test_a_message_passes_with_the_id_zero_and_is_receipted_so() -> None:
    harness = Harness()
    consumer, client = await joined(harness), await producer(harness)
    client.publish(0, 1)
    for _ in range(2):
        receipt = (await client.next(BaseCommand.SEND_RECEIPT)).send_receipt
        assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (0, 0)
    found = await consumer.messages(2)
    assert [position_in(message) for message, _ in found] == [(0, 0), (0, 0)]
    assert [payload[-6:] for _, payload in found] == [b"body-0", b"body-1"]
    consumer.ack(position_in(found[0][0]))
    consumer.redeliver()
    await settle()
    assert consumer.commands() == []


async def test_what_comes_without_credit_is_lost() -> None:
    harness = Harness()
    consumer, client = await joined(harness, 1), await producer(harness)
    client.publish(0, 1, 2)
    consumer.flow(10)
    await settle()
    assert bodies(consumer) == [b"0"]
    client.publish(3)
    assert bodies(consumer) == [b"3"]
    assert client.commands() == 4 * [BaseCommand.SEND_RECEIPT]


async def test_too_many_at_a_time_are_dropped_and_their_receipts_say_so() -> None:
    harness = Harness(turn_bytes_max=1 << 30)  # one read is one turn
    client = await producer(harness)
    client.publish(*range(BATCH_ENTRIES_MAX + 2))
    receipts = [command.send_receipt for command, _ in client.received()]
    ids = [(each.message_id.ledgerId, each.message_id.entryId) for each in receipts]
    none = (1 << 64) - 1
    assert ids == BATCH_ENTRIES_MAX * [(0, 0)] + 2 * [(none, none)]
    assert [each.sequence_id for each in receipts] == list(range(BATCH_ENTRIES_MAX + 2))


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Failover, Sub.Shared, Sub.Key_Shared])
async def test_a_subscription_of_each_type_gets_every_message_once(kind: int) -> None:
    harness = Harness()
    consumers = [await joined(harness, subType=kind, consumer_name="a")]
    second = consumers[0] if kind == Sub.Exclusive else harness.client()
    answer = await second.subscribe(1, topic=TOPIC, subType=kind, consumer_name="b")
    if kind == Sub.Exclusive:
        assert answer.error.error == pb.ServerError.ConsumerBusy
    else:
        second.flow(100, 1)
        consumers.append(second)
    client = await producer(harness)
    for number in range(8):
        payload = entry(b"%d" % number, sequence_id=number, partition_key=f"k{number % 4}")
        client.send_bytes(send_frame(0, number, payload=payload))
    await settle()
    found = [bodies(each) for each in consumers]
    assert sorted(each for one in found for each in one) == [b"%d" % number for number in range(8)]
    if kind == Sub.Shared:
        assert [len(each) for each in found] == [4, 4]
    if kind == Sub.Failover:
        assert [] in found
    if kind == Sub.Key_Shared:  # All messages of a key at one consumer.
        keys = [{int(each) % 4 for each in one} for one in found]
        assert not keys[0] & keys[1]


async def test_consumers_of_failover_are_told_who_is_active() -> None:
    harness = Harness()

    async def change(client: Client) -> bool:
        answer = await client.next(BaseCommand.ACTIVE_CONSUMER_CHANGE)
        return bool(answer.active_consumer_change.is_active)

    first = await joined(harness, subType=Sub.Failover, consumer_name="a")
    assert await change(first)
    standby = await joined(harness, subType=Sub.Failover, consumer_name="b", priority_level=1)
    assert not await change(standby)
    await settle()
    assert first.commands() == []
    first.connection.lost()
    assert await change(standby)


async def test_a_type_that_is_not_the_subscriptions_is_refused() -> None:
    harness = Harness()
    await joined(harness, subType=Sub.Shared)
    answer = await harness.client().subscribe(topic=TOPIC, subType=Sub.Failover)
    assert answer.error.error == pb.ServerError.ConsumerBusy


@pytest.mark.parametrize(
    "target", [{"message_publish_time": 5}, {"message_id": pb.MessageIdData(ledgerId=0, entryId=0)}]
)
async def test_a_seek_succeeds_and_leads_to_what_comes_next(target: dict[str, Any]) -> None:
    harness = Harness()
    consumer, client = await joined(harness, 1), await producer(harness)
    client.publish(0)
    assert bodies(consumer) == [b"0"]
    request_id = await consumer.seek(**target)
    assert (await consumer.next()).close_consumer.consumer_id == 0
    assert (await consumer.next()).success.request_id == request_id
    client.publish(1)
    assert (await consumer.subscribe(topic=TOPIC)).type == BaseCommand.SUCCESS
    consumer.flow(2)
    client.publish(2)
    assert bodies(consumer) == [b"2"]


async def test_there_is_no_place_for_an_operator_to_reset_to() -> None:
    harness = Harness()
    await joined(harness)
    (topic,) = harness.topics.loaded
    with pytest.raises(NotAllowedError):
        await topic.subscriptions["s"].seek(None, nowhere)


async def nowhere() -> tuple[Position, tuple[int, ...]]:
    return Position(0, 0), ()


async def test_subscriptions_appear_although_those_that_are_kept_must_not() -> None:
    """Nobody could create them another way: over HTTP there are none of such topics."""
    harness = Harness()
    harness.policies.namespaces["public/default"] = NamespaceRecord(
        policies=Policies(auto_subscription_creation=False)
    )
    await joined(harness)
    dead_letters = await harness.client().produce(topic=TOPIC, initial_subscription_name="dlq")
    assert dead_letters.type == BaseCommand.PRODUCER_SUCCESS, dead_letters
    (topic,) = harness.topics.loaded
    assert list(topic.subscriptions) == ["s"]


async def test_there_is_no_last_message() -> None:
    harness = Harness()
    consumer = await joined(harness)
    consumer.send(
        BaseCommand.GET_LAST_MESSAGE_ID,
        getLastMessageId=pb.CommandGetLastMessageId(consumer_id=0, request_id=4),
    )
    last = (await consumer.next()).getLastMessageIdResponse.last_message_id
    assert last.entryId == (1 << 64) - 1


async def test_who_does_not_own_the_topic_passes_nothing_on() -> None:
    harness = Harness()
    consumer, client = await joined(harness), await producer(harness)
    harness.topics.tenure.is_held = False
    client.publish(0)
    await settle()
    assert (client.commands(), consumer.commands()) == ([], [])


async def test_two_subscriptions_get_the_same() -> None:
    harness = Harness()
    first = await joined(harness, subscription="one")
    second = await joined(harness, subscription="two")
    client = await producer(harness)
    client.publish(0)
    assert bodies(first) == bodies(second) == [b"0"]


async def test_a_topic_that_keeps_nothing_has_nothing_to_deduplicate_and_stays_open() -> None:
    harness = Harness()
    client = await producer(harness)
    (topic,) = harness.topics.loaded
    for _ in range(2):
        topic.apply_policies(
            topic.policies.with_values(deduplication=not topic.policies.deduplication)
        )
        await settle()
        assert not topic.is_closed
    assert client.commands() == []
