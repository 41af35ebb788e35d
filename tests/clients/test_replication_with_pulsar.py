"""Topics that are copied between Magnetar and a real Apache Pulsar, both ways: `make clients`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String

from tests.clients.pulsar_server import PulsarServer, distribution, pulsar_admin
from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import connect, receive
from tests.standalone import Standalone
from tests.waiting import wait_until

NAMESPACE = "geo/both"
POSITION = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The property by which Apache Pulsar keeps a copy's place; its consumers see it."""

Server = Standalone | PulsarServer


class Flight(Record):  # type: ignore[misc]  # the client has no types
    number = String()


class GatedFlight(Record):  # type: ignore[misc]
    """The next version of the same record."""

    number = String()
    gate = String(required_default=True)


GatedFlight.__name__ = Flight.__name__  # by which the client names the record


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    place = tmp_path_factory.mktemp("pulsar")
    server = PulsarServer(distribution(place / "server"), place / "data", cluster="java")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, java: PulsarServer) -> Iterator[Standalone]:
    settings = {"CLUSTER_NAME": "ours", "REPLICATION_RETRY_S_MAX": "0.5"}
    with Standalone(tmp_path_factory.mktemp("ours") / "data", settings=settings) as server:
        both: Sequence[tuple[Server, str, Server]] = (
            (server, "java", java),
            (java, "ours", server),
        )
        both_names = "java,ours"
        for here, name, other in both:
            for command in (
                f"clusters create {name} --url {other.http_url} --broker-url {other.url}",
                f"tenants create geo --allowed-clusters {both_names}",
                f"namespaces create {NAMESPACE} --clusters {both_names}",
                f"namespaces set-replicator-dispatch-rate {NAMESPACE} -md 100000",
            ):
                pulsar_admin(java.distribution, here.http_url, *command.split())
        yield server
        server.assert_log_clean()


@pytest.fixture
def clients(ours: Standalone, java: PulsarServer) -> Iterator[tuple[pulsar.Client, pulsar.Client]]:
    at_ours, at_java = connect(ours.url), connect(java.url)
    yield at_ours, at_java
    at_ours.close()
    at_java.close()


def is_connected(server: Server, topic: str, remote: str) -> bool:
    found = admin(server, "GET", f"{topic_path(topic)}/stats")["replication"]
    return bool(found.get(remote, {}).get("connected"))


def begin(
    topic: str, clients: tuple[pulsar.Client, pulsar.Client], ours: Standalone, java: PulsarServer
) -> tuple[list[pulsar.Producer], list[pulsar.Consumer]]:
    """Producers and consumers of a topic at ours and at Pulsar, when it is copied both ways."""
    consumers = [each.subscribe(topic, "s") for each in clients]
    producers = [each.create_producer(topic) for each in clients]
    wait_until(lambda: is_connected(ours, topic, "java") and is_connected(java, topic, "ours"))
    return producers, consumers


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [receive(consumer) for _ in range(count)]


def own_properties(message: pulsar.Message) -> dict[str, Any]:
    return {name: value for name, value in message.properties().items() if name != POSITION}


def test_messages_go_both_ways_once_and_in_order(
    ours: Standalone, java: PulsarServer, clients: tuple[pulsar.Client, pulsar.Client]
) -> None:
    topic = f"persistent://{NAMESPACE}/pair"
    producers, consumers = begin(topic, clients, ours, java)
    for n in range(100):
        for name, producer in zip(("ours", "java"), producers, strict=True):
            producer.send(f"{name}-{n}".encode(), properties={"n": str(n)}, partition_key="k")
    for consumer in consumers:
        found = take(consumer, 200)
        for name in ("ours", "java"):
            bodies = [each.data().decode() for each in found]
            assert [each for each in bodies if each.startswith(name)] == [
                f"{name}-{n}" for n in range(100)
            ]
        assert {each.partition_key() for each in found} == {"k"}
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=500)


@pytest.mark.parametrize("at", [0, 1], ids=["to-pulsar", "from-pulsar"])
def test_batches_chunks_and_schemas_arrive_equal(
    at: int, ours: Standalone, java: PulsarServer, clients: tuple[pulsar.Client, pulsar.Client]
) -> None:
    topic = f"persistent://{NAMESPACE}/equal-{at}"
    _, consumers = begin(topic, clients, ours, java)
    reader = consumers[1 - at]
    batched = clients[at].create_producer(
        topic, batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD
    )
    for n in range(50):
        batched.send_async(b"b%d" % n * 50, None, partition_key=f"k{n}", event_timestamp=n + 1)
    batched.flush()
    for n, message in enumerate(take(reader, 50)):
        assert (message.data(), message.partition_key()) == (b"b%d" % n * 50, f"k{n}")
        assert (message.event_timestamp(), own_properties(message)) == (n + 1, {})
    large = bytes(range(256)) * 40_000  # 10 MB, in chunks
    chunked = clients[at].create_producer(topic, chunking_enabled=True, batching_enabled=False)
    chunked.send(large)
    assert receive(reader).data() == large
    typed = f"{topic}-typed"
    begin(typed, clients, ours, java)
    there = clients[1 - at].subscribe(typed, "raw")
    clients[at].create_producer(typed, schema=AvroSchema(Flight)).send(Flight(number="1"))
    clients[at].create_producer(typed, schema=AvroSchema(GatedFlight)).send(
        GatedFlight(number="2", gate="B7")
    )
    take(there, 2)
    records = clients[1 - at].subscribe(
        typed,
        "typed",
        initial_position=pulsar.InitialPosition.Earliest,
        schema=AvroSchema(GatedFlight),
    )
    found = [each.value() for each in take(records, 2)]
    assert [each.number for each in found] == ["1", "2"]
    assert found[1].gate == "B7"


