"""What a consumer says of messages: acknowledged, or once more."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.sdk import (
    Client,
    ConsumerSettings,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.errors import NotSupportedError
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.errors import BrokerMetadataError
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandAck,
    CommandActiveConsumerChange,
    ServerError,
)
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker, once
from tests.integration.sdk.scripted_topic import SOON, data, numbered, publish, take
from tests.waiting import until


async def test_batch_is_acknowledged_when_all_of_it_was(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(3), batch=3)
    consumer = await client.consumer("t", "s", SOON)
    messages = await take(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2].message_id)
    assert broker.count(BaseCommand.ACK) == 0
    consumer.acknowledge(messages[1])
    ack = (await broker.wait_command(BaseCommand.ACK)).ack
    assert [(i.ledgerId, i.entryId, list(i.ack_set)) for i in ack.message_id] == [(1, 0, [])]


async def test_batch_index_ack_tells_what_remains(client: Client, broker: ScriptedBroker) -> None:
    await publish(client, numbered(3), batch=3)
    settings = ConsumerSettings(ack_group_ms=0, batch_index_ack=True)
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 3)
    consumer.acknowledge(messages[0])
    ack = (await broker.wait_command(BaseCommand.ACK)).ack
    assert list(ack.message_id[0].ack_set) == [6]


async def test_acknowledgements_are_sent_together(client: Client, broker: ScriptedBroker) -> None:
    await publish(client, numbered(5))
    settings = ConsumerSettings(ack_group_ms=60_000, ack_group_max=3)
    consumer = await client.consumer("t", "s", settings)
    consumer.acknowledge_many(await take(consumer, 2))
    consumer.acknowledge((await take(consumer, 1))[0])
    ack = (await broker.wait_command(BaseCommand.ACK)).ack
    assert len(ack.message_id) == 3
    consumer.acknowledge_cumulative((await take(consumer, 2))[1])
    await consumer.close()
    ack = (await broker.wait_command(BaseCommand.ACK, 2)).ack
    assert ack.ack_type == CommandAck.Cumulative
    assert broker.acked == {0, 1, 2, 3, 4}


async def test_on_a_shared_subscription_nothing_is_acknowledged_up_to_a_message(
    client: Client, broker: ScriptedBroker
) -> None:
    """A broker would pass over it: what was taken for done would come again."""
    await publish(client, [b"a"])
    settings = ConsumerSettings(subscription_type=SubscriptionType.SHARED)
    consumer = await client.consumer("t", "s", settings)
    with pytest.raises(NotSupportedError, match="does not work on shared subscriptions"):
        consumer.acknowledge_cumulative((await take(consumer, 1))[0])


async def test_confirmed_acknowledgement_tells_the_brokers_error(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, [b"a"])
    consumer = await client.consumer("t", "s")
    consumer.acknowledge((await take(consumer, 1))[0])

    def fail(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.ACK:
            return False
        answer = BaseCommand(type=BaseCommand.ACK_RESPONSE)
        answer.ackResponse.consumer_id = command.ack.consumer_id
        answer.ackResponse.request_id = command.ack.request_id
        answer.ackResponse.error = ServerError.MetadataError
        answer.ackResponse.message = "not saved"
        peer.send(BaseCommand.ACK_RESPONSE, ackResponse=answer.ackResponse)
        return True

    broker.faults.append(fail)
    with pytest.raises(BrokerMetadataError, match="not saved"):
        await consumer.flush_acks(confirmed=True)


async def test_negative_acknowledgement_on_exclusive_goes_back(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(3))
    consumer = await client.consumer("t", "s", SOON)
    messages = await take(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    assert data(await take(consumer, 2)) == numbered(2, 1)
    redeliver = await broker.wait_command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert redeliver.redeliverUnacknowledgedMessages.consumer_epoch == 1


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED])
async def test_message_of_an_older_epoch_is_dropped_and_its_credit_returned(
    client: Client, broker: ScriptedBroker, kind: SubscriptionType
) -> None:
    await publish(client, numbered(2))
    settings = ConsumerSettings(
        receiver_queue_messages=2, ack_group_ms=0, nack_delay_ms=0, subscription_type=kind
    )
    consumer = await client.consumer("t", "s", settings)
    await take(consumer, 2)

    def late(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            return False
        peer.deliver(1, broker.entries[1], epoch=0)
        return False

    broker.faults.append(once(late))
    consumer.redeliver_unacknowledged()
    assert data(await take(consumer, 2)) == numbered(2)
    assert not consumer.has_queued()


async def test_negative_acknowledgement_on_shared_names_the_entry(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(2))
    settings = ConsumerSettings(subscription_type=SubscriptionType.SHARED, nack_delay_ms=0)
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 2)
    consumer.negative_acknowledge(messages[1])
    command = await broker.wait_command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver = command.redeliverUnacknowledgedMessages
    assert [(i.ledgerId, i.entryId) for i in redeliver.message_ids] == [(1, 1)]
    assert not redeliver.HasField("consumer_epoch")


async def test_acknowledged_after_all_is_not_asked_for_again(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(2))
    settings = ConsumerSettings(subscription_type=SubscriptionType.SHARED, nack_delay_ms=20)
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 2)
    for message in messages:
        consumer.negative_acknowledge(message)
    consumer.acknowledge(messages[0])
    command = await broker.wait_command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    ids = command.redeliverUnacknowledgedMessages.message_ids
    assert [message_id.entryId for message_id in ids] == [1]


async def test_cancelled_confirmation_has_sent_all_acknowledgements(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6), batch=3)
    settings = ConsumerSettings(batch_index_ack=True, ack_group_ms=60_000)
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 6)
    consumer.acknowledge_many(messages[:4])  # An entry, and a part of the next: two commands.
    confirming = asyncio.create_task(consumer.flush_acks(confirmed=True))
    await broker.wait_command(BaseCommand.ACK)
    confirming.cancel()
    await asyncio.gather(confirming, return_exceptions=True)
    await consumer.last_message_id()
    assert broker.count(BaseCommand.ACK) == 2


async def test_a_message_in_chunks_is_acknowledged_as_a_whole_in_a_transaction(
    client: Client, broker: ScriptedBroker
) -> None:
    settings = ProducerSettings(batching=False, chunking=True, chunk_bytes_max=10)
    async with await client.producer("t", settings) as producer:
        await producer.send(bytes(25))
    consumer = await client.consumer("t", "s")
    assert isinstance(consumer, TopicConsumer)
    (message,) = await take(consumer, 1)
    acknowledger = consumer._own_acknowledger
    for number, cumulative in enumerate((False, True), 1):
        work = acknowledger.acknowledge_in((1, 2), message, cumulative=cumulative)
        doing = asyncio.create_task(work)
        ack = (await broker.wait_command(BaseCommand.ACK, number)).ack
        entries = [message_id.entryId for message_id in ack.message_id]
        assert entries == ([2] if cumulative else [0, 1, 2])
        doing.cancel()


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED])
async def test_a_last_chunk_that_was_stored_twice_is_acknowledged_with_its_message(
    client: Client, broker: ScriptedBroker, kind: SubscriptionType
) -> None:
    settings = ProducerSettings(batching=False, chunking=True, chunk_bytes_max=1_000)
    async with await client.producer("t", settings) as producer:
        await producer.send(bytes(2_500))
    broker.entries.append(broker.entries[-1])  # as of a producer that had no receipt for it
    await publish(client, [b"behind"])
    consumer = await client.consumer("t", "s", replace(SOON, subscription_type=kind))
    large, behind = await take(consumer, 2)
    assert (len(large.data), behind.data) == (2_500, b"behind")
    assert broker.acked == set()
    consumer.acknowledge(large)
    await until(lambda: broker.acked == {0, 1, 2, 3}, "all chunks are acknowledged")
    broker.entries.append(broker.entries[3])
    broker.peers[0].dispatch()
    consumer.acknowledge(behind)
    with pytest.raises(TimeoutError):
        await consumer.receive(timeout_s=0.1)
    await until(lambda: broker.acked == {0, 1, 2, 3, 4, 5}, "so is what comes later")


async def test_who_is_not_active_any_more_forgets_what_it_has_acknowledged_of_batches(
    client: Client, broker: ScriptedBroker
) -> None:
    """The next one completes them: to remember them would be for ever."""
    settings = replace(SOON, subscription_type=SubscriptionType.FAILOVER)
    consumer = await client.consumer("t", "s", settings)
    for _ in range(2):
        await publish(client, numbered(2), batch=2)
        first, _ = await take(consumer, 2)
        consumer.acknowledge(first)
    peer = next(each for each in broker.peers if each.consumer_id >= 0)
    for is_active in (False, True):
        change = CommandActiveConsumerChange(consumer_id=peer.consumer_id, is_active=is_active)
        peer.send(BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change)
    await until(lambda: consumer.is_active is True)
    broker.acked.add(0)  # by the one that was active meanwhile
    peer.rewind()
    peer.dispatch()
    second = await take(consumer, 2)
    assert data(second) == numbered(2)
    consumer.acknowledge_many(second)
    await until(lambda: broker.acked == {0, 1})
