"""Consumers over WebSocket, end to end: their kinds, flow control, and the frames they send."""

import asyncio
from base64 import b64decode
from dataclasses import dataclass

import pytest

from magnetar.broker.websocket.frames import id_text
from magnetar.sdk import Client, ConsumerSettings, MessageId, ProducerSettings, SubscriptionType
from magnetar.sdk.schemas import INT64, AvroSchema, KeyValue, KeyValueEncoding, KeyValueSchema
from tests.integration.broker.websocket.sockets import (
    WAIT_S,
    Socket,
    Topic,
    admin,
    nothing_more,
    status_of,
)
from tests.standalone import Standalone
from tests.waiting import until


@dataclass
class Order:
    item: str


# -- kinds


async def test_of_two_failover_consumers_one_gets_all_and_the_other_what_it_leaves(
    topic: Topic,
) -> None:
    query = "subscriptionType=Failover&consumerName="
    async with (
        topic.producer() as producer,
        topic.consumer(query + "b") as second,
        topic.consumer(query + "a") as first,
    ):
        # Who is active among names that sort so is the first one, once it is told.
        await producer.publish_ok("1", "2")
        tasks = {asyncio.create_task(each.payloads(2, ack=False)): each for each in (first, second)}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(pending)) == (1, 1)
        assert done.pop().result() == ["1", "2"]
        waiting = pending.pop()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        active, idle = tasks.values()
        if tasks[waiting] is active:
            active, idle = idle, active
        await active.connection.close()
        assert await idle.payloads(2) == ["1", "2"]
        await producer.publish_ok("3")
        assert await idle.payload() == "3"


async def test_shared_consumers_share_and_keep_keys_together_if_asked(topic: Topic) -> None:
    for kind in ("Shared", "Key_Shared"):
        # Their names say who gets which keys: of names by chance, one might get none.
        query = f"subscriptionType={kind}&receiverQueueSize=5&consumerName="
        async with (
            topic.consumer(query + "a", subscription=kind) as first,
            topic.consumer(query + "b", subscription=kind) as second,
            topic.producer() as producer,
        ):
            for number in range(40):
                await producer.publish_ok(str(number), key=f"key-{number % 8}")
            got: dict[str, list[tuple[str, str]]] = {"first": [], "second": []}

            async def take(
                name: str, socket: Socket, got: dict[str, list[tuple[str, str]]]
            ) -> None:
                while sum(map(len, got.values())) < 40:
                    message = await socket.receive()
                    got[name].append((message["key"], b64decode(message["payload"]).decode()))
                    await socket.ack(message["messageId"])

            takers = [
                asyncio.create_task(take("first", first, got)),
                asyncio.create_task(take("second", second, got)),
            ]
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            for each in takers:
                each.cancel()
            await asyncio.gather(*takers, return_exceptions=True)
            everything = sorted(int(text) for pairs in got.values() for _, text in pairs)
            assert everything == list(range(40))
            assert all(got.values())
            if kind == "Key_Shared":
                keys = [{key for key, _ in pairs} for pairs in got.values()]
                assert not keys[0] & keys[1]


async def test_a_second_exclusive_consumer_is_refused(topic: Topic) -> None:
    async with topic.consumer():
        assert await status_of(topic.consumer()) == 409
        assert await status_of(topic.consumer("subscriptionType=Shared")) == 409
    async with topic.consumer("subscriptionType=Shared"), topic.consumer("subscriptionType=Shared"):
        pass


