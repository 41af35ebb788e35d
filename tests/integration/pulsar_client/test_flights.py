"""All flights of a year go through the broker and come back byte for byte, by every way to read."""

import threading
from collections.abc import Iterator

import pulsar
import pytest

from tests.flights import FLIGHTS
from tests.integration.pulsar_client.support import (
    PUBLISH_TIMEOUT_S,
    assert_nothing_left,
    connect,
    publish,
    read_next,
    receive,
)
from tests.standalone import Standalone

_ACK_EVERY = 1000


@pytest.fixture(scope="module", params=["batched", "unbatched"])
def published(
    request: pytest.FixtureRequest, server: Standalone, flights: list[bytes]
) -> Iterator[tuple[str, list[bytes]]]:
    """A topic that holds flights, and what it holds: all in batches, or 20 000 one by one."""
    batched = request.param == "batched"
    payloads = flights if batched else flights[:20_000]
    topic = f"persistent://public/default/flights-{request.param}"
    client = connect(server.url)
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
        max_pending_messages=10_000,
    )
    ids = publish(producer, payloads)
    assert len(ids) == len(payloads)
    yield topic, payloads
    client.close()


def test_the_data_is_complete(flights: list[bytes]) -> None:
    assert len(flights) == FLIGHTS


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_single_active_consumer_reads_every_flight_in_order(
    published: tuple[str, list[bytes]], client: pulsar.Client, kind: str
) -> None:
    topic, expected = published
    consumer = client.subscribe(
        topic,
        f"all-{kind}",
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    for number, payload in enumerate(expected, start=1):
        message = receive(consumer)
        assert message.data() == payload, f"message {number}"
        if number % _ACK_EVERY == 0 or number == len(expected):
            consumer.acknowledge_cumulative(message)
    consumer.close()


def test_a_reader_reads_every_flight_in_order(
    published: tuple[str, list[bytes]], client: pulsar.Client
) -> None:
    topic, expected = published
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for number, payload in enumerate(expected, start=1):
        assert reader.has_message_available()
        assert read_next(reader).data() == payload, f"message {number}"
    reader.close()


def test_shared_consumers_get_every_flight_once_between_them(
    published: tuple[str, list[bytes]], client: pulsar.Client
) -> None:
    topic, expected = published
    received: dict[str, list[bytes]] = {"a": [], "b": []}
    lock = threading.Lock()
    complete = threading.Event()

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        with lock:
            received[consumer.consumer_name()].append(message.data())
            if sum(map(len, received.values())) == len(expected):
                complete.set()

    for name in received:
        client.subscribe(
            topic,
            "all-Shared",
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name=name,
            initial_position=pulsar.InitialPosition.Earliest,
            message_listener=on_message,
        )
    assert complete.wait(PUBLISH_TIMEOUT_S), {name: len(some) for name, some in received.items()}
    assert sorted(received["a"] + received["b"]) == sorted(expected)
    assert received["a"]
    assert received["b"]


def test_flights_are_read_while_they_are_published(
    client: pulsar.Client, topic: str, flights: list[bytes]
) -> None:
    """A consumer at the tail, fed from memory, sees what a reader of the past sees."""
    expected = flights[:50_000]
    consumer = client.subscribe(topic, "tail")
    failures: list[BaseException] = []

    def consume() -> None:
        try:
            for payload in expected:
                message = receive(consumer)
                assert message.data() == payload
                consumer.acknowledge(message)
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    publish(producer, expected)
    thread.join(PUBLISH_TIMEOUT_S)
    assert not thread.is_alive()
    assert not failures, failures
    assert_nothing_left(client, consumer, topic)
