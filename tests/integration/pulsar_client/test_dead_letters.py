"""Dead letter topics of the official client: the count of redeliveries, and where messages go."""

import pulsar
import pytest

from tests.integration.pulsar_client.support import publish, receive
from tests.integration.pulsar_client.test_partitioned import create
from tests.standalone import Standalone

REDELIVERIES = 2
_EARLIEST = pulsar.InitialPosition.Earliest


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_what_is_refused_too_often_goes_to_the_dead_letter_topic(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    kind: pulsar.ConsumerType,
    is_partitioned: bool,
) -> None:
    if is_partitioned:
        create(server, topic)
    letters = f"{topic}-letters"
    dead = client.subscribe(letters, "reads letters", initial_position=_EARLIEST)
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        initial_position=_EARLIEST,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=REDELIVERIES, dead_letter_topic=letters
        ),
    )
    publish(client.create_producer(topic, batching_enabled=False), [b"bad", b"good"])
    seen: list[tuple[bytes, int]] = []
    while seen.count((b"bad", REDELIVERIES)) == 0 or (b"good", 0) not in seen:
        message = receive(consumer)
        seen.append((message.data(), message.redelivery_count()))
        if message.data() == b"good":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    letter = receive(dead)
    assert letter.data() == b"bad"
    assert sorted(seen) == [(b"bad", count) for count in range(REDELIVERIES + 1)] + [(b"good", 0)]
