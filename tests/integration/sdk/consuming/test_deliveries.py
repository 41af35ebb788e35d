"""How messages are delivered, given back and acknowledged: by one topic, against a real broker."""

import asyncio
import logging
from collections import Counter
from dataclasses import replace

import pulsar
import pytest

from magnetar.sdk import (
    BatchReceivePolicy,
    Client,
    Consumer,
    ConsumerInterceptor,
    ConsumerSettings,
    DeadLetterPolicy,
    Message,
    MessageId,
    ProducerSettings,
    SubscriptionType,
)
from magnetar.sdk.errors import NotSupportedError
from magnetar.testing import Broker
from tests.integration.sdk.embedded import (
    EARLIEST,
    data,
    make_partitioned,
    numbered,
    official,
    send,
    take,
)
from tests.waiting import until

FROM_START = ConsumerSettings(initial_position=EARLIEST)
SHARED = ConsumerSettings(
    initial_position=EARLIEST,
    subscription_type=SubscriptionType.SHARED,
    nack_delay_ms=10,
    ack_group_ms=1,
)


async def assert_nothing_comes(consumer: Consumer) -> None:
    with pytest.raises(TimeoutError):
        await consumer.receive(timeout_s=0.2)


async def wait_received(consumer: Consumer, size_bytes: int) -> None:
    """Wait until so much lies in the consumer's queue, or was taken."""
    await until(lambda: consumer.stats().received_bytes >= size_bytes)


async def test_batches_end_by_count_by_bytes_or_by_time(client: Client, topic: str) -> None:
    await send(client, topic, [b"x" * 10_000 for _ in range(10)])
    for policy, count in (
        (BatchReceivePolicy(messages_max=4, timeout_ms=0), 4),
        (BatchReceivePolicy(bytes_max=25_000, timeout_ms=0), 2),
        (BatchReceivePolicy(bytes_max=10, timeout_ms=0), 1),
        (BatchReceivePolicy(messages_max=11, timeout_ms=300), 10),
    ):
        settings = replace(FROM_START, batch_receive=policy)
        async with await client.consumer(topic, f"s{count}", settings) as consumer:
            await wait_received(consumer, 100_000)
            assert len(await consumer.receive_batch()) == count
            if count == 2:  # the one that did not fit is the next
                assert len(await consumer.receive_batch()) == 2
            if count == 10:
                assert await consumer.receive_batch() == []


async def test_a_cancelled_batch_takes_nothing(client: Client, topic: str) -> None:
    policy = BatchReceivePolicy(messages_max=100, timeout_ms=0)
    settings = replace(FROM_START, batch_receive=policy)
    async with await client.consumer(topic, "s", settings) as consumer:
        await send(client, topic, numbered(5))
        collecting = asyncio.ensure_future(consumer.receive_batch())
        await until(lambda: consumer.stats().received_messages == 5)
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        assert data(await take(consumer, 5)) == numbered(5)


@pytest.mark.parametrize("is_reader", [False, True])
async def test_a_batch_cancelled_after_a_seek_puts_nothing_back_from_before_it(
    client: Client, topic: str, is_reader: bool
) -> None:
    policy = BatchReceivePolicy(messages_max=100, timeout_ms=0)
    settings = replace(FROM_START, batch_receive=policy, durable=not is_reader)
    async with await client.consumer(topic, "s", settings) as consumer:
        producer = await client.producer(topic)
        ids = [await producer.send(each) for each in numbered(5)]
        collecting = asyncio.ensure_future(consumer.receive_batch())
        await until(lambda: consumer.stats().received_messages == 5)
        await consumer.seek(ids[3])
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        assert data(await take(consumer, 2)) == numbered(5)[3:]
        await assert_nothing_comes(consumer)


async def test_a_batch_cancelled_after_a_redelivery_gives_nothing_twice(
    client: Client, topic: str
) -> None:
    policy = BatchReceivePolicy(messages_max=100, timeout_ms=0)
    settings = replace(FROM_START, batch_receive=policy)
    async with await client.consumer(topic, "s", settings) as consumer:
        await send(client, topic, numbered(5))
        collecting = asyncio.ensure_future(consumer.receive_batch())
        await until(lambda: consumer.stats().received_messages == 5)
        consumer.redeliver_unacknowledged()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        assert data(await take(consumer, 5)) == numbered(5)
        await assert_nothing_comes(consumer)


