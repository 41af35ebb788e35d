"""How a consumer takes faults, credit and positions."""

import asyncio

import pytest

from magnetar.sdk import (
    Client,
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageId,
    ProducerSettings,
    SubscriptionType,
    opening,
)
from magnetar.sdk.consuming.topic_consumer import TopicConsumer
from magnetar.sdk.errors import AlreadyClosedError, CorruptMessageError
from magnetar.sdk.perf import ConsumeOptions, consume
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.errors import BrokerMetadataError, ConsumerBusyError
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandMessage,
    MessageIdData,
    ServerError,
)
from tests.integration.sdk.conftest import FAST
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker
from tests.integration.sdk.scripted_topic import SOON, data, numbered, publish, take
from tests.processes import HOST, free_ports
from tests.waiting import until


async def test_messages_come_in_order_with_what_was_sent_along(client: Client) -> None:
    async with await client.producer("t") as producer:
        await producer.send(
            b"a", key="k", ordering_key=b"o", properties={"x": "y"}, event_time_ms=9
        )
    consumer = await client.consumer("t", "s")
    (message,) = await take(consumer, 1)
    assert (message.data, message.key, message.ordering_key) == (b"a", "k", b"o")
    assert (message.properties, message.event_time_ms) == ({"x": "y"}, 9)
    assert (message.producer_name, message.sequence_id) == ("made-up", 0)
    assert message.message_id == MessageId(1, 0, 0)
    assert message.publish_time_ms > 0


async def test_credit_is_returned_when_half_the_queue_was_taken(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(10))
    consumer = await client.consumer("t", "s", ConsumerSettings(receiver_queue_messages=4))
    messages = await take(consumer, 10)
    assert data(messages) == numbered(10)
    await broker.wait_command(BaseCommand.FLOW, 6)
    permits = [each.flow.messagePermits for each in broker.commands if each.HasField("flow")]
    assert permits == [4, 2, 2, 2, 2, 2]


async def test_receive_many_takes_what_is_there(client: Client) -> None:
    await publish(client, numbered(7), batch=5)
    consumer = await client.consumer("t", "s")
    taken: list[Message] = []
    while len(taken) < 7:
        some = await consumer.receive_many(3, timeout_s=10)
        assert 1 <= len(some) <= 3
        taken += some
    assert data(taken) == numbered(7)
    assert await consumer.receive_many(3, timeout_s=0.01) == []


async def test_receive_batches_gives_entries_undecoded(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(7), batch=5)
    consumer = await client.consumer("t", "s", SOON)
    batches = await consumer.receive_batches(10, timeout_s=10)
    while sum(batch.count for batch in batches) < 7:
        batches += await consumer.receive_batches(10, timeout_s=10)
    assert [batch.payloads() for batch in batches] == [numbered(5), numbered(2, 5)]
    consumer.acknowledge_many(batches)
    await broker.wait_command(BaseCommand.ACK)
    assert broker.acked == {0, 1}
    assert await consumer.receive_batches(10, timeout_s=0.01) == []


async def test_waiting_too_long_is_a_timeout(client: Client) -> None:
    consumer = await client.consumer("t", "s")
    with pytest.raises(TimeoutError):
        await consumer.receive(timeout_s=0.01)


async def test_cancelled_receiver_loses_no_message(client: Client, broker: ScriptedBroker) -> None:
    consumer = await client.consumer("t", "s")
    assert isinstance(consumer, TopicConsumer)
    first = asyncio.ensure_future(consumer.receive())
    second = asyncio.ensure_future(consumer.receive())
    deliver = consumer.on_messages

    def deliver_and_cancel(messages: list[tuple[CommandMessage, bytes]]) -> None:
        # Woken, and cancelled before it can take the message: the other one gets it.
        deliver(messages)
        first.cancel()

    consumer.on_messages = deliver_and_cancel  # type: ignore[method-assign]  # no other way in
    await publish(client, [b"a"])
    assert (await second).data == b"a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_lost_connection_brings_again_what_was_not_acknowledged(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6))
    settings = ConsumerSettings(ack_group_ms=60_000)
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 3)
    consumer.acknowledge_many(messages[:2])
    broker.drop_connections()
    await broker.wait_command(BaseCommand.SUBSCRIBE, 2)
    # What was acknowledged while the connection was away is sent before the credit.
    await broker.wait_command(BaseCommand.FLOW, 2)
    kinds = [command.type for command in broker.commands]
    assert kinds.index(BaseCommand.ACK) < len(kinds) - 1 - kinds[::-1].index(BaseCommand.FLOW)
    again = await take(consumer, 1)
    while again[-1].data != b"5":
        again += await take(consumer, 1)
    assert data(again)[-4:] == numbered(4, 2)


