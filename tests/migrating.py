"""Shared by tests of `magnetar migrate`: a filled source, the migrating process, and the checks.

The source has content of every kind. The checks compare what official clients get at the target.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pulsar
from pulsar.schema import AvroSchema, Record, String

from tests.http_calls import HasHttp, admin, call, topic_path
from tests.processes import ServerProcess, magnetar_command
from tests.waiting import wait_until

TENANT = "acme"
NAMESPACE = "acme/orders"
EXIT_S = 120.0
RECEIVE_MS = 30_000
BULK = 10_000
"""Number of messages of the largest topic."""
ODD_NAME = "a:b/c ü+d%3A"
"""A subscription whose name is encoded differently in paths, in the metadata store and in the
internal statistics of a Pulsar."""
ODD_TOPIC = "a:b ü+d%3A"
"""A topic whose name is encoded differently in paths of a Pulsar, and in those of schemas there."""


class Cluster(HasHttp, Protocol):
    """A server of either kind, Pulsar or Magnetar."""

    @property
    def url(self) -> str: ...


class FlightV0(Record):  # type: ignore[misc]  # the client has no types
    number = String()


class FlightV1(Record):  # type: ignore[misc]
    number = String()
    gate = String(required_default=True)


class FlightV2(Record):  # type: ignore[misc]
    number = String()
    gate = String(required_default=True)
    seat = String(required_default=True)


FLIGHTS = (FlightV0, FlightV1, FlightV2)
for _each in FLIGHTS:
    _each.__name__ = "Flight"  # the client names the record by it


def topic(name: str, namespace: str = NAMESPACE) -> str:
    return f"persistent://{namespace}/{name}"


class Migration:
    """`magnetar migrate` between two servers: start, kill -9, start again."""

    def __init__(
        self, place: Path, source: Cluster, target: Cluster, *, namespaces: str = NAMESPACE
    ) -> None:
        place.mkdir(exist_ok=True)
        self.state = place / "state"
        self.log_path = place / "migrate.log"
        self._urls = [
            *("--from", source.url, "--from-admin", source.http_url),
            *("--to", target.url, "--to-admin", target.http_url),
            *("--namespaces", namespaces),
        ]
        self._starts = 0
        self._process: ServerProcess | None = None

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start the migration, or continue it: the state directory then has the options."""
        arguments = self._urls if self._starts == 0 else []
        self._starts += 1
        self._process = ServerProcess(
            magnetar_command("migrate", "--state", str(self.state), *arguments),
            log_path=self.log_path,
            is_ready=lambda line: line.startswith("following"),
        )
        self._process.wait_ready(EXIT_S)

    def kill(self) -> None:
        """Kill it with kill -9."""
        self.process.kill()

    def wait_exit(self, within_s: float = EXIT_S) -> int:
        """Wait until the process ends by itself, and return its exit status."""
        return self.process.wait_exit(within_s)

    @property
    def log(self) -> str:
        """Everything printed so far, over all starts."""
        return self.log_path.read_text()

    def messages(self, name: str) -> int:
        """Return how many messages of a topic are copied, according to the state directory."""
        counts: dict[tuple[str, str], int] = {}
        for path in (self.state / "topics").glob(f"*{name}*.runs"):
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 6:
                    counts[fields[0] + path.name, fields[1]] = int(fields[5])
        return sum(counts.values())

    @property
    def report(self) -> dict[str, Any]:
        """The last report."""
        return dict(json.loads((self.state / "report.json").read_text()))


@dataclass
class Content:
    """Content of the source, and what each subscription must get at the target."""

    client: pulsar.Client
    source: Cluster
    left: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    """Payloads that a subscription has not acknowledged, by topic and subscription."""
    ordered: set[str] = field(default_factory=set)
    """Topics whose subscriptions get all messages in order."""
    namespace: str = NAMESPACE

    def publish(self, name: str, payloads: Iterable[bytes], **settings: Any) -> None:
        """Publish with a key, a property and an event time each, and wait for all."""
        full_name = topic(name, self.namespace)
        producer = self.client.create_producer(full_name, block_if_queue_full=True, **settings)
        for n, payload in enumerate(payloads):
            producer.send_async(
                payload,
                None,
                partition_key=f"k{n % 7}",
                properties={"n": str(n)},
                event_timestamp=n + 1,
            )
        producer.flush()
        producer.close()

    def consume(
        self,
        name: str,
        subscription: str,
        kind: pulsar.ConsumerType,
        expected: int,
        is_acked: Callable[[int], bool],
        *,
        partly: bool = False,
    ) -> None:
        """Receive all messages, acknowledge some one by one, and note the others."""
        consumer = self.client.subscribe(
            topic(name, self.namespace),
            subscription,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=partly,
        )
        left = []
        for _ in range(expected):
            message = consumer.receive(timeout_millis=RECEIVE_MS)
            if is_acked(int(message.properties()["n"])):
                consumer.acknowledge(message)
            else:
                left.append(message.data())
        consumer.close()
        self.left[name, subscription] = left