def test_copies_go_on_after_kills_of_both_sides(
    ours: Standalone, java: PulsarServer, clients: tuple[pulsar.Client, pulsar.Client]
) -> None:
    topic = f"persistent://{NAMESPACE}/killed"
    producers, consumers = begin(topic, clients, ours, java)
    producers[0].close()
    producers[1].close()
    sent = 0
    for server in (ours, java):
        for at, client in enumerate(clients):
            producer = client.create_producer(topic)
            for n in range(sent, sent + 50):
                producer.send(f"{at}-{n}".encode())
            producer.close()
        sent += 50
        server.kill()
        server.start()
    for consumer in consumers:
        found: dict[str, None] = {}
        while len(found) < 2 * sent:
            message = receive(consumer)
            found[message.data().decode()] = None
            consumer.acknowledge(message)
        for at in (0, 1):
            own = [each for each in found if each.startswith(f"{at}-")]
            assert own == [f"{at}-{n}" for n in range(sent)]


@pytest.mark.parametrize("at", [0, 1], ids=["to-pulsar", "from-pulsar"])
def test_a_consumer_of_a_replicated_subscription_moves(
    at: int, ours: Standalone, java: PulsarServer, clients: tuple[pulsar.Client, pulsar.Client]
) -> None:
    """Snapshots, responses and updates of either side are what the other one takes them for."""
    topic = f"persistent://{NAMESPACE}/moves-{at}"
    producers, _ = begin(topic, clients, ours, java)
    servers: tuple[Server, Server] = (ours, java)

    def subscribe(client: pulsar.Client) -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "moving",
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )

    def is_told(server: Server, backlog_max: int) -> bool:
        """A message more, which is acknowledged: Pulsar takes snapshots while messages come."""
        producers[at].send(b"more")
        message = receive(consumer)
        consumer.acknowledge(message)
        acked.append(message.data().decode())
        found = admin(server, "GET", f"{topic_path(topic)}/stats")["subscriptions"].get("moving")
        return found is not None and found["msgBacklog"] < backlog_max

    consumer = subscribe(clients[at])
    acked: list[str] = []
    for n in range(100):
        for name, producer in zip(("ours", "java"), producers, strict=True):
            producer.send(f"{name}-{n}".encode())
    for _ in range(200):
        message = receive(consumer)
        consumer.acknowledge(message)
        acked.append(message.data().decode())
    expected = {f"{name}-{n}" for name in ("ours", "java") for n in range(100)}
    assert set(acked) == expected
    wait_until(lambda: is_told(servers[1 - at], 100), within_s=90)
    consumer.close()
    moved = subscribe(clients[1 - at])
    producers[1 - at].send(b"last")
    again: list[str] = []
    while "last" not in again:
        message = receive(moved)
        moved.acknowledge(message)
        again.append(message.data().decode())
    assert len(expected & set(again)) < 100


def partitions(server: Server, topic: str) -> int:
    path = f"{topic_path(topic)}/partitions?checkAllowAutoCreation=false"
    answer = call(server, "GET", path)
    return int(answer.json["partitions"]) if answer.status == 200 else 0


@pytest.mark.parametrize("first", ["ours", "java"])
def test_a_partitioned_topic_is_created_at_the_other_side_and_grows_there(
    ours: Standalone,
    java: PulsarServer,
    clients: tuple[pulsar.Client, pulsar.Client],
    first: str,
) -> None:
    topic = f"persistent://{NAMESPACE}/parts-of-{first}"
    here, there = (ours, java) if first == "ours" else (java, ours)
    at_here, at_there = clients if first == "ours" else reversed(clients)
    path = f"{topic_path(topic)}/partitions"
    call(here, "PUT", path, 2, expect=204)
    wait_until(lambda: partitions(there, topic) == 2)
    reader = at_there.subscribe(topic, "s")
    producer = at_here.create_producer(topic)
    remote = "java" if first == "ours" else "ours"
    for index in range(2):
        part = f"{topic}-partition-{index}"
        wait_until(lambda part=part: is_connected(here, part, remote))  # type: ignore[misc]
    for n in range(10):
        producer.send(b"%d" % n, partition_key=f"k{n}")
    assert sorted(int(each.data()) for each in take(reader, 10)) == list(range(10))
    call(here, "POST", path, 3, expect=204)
    wait_until(lambda: partitions(there, topic) == 3)