async def test_closed_by_the_broker_subscribes_again(
    client: Client, broker: ScriptedBroker
) -> None:
    consumer = await client.consumer("t", "s")
    broker.peers[0].close_consumer()
    await broker.wait_command(BaseCommand.FLOW, 2)
    first, second = (each.subscribe for each in broker.commands if each.HasField("subscribe"))
    assert (first.consumer_id, first.consumer_name) == (second.consumer_id, second.consumer_name)
    await publish(client, [b"a"])
    assert data(await take(consumer, 1)) == [b"a"]


async def test_damaged_message_is_told_and_the_next_one_comes(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(3))
    broker.entries[1] = broker.entries[1][:-1] + b"!"
    consumer = await client.consumer("t", "s")
    assert data(await take(consumer, 1)) == [b"0"]
    with pytest.raises(CorruptMessageError) as caught:
        await take(consumer, 1)
    assert caught.value.message_id == MessageId(1, 1)
    assert data(await take(consumer, 1)) == [b"2"]


async def test_damaged_message_in_a_bulk_call_comes_after_the_good_ones(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(3))
    broker.entries[1] = broker.entries[1][:-1] + b"!"
    consumer = await client.consumer("t", "s")
    assert data(await consumer.receive_many(9, timeout_s=10)) == [b"0"]
    with pytest.raises(CorruptMessageError):
        await consumer.receive_many(9, timeout_s=10)
    assert data(await consumer.receive_many(9, timeout_s=10)) == [b"2"]

    other = await client.consumer("t", "s2")
    (batch,) = await other.receive_batches(9, timeout_s=10)
    assert batch.payloads() == [b"0"]
    with pytest.raises(CorruptMessageError):
        await other.receive_batches(9, timeout_s=10)
    (batch,) = await other.receive_batches(9, timeout_s=10)
    assert batch.payloads() == [b"2"]


async def test_seek_moves_and_drops_what_lies_here(client: Client, broker: ScriptedBroker) -> None:
    await publish(client, numbered(6))
    consumer = await client.consumer("t", "s")
    messages = await take(consumer, 2)
    await consumer.seek(MessageId(1, 4))
    assert data(await take(consumer, 2)) == numbered(2, 4)
    await consumer.seek(messages[1].message_id)
    assert data(await take(consumer, 5)) == numbered(5, 1)


async def test_seek_into_a_batch_begins_with_that_message(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6), batch=3)
    consumer = await client.consumer("t", "s", SOON)
    messages = await take(consumer, 6)
    await consumer.seek(messages[4].message_id)
    again = await take(consumer, 2)
    assert data(again) == numbered(2, 4)
    consumer.acknowledge_many(again)
    ack = (await broker.wait_command(BaseCommand.ACK)).ack
    assert [message_id.entryId for message_id in ack.message_id] == [1]


async def test_refused_seek_changes_nothing(client: Client, broker: ScriptedBroker) -> None:
    await publish(client, numbered(3))
    consumer = await client.consumer("t", "s")
    await take(consumer, 1)

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEEK:
            return False
        peer.refuse(command.seek.request_id, ServerError.MetadataError)
        return True

    broker.faults.append(refuse)
    with pytest.raises(BrokerMetadataError):
        await consumer.seek(MessageId.EARLIEST)
    assert data(await take(consumer, 2)) == numbered(2, 1)


async def test_refused_seek_loses_nothing_that_was_on_its_way(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6))
    consumer = await client.consumer("t", "s", ConsumerSettings(receiver_queue_messages=2))
    await broker.wait_command(BaseCommand.FLOW)

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEEK:
            return False
        for entry_id in (2, 3):
            peer.deliver(entry_id, broker.entries[entry_id])
        peer.next_entry = 4
        peer.refuse(command.seek.request_id, ServerError.MetadataError)
        return True

    broker.faults.append(refuse)
    with pytest.raises(BrokerMetadataError):
        await consumer.seek(MessageId.EARLIEST)
    assert data(await take(consumer, 6)) == numbered(6)


