"""Acknowledging: single, cumulative, inside a batch, negative; what comes again, and how often."""

import pulsar
import pytest

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import (
    assert_nothing_left,
    publish,
    receive,
    receive_payloads,
)
from tests.standalone import Standalone
from tests.waiting import wait_until


def _batch(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    """Publish `count` messages as one batch, so one entry."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=count,
        batching_max_publish_delay_ms=60_000,
    )
    payloads = [b"in-batch-%d" % number for number in range(count)]
    ids = publish(producer, payloads)
    assert {(each.ledger_id(), each.entry_id()) for each in ids} == {
        (ids[0].ledger_id(), ids[0].entry_id())
    }, "they did not travel in one batch"
    assert [each.batch_index() for each in ids] == list(range(count))
    producer.close()
    return payloads


def test_messages_of_a_batch_are_acknowledged_one_by_one(client: pulsar.Client, topic: str) -> None:
    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
        )

    consumer = subscribe()
    payloads = _batch(client, topic, 70)  # More than one 64-bit word of the bit set.
    for number in range(70):
        message = receive(consumer)
        assert message.data() == payloads[number]
        if number not in (3, 64, 69):
            consumer.acknowledge(message)
    consumer.close()

    consumer = subscribe()
    assert receive_payloads(consumer, 3) == [payloads[3], payloads[64], payloads[69]]
    assert_nothing_left(client, consumer, topic)


def test_a_batch_acknowledged_in_parts_without_index_acks_comes_again_whole(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    payloads = _batch(client, topic, 5)
    received = [receive(consumer) for _ in payloads]
    consumer.acknowledge(received[0])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert receive_payloads(consumer, 5) == payloads
    assert_nothing_left(client, consumer, topic)


def test_a_cumulative_acknowledgement_covers_everything_before(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    payloads = [b"%d" % number for number in range(100)]
    publish(client.create_producer(topic), payloads)
    received = [receive(consumer) for _ in payloads]
    consumer.acknowledge_cumulative(received[59])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert receive_payloads(consumer, 40) == payloads[60:]
    assert_nothing_left(client, consumer, topic)


def test_a_cumulative_acknowledgement_inside_a_batch_covers_its_first_part(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    payloads = _batch(client, topic, 10)
    received = [receive(consumer) for _ in payloads]
    consumer.acknowledge_cumulative(received[6])
    consumer.close()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert receive_payloads(consumer, 3) == payloads[7:]
    assert_nothing_left(client, consumer, topic)


def test_holes_in_what_was_acknowledged_stay_open(client: pulsar.Client, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    payloads = [b"%d" % number for number in range(200)]
    publish(client.create_producer(topic), payloads)
    for number in range(200):
        message = receive(consumer)
        if number % 7:
            consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    expected = payloads[::7]
    assert receive_payloads(consumer, len(expected)) == expected
    assert_nothing_left(client, consumer, topic)


def test_a_negative_acknowledgement_brings_the_message_back_with_a_count(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
    )
    publish(client.create_producer(topic), [b"a", b"b", b"c"])
    for expected in (b"a", b"b", b"c"):
        message = receive(consumer)
        assert message.data() == expected
        assert message.redelivery_count() == 0
        if expected == b"b":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for count in (1, 2, 3):
        message = receive(consumer)
        assert (message.data(), message.redelivery_count()) == (b"b", count)
        if count < 3:
            consumer.negative_acknowledge(message)
    consumer.acknowledge(message)
    assert_nothing_left(client, consumer, topic)


def _backlog(server: Standalone, topic: str) -> int:
    stats = admin(server, "GET", f"{topic_path(topic)}/stats")
    return int(stats["subscriptions"]["s"]["msgBacklog"])


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
def test_redeliver_all_brings_back_what_is_not_acknowledged(
    server: Standalone, client: pulsar.Client, topic: str, kind: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
    payloads = [b"%d" % number for number in range(50)]
    publish(client.create_producer(topic), payloads)
    received = [receive(consumer) for _ in payloads]
    for message in received[:20]:
        consumer.acknowledge(message)
    # The client groups acknowledgements, and does not send them ahead of what it asks for here.
    wait_until(lambda: _backlog(server, topic) == 30, "the server has the acknowledgements")
    consumer.redeliver_unacknowledged_messages()
    again = [receive(consumer) for _ in range(30)]
    assert [message.data() for message in again] == payloads[20:]
    # Counts exist where messages are tracked one by one; a single consumer's cursor rewinds.
    assert {message.redelivery_count() for message in again} == {1 if kind == "Shared" else 0}
    for message in again:
        consumer.acknowledge(message)
    assert_nothing_left(client, consumer, topic)


def test_an_unacknowledged_message_goes_to_the_other_consumer_when_its_own_leaves(
    client: pulsar.Client, topic: str
) -> None:
    kind = pulsar.ConsumerType.Shared
    first = client.subscribe(topic, "s", consumer_type=kind, consumer_name="first")
    payloads = [b"%d" % number for number in range(20)]
    publish(client.create_producer(topic), payloads)
    assert [receive(first).data() for _ in payloads] == payloads
    second = client.subscribe(topic, "s", consumer_type=kind, consumer_name="second")
    first.close()
    assert receive_payloads(second, 20) == payloads
    assert_nothing_left(client, second, topic)


def test_unsubscribing_forgets_the_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payloads = [b"%d" % number for number in range(10)]
    publish(client.create_producer(topic), payloads)
    assert receive_payloads(consumer, 4) == payloads[:4]
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_payloads(consumer, 10) == payloads
    assert_nothing_left(client, consumer, topic)


def test_an_unsubscribed_subscription_starts_at_the_end_again(
    client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").unsubscribe()
    publish(client.create_producer(topic), [b"before"])
    consumer = client.subscribe(topic, "s")
    assert_nothing_left(client, consumer, topic)
