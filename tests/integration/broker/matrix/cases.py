"""What applications do, interrupted once in the middle: by nothing, an unload, or a restart.

A case is a generator. What comes before its `yield` happens before the interruption, what comes
after it must be as if there had been none. Sizes: the backlog is more than three times the receiver
queue, so that most of it is fetched by credit, not by the first request.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pulsar

from tests.integration.pulsar_client.support import read_next, receive

BACKLOG = 100
QUEUE = 30
KEYS = 7

Case = Callable[["Setting"], Iterator[None]]


@dataclass(frozen=True)
class Setting:
    """Where a case plays."""

    client: pulsar.Client
    topic: str
    is_partitioned: bool
    is_batched: bool

    def producer(self, **options: Any) -> pulsar.Producer:
        batching = {
            "batching_enabled": self.is_batched,
            "batching_type": pulsar.BatchingType.KeyBased,
            "batching_max_publish_delay_ms": 5,
        }
        return self.client.create_producer(self.topic, **{**batching, **options})

    def subscribe(
        self, kind: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive, **options: Any
    ) -> pulsar.Consumer:
        return self.client.subscribe(
            self.topic,
            "s",
            **{
                "consumer_type": kind,
                "receiver_queue_size": QUEUE,
                "batch_index_ack_enabled": True,
                "initial_position": pulsar.InitialPosition.Earliest,
                **options,
            },
        )


def send(producer: pulsar.Producer, numbers: Sequence[int]) -> None:
    """Messages `<key>-<number>`, the keys taking turns."""
    failed: list[pulsar.Result] = []

    def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in numbers:
        key = f"k{number % KEYS}"
        producer.send_async(f"{key}-{number}".encode(), answered, partition_key=key)
    producer.flush()
    assert not failed


def number_of(message: pulsar.Message) -> int:
    return int(message.data().partition(b"-")[2])


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [receive(consumer) for _ in range(count)]


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
    send(producer, [7_000])
    producer.close()
    (message,) = take(consumer, 1)
    assert number_of(message) == 7_000
    consumer.acknowledge(message)


def _backlog(kind: pulsar.ConsumerType) -> Case:
    def case(setting: Setting) -> Iterator[None]:
        setting.subscribe(kind).close()
        producer = setting.producer()
        send(producer, range(BACKLOG))
        consumer = setting.subscribe(kind)
        done = take(consumer, 20)
        acknowledge(consumer, done)
        consumer.close()
        yield
        send(producer, range(BACKLOG, BACKLOG + 20))
        consumer = setting.subscribe(kind)
        rest = take(consumer, BACKLOG)
        acknowledge(consumer, rest)
        assert_exact([*done, *rest], range(BACKLOG + 20))
        assert_drained(setting, consumer)

    return case


def readers(setting: Setting) -> Iterator[None]:
    producer = setting.producer()
    send(producer, range(BACKLOG))
    reader = setting.client.create_reader(
        setting.topic, pulsar.MessageId.earliest, receiver_queue_size=QUEUE
    )
    assert_exact([read_next(reader) for _ in range(BACKLOG)], range(BACKLOG))
    reader.close()
    yield
    send(producer, range(BACKLOG, BACKLOG + 5))
    reader = setting.client.create_reader(
        setting.topic, pulsar.MessageId.earliest, receiver_queue_size=QUEUE
    )
    assert_exact([read_next(reader) for _ in range(BACKLOG + 5)], range(BACKLOG + 5))
    assert not reader.has_message_available()


def consumers_that_stay(setting: Setting) -> Iterator[None]:
    """Clients come back by themselves: what was not acknowledged comes again, the rest does not."""
    consumer = setting.subscribe(pulsar.ConsumerType.Shared)
    producer = setting.producer()
    send(producer, range(40))
    done = take(consumer, 40)
    acknowledge(consumer, done)
    yield
    send(producer, range(40, 80))
    fresh = take(consumer, 40)
    acknowledge(consumer, fresh)
    assert_exact([*done, *fresh], range(80))


def single_acknowledgements(setting: Setting) -> Iterator[None]:
    """With holes, inside batches too."""
    consumer = setting.subscribe()
    send(setting.producer(), range(40))
    messages = take(consumer, 40)
    acknowledge(consumer, [each for each in messages if number_of(each) % 3])
    consumer.close()
    yield
    consumer = setting.subscribe()
    left = [each for each in range(40) if not each % 3]
    rest = take(consumer, len(left))
    assert_exact(rest, left)
    acknowledge(consumer, rest)
    assert_drained(setting, consumer)


def cumulative_acknowledgements(setting: Setting) -> Iterator[None]:
    """Through the middle of each partition, and of a batch."""
    consumer = setting.subscribe()
    send(setting.producer(), range(60))
    of_partition: dict[int, list[pulsar.Message]] = defaultdict(list)
    for message in take(consumer, 60):
        of_partition[message.message_id().partition()].append(message)
    left: list[int] = []
    for messages in of_partition.values():
        middle = len(messages) // 2
        consumer.acknowledge_cumulative(messages[middle])
        left += [number_of(each) for each in messages[middle + 1 :]]
    consumer.close()
    yield
    consumer = setting.subscribe()
    rest = take(consumer, len(left))
    assert_exact(rest, left)
    acknowledge(consumer, rest)
    assert_drained(setting, consumer)


def negative_acknowledgements(setting: Setting) -> Iterator[None]:
    """They come again, counted; the count ends with the memory of the broker."""
    options = {"negative_ack_redelivery_delay_ms": 100}
    consumer = setting.subscribe(pulsar.ConsumerType.Shared, **options)
    send(setting.producer(), range(10))
    messages = take(consumer, 10)
    for message in messages:
        consumer.negative_acknowledge(message)
    again = take(consumer, 10)
    assert sorted(map(number_of, again)) == list(range(10))
    assert {each.redelivery_count() for each in again} == {1}
    consumer.close()
    yield
    consumer = setting.subscribe(pulsar.ConsumerType.Shared, **options)
    last = take(consumer, 10)
    assert_exact(last, range(10))
    acknowledge(consumer, last)
    assert_drained(setting, consumer)


def seek_to_the_start(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    send(setting.producer(), range(50))
    acknowledge(consumer, take(consumer, 50))
    yield
    consumer.seek(pulsar.MessageId.earliest)
    again = take(consumer, 50)
    assert_exact(again, range(50))
    consumer.seek(pulsar.MessageId.latest)
    assert_drained(setting, consumer)


def seek_by_time(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    producer = setting.producer()
    send(producer, range(20))
    time.sleep(0.02)  # publish times are in milliseconds
    between_ms = int(time.time() * 1000)
    time.sleep(0.02)
    send(producer, range(20, 40))
    acknowledge(consumer, take(consumer, 40))
    yield
    consumer.seek(between_ms)
    again = take(consumer, 20)
    assert_exact(again, range(20, 40))
    acknowledge(consumer, again)
    assert_drained(setting, consumer)


def two_shared_consumers(setting: Setting) -> Iterator[None]:
    """Each message at one of them; the first one's leave goes to the second one."""
    first = setting.subscribe(pulsar.ConsumerType.Shared, receiver_queue_size=10)
    second = setting.subscribe(pulsar.ConsumerType.Shared, receiver_queue_size=10)
    yield
    producer = setting.producer()
    send(producer, range(60))
    done = take(first, 10)
    acknowledge(first, done)
    first.close()
    rest = take(second, 50)
    acknowledge(second, rest)
    assert sorted(map(number_of, [*done, *rest])) == list(range(60))
    assert_drained(setting, second)


