"""Non-persistent topics with the official client."""

import pulsar
import pytest

from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import publish, receive_payloads
from tests.integration.pulsar_client.test_partitioned import PARTITIONS
from tests.standalone import Standalone

COUNT = 50
_PAYLOADS = [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("is_partitioned", [False, True])
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
def test_whoever_is_connected_gets_the_messages(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    kind: pulsar.ConsumerType,
    batching: bool,
    is_partitioned: bool,
) -> None:
    topic = f"non-{topic}"
    path = topic_path(topic)
    if is_partitioned:
        call(server, "PUT", f"{path}/partitions", PARTITIONS, expect=204)
    producer = client.create_producer(topic, batching_enabled=batching)
    publish(producer, [b"nobody is there"])
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    publish(producer, _PAYLOADS)
    assert sorted(receive_payloads(consumer, COUNT)) == sorted(_PAYLOADS)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=50)
    if not is_partitioned:
        call(server, "PUT", f"{path}/unload", expect=204)
        call(server, "POST", f"{path}/terminate", expect=405)
        assert call(server, "DELETE", path).status in (404, 412)
    consumer.close()
    producer.close()


def test_statistics_of_a_topic_that_keeps_nothing(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    topic = f"non-{topic}"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, _PAYLOADS)
    receive_payloads(consumer, COUNT)
    path = topic_path(topic)
    stats = admin(server, "GET", f"{path}/stats")
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (COUNT, COUNT)
    assert stats["storageSize"] == 0
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == producer.producer_name()
    assert [each["msgOutCounter"] for each in stats["subscriptions"]["s"]["consumers"]] == [COUNT]
