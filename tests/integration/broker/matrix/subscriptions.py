"""Subscriptions: types, acknowledgements, seeking, readers."""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pulsar

from tests.integration.broker.matrix.setting import (
    BACKLOG,
    KEYS,
    Case,
    Setting,
    acknowledge,
    assert_drained,
    assert_exact,
    must_fail,
    number_of,
    of_one_key,
    send,
    take,
    take_from,
)
from tests.integration.pulsar_client.support import read_next
from tests.waiting import wait_until


def _backlog(kind: pulsar.ConsumerType, **options: Any) -> Case:
    def case(setting: Setting) -> Iterator[None]:
        setting.subscribe(kind, **options).close()
        producer = setting.producer()
        send(producer, range(BACKLOG))
        consumer = setting.subscribe(kind, **options)
        done = take(consumer, 20)
        acknowledge(consumer, done)
        consumer.close()
        yield
        send(producer, range(BACKLOG, BACKLOG + 20))
        consumer = setting.subscribe(kind, **options)
        rest = take(consumer, BACKLOG)
        acknowledge(consumer, rest)
        assert_exact([*done, *rest], range(BACKLOG + 20))
        assert_drained(setting, consumer)

    return case


def readers(setting: Setting) -> Iterator[None]:
    producer = setting.producer()
    send(producer, range(BACKLOG))
    reader = setting.reader()
    assert_exact([read_next(reader) for _ in range(BACKLOG)], range(BACKLOG))
    reader.close()
    yield
    send(producer, range(BACKLOG, BACKLOG + 5))
    reader = setting.reader()
    assert_exact([read_next(reader) for _ in range(BACKLOG + 5)], range(BACKLOG + 5))
    assert not reader.has_message_available()


def consumers_that_stay(setting: Setting) -> Iterator[None]:
    """Clients come back by themselves: what was not acknowledged comes again, the rest does not."""
    consumer = setting.subscribe(pulsar.ConsumerType.Shared)
    producer = setting.producer()
    send(producer, range(40))
    done = take(consumer, 40)
    acknowledge(consumer, done)
    setting.settle()
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


def _entry_of(message: pulsar.Message) -> tuple[int, int]:
    found = message.message_id()
    return found.ledger_id(), found.entry_id()


def negative_acknowledgements(setting: Setting) -> Iterator[None]:
    """Refused messages come again, counted; the count ends with the memory of the broker."""
    options: dict[str, Any] = {"negative_ack_redelivery_delay_ms": 100}
    consumer = setting.subscribe(pulsar.ConsumerType.Shared, **options)
    send(setting.producer(), range(10))
    messages = take(consumer, 10)
    # One message of each entry is enough: the client has the whole batch redelivered. A second
    # refusal that comes after the delay would have it redelivered again.
    for message in {_entry_of(each): each for each in messages}.values():
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


def _wait_back(setting: Setting, consumer: pulsar.Consumer) -> None:
    """Wait until the only consumer is connected again: before, it can seek nowhere."""
    setting.wait_attached(1, name=consumer.subscription_name())
    wait_until(consumer.is_connected, "the consumer knows of it, too")


def seek_to_the_start(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    send(setting.producer(), range(50))
    acknowledge(consumer, take(consumer, 50))
    yield
    _wait_back(setting, consumer)
    consumer.seek(pulsar.MessageId.earliest)
    again = take(consumer, 50)
    assert_exact(again, range(50))
    consumer.seek(pulsar.MessageId.latest)
    assert_drained(setting, consumer)


def seek_by_time(setting: Setting) -> Iterator[None]:
    consumer = setting.subscribe()
    producer = setting.producer()
    send(producer, range(20))
    between_ms = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > between_ms, "publish times are in milliseconds")
    send(producer, range(20, 40))
    acknowledge(consumer, take(consumer, 40))
    yield
    _wait_back(setting, consumer)
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


def exclusive_consumers(setting: Setting) -> Iterator[None]:
    """The second one is refused, and others of another type, before and after."""
    consumer = setting.subscribe()
    must_fail(pulsar.ConsumerBusy, setting.subscribe)
    yield
    send(setting.producer(), range(5))
    acknowledge(consumer, take(consumer, 5))
    must_fail(pulsar.ConsumerBusy, setting.subscribe)
    must_fail(pulsar.ConsumerBusy, lambda: setting.subscribe(pulsar.ConsumerType.Shared))


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


def two_key_shared_consumers(setting: Setting) -> Iterator[None]:
    """A key is at one of them, in order, and moves to the other one when that leaves."""
    kind = pulsar.ConsumerType.KeyShared
    # Their names say who gets which keys: of names by chance, one might get none.
    first = setting.subscribe(kind, consumer_name="first")
    second = setting.subscribe(kind, consumer_name="second")
    yield
    setting.wait_attached(2)
    producer = setting.producer()
    send(producer, range(BACKLOG))
    found = take_from([first, second], BACKLOG)
    assert_exact([*found[0], *found[1]], range(BACKLOG))
    keys = [{each.partition_key() for each in of} for of in found]
    assert all(keys), "both have some of the keys"
    assert not keys[0] & keys[1]
    acknowledge(second, found[1])
    first.close()
    again = take(second, len(found[0]))
    assert_exact(again, [number_of(each) for each in found[0]])
    acknowledge(second, again)
    assert_drained(setting, second)


