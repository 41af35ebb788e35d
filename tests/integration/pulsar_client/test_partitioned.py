"""Partitioned topics with the official client: every type of consumer, restarts, unloads."""

from collections import defaultdict
from pathlib import Path

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import (
    connect,
    publish,
    read_next,
    receive,
    receive_payloads,
)
from tests.standalone import Standalone

PARTITIONS = 3
COUNT = 60


def create(server: Standalone, topic: str) -> None:
    call(server, "PUT", f"{topic_path(topic)}/partitions", PARTITIONS, expect=204)


def keyed(producer: pulsar.Producer, count: int, *, first: int = 0) -> None:
    """Messages `<key>-<number>`, the keys taking turns."""
    numbers = range(first, first + count)
    publish(producer, [(f"k{each % 7}", f"k{each % 7}-{each}".encode()) for each in numbers])


def receive_new(consumer: pulsar.Consumer, count: int, *, first: int = 0) -> list[bytes]:
    """Receive and acknowledge so many messages from a number on.

    Others, and what came before, may come again after a move of the topic: the client collects
    acknowledgements for a moment, and keeps what it received and did not hand out.
    """
    payloads: dict[bytes, None] = {}
    while len(payloads) < count:
        message = receive(consumer)
        if int(message.data().partition(b"-")[2]) >= first:
            payloads[message.data()] = None
        consumer.acknowledge(message)
    return list(payloads)


def assert_in_order(payloads: list[bytes], count: int, *, first: int = 0) -> None:
    """Every message came once, those of a key in order."""
    of_key: dict[bytes, list[int]] = defaultdict(list)
    for payload in payloads:
        key, _, number = payload.partition(b"-")
        of_key[key].append(int(number))
    assert sorted(number for numbers in of_key.values() for number in numbers) == list(
        range(first, first + count)
    )
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        pulsar.ConsumerType.Exclusive,
        pulsar.ConsumerType.Failover,
        pulsar.ConsumerType.Shared,
        pulsar.ConsumerType.KeyShared,
    ],
)
def test_every_type_of_consumer_gets_every_message_of_every_partition(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    kind: pulsar.ConsumerType,
    batching: bool,
) -> None:
    create(server, topic)
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_type=pulsar.BatchingType.KeyBased,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    keyed(producer, COUNT)
    payloads = []
    partitions = set()
    for _ in range(COUNT):
        message = receive(consumer)
        payloads.append(message.data())
        partitions.add(message.message_id().partition())
        consumer.acknowledge(message)
    assert_in_order(payloads, COUNT)
    assert partitions == set(range(PARTITIONS))
    # An unload of the whole interrupts nobody for long.
    call(server, "PUT", f"{topic_path(topic)}/unload", expect=204)
    keyed(producer, COUNT, first=COUNT)
    assert_in_order(receive_new(consumer, COUNT, first=COUNT), COUNT, first=COUNT)
    consumer.close()
    producer.close()


def test_a_reader_reads_every_partition(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    create(server, topic)
    producer = client.create_producer(topic)
    keyed(producer, COUNT)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    payloads = []
    while reader.has_message_available():
        payloads.append(read_next(reader).data())
    assert_in_order(payloads, COUNT)
    reader.close()
    producer.close()


def test_growth_brings_subscriptions_along_and_is_used_by_new_clients(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    create(server, topic)
    consumer = client.subscribe(topic, "s")
    consumer.close()
    call(server, "POST", f"{topic_path(topic)}/partitions", 5, expect=204)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{i}" for i in range(5)]
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, [b"%d" % number for number in range(COUNT)])
    consumer = client.subscribe(topic, "s")  # It was there before: nothing is passed over.
    payloads = receive_payloads(consumer, COUNT)
    assert sorted(payloads) == sorted(b"%d" % number for number in range(COUNT))
    consumer.close()
    producer.close()


def test_the_name_of_the_whole_is_no_topic_and_names_end_at_the_last_partition(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    create(server, topic)
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(f"{topic}-partition-{PARTITIONS}")
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(f"{topic}-partition-{PARTITIONS}", "s")


@pytest.mark.parametrize("is_killed", [False, True])
def test_partitions_and_what_is_in_them_survive_a_restart(tmp_path: Path, is_killed: bool) -> None:
    topic = "persistent://public/default/restarted"
    with Standalone(tmp_path / "data") as server:
        create(server, topic)
        client = connect(server.url)
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        keyed(producer, COUNT)
        if is_killed:
            server.kill()
        else:
            assert server.terminate() == 0
        server.start()
        assert_in_order(receive_new(consumer, COUNT), COUNT)
        client.close()
        client = connect(server.url)
        assert len(client.get_topic_partitions(topic)) == PARTITIONS
        client.close()
        server.assert_log_clean()
