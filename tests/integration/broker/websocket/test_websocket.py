"""Producers, consumers and readers over WebSocket, end to end, with the `websockets` library."""

import asyncio
import contextlib
import json
import time
from base64 import b64decode

import pulsar
import pytest
import websockets

from tests.http_calls import ask
from tests.integration.broker.websocket.sockets import (
    WAIT_S,
    Refused,
    Topic,
    admin,
    nothing_more,
    open_socket,
    status_of,
)
from tests.standalone import Standalone
from tests.waiting import until

# -- the whole way


async def test_a_message_keeps_all_it_has_from_producer_to_consumer_and_reader(
    topic: Topic,
) -> None:
    async with topic.consumer() as consumer, topic.producer() as producer:
        answer = await producer.publish(
            "hello",
            key="k",
            properties={"a": "1", "ü": "ö"},
            eventTime="2026-01-31T10:15:30.123+01:00",
            context="mark",
        )
        assert answer == {
            "result": "ok",
            "messageId": answer["messageId"],
            "context": "mark",
            "errorCode": 0,
            "schemaVersion": 0,
        }
        message = await consumer.receive()
        async with topic.reader("messageId=earliest") as reader:
            assert await reader.receive() == message
    assert message.pop("publishTime").endswith("Z")
    assert message == {
        "messageId": answer["messageId"],
        "payload": "aGVsbG8=",
        "properties": {"a": "1", "ü": "ö"},
        "redeliveryCount": 0,
        "eventTime": "2026-01-31T09:15:30.123Z",
        "key": "k",
    }


async def test_what_has_no_key_and_no_context_shows_none(topic: Topic) -> None:
    async with topic.consumer() as consumer, topic.producer() as producer:
        await producer.send({"payload": ""})
        assert set(await producer.receive()) == {
            *("result", "messageId", "errorCode", "schemaVersion")
        }
        message = await consumer.receive()
        assert message["payload"] == ""
        assert message["properties"] == {}
        assert "key" not in message
        assert "eventTime" not in message


@pytest.mark.parametrize("query", ["", "batchingEnabled=true&batchingMaxMessages=7"])
@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
async def test_many_messages_arrive_in_order_and_once(topic: Topic, query: str, codec: str) -> None:
    count = 200
    path = f"{query}&compressionType={codec}&maxPendingMessages=20"
    async with topic.consumer() as consumer, topic.producer(path) as producer:
        for number in range(count):
            payload = "bnVtYmVy" if number % 2 else ""
            await producer.send({"payload": payload, "context": str(number)})
        answers = [await producer.receive() for _ in range(count)]
        assert [each["context"] for each in answers] == [str(n) for n in range(count)]
        got = []
        for _ in range(count):
            message = await consumer.receive()
            got.append(message["messageId"])
            await consumer.ack(message["messageId"])
        assert got == [each["messageId"] for each in answers]
        await nothing_more(consumer)


async def test_what_is_acknowledged_does_not_come_again(topic: Topic) -> None:
    async with topic.producer() as producer:
        async with topic.consumer() as consumer:
            await producer.publish_ok("one", "two", "three")
            first = await consumer.message()
            second = await consumer.message()
            assert (first[0], second[0]) == ("one", "two")
            await consumer.ack(second[1])
        async with topic.consumer() as consumer:
            assert await consumer.payloads(2) == ["one", "three"]
            await nothing_more(consumer)
        # An id of an earlier session is known by what it says.
        async with topic.consumer() as consumer:
            await consumer.ack(first[1])
            await producer.publish_ok("four")
            assert await consumer.payload() == "four"


async def test_the_official_client_meets_websocket_clients(
    server: Standalone, topic: Topic
) -> None:
    client = pulsar.Client(server.url)
    try:
        async with topic.consumer() as consumer, topic.producer("producerName=web") as producer:
            subscribed = await asyncio.to_thread(client.subscribe, topic.url, "official")
            made = await asyncio.to_thread(client.create_producer, topic.url)
            await asyncio.to_thread(made.send, b"from afar", partition_key="k")
            await producer.publish_ok("from the web", key="w", properties={"p": "q"})
            assert await consumer.payloads(2) == ["from afar", "from the web"]
            messages = [await asyncio.to_thread(subscribed.receive, 20_000) for _ in range(2)]
            assert [each.data() for each in messages] == [b"from afar", b"from the web"]
            assert messages[1].partition_key() == "w"
            assert messages[1].properties() == {"p": "q"}
    finally:
        await asyncio.to_thread(client.close)