def fill(content: Content) -> None:
    """Put content of every kind into the source."""
    source = content.source
    admin_roles = {"adminRoles": ["boss"], "allowedClusters": admin(source, "GET", "clusters")}
    call(source, "PUT", f"tenants/{TENANT}", admin_roles, expect=204)
    record = {"bundles": {"numBundles": 8}, "properties": {"stage": "test"}}
    call(source, "PUT", f"namespaces/{NAMESPACE}", record, expect=204)
    policies(source)
    payloads = [b"m%d" % n for n in range(300)]
    content.publish("plain", payloads, batching_enabled=False)
    content.consume("plain", "half", pulsar.ConsumerType.Exclusive, 300, lambda n: n < 150)
    content.consume("plain", "holes", pulsar.ConsumerType.Shared, 300, lambda n: n % 3 == 0)
    content.consume("plain", "done", pulsar.ConsumerType.Exclusive, 300, lambda _: True)
    content.consume("plain", ODD_NAME, pulsar.ConsumerType.Exclusive, 300, lambda n: n < 100)
    content.publish("keyed", payloads, batching_enabled=False)
    content.consume("keyed", "holes", pulsar.ConsumerType.KeyShared, 300, lambda n: n % 5 > 1)
    call(source, "PUT", f"{topic_path(topic('parts'))}/partitions", 3, expect=204)
    content.publish("parts", payloads, batching_enabled=False)
    content.consume("parts", "holes", pulsar.ConsumerType.Shared, 300, lambda n: n % 2 == 0)
    content.publish(
        "batches",
        payloads,
        batching_enabled=True,
        batching_max_messages=20,
        batching_max_publish_delay_ms=1_000,
        compression_type=pulsar.CompressionType.ZLib,
    )
    content.ordered |= {"plain", "keyed", "batches"}
    content.publish(
        "bulk", (b"b%d" % n for n in range(BULK)), batching_enabled=True, batching_max_messages=3
    )
    content.left["bulk", "from-start"] = [b"b%d" % n for n in range(BULK)]
    content.ordered.add("bulk")
    content.client.subscribe(
        topic("bulk"), "from-start", initial_position=pulsar.InitialPosition.Earliest
    ).close()
    chunks(content)
    versions(content)
    content.client.subscribe(topic("empty"), "waiting").close()
    content.left["empty", "waiting"] = []


def consume_batches(content: Content) -> None:
    """Acknowledge every fourth message of the batches, which leaves no batch acknowledged whole."""
    content.consume(
        "batches", "holes", pulsar.ConsumerType.Shared, 300, lambda n: n % 4 == 0, partly=True
    )


def policies(source: Cluster) -> None:
    """Set policies of the namespace and of topics, and permissions."""
    base = f"namespaces/{NAMESPACE}"
    retention = {"retentionTimeInMinutes": 600, "retentionSizeInMB": 100}
    call(source, "POST", f"{base}/retention", retention, expect=204)
    call(source, "POST", f"{base}/messageTTL", 86_400, expect=204)
    call(source, "POST", f"{base}/permissions/clerk", ["consume"], expect=204)
    quota = {"limitSize": 50 << 20, "limitTime": -1, "policy": "producer_request_hold"}
    call(source, "POST", f"{base}/backlogQuota", quota, expect=204)
    call(source, "PUT", f"{base}/schemaCompatibilityStrategy", "BACKWARD", expect=204)
    call(source, "PUT", topic_path(topic("plain")), {"owner": "sales"}, expect=204)
    call(source, "POST", f"{topic_path(topic('plain'))}/maxProducers", 9, expect=204)


def chunks(content: Content) -> None:
    """Publish a message of several entries, with a subscription at its start and a message after
    it."""
    large = bytes(range(256)) * 40_000
    producer = content.client.create_producer(
        topic("chunks"), chunking_enabled=True, batching_enabled=False
    )
    producer.send(large, properties={"n": "0"})
    producer.send(b"small", properties={"n": "1"})
    producer.close()
    content.client.subscribe(
        topic("chunks"), "all", initial_position=pulsar.InitialPosition.Earliest
    ).close()
    content.left["chunks", "all"] = [large, b"small"]
    content.ordered.add("chunks")


def versions(content: Content) -> None:
    """Publish three versions of a schema to one topic, and one to a topic with an odd name."""
    for number, flight in enumerate(FLIGHTS):
        fields = {"number": str(number), "gate": "B7", "seat": "1A"}
        names = [name for name in fields if hasattr(flight, name)]
        producer = content.client.create_producer(topic("typed"), schema=AvroSchema(flight))
        producer.send(flight(**{name: fields[name] for name in names}))
        producer.close()
    producer = content.client.create_producer(topic(ODD_TOPIC), schema=AvroSchema(FlightV0))
    producer.send(FlightV0(number="0"))
    producer.close()
    for name in ("typed", ODD_TOPIC):
        content.client.subscribe(
            topic(name), "all", initial_position=pulsar.InitialPosition.Earliest
        ).close()


