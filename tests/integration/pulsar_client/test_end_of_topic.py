"""The official C++ client on a terminated topic: it must not hear of the end, and loses nothing."""

import pulsar
import pytest

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import publish, receive, receive_payloads
from tests.standalone import Standalone


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_a_consumer_stays_connected_when_it_has_read_a_terminated_topic(
    server: Standalone, client: pulsar.Client, topic: str, kind: str
) -> None:
    consumer_type = getattr(pulsar.ConsumerType, kind)
    consumer = client.subscribe(topic, "all", consumer_type=consumer_type)
    producer = client.create_producer(topic)
    publish(producer, [b"%d" % number for number in range(10)])
    first = receive(consumer)
    admin(server, "POST", f"{topic_path(topic)}/terminate")
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    consumer.acknowledge(first)
    assert receive_payloads(consumer, 9) == [b"%d" % number for number in range(1, 10)]
    # The answer to this comes after whatever the acknowledgements led to.
    late = client.subscribe(topic, "all too late", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_payloads(late, 10) == [b"%d" % number for number in range(10)]
    assert consumer.is_connected()
    assert late.is_connected()
    consumer.close()
    late.close()