async def test_subscriptions_begin_where_they_are_asked_to(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.publish_ok("before")
        early = "subscriptionInitialPosition=Earliest"
        async with topic.consumer(early, subscription="early") as consumer:
            assert await consumer.payload() == "before"
        async with topic.consumer(subscription="late") as consumer:
            await producer.publish_ok("after")
            assert await consumer.payload() == "after"
        path = f"{early}&subscriptionMode=NonDurable"
        async with topic.consumer(path, subscription="fleeting") as consumer:
            assert await consumer.payloads(2) == ["before", "after"]
    subscriptions = await admin(topic, "GET", "subscriptions")
    assert set(subscriptions.json) == {"early", "late"}


# -- flow control


async def test_in_push_mode_no_more_than_the_window_goes_unanswered(topic: Topic) -> None:
    query = "receiverQueueSize=3"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok(*"abcdefgh")
        ids = [await consumer.message() for _ in range(3)]
        assert [payload for payload, _ in ids] == list("abc")
        await nothing_more(consumer)
        await consumer.ack(ids[0][1])
        assert (await consumer.message())[0] == "d"
        await nothing_more(consumer)
        # Twice the same is one slot.
        await consumer.ack(ids[0][1])
        await nothing_more(consumer)
        await consumer.ack(ids[1][1])
        await consumer.ack(ids[2][1])
        assert [(await consumer.message())[0] for _ in "ef"] == ["e", "f"]
        await nothing_more(consumer)


async def test_a_queue_of_0_is_a_window_of_1(topic: Topic) -> None:
    query = "receiverQueueSize=0&subscriptionType=Shared"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok(*"ab")
        _, message_id = await consumer.message()
        await nothing_more(consumer)
        await consumer.ack(message_id)
        assert await consumer.payload() == "b"


async def test_in_pull_mode_each_message_costs_a_permit_exactly(topic: Topic) -> None:
    async with topic.consumer("pullMode=true") as consumer, topic.producer() as producer:
        await producer.publish_ok(*"abcdefgh")
        await nothing_more(consumer)
        await consumer.permit(2)
        ids = [await consumer.message() for _ in range(2)]
        assert [payload for payload, _ in ids] == ["a", "b"]
        await nothing_more(consumer)
        for _, message_id in ids:
            await consumer.ack(message_id)
        await nothing_more(consumer)
        await consumer.permit(1)
        await consumer.permit(0)
        assert await consumer.payload() == "c"
        await nothing_more(consumer)
        await consumer.permit(10)
        assert await consumer.payloads(5) == list("defgh")
        # Permits that are left count for what comes later.
        await producer.publish_ok(*"ijklmnop")
        assert await consumer.payloads(5) == list("ijklm")
        await nothing_more(consumer)


# -- frames


async def test_a_negative_acknowledgement_brings_the_message_again(topic: Topic) -> None:
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=50"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok("again", "other")
        message = await consumer.receive()
        await consumer.nack(message["messageId"])
        assert await consumer.payload() == "other"
        again = await consumer.receive()
        assert again["messageId"] == message["messageId"]
        assert (message["redeliveryCount"], again["redeliveryCount"]) == (0, 1)


async def test_an_id_of_no_message_keeps_no_other_from_coming_again(topic: Topic) -> None:
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=100"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok("hello")
        first = await consumer.receive()
        for message_id in (id_text(MessageId.EARLIEST), first["messageId"]):
            await consumer.nack(message_id)
        again = await consumer.receive()
        assert (again["messageId"], again["redeliveryCount"]) == (first["messageId"], 1)


async def test_what_is_not_answered_in_time_comes_again(topic: Topic) -> None:
    query = "subscriptionType=Shared&ackTimeoutMillis=1000"
    for mode in ("false", "true"):
        path = f"{query}&pullMode={mode}"
        async with topic.consumer(path) as consumer, topic.producer() as producer:
            await consumer.permit(100)
            await producer.publish_ok("slow", "fast")
            message_id = (await consumer.message())[1]
            again = await consumer.receive()
            while again["messageId"] != message_id:
                await consumer.ack(again["messageId"])
                again = await consumer.receive()
            assert again["redeliveryCount"] >= 1
            await consumer.ack(message_id)


async def test_what_comes_again_with_a_reset_by_an_operator_does_not_come_twice_for_its_timeout(
    topic: Topic,
) -> None:
    query = "subscriptionType=Shared&ackTimeoutMillis=1000&receiverQueueSize=2"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok("a", "b")
        before = [await consumer.message() for _ in range(2)]
        await admin(topic, "POST", "subscription/s/resetcursor/0")
        # The window is full: they come when the time of the first delivery is over.
        again = [await consumer.message() for _ in range(2)]
        assert sorted(again) == sorted(before)
        for _, message_id in again:
            await consumer.ack(message_id)
        await producer.publish_ok("c", "d")
        behind = [await consumer.message() for _ in range(2)]
        assert sorted(payload for payload, _ in behind) == ["c", "d"]


@pytest.mark.parametrize("refuses_first", [False, True])
async def test_a_refused_message_of_a_batch_comes_again_and_its_neighbours_do_not(
    topic: Topic, server: Standalone, refuses_first: bool
) -> None:
    async with Client(server.url) as client:
        batch = ProducerSettings(batching=True, batch_messages_max=4, batch_delay_ms=10_000)
        async with await client.producer(topic.url, batch) as sender:
            await sender.send_many([b"0", b"1", b"2", b"3"])
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=100"
    async with topic.consumer(query + "&subscriptionInitialPosition=Earliest") as consumer:
        ids = [(await consumer.message())[1] for _ in range(4)]
        if refuses_first:
            await consumer.nack(ids[1])
        for at in (0, 2):
            await consumer.ack(ids[at])
        if not refuses_first:
            await consumer.nack(ids[1])
        await consumer.ack(ids[3])
        assert await consumer.payload() == "1"
        await nothing_more(consumer)

        async def is_done() -> bool:
            return bool(
                (await admin(topic, "GET", "stats")).json["subscriptions"]["s"]["msgBacklog"] == 0
            )

        await until(is_done, "the batch is acknowledged")


@pytest.mark.parametrize("chosen", ["", "public/default/chosen-letters"])
async def test_what_is_refused_too_often_is_a_dead_letter(topic: Topic, chosen: str) -> None:
    letters_name = chosen or topic.url.removeprefix("persistent://") + "-s-DLQ"
    letters_topic = Topic(topic.port, letters_name)
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=0&maxRedeliverCount=2"
    if chosen:
        query += f"&deadLetterTopic={chosen}"
    async with (
        topic.consumer(query) as consumer,
        letters_topic.consumer() as letters,
        topic.producer() as producer,
    ):
        await producer.publish_ok("bad", key="k", properties={"a": "b"})
        await producer.publish_ok("good")
        seen: list[tuple[str, int]] = []
        while len(seen) < 4:
            message = await consumer.receive()
            payload = b64decode(message["payload"]).decode()
            seen.append((payload, message["redeliveryCount"]))
            if payload == "bad":
                await consumer.nack(message["messageId"])
                bad_id = message["messageId"]
            else:
                await consumer.ack(message["messageId"])
        assert sorted(seen) == [("bad", 0), ("bad", 1), ("bad", 2), ("good", 0)]
        letter = await letters.receive()
        assert b64decode(letter["payload"]) == b"bad"
        assert letter["key"] == "k"
        assert letter["properties"].pop("ORIGIN_MESSAGE_ID")
        assert letter["properties"] == {
            "a": "b",
            "REAL_TOPIC": topic.url,
            "REAL_SUBSCRIPTION": "s",
        }
        assert bad_id
        await nothing_more(consumer)
    async with topic.consumer(query) as consumer:
        await producer_says_more(topic)
        assert await consumer.payload() == "more"


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
async def test_dead_letters_keep_what_makes_them_readable_and_do_not_wait_for_who_reads_them(
    topic: Topic, server: Standalone, kind: SubscriptionType
) -> None:
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=0&maxRedeliverCount=1"
    query += "&deadLetterInitialSubscription=morgue"
    schema = KeyValueSchema(INT64, AvroSchema(Order), KeyValueEncoding.SEPARATED)
    pairs: list[KeyValue[int, Order]] = [KeyValue(-1, Order("nail")), KeyValue(7, None)]
    reads = ConsumerSettings(subscription_type=kind)
    async with Client(server.url) as client, topic.consumer(query) as consumer:
        await (await client.producer(topic.url, schema=schema)).send_many(pairs)
        letters = await client.consumer(f"{topic.url}-s-DLQ", "morgue", reads, schema=schema)
        for _ in range(4):
            await consumer.nack((await consumer.receive())["messageId"])
        found = [await letters.receive(timeout_s=30) for _ in range(2)]
        assert [each.value() for each in found] == pairs
        assert [each.is_null for each in found] == [False, True]


async def producer_says_more(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.publish_ok("more")


async def test_the_end_of_a_topic_is_told_once_it_is_reached(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.publish_ok("last")
        async with (
            topic.consumer("subscriptionInitialPosition=Earliest") as consumer,
            topic.reader("messageId=earliest") as reader,
        ):
            for socket in (consumer, reader):
                assert (await socket.message())[0] == "last"
                assert not await socket.is_end()
            await admin(topic, "POST", "terminate")
            await consumer.ack(await admin_last_id(topic))
            await reader.send({})
            for socket in (consumer, reader):
                await until(socket.is_end, "the end is told")
        assert await status_of(topic.producer()) == 503
        answer = await producer.publish("too late")
        assert answer["result"] == "send-error:8"
    async with topic.consumer() as consumer:
        await until(consumer.is_end, "the end is told to who comes later")


async def admin_last_id(topic: Topic) -> str:
    """The id of the topic's last message, by a reader."""
    async with topic.reader("messageId=earliest") as reader:
        return str((await reader.message())[1])


async def test_unsubscribing_deletes_the_subscription(topic: Topic) -> None:
    async with topic.consumer() as consumer:
        assert (await admin(topic, "GET", "subscriptions")).json == ["s"]
        await consumer.send({"type": "unsubscribe"})

        async def is_gone() -> bool:
            return bool((await admin(topic, "GET", "subscriptions")).json == [])

        await until(is_gone, "the subscription is deleted")
        # The session lives on, without anything to do.
        await consumer.send({"type": "unsubscribe"})
        await consumer.send({"messageId": "CAAQAA=="})
        await consumer.is_end()


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "[]",
        "{}",
        '{"messageId":1}',
        '{"messageId":"no base64"}',
        '{"messageId":"AAAA"}',
        '{"type":"permit"}',
        '{"type":"permit","permitMessages":-1}',
        '{"type":"permit","permitMessages":true}',
        '{"type":"negativeAcknowledge"}',
    ],
)
async def test_a_consumer_that_makes_no_sense_is_closed(server: Standalone, frame: str) -> None:
    topic = Topic(server.http_port, "public/default/nonsense")
    async with topic.consumer("subscriptionType=Shared") as consumer:
        await consumer.send(frame)
        assert await consumer.closed() == 1007


async def test_unknown_types_acknowledge(topic: Topic) -> None:
    query = "receiverQueueSize=1"
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok("a", "b")
        _, message_id = await consumer.message()
        await consumer.send({"type": "whatever", "messageId": message_id})
        assert await consumer.payload() == "b"