class Live:
    """A producer that publishes to the source until it is stopped; a consumer may use the topic
    too."""

    def __init__(self, client: pulsar.Client) -> None:
        self.sent = 0
        # Longer than the source is away: a send that fails may be stored nevertheless.
        self._producer = client.create_producer(
            topic("live"), batching_enabled=False, send_timeout_millis=180_000
        )
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        client.subscribe(
            topic("live"), "all", initial_position=pulsar.InitialPosition.Earliest
        ).close()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self._producer.send(b"l%d" % self.sent)
            except pulsar.PulsarException:
                return  # the test has failed, and closed the client
            self.sent += 1

    def advance(self, count: int = 100) -> None:
        """Wait until so many more messages are sent."""
        until = self.sent + count
        wait_until(lambda: self.sent >= until or not self._thread.is_alive())

    def stop(self) -> None:
        """Stop sending; the producer stays connected."""
        self._is_stopped.set()
        self._thread.join()

    def leave(self) -> None:
        """Close the producer."""
        self._producer.close()


def judge(content: Content, target: pulsar.Client) -> None:
    """Check that every subscription gets its remaining messages at the target, with all
    attributes."""
    for (name, subscription), expected in content.left.items():
        kind = (
            pulsar.ConsumerType.Shared if subscription == "holes" else pulsar.ConsumerType.Exclusive
        )
        consumer = target.subscribe(
            topic(name), subscription, consumer_type=kind, batch_index_ack_enabled=True
        )
        messages = [consumer.receive(timeout_millis=RECEIVE_MS) for _ in expected]
        found = [each.data() for each in messages]
        if name in content.ordered:
            assert found == expected, (name, subscription)
        else:
            assert sorted(found) == sorted(expected), (name, subscription)
        for each in messages:
            if name not in ("chunks", "empty", "live"):
                n = int(each.properties()["n"])
                assert (each.partition_key(), each.event_timestamp()) == (f"k{n % 7}", n + 1)
        marker = b"published at the target"
        producer = target.create_producer(topic(name))
        producer.send(marker)
        producer.close()
        assert consumer.receive(timeout_millis=RECEIVE_MS).data() == marker, (name, subscription)
        consumer.close()


def judge_versions(source: Cluster, target: Cluster, client: pulsar.Client) -> None:
    """Check that the schemas have their version numbers, and that messages of all versions can be
    read."""
    path = f"schemas/{NAMESPACE}/typed/schemas"
    listed = [
        [
            (each["version"], each["type"], json.loads(each["data"]))
            for each in admin(server, "GET", path)["getSchemaResponses"]
        ]
        for server in (source, target)
    ]
    assert listed[0] == listed[1]
    assert [each[0] for each in listed[0]] == [0, 1, 2]
    odd = f"schemas/{NAMESPACE}/{quote(ODD_TOPIC, safe='')}/schemas"
    assert [each["version"] for each in admin(target, "GET", odd)["getSchemaResponses"]] == [0]
    consumer = client.subscribe(topic("typed"), "all", schema=AvroSchema(FlightV2))
    values = [consumer.receive(timeout_millis=RECEIVE_MS).value() for _ in FLIGHTS]
    assert [(each.number, each.seat) for each in values] == [("0", None), ("1", None), ("2", "1A")]
    consumer.close()
    consumer = client.subscribe(topic(ODD_TOPIC), "all", schema=AvroSchema(FlightV0))
    assert consumer.receive(timeout_millis=RECEIVE_MS).value().number == "0"
    consumer.close()


def judge_policies(target: Cluster) -> None:
    """Check that the policies of the source are set at the target."""
    found = admin(target, "GET", f"namespaces/{NAMESPACE}")
    assert found["retention_policies"] == {"retentionTimeInMinutes": 600, "retentionSizeInMB": 100}
    assert found["message_ttl_in_seconds"] == 86_400
    assert found["schema_compatibility_strategy"] == "BACKWARD"
    assert found["auth_policies"]["namespace_auth"] == {"clerk": ["consume"]}
    assert found["bundles"]["numBundles"] == 8
    assert found["properties"] == {"stage": "test"}
    assert found["backlog_quota_map"]["destination_storage"]["limitSize"] == 50 << 20
    assert admin(target, "GET", f"{topic_path(topic('plain'))}/maxProducers") == 9
    assert admin(target, "GET", f"{topic_path(topic('plain'))}/properties") == {"owner": "sales"}
    assert admin(target, "GET", f"tenants/{TENANT}")["adminRoles"] == ["boss"]
