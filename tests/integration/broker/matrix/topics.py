"""Topics: their end, their deletion, their growth, patterns, and those that keep nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pulsar

from tests.integration.broker.matrix.setting import (
    PARTITIONS,
    Case,
    Setting,
    acknowledge,
    assert_exact,
    must_fail,
    number_of,
    send,
    take,
)
from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS
from tests.waiting import wait_until


def termination(setting: Setting) -> Iterator[None]:
    """What is there is consumed; nothing more is taken."""
    setting.subscribe().close()
    send(setting.producer(), range(20))
    setting.admin("POST", "/terminate/partitions" if setting.is_partitioned else "/terminate")
    must_fail(pulsar.TopicTerminated, setting.producer)
    yield
    must_fail(pulsar.TopicTerminated, setting.producer)
    consumer = setting.subscribe()
    messages = take(consumer, 20)
    acknowledge(consumer, messages)
    assert_exact(messages, range(20))


def deletion_by_force(setting: Setting) -> Iterator[None]:
    """Subscriptions and messages do not come back; a topic of the same name is a new one."""
    setting.subscribe().close()
    producer = setting.producer()
    send(producer, range(20))
    producer.close()
    setting.admin("DELETE", ("/partitions" if setting.is_partitioned else "") + "?force=true")
    yield
    assert setting.client.get_topic_partitions(setting.topic) == [setting.topic]
    consumer = setting.client.subscribe(
        setting.topic, "s", initial_position=pulsar.InitialPosition.Earliest
    )
    producer = setting.producer()
    send(producer, range(20, 25))
    assert_exact(take(consumer, 5), range(20, 25))


def growth(setting: Setting) -> Iterator[None]:
    """New partitions have the subscriptions, and clients that come later use them."""
    setting.subscribe().close()
    producer = setting.producer()
    send(producer, range(20))
    producer.close()
    if setting.is_partitioned:
        setting.admin("POST", "/partitions", PARTITIONS + 2)
    yield
    parts = setting.client.get_topic_partitions(setting.topic)
    assert len(parts) == (PARTITIONS + 2 if setting.is_partitioned else 1)
    consumer = setting.subscribe()
    producer = setting.producer()
    send(producer, range(20, 60))
    messages = take(consumer, 60)
    acknowledge(consumer, messages)
    assert sorted(map(number_of, messages)) == list(range(60))


def patterns(setting: Setting) -> Iterator[None]:
    """Topics that match, those that appear later too."""
    # The Python wrapper takes this period and does not hand it on.
    configuration = pulsar._pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(1)
    configuration.subscription_initial_position(pulsar.InitialPosition.Earliest)
    names = [f"{setting.topic}-{letter}" for letter in "abc"]

    def producer(name: str) -> pulsar.Producer:
        if setting.is_partitioned:
            setting.admin("PUT", "/partitions", PARTITIONS, topic=name)
        return replace(setting, topic=name).producer()

    producers = [producer(name) for name in names[:2]]
    pattern = f"{re.escape(setting.topic)}-[abc]"
    consumer = setting.client._client.subscribe_pattern(pattern, "s", configuration)

    def receive_from(count: int) -> set[str]:
        found = set()
        for _ in range(count):
            message = consumer.receive(RECEIVE_TIMEOUT_MS)
            consumer.acknowledge(message)
            found.add(message.data().decode())
        return found

    for each in producers:
        each.send(each.topic().encode())
    assert receive_from(2) == set(names[:2])
    for name in names[:2]:
        replace(setting, topic=name).settle()
    yield
    producers.append(producer(names[2]))
    for each in producers:
        each.send(each.topic().encode())
    assert receive_from(3) == set(names)
    consumer.close()


def non_persistent(setting: Setting) -> Iterator[None]:
    """Connected consumers get the messages, and are connected again by themselves."""
    topic = f"non-{setting.topic}"
    if setting.is_partitioned:
        setting.admin("PUT", "/partitions", PARTITIONS, topic=topic)
    producer = replace(setting, topic=topic).producer()
    consumer = setting.subscribe(topic=topic)

    def comes_through() -> bool:
        send(producer, range(7))
        try:
            for _ in range(7):
                consumer.receive(timeout_millis=1_000)
        except pulsar.Timeout:
            return False
        return True

    send(producer, range(20))
    assert_exact(take(consumer, 20), range(20))
    yield
    wait_until(comes_through, "both are connected again, to each partition", within_s=90)
    send(producer, range(20, 40))
    found: list[pulsar.Message] = []
    while len(found) < 20:
        found += [each for each in take(consumer, 1) if number_of(each) >= 20]
    assert_exact(found, range(20, 40))


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (termination, deletion_by_force, growth, patterns, non_persistent)
}
