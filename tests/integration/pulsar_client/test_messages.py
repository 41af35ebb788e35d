"""What travels with a message: keys, properties, times, compression, names and sizes."""

import os

import pulsar
import pytest

from tests.integration.pulsar_client.support import connect, publish, receive, receive_payloads
from tests.standalone import Standalone

_MESSAGE_BYTES_MAX = 5 << 20


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_messages_come_back_as_they_were(
    client: pulsar.Client, topic: str, compression: str, batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, compression),
        batching_enabled=batched,
    )
    payloads = [b"x", b"compress me " * 5000, os.urandom(50_000)]
    if batched or compression == "NONE":
        payloads.append(b"")  # This client cannot inflate an empty ZLib body, its own included.
    publish(producer, payloads)
    assert receive_payloads(consumer, len(payloads)) == payloads


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
def test_everything_the_producer_says_about_a_message_arrives(
    client: pulsar.Client, topic: str, batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="teller", batching_enabled=batched)
    producer.send(
        b"body",
        properties={"a": "1", "ключ": "значение", "empty": ""},
        partition_key="the key",
        ordering_key="the other key",
        event_timestamp=1_357_034_400_000,
    )
    message = receive(consumer)
    assert message.data() == b"body"
    assert message.properties() == {"a": "1", "ключ": "значение", "empty": ""}
    assert message.partition_key() == "the key"
    assert message.ordering_key() == "the other key"
    assert message.event_timestamp() == 1_357_034_400_000
    assert message.publish_timestamp() > 1_357_034_400_000
    assert message.producer_name() == "teller"
    assert message.topic_name() == topic
    assert message.redelivery_count() == 0


def test_a_message_of_the_largest_size_passes(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payload = os.urandom(_MESSAGE_BYTES_MAX - 1024)
    publish(client.create_producer(topic), [payload])
    assert receive_payloads(consumer, 1) == [payload]


def test_a_message_in_chunks_passes(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payload = os.urandom(3 * _MESSAGE_BYTES_MAX)
    publish(client.create_producer(topic, chunking_enabled=True), [payload])
    assert receive_payloads(consumer, 1) == [payload]


def test_the_broker_names_producers_apart(client: pulsar.Client, topic: str) -> None:
    first, second = client.create_producer(topic), client.create_producer(topic)
    assert first.producer_name()
    assert first.producer_name() != second.producer_name()


def test_a_name_in_use_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="mine")


def test_a_second_exclusive_consumer_is_refused(
    client: pulsar.Client, server: Standalone, topic: str
) -> None:
    client.subscribe(topic, "s")
    other = connect(server.url)
    with pytest.raises(pulsar.ConsumerBusy):
        other.subscribe(topic, "s")
    other.close()


def test_failover_goes_to_the_next_consumer_in_order(
    client: pulsar.Client, server: Standalone, topic: str
) -> None:
    kind = pulsar.ConsumerType.Failover
    client.subscribe(topic, "s", consumer_type=kind).close()
    payloads = [b"%d" % number for number in range(100)]
    publish(client.create_producer(topic), payloads)
    first_client = connect(server.url)
    first = first_client.subscribe(topic, "s", consumer_type=kind, consumer_name="a")
    assert receive_payloads(first, 40) == payloads[:40]
    second = client.subscribe(topic, "s", consumer_type=kind, consumer_name="b")
    first_client.close()
    # Whichever was active: what was acknowledged stays so, the rest comes to the one that is left.
    rest = receive_payloads(second, 60)
    assert rest == payloads[40:]