async def test_refused_seek_forgets_no_negative_and_no_partial_acknowledgement(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(4), batch=2)
    settings = ConsumerSettings(
        subscription_type=SubscriptionType.SHARED, nack_delay_ms=300, ack_group_ms=0
    )
    consumer = await client.consumer("t", "s", settings)
    messages = await take(consumer, 4)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])

    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEEK:
            return False
        peer.refuse(command.seek.request_id, ServerError.MetadataError)
        return True

    broker.faults.append(refuse)
    with pytest.raises(BrokerMetadataError):
        await consumer.seek(MessageId.EARLIEST)
    consumer.acknowledge(messages[1])
    ack = (await broker.wait_command(BaseCommand.ACK)).ack
    assert [message_id.entryId for message_id in ack.message_id] == [0]
    asked = await broker.wait_command(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    ids = asked.redeliverUnacknowledgedMessages.message_ids
    assert [message_id.entryId for message_id in ids] == [1]


async def test_while_a_seek_is_under_way_nothing_of_the_old_position_is_given_out(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(6))
    reader = await client.reader("t")
    assert (await reader.read_next(timeout_s=10)).data == b"0"
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SEEK:
            return False
        go_on.add_done_callback(lambda _: peer.serve(command, b""))
        asked.set_result(None)
        return True

    broker.faults.append(hold)
    seeking = asyncio.create_task(reader.seek(MessageId(1, 4)))
    await asked
    assert reader.consumer.take_nowait(10) == []
    assert not reader.consumer.has_queued()
    go_on.set_result(None)
    await seeking
    assert (await reader.read_next(timeout_s=10)).data == b"4"


async def test_taken_subscription_is_told_at_once(client: Client, broker: ScriptedBroker) -> None:
    def busy(peer: Peer, command: BaseCommand) -> bool:
        if command.type != BaseCommand.SUBSCRIBE:
            return False
        peer.refuse(command.subscribe.request_id, ServerError.ConsumerBusy)
        return True

    broker.faults.append(busy)
    with pytest.raises(ConsumerBusyError):
        await client.consumer("t", "s")


async def test_unsubscribe_ends_the_consumer(client: Client, broker: ScriptedBroker) -> None:
    consumer = await client.consumer("t", "s")
    await consumer.unsubscribe()
    assert broker.count(BaseCommand.UNSUBSCRIBE) == 1
    assert broker.count(BaseCommand.CLOSE_CONSUMER) == 0
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()


async def test_close_wakes_who_waits(client: Client) -> None:
    consumer = await client.consumer("t", "s")
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
    iterating = asyncio.ensure_future(anext(aiter(consumer)))
    await publish(client, [])
    await consumer.close()
    for each in (*waiting, iterating):
        with pytest.raises(AlreadyClosedError):
            await each


async def test_silent_broker_is_left(broker: ScriptedBroker) -> None:
    settings = ProducerSettings(batching=False)

    quick = ClientSettings(keep_alive_ms=20, reconnect_delay_min_ms=1)
    async with Client(broker.url, quick) as client:
        producer = await client.producer("t", settings)
        (silent,) = broker.peers
        broker.faults.append(lambda peer, command: peer is silent)
        await broker.wait_command(BaseCommand.CONNECT, 2)
        await broker.wait_command(BaseCommand.PRODUCER, 2)
        await producer.send(b"a")


async def test_cancelled_making_of_a_consumer_of_partitions_leaves_none_behind(
    client: Client, broker: ScriptedBroker
) -> None:
    broker.partitions = 2
    broker.faults.append(
        lambda peer, command: (
            command.type == BaseCommand.SUBSCRIBE and command.subscribe.topic.endswith("-1")
        )
    )
    making = asyncio.create_task(client.consumer("t", "s"))
    await broker.wait_command(BaseCommand.SUBSCRIBE, 2)
    await broker.wait_command(BaseCommand.FLOW)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await broker.wait_command(BaseCommand.CLOSE_CONSUMER, 2)
    closed = {
        command.close_consumer.consumer_id
        for command in broker.commands
        if command.type == BaseCommand.CLOSE_CONSUMER
    }
    assert closed == {0, 1}


async def test_a_damaged_message_for_one_who_waits_leaves_the_next_to_another(
    client: Client, broker: ScriptedBroker
) -> None:
    await publish(client, numbered(2))
    good = broker.entries.pop()
    damaged = broker.entries.pop()[:-1] + b"!"
    consumer = await client.consumer("t", "s")
    assert isinstance(consumer, TopicConsumer)
    waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
    await broker.wait_command(BaseCommand.FLOW)
    ids = [MessageIdData(ledgerId=1, entryId=at) for at in range(2)]
    arrived = [CommandMessage(consumer_id=0, message_id=each) for each in ids]
    consumer.on_messages(list(zip(arrived, (damaged, good), strict=True)))
    async with asyncio.timeout(5):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], CorruptMessageError)
    assert isinstance(results[1], Message)
    assert results[1].data == b"1"


