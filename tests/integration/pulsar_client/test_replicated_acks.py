"""Single acknowledgements between two clusters: after a failover exactly what is open comes."""

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.http_calls import call
from tests.integration.pulsar_client.support import connect, receive
from tests.integration.pulsar_client.test_replicated_subscriptions import (
    NAMESPACE,
    _settings,
    is_connected,
    open_messages,
    stats,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

BATCHES, OF_A_BATCH, SINGLE = 6, 10, 60
LAST = 4 * SINGLE + 1


@pytest.fixture
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Standalone]]:
    folder = tmp_path_factory.mktemp("acks")
    with (
        Standalone(folder / "east", settings=_settings("east")) as east,
        Standalone(folder / "west", settings=_settings("west")) as west,
    ):
        for here, other, name in ((east, west, "west"), (west, east, "east")):
            data = {"brokerServiceUrl": other.url, "serviceUrl": other.http_url}
            call(here, "PUT", f"/admin/v2/clusters/{name}", data, expect=200)
            tenant = {"allowedClusters": ["east", "west"], "adminRoles": []}
            call(here, "POST", "/admin/v2/tenants/public", tenant, expect=204)
            body = {"replication_clusters": ["east", "west"]}
            call(here, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", body, expect=204)
        yield east, west


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        batch_index_ack_enabled=True,
    )


def publish_batches(client: pulsar.Client, topic: str) -> None:
    """Batches of a known size."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=OF_A_BATCH,
        batching_max_publish_delay_ms=60_000,
    )
    for batch in range(BATCHES):
        for at in range(OF_A_BATCH):
            producer.send_async(b"batch-%d-%d" % (batch, at), lambda *_: None)
        producer.flush()
    producer.close()


def is_kept(message: str) -> bool:
    """Whether the consumer leaves a message open: the first of all, and holes everywhere; of the
    batches one half, some or nothing."""
    kind, number, *index = message.split("-")
    if kind == "batch":
        return int(number) % 3 == 0 or (int(number) % 3 == 1 and int(index[0]) % 2 == 0)
    return int(number) % 4 == 0


def arrived(server: Standalone, topic: str) -> int:
    """Messages that the topic has, if its subscription is there."""
    found = stats(server, topic)
    return int(found["msgInCounter"]) if "s" in found["subscriptions"] else 0


def take_all(consumer: pulsar.Consumer) -> list[str]:
    """Receive until nothing more comes; nothing is acknowledged."""
    found: list[str] = []
    while True:
        try:
            found.append(consumer.receive(timeout_millis=1_500).data().decode())
        except pulsar.Timeout:
            return found


def test_after_the_death_of_a_cluster_exactly_the_open_messages_come(
    clusters: tuple[Standalone, Standalone],
) -> None:
    east, west = clusters
    at_east, at_west = connect(east.url), connect(west.url)
    topic = f"persistent://{NAMESPACE}/holes"
    producers: list[Any] = [
        each.create_producer(topic, batching_enabled=False) for each in (at_east, at_west)
    ]
    wait_until(lambda: is_connected(east, topic, "west") and is_connected(west, topic, "east"))
    for number in range(SINGLE):
        producers[0].send(b"east-%d" % number)
        producers[1].send(b"west-%d" % number)
    publish_batches(at_east, topic)
    publish_batches(at_west, topic)
    count = 2 * (SINGLE + BATCHES * OF_A_BATCH)
    consumer = subscribe(at_east, topic)
    kept: list[str] = []
    for _ in range(count):
        message = receive(consumer)
        if is_kept(message.data().decode()):
            kept.append(message.data().decode())
        else:
            consumer.acknowledge(message)
    # The last acknowledgement is told with, or behind, all others. Entries count with all messages.
    producers[0].send(b"east-%d" % LAST)
    consumer.acknowledge(receive(consumer))
    batches_kept = sum(is_kept(f"batch-{number}-0") for number in range(BATCHES))
    singles_kept = sum(is_kept(f"east-{number}") for number in range(SINGLE))
    open_there = 2 * (batches_kept * OF_A_BATCH + singles_kept)
    wait_until(lambda: arrived(west, topic) > count and open_messages(west, topic) == open_there)
    east.kill()
    moved = subscribe(at_west, topic)
    assert sorted(take_all(moved)) == sorted(kept)
    at_west.close()
    at_east.close()
