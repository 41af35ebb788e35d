"""Key_Shared subscriptions with the official client: order by key, joins, leaves, restarts."""

import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS, connect, receive
from tests.standalone import Standalone

_SHARED_BY_KEY = pulsar.ConsumerType.KeyShared
_KEYS = [f"key-{number}" for number in range(20)]


class _Members:
    """Consumers of one subscription whose messages are noted as they come, by key."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.by_key: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """For each key the consumer and the number of each message, as they were acknowledged."""
        self.numbers: set[int] = set()
        """All that came; some may have come twice."""
        self.consumers: dict[str, pulsar.Consumer] = {}

    def join(self, name: str, **options: Any) -> None:
        def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            with self._changed:
                self.by_key[message.partition_key()].append((name, int(message.data())))
                self.numbers.add(int(message.data()))
                self._changed.notify_all()
            consumer.acknowledge(message)

        self.consumers[name] = self._client.subscribe(
            self._topic,
            "by-key",
            consumer_type=_SHARED_BY_KEY,
            consumer_name=name,
            message_listener=listen,
            initial_position=pulsar.InitialPosition.Earliest,
            **options,
        )

    def leave(self, name: str) -> None:
        self.consumers.pop(name).close()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.numbers) >= count, timeout=RECEIVE_TIMEOUT_MS / 1000
            ), f"{len(self.numbers)} of {count}"

    def assert_complete_and_in_order(self, count: int) -> None:
        """Every message came, and for each key they came in order; repeats may follow a leave."""
        with self._lock:
            assert self.numbers == set(range(count))
            for key, found in self.by_key.items():
                seen = list(dict.fromkeys(number for _, number in found))
                assert seen == sorted(seen), f"{key}: {seen}"


def _publish(producer: pulsar.Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.send_async(
            b"%d" % number, lambda *_: None, partition_key=_KEYS[number % len(_KEYS)]
        )
    producer.flush()


def _plain(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(topic, block_if_queue_full=True)


def _batched_by_key(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )


@pytest.mark.parametrize("make", [_plain, _batched_by_key], ids=["plain", "batched"])
def test_keys_keep_their_order_while_consumers_come_and_go(
    client: pulsar.Client, topic: str, make: Callable[[pulsar.Client, str], pulsar.Producer]
) -> None:
    members = _Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = make(client, topic)
    _publish(producer, 0, 300)
    members.wait_for(200)
    members.join("three", receiver_queue_size=20)
    _publish(producer, 300, 300)
    members.wait_for(500)
    members.leave("one")
    _publish(producer, 600, 300)
    members.wait_for(850)
    members.join("four", receiver_queue_size=20)
    _publish(producer, 900, 300)
    members.wait_for(1200)
    members.assert_complete_and_in_order(1200)
    assert len({name for found in members.by_key.values() for name, _ in found}) >= 3
    for name in list(members.consumers):
        members.leave(name)


def test_a_backlog_of_many_queues_is_exact(client: pulsar.Client, topic: str) -> None:
    members = _Members(client, topic)
    members.join("one")
    members.leave("one")
    _publish(_plain(client, topic), 0, 1000)
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
    producer = _plain(client, topic)
    # Hashes of the protocol's test vectors: 24618, 293, 14772, and 64071.
    for key in ("k1", "hello", "key1", "key2"):
        producer.send(key.encode(), partition_key=key)
    assert [receive(low).partition_key() for _ in range(3)] == ["k1", "key1", "key2"]
    assert receive(high).partition_key() == "hello"


def test_a_negative_acknowledgement_comes_again_counted(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "again", consumer_type=_SHARED_BY_KEY, negative_ack_redelivery_delay_ms=100
    )
    producer = _plain(client, topic)
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
    assert done.wait(RECEIVE_TIMEOUT_MS / 1000), f"{len(received)} arrived"
    assert sorted(received) == bodies
    for consumer in consumers:
        consumer.close()


def _order(server: Standalone, method: str, path: str, body: bytes = b"") -> int:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{server.http_url}/admin/v2/{path}", body or None, headers, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        status: int = answer.status
        return status


@pytest.mark.parametrize("make", [_plain, _batched_by_key], ids=["plain", "batched"])
def test_keys_keep_their_order_on_a_partitioned_topic(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    make: Callable[[pulsar.Client, str], pulsar.Producer],
) -> None:
    assert _order(server, "PUT", topic.replace("://", "/") + "/partitions", b"3") == 204
    members = _Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = make(client, topic)
    _publish(producer, 0, 300)
    members.wait_for(200)
    members.join("three", receiver_queue_size=20)
    _publish(producer, 300, 300)
    members.wait_for(550)
    members.leave("two")
    _publish(producer, 600, 300)
    members.wait_for(900)
    members.assert_complete_and_in_order(900)
    for name in list(members.consumers):
        members.leave(name)


def test_an_unload_keeps_the_order_of_keys(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    members = _Members(client, topic)
    members.join("one", receiver_queue_size=20)
    members.join("two", receiver_queue_size=20)
    producer = _batched_by_key(client, topic)
    _publish(producer, 0, 200)
    members.wait_for(150)
    assert _order(server, "PUT", topic.replace("://", "/") + "/unload") == 204
    _publish(producer, 200, 200)
    members.wait_for(400)
    members.assert_complete_and_in_order(400)
    for name in list(members.consumers):
        members.leave(name)


def test_a_restart_keeps_the_order_of_keys(tmp_path: Any) -> None:
    with Standalone(tmp_path / "data") as standalone:
        client = connect(standalone.url, log_path=tmp_path / "client.log")
        members = _Members(client, "persistent://public/default/restart")
        members.join("one", receiver_queue_size=20)
        members.join("two", receiver_queue_size=20)
        producer = _plain(client, "persistent://public/default/restart")
        _publish(producer, 0, 200)
        members.wait_for(150)
        standalone.kill()
        standalone.start()
        _publish(producer, 200, 200)
        members.wait_for(400)
        members.assert_complete_and_in_order(400)
        client.close()