async def test_the_pause_grows_with_each_redelivery(client: Client, topic: str) -> None:
    settings = replace(
        SHARED, nack_delay_ms=20, nack_delay_multiplier=4.0, nack_delay_max_ms=100_000
    )
    loop = asyncio.get_running_loop()
    async with await client.consumer(topic, "s", settings) as consumer:
        await send(client, topic, [b"a"])
        for least_s in (0.02, 0.08, 0.32):
            message = await consumer.receive(timeout_s=30)
            refused_s = loop.time()
            consumer.negative_acknowledge(message)
            again = await consumer.receive(timeout_s=30)
            assert again.redelivery_count == message.redelivery_count + 1
            assert loop.time() - refused_s >= least_s * 0.95
            consumer.negative_acknowledge(again)
            if least_s == 0.02:
                continue
            break


async def test_acknowledgements_with_an_answer_are_done_when_it_is_there(
    server: Broker, client: Client, topic: str
) -> None:
    await send(client, topic, numbered(4))
    settings = replace(FROM_START, ack_group_ms=60_000, batch_index_ack=True)
    async with await client.consumer(topic, "s", settings) as consumer:
        messages = await take(consumer, 4)
        await consumer.acknowledge_confirmed(*messages[:2])
        # Another connection sees it at once.
        await consumer.close()
    async with server.client() as other, await other.consumer(topic, "s", settings) as consumer:
        assert data(await take(consumer, 2)) == numbered(2, 2)


async def test_what_nobody_acknowledges_in_time_comes_again(client: Client, topic: str) -> None:
    settings = replace(SHARED, ack_timeout_ms=1_000)
    async with await client.consumer(topic, "s", settings) as consumer:
        await send(client, topic, numbered(3))
        first = await take(consumer, 3)
        consumer.acknowledge(first[1])
        again = await take(consumer, 2)
        assert sorted(data(again)) == [b"0", b"2"]
        assert {each.redelivery_count for each in again} == {1}
        consumer.acknowledge_many(again)
        await asyncio.sleep(1.2)  # for what should not happen
        await assert_nothing_comes(consumer)
        assert consumer.stats().timed_out == 2


async def test_what_comes_too_often_goes_to_the_dead_letter_topic(
    server: Broker, client: Client, topic: str
) -> None:
    policy = DeadLetterPolicy(redeliveries_max=2, initial_subscription="morgue")
    settings = replace(SHARED, dead_letters=policy)
    async with await client.consumer(topic, "work", settings) as consumer:
        async with await client.producer(topic, ProducerSettings(batching=False)) as producer:
            sent = await producer.send(b"bad", key="k", properties={"a": "b"}, event_time_ms=7)
        for count in range(3):
            message = await consumer.receive(timeout_s=30)
            assert message.redelivery_count == count
            consumer.negative_acknowledge(message)
        letters = f"{topic}-work-DLQ"
        async with await client.reader(letters) as reader:
            letter = await reader.read_next(timeout_s=30)
        assert (letter.data, letter.key, letter.event_time_ms) == (b"bad", "k", 7)
        assert letter.properties == {
            "a": "b",
            "REAL_TOPIC": topic,
            "REAL_SUBSCRIPTION": "work",
            "ORIGIN_MESSAGE_ID": f"{sent.ledger_id}:{sent.entry_id}:-1",
        }
        await until(lambda: consumer.stats().given_up == 1)
        await assert_nothing_comes(consumer)

    # The subscription that was asked for holds it for whoever looks after dead letters.
    def read(theirs: pulsar.Client) -> bytes:
        own = theirs.subscribe(letters, "morgue", consumer_type=pulsar.ConsumerType.Shared)
        payload: bytes = own.receive(30_000).data()
        return payload

    assert await official(server, read) == b"bad"