async def test_partitions_that_are_not_there_for_a_moment_are_consumed_all_the_same(
    client: Client, broker: ScriptedBroker
) -> None:
    broker.partitions = 2
    settings = ConsumerSettings(topics_update_ms=10)
    consumer = await client.consumer("t", "s", settings)
    topics = consumer.topics
    assert [each[-1] for each in topics] == ["0", "1"]
    # As when the topic was deleted: the plain topic of that name is another one.
    broker.partitions = 0
    asked = broker.count(BaseCommand.PARTITIONED_METADATA)
    await broker.wait_command(BaseCommand.PARTITIONED_METADATA, asked + 3)
    assert consumer.topics == topics
    assert broker.count(BaseCommand.SUBSCRIBE) == 2
    broker.partitions = 3
    await until(lambda: len(consumer.topics) == 3, "what is added appears")


async def test_a_load_tells_of_a_message_that_cannot_be_read(broker: ScriptedBroker) -> None:
    broker.entries.append(b"no message")
    options = ConsumeOptions(
        url=broker.url, client=FAST, consumers=2, subscription_type=SubscriptionType.FAILOVER
    )
    with pytest.raises(CorruptMessageError):
        await consume(options)


async def test_an_acknowledgement_may_be_awaited(client: Client, broker: ScriptedBroker) -> None:
    await publish(client, numbered(4))
    async with client.consumer("t", "s", SOON) as consumer:
        first, *rest = await take(consumer, 4)
        assert first.id == first.message_id
        await consumer.acknowledge(first)
        await consumer.acknowledge_many(rest[:1])
        await consumer.acknowledge_cumulative(rest[1])
        await broker.wait_command(BaseCommand.ACK)
        await consumer.negative_acknowledge(rest[2])


async def test_whatever_a_client_makes_can_be_entered_and_is_closed_behind_the_block(
    client: Client,
) -> None:
    async with client.producer("t") as producer:
        await producer.send(b"a")
    with pytest.raises(AlreadyClosedError):
        await producer.send(b"b")
    async with client.reader("t") as reader:
        assert (await reader.read_next(timeout_s=10)).data == b"a"
    async with client.consumer("t", "s") as consumer:
        assert consumer.is_connected
    with pytest.raises(AlreadyClosedError):
        await consumer.receive()


async def test_a_client_and_what_it_makes_say_what_they_are(client: Client) -> None:
    async with client.producer("t") as producer, client.consumer("t", "s") as consumer:
        assert "open, 1 producers, 1 consumers" in repr(client)
        assert "of persistent://public/default/t, connected, 0 pending" in repr(producer)
        assert "persistent://public/default/t, subscription s, connected" in repr(consumer)
    assert "subscription s, not connected" in repr(consumer)


async def test_a_broker_that_is_not_there_is_told_of_before_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "WARNING_AFTER_S", 0.0)
    (port,) = free_ports(1)
    async with Client(f"pulsar://{HOST}:{port}", FAST) as client:
        making = asyncio.ensure_future(client.producer("t"))
        await until(lambda: "no_broker_yet" in caplog.text)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    assert str(port) in caplog.text
    assert caplog.text.count("no_broker_yet") == 1
