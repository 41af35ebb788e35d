"""Failover with the official client: who gets what, and what a change of hands keeps."""

import pulsar
import pytest

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import publish, receive
from tests.standalone import Standalone


def _join(client: pulsar.Client, topic: str, name: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "work",
        consumer_type=pulsar.ConsumerType.Failover,
        consumer_name=name,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=50,
    )


@pytest.mark.parametrize("batched", [False, True], ids=["plain", "batched"])
def test_the_next_consumer_goes_on_where_the_last_one_stopped(
    client: pulsar.Client, topic: str, batched: bool
) -> None:
    consumers = {name: _join(client, topic, name) for name in ("a", "b")}
    payloads = [b"message-%d" % number for number in range(200)]
    publish(client.create_producer(topic, batching_enabled=batched), payloads)
    first = None
    while first is None:
        for name, consumer in consumers.items():
            try:
                message = consumer.receive(timeout_millis=500)
            except pulsar.Timeout:
                continue
            first = name
            break
    assert message.data() == payloads[0]
    consumers[first].acknowledge(message)
    for number in range(1, 120):
        message = receive(consumers[first])
        assert message.data() == payloads[number]
        consumers[first].acknowledge(message)
    consumers.pop(first).close()
    (other,) = consumers.values()
    # What was acknowledged in a batch that was not is sent again with it.
    got = [receive(other).data()]
    while got[-1] != payloads[-1]:
        got.append(receive(other).data())
    expected = payloads[payloads.index(got[0]) :]
    assert got == expected
    assert payloads.index(got[0]) <= 120
    other.close()


def test_partitions_are_shared_out_by_name(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/partitions", 2)
    consumers = {name: _join(client, topic, name) for name in ("b", "a")}
    for partition, name in enumerate("ab"):
        producer = client.create_producer(f"{topic}-partition-{partition}")
        publish(producer, [b"%d" % partition] * 5)
        for _ in range(5):
            message = receive(consumers[name])
            assert message.data() == b"%d" % partition
            consumers[name].acknowledge(message)
    consumers.pop("a").close()
    producer = client.create_producer(f"{topic}-partition-0")
    publish(producer, [b"again"])
    assert receive(consumers["b"]).data() == b"again"