async def test_messages_wait_until_they_are_due(topic: Topic) -> None:
    path = "subscriptionType=Shared"
    async with topic.consumer(path) as consumer, topic.producer() as producer:
        late_ms = time.time_ns() // 1_000_000 + 700
        await producer.publish_ok("late", deliverAfterMs=700)
        soon_ms = time.time_ns() // 1_000_000 + 400
        await producer.publish_ok("soon", deliverAt=soon_ms)
        await producer.publish_ok("now", deliverAt=-1, deliverAfterMs=0)
        due_ms = {"late": late_ms, "soon": soon_ms, "now": 0}
        while due_ms:
            payload = await consumer.payload()
            assert time.time_ns() // 1_000_000 >= due_ms.pop(payload)


async def test_non_persistent_topics_work(server: Standalone, topic: Topic) -> None:
    volatile = Topic(server.http_port, "public/default/volatile", domain="non-persistent")
    async with volatile.consumer() as consumer, volatile.producer() as producer:
        await producer.publish_ok("here and gone")
        assert await consumer.payload() == "here and gone"


async def test_names_are_decoded(server: Standalone) -> None:
    topic = Topic(server.http_port, "public/default/odd ü%&?#name")
    async with (
        topic.consumer(subscription="also odd ü%&?#") as consumer,
        topic.producer() as producer,
    ):
        await producer.publish_ok("found")
        assert await consumer.payload() == "found"
    listed = await ask(server.http_port, "GET", "/admin/v2/persistent/public/default")
    assert topic.url in listed.json
    subscriptions = await admin(topic, "GET", "subscriptions")
    assert subscriptions.json == ["also odd ü%&?#"]


# -- producers


@pytest.mark.parametrize(
    ("frame", "code", "context"),
    [
        ("{", 3, None),
        ("[]", 3, None),
        ('"text"', 3, None),
        ("[" * 100_000, 3, None),
        ('{"payload":"AA==","properties":[],"context":"c"}', 3, "c"),
        ('{"payload":"AA==","deliverAt":"soon","context":"c"}', 3, "c"),
        ('{"payload":"AA==","key":"\\ud800","context":"c"}', 3, "c"),
        ('{"context":"c"}', 7, "c"),
        ('{"payload":"A","context":"c"}', 7, "c"),
        ('{"payload":"no base64!","context":"c"}', 7, "c"),
        ('{"payload":"ü","context":"c"}', 7, "c"),
        ('{"payload":"AA==","eventTime":"yesterday","context":"c"}', 7, "c"),
        ('{"payload":"AA==","eventTime":"2026-01-31T10:15:30","context":"c"}', 7, "c"),
    ],
)
async def test_frames_that_make_no_sense_are_answered_and_the_session_goes_on(
    server: Standalone, frame: str, code: int, context: str | None
) -> None:
    topic = Topic(server.http_port, "public/default/frames")
    async with topic.producer() as producer:
        await producer.send(frame)
        answer = await producer.receive()
        assert answer["result"] == f"send-error:{code}"
        assert answer.get("context") == context
        assert answer["errorMsg"]
        assert (answer["errorCode"], answer["schemaVersion"]) == (0, 0)
        await producer.publish_ok("goes on")


async def test_a_publish_that_fails_has_code_8_and_the_session_goes_on(topic: Topic) -> None:
    async with topic.producer() as producer:
        await admin(topic, "POST", "maxMessageSize", 1000)
        answer = await producer.publish("x" * 5_000)
        while answer["result"] == "ok":  # the policy has not arrived yet
            answer = await producer.publish("x" * 5_000)
        assert answer["result"] == "send-error:8"
        await producer.publish_ok("small")


async def test_a_duplicate_producer_name_is_refused(topic: Topic) -> None:
    async with topic.producer("producerName=p"):
        assert await status_of(topic.producer("producerName=p")) == 409
        async with topic.producer("producerName=q"):
            pass
    async with topic.producer("producerName=p") as producer:
        await producer.publish_ok("free again")


async def test_sequence_ids_begin_behind_the_initial_one(server: Standalone, topic: Topic) -> None:
    client = pulsar.Client(server.url)
    try:
        reader = await asyncio.to_thread(client.create_reader, topic.url, pulsar.MessageId.earliest)
        async with topic.producer("initialSequenceId=41&producerName=p") as producer:
            await producer.publish_ok("first")
        message = await asyncio.to_thread(reader.read_next, 20_000)
        assert (message.data(), message.producer_name()) == (b"first", "p")
        last = await asyncio.to_thread(
            lambda: client.create_producer(topic.url, producer_name="x").last_sequence_id()
        )
        assert last == -1
    finally:
        await asyncio.to_thread(client.close)


