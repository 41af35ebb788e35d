"""Consumers of a Key_Shared subscription, and producers of messages with keys."""

import threading
from collections import defaultdict
from typing import Any

import pulsar

from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS, publish

KEYS = [f"key-{number}" for number in range(20)]


class Members:
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
            consumer_type=pulsar.ConsumerType.KeyShared,
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


def publish_keyed(producer: pulsar.Producer, first: int, count: int) -> None:
    numbers = range(first, first + count)
    publish(producer, [(KEYS[number % len(KEYS)], b"%d" % number) for number in numbers])


def plain(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(topic, block_if_queue_full=True)


def batched_by_key(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )
