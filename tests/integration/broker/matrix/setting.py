"""Where a case plays, and what all cases do with messages.

A case is a generator. What comes before its `yield` happens before an interruption (an unload, a
restart of the broker), what comes after it must be as if there had been none. Sizes: the backlog
is more than three times the receiver queue, so that most of it is fetched by credit, not by the
first request.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pulsar

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS, receive
from tests.standalone import Standalone
from tests.waiting import wait_until

BACKLOG = 100
QUEUE = 30
KEYS = 7
PARTITIONS = 3
SEND_TIMEOUT_MS = 120_000
"""The longer a broker is gone, the longer clients rest before they look again: up to a minute."""
MARKER = 7_000
"""The number of a message that is published when everything else must have come."""

Case = Callable[["Setting"], Iterator[None]]


@dataclass(frozen=True)
class Setting:
    """A topic of its own, plain or partitioned, and whether its producers make batches."""

    server: Standalone
    client: pulsar.Client
    topic: str
    is_partitioned: bool
    is_batched: bool

    @property
    def parts(self) -> list[str]:
        """The topics that hold the messages."""
        if not self.is_partitioned:
            return [self.topic]
        return [f"{self.topic}-partition-{index}" for index in range(PARTITIONS)]

    def part_of(self, message: pulsar.Message) -> str:
        partition: int = message.message_id().partition()
        return self.parts[max(0, partition)]

    def producer(self, **options: Any) -> pulsar.Producer:
        batching = {
            "batching_enabled": self.is_batched,
            "batching_type": pulsar.BatchingType.KeyBased,
            "batching_max_publish_delay_ms": 5,
            "send_timeout_millis": SEND_TIMEOUT_MS,
        }
        return self.client.create_producer(self.topic, **{**batching, **options})

    def subscribe(
        self,
        kind: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive,
        *,
        topic: str = "",
        name: str = "s",
        **options: Any,
    ) -> pulsar.Consumer:
        return self.client.subscribe(
            topic or self.topic,
            name,
            **{
                "consumer_type": kind,
                "receiver_queue_size": QUEUE,
                "batch_index_ack_enabled": True,
                "initial_position": pulsar.InitialPosition.Earliest,
                **options,
            },
        )

    def reader(self, **options: Any) -> pulsar.Reader:
        return self.client.create_reader(
            self.topic, pulsar.MessageId.earliest, receiver_queue_size=QUEUE, **options
        )

    def admin(self, method: str, action: str, body: object = None, *, topic: str = "") -> Any:
        """A request about the topic, which must succeed; the JSON that is answered."""
        return admin(self.server, method, topic_path(topic or self.topic) + action, body)

    def have_policies(self, **policies: object) -> None:
        """Policies of the topic, which count for whoever uses it from now on."""
        self.exist()
        for name, value in policies.items():
            if name == "messageTTL":
                self.admin("POST", f"/messageTTL?messageTTL={value}")
            else:
                self.admin("POST", f"/{name}", value)
        self.admin("PUT", "/unload")

    def exist(self) -> None:
        """With all its parts."""
        self.producer().close()

    def stats(self) -> list[dict[str, Any]]:
        """Of each part."""
        return [self.admin("GET", "/stats", topic=part) for part in self.parts]

    def settle(self) -> None:
        """Wait until all acknowledgements, which clients collect, have reached the broker."""
        wait_until(lambda: not self.backlog(), "everything is acknowledged")

    def wait_attached(self, consumers: int, *, name: str = "s") -> None:
        """Wait until so many consumers of the subscription are there: behind an interruption they
        come back one by one, and the first one gets everything until the next is there."""

        def are_there() -> bool:
            found = [each["subscriptions"][name]["consumers"] for each in self.stats()]
            return all(len(each) == consumers for each in found)

        wait_until(are_there, f"{consumers} consumers")

    def backlog(self) -> int:
        """Entries that the subscription has before it, in all parts."""
        return sum(each["subscriptions"]["s"]["msgBacklog"] for each in self.stats())


def send(producer: pulsar.Producer, numbers: Sequence[int], *, is_numbered: bool = False) -> None:
    """Messages `<key>-<number>`, the keys taking turns. `is_numbered`: with sequence ids."""
    failed: list[pulsar.Result] = []

    def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in numbers:
        key = f"k{number % KEYS}"
        # To the client, a sequence id of 0 is none.
        numbered = {"sequence_id": number + 1} if is_numbered else {}
        producer.send_async(f"{key}-{number}".encode(), answered, partition_key=key, **numbered)
    producer.flush()
    assert not failed


def of_one_key(count: int) -> Sequence[int]:
    """Numbers of messages that have the same key, and so lie in the same partition."""
    return range(0, count * KEYS, KEYS)


def number_of(message: pulsar.Message) -> int:
    return int(message.data().partition(b"-")[2])


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [receive(consumer) for _ in range(count)]


def take_from(consumers: Sequence[pulsar.Consumer], count: int) -> list[list[pulsar.Message]]:
    """So many messages in all; what each of the consumers got of them."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]
    deadline_s = time.monotonic() + RECEIVE_TIMEOUT_MS / 1000
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline_s, f"{sum(map(len, found))} of {count} messages"
        for consumer, messages in zip(consumers, found, strict=True):
            try:
                messages.append(consumer.receive(timeout_millis=10))
            except pulsar.Timeout:
                pass
    return found


def acknowledge(consumer: pulsar.Consumer, messages: Sequence[pulsar.Message]) -> None:
    for message in messages:
        consumer.acknowledge(message)


def assert_exact(messages: Sequence[pulsar.Message], numbers: Sequence[int]) -> None:
    """Every message once, and those of a key in order."""
    of_key: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        assert message.partition_key() == f"k{number_of(message) % KEYS}"
        of_key[message.partition_key()].append(number_of(message))
    found = sorted(number for of in of_key.values() for number in of)
    assert found == sorted(numbers)
    assert all(of == sorted(of) for of in of_key.values())


def assert_drained(setting: Setting, consumer: pulsar.Consumer) -> None:
    """What comes next is what is published now."""
    producer = setting.producer()
    send(producer, [MARKER])
    producer.close()
    (message,) = take(consumer, 1)
    assert number_of(message) == MARKER
    consumer.acknowledge(message)


def is_refused(error: type[Exception], work: Callable[[], Any]) -> bool:
    """Whether this error is what comes; what is opened instead is closed."""
    try:
        work().close()
    except error:
        return True
    return False


def must_fail(error: type[Exception], work: Callable[[], Any]) -> None:
    assert is_refused(error, work), f"{error.__name__} was expected"


def wait_refused(error: type[Exception], work: Callable[[], Any]) -> None:
    """A policy that was set reaches the topic by and by."""
    wait_until(lambda: is_refused(error, work), f"{error.__name__}")