def sticky_key_shared_consumers(setting: Setting) -> Iterator[None]:
    """Each has the hash range that it names; what nobody has named waits."""

    def sticky(start: int, end: int) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(start, end)]
        )
        return setting.subscribe(pulsar.ConsumerType.KeyShared, key_shared_policy=policy)

    first, second = sticky(0, 32_767), sticky(32_768, 65_535)
    producer = setting.producer()
    send(producer, range(20))
    before = take_from([first, second], 20)
    for consumer, messages in zip((first, second), before, strict=True):
        acknowledge(consumer, messages)
    setting.settle()
    yield
    send(producer, range(20, BACKLOG))
    after = take_from([first, second], BACKLOG - 20)
    assert_exact([*before[0], *after[0], *before[1], *after[1]], range(BACKLOG))
    for one, other in ((0, 1), (1, 0)):
        assert not {each.partition_key() for each in before[one]} & {
            each.partition_key() for each in after[other]
        }, "a key has moved"


def seek_into_a_batch(setting: Setting) -> Iterator[None]:
    """By the id of a message: the next one is that, or the one behind it."""
    producer = setting.producer(batching_max_publish_delay_ms=60_000)
    send(producer, [0] * 10)
    consumer = setting.subscribe(name="all")
    sixth = take(consumer, 10)[5]
    consumer.close()
    part = replace(setting, topic=setting.part_of(sixth), is_partitioned=False)
    left_of = {
        part.subscribe(name=name, start_message_id_inclusive=is_inclusive): left
        for name, is_inclusive, left in (("from it", True, 5), ("behind it", False, 4))
    }
    for consumer in left_of:
        acknowledge(consumer, take(consumer, 10))
    yield
    for consumer, left in left_of.items():
        _wait_back(part, consumer)
        consumer.seek(sixth.message_id())
        acknowledge(consumer, take(consumer, left))
    send(producer, [KEYS])
    for consumer in left_of:
        (last,) = take(consumer, 1)
        assert number_of(last) == KEYS, "there was more in between"


def properties_of_a_subscription(setting: Setting) -> Iterator[None]:
    """What was written down about it stays with it, whoever is connected."""
    setting.subscribe().close()
    properties = {"owner": "us", "länge": "é"}
    setting.admin("PUT", "/subscription/s/properties", properties)
    yield
    for stats in setting.stats():
        assert stats["subscriptions"]["s"]["subscriptionProperties"] == properties
    setting.subscribe().unsubscribe()


def unacknowledged_limit(setting: Setting) -> Iterator[None]:
    """A consumer that acknowledges nothing gets no more, is told so, and goes on when it does."""
    setting.have_policies(maxUnackedMessagesOnConsumer=5)
    consumer = setting.subscribe(pulsar.ConsumerType.Shared)
    producer = setting.producer(batching_max_messages=5)

    def is_blocked() -> bool:
        reasons = {each["subscriptions"]["s"]["whyIdle"] for each in setting.stats()}
        return "consumers_unacked" in reasons

    def fill_and_drain() -> None:
        numbers = of_one_key(20)
        send(producer, numbers)
        wait_until(is_blocked, "the consumer has too many")
        found = []
        for _ in numbers:
            found += take(consumer, 1)
            acknowledge(consumer, found[-1:])
        assert_exact(found, numbers)

    fill_and_drain()
    setting.settle()
    yield
    fill_and_drain()
    assert_drained(setting, consumer)


def compacted_reading(setting: Setting) -> Iterator[None]:
    """The newest message of each key and what came after them; who wants everything gets it."""
    send(setting.producer(), range(40))
    setting.admin("PUT", "/compaction")
    for part in setting.parts:
        wait_until(
            lambda part=part: (
                setting.admin("GET", "/compaction", topic=part)["status"] == "SUCCESS"
            ),  # type: ignore[misc]
            "a compaction",
        )
    yield
    send(setting.producer(), range(40, 43))
    compacted = setting.reader(is_read_compacted=True)
    assert_exact([read_next(compacted) for _ in range(KEYS + 3)], range(33, 43))
    assert not compacted.has_message_available()
    plain = setting.reader()
    assert_exact([read_next(plain) for _ in range(43)], range(43))


CASES: dict[str, Case] = {
    "exclusive_backlog": _backlog(pulsar.ConsumerType.Exclusive),
    "failover_backlog": _backlog(pulsar.ConsumerType.Failover),
    "shared_backlog": _backlog(pulsar.ConsumerType.Shared),
    "key_shared_backlog": _backlog(pulsar.ConsumerType.KeyShared),
    "key_shared_backlog_out_of_order": _backlog(
        pulsar.ConsumerType.KeyShared,
        key_shared_policy=pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True),
    ),
    **{
        case.__name__: case
        for case in (
            readers,
            consumers_that_stay,
            single_acknowledgements,
            cumulative_acknowledgements,
            negative_acknowledgements,
            unacknowledged_limit,
            seek_to_the_start,
            seek_by_time,
            seek_into_a_batch,
            two_shared_consumers,
            two_key_shared_consumers,
            sticky_key_shared_consumers,
            standby_of_failover,
            exclusive_consumers,
            properties_of_a_subscription,
            compacted_reading,
            unsubscribed,
        )
    },
}
PAIRED = {"exclusive_consumers", "properties_of_a_subscription", "unsubscribed"}
"""See test_matrix.py."""
