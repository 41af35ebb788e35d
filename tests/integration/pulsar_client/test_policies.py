"""Tenants, namespaces and policies with the official client: plain and partitioned topics, over a
kill of the server and an unload."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.http_calls import admin, topic_path
from tests.integration.pulsar_client.support import connect, publish, receive_payloads
from tests.standalone import Standalone

_numbers = itertools.count()

PARTITIONS = 3


Rest = Callable[..., Any]
"""A request to the server that must succeed: method, path behind /admin/v2/, body."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A server that these tests may kill."""
    with Standalone(tmp_path_factory.mktemp("policies") / "data") as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def rest(own: Standalone) -> Rest:
    def run(method: str, path: str, body: object = None) -> Any:
        return admin(own, method, path, body)

    return run


@pytest.fixture
def connected(own: Standalone, tmp_path: Path) -> Iterator[pulsar.Client]:
    client = connect(own.url, log_path=tmp_path / "client.log")
    yield client
    client.close()


@pytest.fixture
def namespace(rest: Rest) -> str:
    """One of its own for each test."""
    name = f"public/policies-{next(_numbers)}"
    rest("PUT", f"namespaces/{name}")
    return name


@pytest.fixture(params=[0, PARTITIONS])
def topic(
    request: pytest.FixtureRequest, connected: pulsar.Client, rest: Rest, namespace: str
) -> str:
    """A plain and a partitioned topic in that namespace; it exists."""
    if request.param:
        rest("PUT", f"persistent/{namespace}/topic/partitions", request.param)
    connected.create_producer(f"persistent://{namespace}/topic").close()
    return f"persistent://{namespace}/topic"


def interrupted(how: str, own: Standalone, rest: Rest, namespace: str) -> Callable[[], None]:
    """What a policy must outlive."""
    if how == "unload":
        return lambda: rest("PUT", f"namespaces/{namespace}/unload")

    def restart() -> None:
        own.kill()
        own.start()

    return restart


@pytest.mark.parametrize(("how", "level"), [("unload", "namespace"), ("kill", "topic")])
def test_the_most_producers_count_after_an_interruption_and_no_longer_when_removed(
    own: Standalone, rest: Rest, namespace: str, topic: str, how: str, level: str, tmp_path: Path
) -> None:
    path = (
        f"namespaces/{namespace}/maxProducersPerTopic"
        if level == "namespace"
        else f"{topic_path(topic)}/maxProducers"
    )
    rest("POST", path, 1)
    clients = [connect(own.url, log_path=tmp_path / f"client-{number}.log") for number in (0, 1)]
    holder = clients[0].create_producer(topic)
    publish(holder, [b"before"] * PARTITIONS)
    interrupted(how, own, rest, namespace)()
    publish(holder, [b"after"] * PARTITIONS)  # on every partition: it is back
    with pytest.raises(pulsar.ProducerBusy):
        clients[1].create_producer(topic)
    rest("DELETE", path)
    publish(clients[1].create_producer(topic), [b"more"])
    for client in clients:
        client.close()


@pytest.mark.parametrize("batching", [False, True])
def test_a_namespace_that_was_made_serves_messages(
    connected: pulsar.Client, topic: str, batching: bool
) -> None:
    consumer = connected.subscribe(topic, "s")
    producer = connected.create_producer(topic, batching_enabled=batching)
    payloads = [b"%d" % number for number in range(50)]
    publish(producer, payloads)
    assert sorted(receive_payloads(consumer, len(payloads))) == sorted(payloads)


@pytest.mark.parametrize("unknown", ["nobody/default", "public/nowhere"])
def test_what_does_not_exist_is_not_found(connected: pulsar.Client, unknown: str) -> None:
    topic = f"persistent://{unknown}/topic"
    with pytest.raises(pulsar.exceptions.TopicNotFound):
        connected.create_producer(topic)
    with pytest.raises(pulsar.exceptions.TopicNotFound):
        connected.subscribe(topic, "s")
    with pytest.raises(pulsar.exceptions.TopicNotFound):
        connected.create_reader(topic, pulsar.MessageId.earliest)


def test_topics_appear_as_their_namespace_says(
    connected: pulsar.Client, rest: Rest, namespace: str
) -> None:
    path = f"namespaces/{namespace}/autoTopicCreation"
    rest("POST", path, {"allowAutoTopicCreation": False})
    for use in (connected.create_producer, lambda name: connected.subscribe(name, "s")):
        with pytest.raises(pulsar.exceptions.TopicNotFound):
            use(f"persistent://{namespace}/never")
    partitioned = {"topicType": "partitioned", "defaultNumPartitions": PARTITIONS}
    rest("POST", path, {"allowAutoTopicCreation": True, **partitioned})
    topic = f"persistent://{namespace}/appears"
    connected.create_producer(topic).close()
    assert len(connected.get_topic_partitions(topic)) == PARTITIONS
    rest("DELETE", path)
    plain = f"persistent://{namespace}/plain"
    connected.create_producer(plain).close()
    assert connected.get_topic_partitions(plain) == [plain]


def test_limits_on_consumers_and_types_are_told_as_pulsar_does(
    connected: pulsar.Client, rest: Rest, topic: str
) -> None:
    rest("POST", f"{topic_path(topic)}/maxConsumersPerSubscription", 1)
    shared = pulsar.ConsumerType.Shared
    first = connected.subscribe(topic, "s", consumer_type=shared)
    with pytest.raises(pulsar.ConsumerBusy):
        connected.subscribe(topic, "s", consumer_type=shared)
    first.close()
    rest("DELETE", f"{topic_path(topic)}/maxConsumersPerSubscription")
    rest("POST", f"{topic_path(topic)}/subscriptionTypesEnabled", ["Exclusive", "Failover"])
    with pytest.raises(pulsar.exceptions.NotAllowedError):
        connected.subscribe(topic, "s", consumer_type=shared)
    connected.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover).close()


def test_a_full_namespace_refuses_the_next_topic(
    connected: pulsar.Client, rest: Rest, namespace: str
) -> None:
    rest("POST", f"namespaces/{namespace}/maxTopicsPerNamespace", 1)
    connected.create_producer(f"persistent://{namespace}/first").close()
    with pytest.raises(pulsar.exceptions.NotAllowedError):
        connected.create_producer(f"persistent://{namespace}/second")