def two_key_shared_consumers(setting: Setting) -> Iterator[None]:
    """A key is at one of them, in order, and moves to the other one when that leaves."""
    kind = pulsar.ConsumerType.KeyShared
    first = setting.subscribe(kind)
    second = setting.subscribe(kind)
    yield
    producer = setting.producer()
    send(producer, range(BACKLOG))
    done: list[pulsar.Message] = []
    while True:
        try:
            done.append(first.receive(timeout_millis=400))
        except pulsar.Timeout:
            break
    acknowledge(first, done)
    first.close()
    rest = take(second, BACKLOG - len(done))
    acknowledge(second, rest)
    assert_exact([*done, *rest], range(BACKLOG))
    assert not {each.partition_key() for each in done} & {each.partition_key() for each in rest}


def standby_of_failover(setting: Setting) -> Iterator[None]:
    first = setting.subscribe(pulsar.ConsumerType.Failover, consumer_name="a")
    second = setting.subscribe(pulsar.ConsumerType.Failover, consumer_name="b")
    yield
    send(setting.producer(), range(20))
    first.close()
    rest = take(second, 20)  # nothing was acknowledged by anybody
    assert_exact(rest, range(20))
    acknowledge(second, rest)
    assert_drained(setting, second)


def exclusive_producers(setting: Setting) -> Iterator[None]:
    """The one that is there keeps its place, whatever happens to the broker."""
    access = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    consumer = setting.subscribe()
    producer = setting.producer(**access)
    send(producer, range(5))
    acknowledge(consumer, take(consumer, 5))
    _must_fail(pulsar.ProducerFenced, lambda: setting.producer(**access))
    yield
    send(producer, range(5, 10))
    _must_fail(pulsar.ProducerFenced, lambda: setting.producer(**access))
    _must_fail(pulsar.ProducerBusy, setting.producer)
    messages = take(consumer, 5)
    assert_exact(messages, range(5, 10))


