"""Key_Shared subscriptions with the official client: order by key, joins, leaves, restarts."""

import threading
from collections.abc import Callable

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.keyed import Members, batched_by_key, plain, publish_keyed
from tests.integration.pulsar_client.support import receive
from tests.standalone import Standalone

_SHARED_BY_KEY = pulsar.ConsumerType.KeyShared


@pytest.mark.parametrize("make", [plain, batched_by_key], ids=["plain", "batched"])
def test_keys_keep_their_order_while_consumers_come_and_go(
    client: pulsar.Client, topic: str, make: Callable[[pulsar.Client, str], pulsar.Producer]
) -> None:
    members = Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = make(client, topic)
    publish_keyed(producer, 0, 300)
    members.wait_for(200)
    members.join("three", receiver_queue_size=20)
    publish_keyed(producer, 300, 300)
    members.wait_for(500)
    members.leave("one")
    publish_keyed(producer, 600, 300)
    members.wait_for(850)
    members.join("four", receiver_queue_size=20)
    publish_keyed(producer, 900, 300)
    members.wait_for(1200)
    members.assert_complete_and_in_order(1200)
    assert len({name for found in members.by_key.values() for name, _ in found}) >= 3
    for name in list(members.consumers):
        members.leave(name)


def test_a_backlog_of_many_queues_is_exact(client: pulsar.Client, topic: str) -> None:
    members = Members(client, topic)
    members.join("one")
    members.leave("one")
    publish_keyed(plain(client, topic), 0, 1000)
    for name in ("one", "two", "three"):
        members.join(name, receiver_queue_size=10)
    members.wait_for(1000)
    members.assert_complete_and_in_order(1000)
    # Each key was with one consumer but for those that moved while the others joined.
    for name in list(members.consumers):
        members.leave(name)


def test_sticky_ranges_get_their_keys_and_overlaps_are_refused(
    client: pulsar.Client, topic: str
) -> None:
    def subscribe(start: int, end: int) -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "sticky",
            consumer_type=_SHARED_BY_KEY,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(
                key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(start, end)]
            ),
        )

    low, high = subscribe(0, 32767), subscribe(32768, 65535)
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe(100, 200)
    producer = plain(client, topic)
    # Hashes of the protocol's test vectors: 24618, 293, 14772, and 64071.
    for key in ("k1", "hello", "key1", "key2"):
        producer.send(key.encode(), partition_key=key)
    assert [receive(low).partition_key() for _ in range(3)] == ["k1", "key1", "key2"]
    assert receive(high).partition_key() == "hello"


def test_a_negative_acknowledgement_comes_again_counted(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "again", consumer_type=_SHARED_BY_KEY, negative_ack_redelivery_delay_ms=100
    )
    producer = plain(client, topic)
    for number in range(3):
        producer.send(b"%d" % number, partition_key="a")
    messages = [receive(consumer) for _ in range(3)]
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    again = receive(consumer)
    assert (again.data(), again.redelivery_count()) == (b"1", 1)
    consumer.acknowledge(again)


def test_modes_do_not_mix(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "mode", consumer_type=_SHARED_BY_KEY)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(
            topic,
            "mode",
            consumer_type=_SHARED_BY_KEY,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True),
        )


def test_chunked_messages_arrive_whole_at_two_shared_consumers(
    client: pulsar.Client, topic: str
) -> None:
    received: list[bytes] = []
    done = threading.Event()

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        received.append(message.data())
        consumer.acknowledge(message)
        if len(received) == 6:
            done.set()

    consumers = [
        client.subscribe(
            topic,
            "chunks",
            consumer_type=pulsar.ConsumerType.Shared,
            message_listener=listen,
            receiver_queue_size=2,
            max_pending_chunked_message=10,
        )
        for _ in range(2)
    ]
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    bodies = [bytes([65 + number]) * (11 << 20) for number in range(6)]
    for number, body in enumerate(bodies):
        producers[number % 2].send_async(body, lambda *_: None)
    assert done.wait(120), f"{len(received)} arrived"  # 66 MB
    assert sorted(received) == bodies
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize("make", [plain, batched_by_key], ids=["plain", "batched"])
def test_keys_keep_their_order_on_a_partitioned_topic(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    make: Callable[[pulsar.Client, str], pulsar.Producer],
) -> None:
    call(server, "PUT", f"{topic_path(topic)}/partitions", 3, expect=204)
    members = Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = make(client, topic)
    publish_keyed(producer, 0, 300)
    members.wait_for(200)
    members.join("three", receiver_queue_size=20)
    publish_keyed(producer, 300, 300)
    members.wait_for(550)
    members.leave("two")
    publish_keyed(producer, 600, 300)
    members.wait_for(900)
    members.assert_complete_and_in_order(900)
    for name in list(members.consumers):
        members.leave(name)


def test_an_unload_keeps_the_order_of_keys(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    members = Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = batched_by_key(client, topic)
    publish_keyed(producer, 0, 200)
    members.wait_for(150)
    call(server, "PUT", f"{topic_path(topic)}/unload", expect=204)
    publish_keyed(producer, 200, 200)
    members.wait_for(400)
    members.assert_complete_and_in_order(400)
    for name in list(members.consumers):
        members.leave(name)
