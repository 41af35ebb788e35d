"""Non-persistent topics with the official client."""

import pulsar
import pytest

from tests.integration.pulsar_client.admin_calls import Admin
from tests.integration.pulsar_client.support import publish, receive_payloads
from tests.integration.pulsar_client.test_partitioned import PARTITIONS, admin
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
    path = "/admin/v2/non-persistent/" + topic.removeprefix("non-persistent://")
    if is_partitioned:
        assert admin(server, "PUT", f"{path}/partitions", str(PARTITIONS)) == 204
    producer = client.create_producer(topic, batching_enabled=batching)
    publish(producer, [b"nobody is there"])
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    publish(producer, _PAYLOADS)
    assert sorted(receive_payloads(consumer, COUNT)) == sorted(_PAYLOADS)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=50)
    if not is_partitioned:
        assert admin(server, "PUT", f"{path}/unload") == 204
        assert admin(server, "POST", f"{path}/terminate") == 405
        assert admin(server, "DELETE", path) in (404, 412)
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
    path = "/admin/v2/non-persistent/" + topic.removeprefix("non-persistent://")
    stats = Admin(server.http_port).done("GET", f"{path}/stats")
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (COUNT, COUNT)
    assert stats["storageSize"] == 0
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == producer.producer_name()
    assert [each["msgOutCounter"] for each in stats["subscriptions"]["s"]["consumers"]] == [COUNT]