async def test_a_producer_is_refused_when_the_backlog_is_over_its_quota(topic: Topic) -> None:
    async with topic.consumer(), topic.producer() as producer:
        await producer.publish_ok(*["x" * 100] * 20)
    for policy in ("producer_exception", "producer_request_hold"):
        await admin(topic, "POST", "backlogQuota", {"limitSize": 100, "policy": policy})
        async with asyncio.timeout(WAIT_S):
            while (status := await refused_or_open(topic)) != 503:
                assert status == 0, status


async def refused_or_open(topic: Topic) -> int:
    """The status of a producer's upgrade; 0 if it succeeds: a policy may need a moment."""
    try:
        async with topic.producer():
            return 0
    except Refused as refused:
        return refused.status


# -- readers


async def test_readers_begin_where_they_are_asked_to(topic: Topic) -> None:
    async with topic.producer() as producer:
        ids = await producer.publish_ok(*"abc")
        async with topic.reader("messageId=earliest&readerName=r") as reader:
            assert await reader.payloads(3) == list("abc")
        async with topic.reader(f"messageId={ids[0].replace('=', '%3D')}") as reader:
            assert await reader.payloads(2) == list("bc")
        async with topic.reader() as reader:
            await producer.publish_ok("d")
            assert await reader.payload() == "d"
        assert await status_of(topic.reader("messageId=nowhere")) == 400