async def test_a_message_can_be_put_off_and_is_given_up_in_the_end(
    server: Broker, client: Client, topic: str
) -> None:
    await make_partitioned(server, topic, 2)
    settings = replace(SHARED, retry_topic=True, dead_letters=DeadLetterPolicy(redeliveries_max=2))
    async with await client.consumer(topic, "work", settings) as consumer:
        assert f"{topic}-work-RETRY" in consumer.topics
        await send(client, f"{topic}-partition-1", [b"later"], key="k")
        message = await consumer.receive(timeout_s=30)
        origin = message.message_id
        for times in (1, 2):
            await consumer.reconsume_later(message, delay_s=0.01, properties={"why": "busy"})
            message = await consumer.receive(timeout_s=30)
            assert message.topic == f"{topic}-work-RETRY"
            assert (message.data, message.key) == (b"later", "k")
            assert message.properties == {
                "REAL_TOPIC": topic,
                "REAL_SUBSCRIPTION": "work",
                "ORIGIN_MESSAGE_ID": f"{origin.ledger_id}:{origin.entry_id}:1",
                "RECONSUMETIMES": str(times),
                "DELAY_TIME": "10",
                "why": "busy",
            }
        await consumer.reconsume_later(message)
        async with await client.reader(f"{topic}-work-DLQ") as reader:
            letter = await reader.read_next(timeout_s=30)
            assert letter.properties["RECONSUMETIMES"] == "3"
        await consumer.flush_acks(confirmed=True)
        await assert_nothing_comes(consumer)
    async with await client.consumer(topic, "other", SHARED) as consumer:
        with pytest.raises(NotSupportedError, match="retry_topic=True"):
            await consumer.reconsume_later(message)


async def test_a_key_of_bytes_stays_one_on_retry_and_dead_letter_topics(
    client: Client, topic: str
) -> None:
    settings = replace(SHARED, retry_topic=True, dead_letters=DeadLetterPolicy(redeliveries_max=1))
    async with await client.consumer(topic, "work", settings) as consumer:
        async with await client.producer(topic) as producer:
            await producer.send(b"later", key=b"\xffk")
        for _ in range(2):
            message = await consumer.receive(timeout_s=30)
            assert message.key_bytes == b"\xffk"
            await consumer.reconsume_later(message)
        async with await client.reader(f"{topic}-work-DLQ") as reader:
            assert (await reader.read_next(timeout_s=30)).key_bytes == b"\xffk"


async def test_the_official_client_and_we_give_up_the_same_messages(
    server: Broker, client: Client, topic: str
) -> None:
    def give_up(theirs: pulsar.Client) -> None:
        consumer = theirs.subscribe(
            topic,
            "work",
            consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=10,
            initial_position=pulsar.InitialPosition.Earliest,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1),
        )
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(30_000))
        # It gives the message up by itself: the consumer must not end before.
        letters = theirs.create_reader(f"{topic}-work-DLQ", pulsar.MessageId.earliest)
        assert letters.read_next(30_000).data() == b"theirs"

    await send(client, topic, [b"theirs"])
    await official(server, give_up)
    settings = replace(SHARED, dead_letters=DeadLetterPolicy(redeliveries_max=1))
    async with await client.consumer(topic, "work", settings) as consumer:
        await send(client, topic, [b"ours"])
        for _ in range(2):
            consumer.negative_acknowledge(await consumer.receive(timeout_s=30))
        async with await client.reader(f"{topic}-work-DLQ") as reader:
            letters = [await reader.read_next(timeout_s=30) for _ in range(2)]
    assert Counter(data(letters)) == Counter([b"theirs", b"ours"])
    # Both say of the message where it came from.
    assert {each.properties["REAL_TOPIC"] for each in letters} == {topic}


async def test_a_paused_consumer_gets_what_was_on_its_way_and_no_more(
    client: Client, topic: str
) -> None:
    settings = replace(FROM_START, receiver_queue_messages=10)
    async with await client.consumer(topic, "s", settings) as consumer:
        consumer.pause()
        await send(client, topic, numbered(40))
        assert data(await take(consumer, 10)) == numbered(10)
        await assert_nothing_comes(consumer)
        consumer.resume()
        assert data(await take(consumer, 30)) == numbered(30, 10)


