"""A backlog much larger than what the client takes at once is delivered once, in order."""

import pulsar
import pytest

from tests.integration.pulsar_client.support import assert_nothing_left, publish, receive_payloads

_QUEUE = 100


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared"])
@pytest.mark.parametrize("queue", [1, _QUEUE])
def test_a_backlog_beyond_the_receiver_queue_comes_once_and_in_order(
    client: pulsar.Client, topic: str, kind: str, batched: bool, queue: int
) -> None:
    consumer_type = getattr(pulsar.ConsumerType, kind)
    client.subscribe(topic, "late", consumer_type=consumer_type).close()
    payloads = [b"message-%d" % number for number in range(10 * _QUEUE + 7)]
    publish(
        client.create_producer(
            topic, batching_enabled=batched, batching_max_messages=30, block_if_queue_full=True
        ),
        payloads,
    )
    consumer = client.subscribe(
        topic, "late", consumer_type=consumer_type, receiver_queue_size=queue
    )
    assert receive_payloads(consumer, len(payloads)) == payloads
    assert_nothing_left(client, consumer, topic)


def test_what_was_acknowledged_does_not_come_again_to_the_next_consumer(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "work", receiver_queue_size=_QUEUE)
    payloads = [b"message-%d" % number for number in range(5 * _QUEUE)]
    publish(client.create_producer(topic), payloads)
    assert receive_payloads(consumer, 2 * _QUEUE + 3) == payloads[: 2 * _QUEUE + 3]
    consumer.close()
    consumer = client.subscribe(topic, "work", receiver_queue_size=_QUEUE)
    assert receive_payloads(consumer, 3 * _QUEUE - 3) == payloads[2 * _QUEUE + 3 :]
    assert_nothing_left(client, consumer, topic)


def test_each_subscription_has_its_own_backlog(client: pulsar.Client, topic: str) -> None:
    names = ["one", "two", "three"]
    for name in names:
        client.subscribe(topic, name).close()
    payloads = [b"message-%d" % number for number in range(3 * _QUEUE)]
    publish(client.create_producer(topic, batching_enabled=True), payloads)
    for name in names:
        consumer = client.subscribe(topic, name, receiver_queue_size=_QUEUE)
        assert receive_payloads(consumer, len(payloads)) == payloads
