"""Pattern consumers of the official client, which list topics again and again."""

import pulsar

from tests.http_calls import call
from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS, publish
from tests.integration.pulsar_client.test_partitioned import create
from tests.standalone import Standalone


def test_a_pattern_consumer_finds_topics_that_appear_later(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    first, second, whole = f"{topic}-a", f"{topic}-b", f"{topic}-c"
    producers = [client.create_producer(first)]
    # The Python wrapper takes this period and does not hand it on.
    settings = pulsar._pulsar.ConsumerConfiguration()
    settings.pattern_auto_discovery_period(1)
    settings.subscription_initial_position(pulsar.InitialPosition.Earliest)
    consumer = client._client.subscribe_pattern(f"{topic}-.*", "s", settings)
    create(server, whole)
    producers += [client.create_producer(each) for each in (second, whole)]
    other = client.create_producer(f"{topic.removesuffix(topic[-1])}other")
    for producer in (*producers, other):
        publish(producer, [producer.topic().encode()])
    found = set()
    for _ in producers:
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        found.add(message.data().decode())
        consumer.acknowledge(message)
    assert found == {first, second, whole}
    consumer.close()


def test_a_pattern_consumer_may_be_there_before_its_namespace(
    server: Standalone, client: pulsar.Client
) -> None:
    settings = pulsar._pulsar.ConsumerConfiguration()
    settings.pattern_auto_discovery_period(1)
    settings.subscription_initial_position(pulsar.InitialPosition.Earliest)
    consumer = client._client.subscribe_pattern("persistent://public/later/.*", "s", settings)
    call(server, "PUT", "namespaces/public/later", expect=204)
    producer = client.create_producer("persistent://public/later/topic")
    publish(producer, [b"found"])
    assert consumer.receive(RECEIVE_TIMEOUT_MS).data() == b"found"
    consumer.close()