class Recorder(ConsumerInterceptor):
    """Notes what it is told, and marks messages."""

    def __init__(self) -> None:
        self.told: list[tuple[str, MessageId]] = []
        self.consumed: list[bytes] = []

    def before_consume(self, message: Message) -> Message:
        self.consumed.append(message.data)
        return message

    def on_acknowledge(self, topic: str, message_id: MessageId) -> None:
        self.told.append(("acknowledge", message_id))

    def on_acknowledge_cumulative(self, topic: str, message_id: MessageId) -> None:
        self.told.append(("cumulative", message_id))

    def on_negative_acknowledge(self, topic: str, message_id: MessageId) -> None:
        self.told.append(("negative", message_id))


class Broken(ConsumerInterceptor):
    def before_consume(self, message: Message) -> Message:
        raise RuntimeError("broken")


async def test_interceptors_see_every_message_and_a_broken_one_loses_none(
    client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    settings = replace(FROM_START, interceptors=(Broken(), recorder))
    await send(client, topic, numbered(4))
    with caplog.at_level(logging.CRITICAL):
        async with await client.consumer(topic, "s", settings) as consumer:
            messages = await take(consumer, 2)
            messages += await consumer.receive_many(10, timeout_s=30)
            while len(messages) < 4:
                messages += await consumer.receive_many(10, timeout_s=30)
            consumer.acknowledge(messages[0])
            consumer.negative_acknowledge(messages[2])
            consumer.acknowledge_cumulative(messages[3])
    ids = [each.message_id for each in messages]
    assert recorder.consumed == data(messages) == numbered(4)
    assert recorder.told == [
        ("acknowledge", ids[0]),
        ("negative", ids[2]),
        ("cumulative", ids[3]),
    ]


async def test_interceptors_of_a_consumer_of_several_topics_are_told_the_same(
    server: Broker, client: Client
) -> None:
    topics = [server.new_topic() for _ in range(2)]
    recorder = Recorder()
    settings = replace(FROM_START, interceptors=(recorder,))
    for topic in topics:
        await send(client, topic, [topic.encode()])
    async with await client.consumer(topics, "s", settings) as consumer:
        one, two = sorted(await take(consumer, 2), key=lambda each: topics.index(each.topic))
        consumer.acknowledge(one)
        consumer.acknowledge_cumulative(two)
        consumer.negative_acknowledge(one)
    assert sorted(recorder.consumed) == sorted(topic.encode() for topic in topics)
    assert recorder.told == [
        ("acknowledge", one.message_id),
        ("cumulative", two.message_id),
        ("negative", one.message_id),
    ]


async def test_statistics_count_what_was_done(client: Client, topic: str) -> None:
    await send(client, topic, numbered(5))
    async with await client.consumer(topic, "s", SHARED) as consumer:
        messages = await take(consumer, 5)
        consumer.acknowledge_many(messages[:3])
        consumer.negative_acknowledge(messages[3])
        stats = consumer.stats()
        assert stats.received_messages == 5
        assert stats.received_bytes > 5
        assert (stats.acknowledged, stats.negatively_acknowledged) == (3, 1)
        assert (stats.topics, stats.connected, stats.given_up) == (1, 1, 0)
        (theirs,) = await consumer.broker_stats()
        assert (theirs.topic, theirs.name, theirs.type) == (topic, consumer.name, "Shared")


async def test_wrong_settings_are_refused_at_once() -> None:
    for settings, word in (
        ({"retry_topic": True}, "Shared"),
        ({"dead_letters": DeadLetterPolicy(redeliveries_max=1)}, "Shared"),
        ({"start_message_id": MessageId.EARLIEST}, "durable=False"),
        ({"read_compacted": True, "subscription_type": SubscriptionType.SHARED}, "Exclusive"),
    ):
        with pytest.raises(ValueError, match=word):
            ConsumerSettings(**settings)