async def test_any_frame_of_a_reader_frees_a_slot(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.publish_ok(*"abcd")
    async with topic.reader("messageId=earliest&receiverQueueSize=2") as reader:
        assert await reader.payloads(2, ack=False) == list("ab")
        await nothing_more(reader)
        await reader.send({"messageId": "anything"})
        assert await reader.payload(ack=False) == "c"
        await nothing_more(reader)
        await reader.send({})
        assert await reader.payload(ack=False) == "d"
        await reader.send("{")
        assert await reader.closed() == 1007


# -- several topics


async def test_partitioned_topics_work_as_one(topic: Topic) -> None:
    await admin(topic, "PUT", "partitions", 3)
    async with (
        topic.consumer() as consumer,
        topic.reader("messageId=earliest") as reader,
        topic.producer("messageRoutingMode=RoundRobinPartition") as producer,
    ):
        ids = await producer.publish_ok(*"abcdef")
        partitions = {b64decode(each)[4:6] for each in ids}
        assert len(partitions) == 3
        assert sorted(await consumer.payloads(6)) == list("abcdef")
        assert sorted(await reader.payloads(6)) == list("abcdef")
        # A key stays in its partition.
        ids = await producer.publish_ok(*"ghij", key="same")
        assert len({b64decode(each)[4:6] for each in ids}) == 1
        assert await consumer.payloads(4) == list("ghij")
        assert await reader.payloads(4) == list("ghij")
        # Partitions that are added later count, too.
        await admin(topic, "POST", "partitions", 5)
        seen: set[bytes] = set()
        async with asyncio.timeout(WAIT_S):
            while len(seen) < 5:
                seen.update(b64decode(each)[4:6] for each in await producer.publish_ok(*"klmno"))
                await consumer.payloads(5)
        assert not await consumer.is_end()
        await nothing_more(consumer)
    async with topic.consumer() as consumer:
        await nothing_more(consumer)
    message_id = ids[0].replace("=", "%3D")
    assert await status_of(topic.reader(f"messageId={message_id}")) == 400
    async with topic.producer() as producer:
        ids = await producer.publish_ok(*"abcdef")
        assert len({b64decode(each)[4:6] for each in ids}) == 1


async def test_a_consumer_of_several_topics_gets_them_all(server: Standalone) -> None:
    port = server.http_port
    topics = [Topic(port, f"public/default/several-{n}") for n in range(3)]
    names = ",".join(each.url for each in topics[:2])
    pattern = "persistent://public/default/several-.*"
    async with (
        open_socket(port, f"/ws/v3/consumer/list?topics={names}") as by_list,
        topics[0].producer() as zero,
        topics[1].producer() as one,
        open_socket(port, f"/ws/v3/consumer/pattern?topicsPattern={pattern}") as by_pattern,
    ):
        await zero.publish_ok("0")
        await one.publish_ok("1")
        for consumer in (by_list, by_pattern):
            assert sorted(await consumer.payloads(2)) == ["0", "1"]
        # A topic that comes later and matches is found.
        async with topics[2].producer() as two:

            async def is_found() -> bool:
                return "pattern" in (await admin(topics[2], "GET", "subscriptions")).json

            await until(is_found, "the new topic is subscribed to")
            await two.publish_ok("2")
            assert await by_pattern.payload() == "2"
            await nothing_more(by_list)


@pytest.mark.parametrize(
    "path",
    [
        "/ws/v3/consumer/s",
        "/ws/v3/consumer/s?topics=a&topicsPattern=persistent://public/default/.*",
        "/ws/v3/consumer/s?topicsPattern=persistent://public/default/(",
        "/ws/v3/consumer/s?topicsPattern=nonsense",
        "/ws/v3/consumer/?topics=a",
        "/ws/v3/producer/s?topics=a",
        "/ws/v2/consumer/persistent/public/default/t",
        "/ws/v2/consumer/persistent/public/default/t/",
        "/ws/v2/consumer/persistent/public/default/t/s/x",
        "/ws/v2/producer/persistent/public/default",
        "/ws/v2/producer/persistent/public/default/",
        "/ws/v2/producer/other/public/default/t",
        "/ws/v2/producer/persistent/pub%20lic/default/t",
        "/ws/v2/producer/persistent/public/default/%ff",
        "/ws/v2/something/persistent/public/default/t",
        "/ws/producer/persistent/public/cluster/default/t",
        "/ws/v2/producer/persistent/public/default/t?sendTimeoutMillis=long",
        "/ws/v2/producer/persistent/public/default/t?hashingScheme=MD5",
        "/ws/v2/producer/persistent/public/default/t?messageRoutingMode=Random",
        "/ws/v2/producer/persistent/public/default/t?compressionType=lz4",
        "/ws/v2/producer/persistent/public/default/t?batchingEnabled=true&batchingMaxMessages=0",
        "/ws/v2/consumer/persistent/public/default/t/s?subscriptionType=exclusive",
        "/ws/v2/consumer/persistent/public/default/t/s?subscriptionMode=x",
        "/ws/v2/consumer/persistent/public/default/t/s?subscriptionInitialPosition=x",
        "/ws/v2/consumer/persistent/public/default/t/s?receiverQueueSize=-1",
        "/ws/v2/consumer/persistent/public/default/t/s?receiverQueueSize=",
        "/ws/v2/consumer/persistent/public/default/t/s?ackTimeoutMillis=999",
        "/ws/v2/consumer/persistent/public/default/t/s?maxRedeliverCount=0",
        "/ws/v2/consumer/persistent/public/default/t/s?maxRedeliverCount=1&deadLetterTopic=a/b",
        "/ws/v2/consumer/persistent/public/default/t/s?priorityLevel=-1",
        "/ws/v2/reader/persistent/public/default/t?messageId=first",
    ],
)
async def test_paths_and_parameters_with_mistakes_get_400(server: Standalone, path: str) -> None:
    assert await status_of(open_socket(server.http_port, path)) == 400


async def test_what_may_not_appear_by_itself_is_404(server: Standalone) -> None:
    port = server.http_port
    answer = await ask(port, "PUT", "/admin/v2/namespaces/public/fixed", {})
    assert answer.status < 300, answer
    answer = await ask(
        port,
        "POST",
        "/admin/v2/namespaces/public/fixed/autoTopicCreation",
        {"allowAutoTopicCreation": False},
    )
    assert answer.status < 300, answer
    for name in ("public/fixed/t", "public/no-such-namespace/t"):
        topic = Topic(port, name)
        for opening in (topic.producer(), topic.consumer(), topic.reader()):
            assert await status_of(opening) == 404
    pattern = "/ws/v3/consumer/s?topicsPattern=persistent://public/no-such-namespace/.*"
    assert await status_of(open_socket(port, pattern)) == 404
    assert await status_of(open_socket(port, "/other")) == 404
    assert await status_of(open_socket(port, "/admin/v2/tenants")) == 404


async def test_unknown_parameters_are_ignored(topic: Topic) -> None:
    odd = "what=ever&messageRoutingMode=CustomPartition&batchingMaxMessages=none&=&a=b=c"
    async with topic.producer(odd) as producer, topic.consumer("cryptoFailureAction=x&x=y"):
        await producer.publish_ok("x")


async def test_foreign_pages_may_not_connect_unless_they_are_listed(topic: Topic) -> None:
    assert await status_of(topic.producer(origin="https://evil.example")) == 403
    for origin in ("https://console.example", f"http://127.0.0.1:{topic.port}"):
        async with topic.producer(origin=origin) as producer:
            await producer.publish_ok("x")


async def test_statistics_list_the_sessions_of_a_topic(topic: Topic) -> None:
    path = f"/admin/v2/proxy-stats/{topic.path}/stats"
    assert (await ask(topic.port, "GET", path)).status == 404
    query = "subscriptionType=Shared"
    async with topic.producer() as producer, topic.consumer(query) as consumer:
        await producer.publish_ok("a", "b")
        await consumer.payloads(2)
        answer = await ask(topic.port, "GET", path)
        (sender,), (receiver,) = answer.json["producerStats"], answer.json["consumerStats"]
        host, port = producer.connection.local_address[:2]
        assert sender == {"remoteConnection": f"{host}:{port}", "numberOfMsgDelivered": 2}
        assert receiver["subscriptionName"] == "s"
        assert receiver["subscriptionType"] == "Shared"
        assert receiver["numberOfMsgDelivered"] == 2
        every = await ask(topic.port, "GET", "/admin/v2/proxy-stats/stats")
        assert every.json[topic.url] == answer.json
        (rates,) = (
            each["metrics"]
            for each in (await ask(topic.port, "GET", "/admin/v2/proxy-stats/metrics")).json
            if each["dimensions"] == {"namespace": "public/default"}
        )
        assert rates["ns_msg_publish_rate"] > 0
        assert rates["ns_byte_deliver_rate"] > 0


# -- the socket


async def test_frames_above_the_limit_end_the_session(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.publish_ok("x" * 700_000)
        await producer.send(json.dumps({"payload": "A" * (1 << 20)}))
        assert await producer.closed() == 1009
    async with topic.producer() as producer:
        # The bound is on the message, not on its fragments.
        with contextlib.suppress(websockets.ConnectionClosed):
            await producer.connection.send("x" * 100_000 for _ in range(100))
        assert await producer.closed() == 1009


async def test_binary_frames_end_the_session_and_fragments_are_one_frame(topic: Topic) -> None:
    async with topic.producer() as producer:
        await producer.connection.send(iter(['{"payload', '":"', 'AA=="}']))
        assert (await producer.receive())["result"] == "ok"
        await producer.connection.send(b'{"payload":"AA=="}')
        assert await producer.closed() == 1003


async def test_pings_are_answered(topic: Topic) -> None:
    async with topic.consumer() as consumer:
        async with asyncio.timeout(WAIT_S):
            await (await consumer.connection.ping("there?"))


async def test_a_session_goes_on_when_its_topic_is_unloaded(topic: Topic) -> None:
    async with topic.consumer() as consumer, topic.producer() as producer:
        await producer.publish_ok("before")
        assert await consumer.payload() == "before"
        await admin(topic, "PUT", "unload")
        await producer.publish_ok("after")
        assert await consumer.payload() == "after"


async def test_a_client_that_does_not_read_is_given_no_more_and_nothing_is_lost(
    topic: Topic,
) -> None:
    count, size = 40, 100_000
    async with (
        topic.producer() as producer,
        topic.consumer() as fast,
        topic.consumer(subscription="slow", max_queue=1) as slow,
    ):
        await producer.publish_ok(*[f"{n:03}" + "x" * size for n in range(count)])
        for n in range(count):
            assert (await fast.payload())[:3] == f"{n:03}"
        for n in range(count):
            assert (await slow.payload())[:3] == f"{n:03}"
        await nothing_more(slow)


async def test_for_a_client_that_takes_nothing_the_broker_holds_little(topic: Topic) -> None:
    """A thousand large messages sent ahead would be gigabytes, for each such client."""
    count, size = 40, 500_000
    expected = [f"{n:03}" for n in range(count)]

    async def sent_ahead() -> int:
        stats = (await admin(topic, "GET", "stats")).json
        return sum(each["unackedMessages"] for each in stats["subscriptions"]["s"]["consumers"])

    query = "pullMode=true&subscriptionType=Shared"  # of those it is counted what they have
    async with topic.consumer(query) as consumer, topic.producer() as producer:
        await producer.publish_ok(*[each + "x" * size for each in expected])

        async def has_begun() -> bool:
            return await sent_ahead() > 0

        await until(has_begun, "messages are sent ahead")
        await nothing_more(consumer)
        assert await sent_ahead() <= 8
        await consumer.permit(20)
        got = [(await consumer.payload())[:3] for _ in range(20)]
        await nothing_more(consumer)
        assert await sent_ahead() * size <= 2 * (8 << 20)
        await consumer.permit(count)
        got += [(await consumer.payload())[:3] for _ in range(20)]
        assert got == expected
        # And with small ones it becomes what was asked for, as the large ones are forgotten.
        for taken in range(300, 40 * 300, 300):
            await producer.publish_ahead(*["small"] * 600)
            await consumer.permit(300)
            await consumer.payloads(300, ack=False)
            if await sent_ahead() - taken >= 900:
                break
        else:
            raise AssertionError("never is a whole queue sent ahead")