def exclusive_consumers(setting: Setting) -> Iterator[None]:
    """The second one is refused, and others of another type, before and after."""
    consumer = setting.subscribe()
    _must_fail(pulsar.ConsumerBusy, setting.subscribe)
    yield
    send(setting.producer(), range(5))
    acknowledge(consumer, take(consumer, 5))
    _must_fail(pulsar.ConsumerBusy, setting.subscribe)
    _must_fail(pulsar.ConsumerBusy, lambda: setting.subscribe(pulsar.ConsumerType.Shared))


def _must_fail(error: type[Exception], work: Callable[[], object]) -> None:
    try:
        work()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


def names_of_producers(setting: Setting) -> Iterator[None]:
    """A name is one producer's."""
    producer = setting.producer(producer_name="the-one")
    _must_fail(pulsar.ProducerBusy, lambda: setting.producer(producer_name="the-one"))
    yield
    send(producer, range(3))
    _must_fail(pulsar.ProducerBusy, lambda: setting.producer(producer_name="the-one"))
    producer.close()
    setting.producer(producer_name="the-one").close()


def metadata_of_messages(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    producer = setting.producer(compression_type=pulsar.CompressionType.ZLib)
    properties = {"colour": "blue", "länge": "é"}
    producer.send(b"x-1" * 500, properties=properties, event_timestamp=123, partition_key="k")
    yield
    consumer.close()
    consumer = setting.subscribe()
    message = receive(consumer)
    assert message.data() == b"x-1" * 500
    assert message.properties() == properties
    assert message.event_timestamp() == 123
    assert message.partition_key() == "k"
    assert message.redelivery_count() == 0


def unsubscribed(setting: Setting) -> Iterator[None]:
    """A subscription that was deleted does not come back; a new one begins where it says."""
    consumer = setting.subscribe()
    producer = setting.producer()
    send(producer, range(5))
    take(consumer, 5)
    consumer.unsubscribe()
    consumer.close()
    yield
    consumer = setting.subscribe(initial_position=pulsar.InitialPosition.Latest)
    assert_drained(setting, consumer)


def delayed_messages(setting: Setting) -> Iterator[None]:
    """On Shared: not before their time, and nothing waits for them."""
    consumer = setting.subscribe(pulsar.ConsumerType.Shared)
    producer = setting.producer(batching_enabled=False)
    due_ms = int(time.time() * 1000) + 2_000
    producer.send(b"k1-1", partition_key="k1", deliver_at=due_ms)
    producer.send(b"k2-2", partition_key="k2")
    at_once = receive(consumer)
    assert number_of(at_once) == 2
    consumer.acknowledge(at_once)
    yield
    late = receive(consumer)
    assert number_of(late) == 1
    # Due messages may come one tick (1 s) early or late; never at once.
    assert int(time.time() * 1000) >= due_ms - 1_000
    consumer.acknowledge(late)


def chunked_messages(setting: Setting) -> Iterator[None]:
    """Larger than the broker takes in one piece."""
    setting.subscribe().close()
    producer = setting.producer(batching_enabled=False, chunking_enabled=True)
    large = bytes(range(256)) * (6 << 12)
    producer.send(large, partition_key="k")
    yield
    producer.send(large[::-1], partition_key="k")
    consumer = setting.subscribe()
    for expected in (large, large[::-1]):
        message = receive(consumer)
        assert message.data() == expected
        consumer.acknowledge(message)


CASES: dict[str, Case] = {
    "exclusive_backlog": _backlog(pulsar.ConsumerType.Exclusive),
    "failover_backlog": _backlog(pulsar.ConsumerType.Failover),
    "shared_backlog": _backlog(pulsar.ConsumerType.Shared),
    "key_shared_backlog": _backlog(pulsar.ConsumerType.KeyShared),
    **{
        case.__name__: case
        for case in (
            readers,
            consumers_that_stay,
            single_acknowledgements,
            cumulative_acknowledgements,
            negative_acknowledgements,
            seek_to_the_start,
            seek_by_time,
            two_shared_consumers,
            two_key_shared_consumers,
            standby_of_failover,
            exclusive_producers,
            exclusive_consumers,
            names_of_producers,
            metadata_of_messages,
            unsubscribed,
            delayed_messages,
            chunked_messages,
        )
    },
}
