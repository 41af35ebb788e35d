"""The official client with a service URL of HTTP: it asks there, and connects as ever."""

import re
from collections.abc import Iterator

import pulsar
import pytest
from pulsar.schema import AvroSchema

from tests.integration.pulsar_client.support import connect, publish, receive, receive_payloads
from tests.integration.pulsar_client.test_partitioned import create
from tests.integration.pulsar_client.test_schemas import User, UserWithMail, subscribe
from tests.standalone import Standalone


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    connection = connect(server.http_url, log_path=server.log_path.with_suffix(".client.log"))
    yield connection
    connection.close()


@pytest.mark.parametrize("ending", ["", " ü+%2F~"])
@pytest.mark.parametrize("domain", ["", "non-"])
def test_messages_pass(client: pulsar.Client, topic: str, domain: str, ending: str) -> None:
    name = domain + topic + ending
    consumer = client.subscribe(name, "s")
    publish(client.create_producer(name), [b"one", b"two"])
    assert receive_payloads(consumer, 2) == [b"one", b"two"]
    consumer.unsubscribe()


def test_partitions_are_found(client: pulsar.Client, server: Standalone, topic: str) -> None:
    create(server, topic)
    parts = client.get_topic_partitions(topic)
    assert len(parts) > 1
    consumer = client.subscribe(topic, "s")
    payloads = [b"%d" % number for number in range(10)]
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    publish(producer, payloads)
    assert sorted(receive_payloads(consumer, 10)) == payloads


def test_a_pattern_is_matched(client: pulsar.Client, topic: str) -> None:
    for letter in (b"a", b"b"):
        publish(client.create_producer(f"{topic}-{letter.decode()}"), [letter])
    consumer = client.subscribe(
        re.compile(f"{topic}-[ab]"), "s", initial_position=pulsar.InitialPosition.Earliest
    )
    assert sorted(receive_payloads(consumer, 2)) == [b"a", b"b"]


def test_schemas_of_former_versions_are_fetched(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(User)).send(User(name="a", age=1))
    later = UserWithMail(name="b", age=2, mail="b@c")
    client.create_producer(topic, schema=AvroSchema(UserWithMail)).send(later)
    consumer = subscribe(client, topic, AvroSchema(UserWithMail))
    assert [receive(consumer).value().mail for _ in range(2)] == ["none", "b@c"]
