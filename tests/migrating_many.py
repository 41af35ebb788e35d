"""A migration of any size, killed on the way: fills the source, moves it, and checks the target.

Topics are of five kinds, with several versions of schemas, and subscriptions with holes. `make
migration-proof` moves 50 topics with 1,000,000 messages from an Apache Pulsar. Tests move fewer,
from there and from a standalone of Magnetar.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pulsar
from pulsar.schema import AvroSchema

from tests.http_calls import admin, call, topic_path
from tests.integration.deploy.commands import magnetar
from tests.integration.pulsar_client.support import connect
from tests.migrating import FLIGHTS, RECEIVE_MS, Cluster, Content, Migration, topic
from tests.waiting import wait_until

NAMESPACE = "acme/many"
_PARTITIONS = 3
_RUN = 7
"""Length of the runs of messages that are acknowledged, and not acknowledged, in turn: one message
of each key."""
_WITHIN_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of content to move."""

    topics: int
    messages: int
    """Number of messages in all topics together."""
    kills: int

    @property
    def of_topic(self) -> int:
        """Number of messages of each topic."""
        return self.messages // self.topics


def move_many(source: Cluster, target: Cluster, place: Path, size: Size) -> None:
    """Fill the source, move it, and compare what official clients get at the target."""
    at_source, at_target = connect(source.url), connect(target.url)
    try:
        content = Content(at_source, source, namespace=NAMESPACE)
        _fill(content, size)
        migration = Migration(place, source, target, namespaces=NAMESPACE)
        migration.start()
        for number in range(1, size.kills + 1):
            share = size.messages * number // (size.kills + 1)
            has_moved = partial(_has_moved, migration, share)
            wait_until(has_moved, f"{share} messages are moved", within_s=_WITHIN_S)
            migration.kill()
            _say(f"kill {number}: {migration.messages('many')} messages are moved")
            migration.start()
        ended = magnetar("migrate", "--state", str(migration.state), "--cut-over")
        assert ended.status == 0, ended
        assert migration.wait_exit(_WITHIN_S) == 0, migration.log
        assert migration.report["differences"] == []
        _say("the report shows no difference")
        _judge(content, source, target, at_target)
    finally:
        at_source.close()
        at_target.close()


def _has_moved(migration: Migration, messages: int) -> bool:
    return migration.messages("many") >= messages


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _fill(content: Content, size: Size) -> None:
    source = content.source
    clusters = admin(source, "GET", "clusters")
    roles = {"adminRoles": [], "allowedClusters": clusters}
    if "acme" not in admin(source, "GET", "tenants"):
        call(source, "PUT", "tenants/acme", roles, expect=204)
    call(source, "PUT", f"namespaces/{NAMESPACE}", {}, expect=204)
    strategy = f"namespaces/{NAMESPACE}/schemaCompatibilityStrategy"
    call(source, "PUT", strategy, "BACKWARD", expect=204)
    kinds = (_plain, _shared, _key_shared, _parted, _typed)
    for number in range(size.topics):
        fill = kinds[number % len(kinds)]
        fill(content, f"{fill.__name__.strip('_')}-{number}", size.of_topic)
        _say(f"{number + 1} of {size.topics} topics are filled")


def _payloads(count: int) -> list[bytes]:
    return [b"m%d" % n for n in range(count)]


def _is_acked(number: int) -> bool:
    return number // _RUN % 2 == 0


def _plain(content: Content, name: str, count: int) -> None:
    """Fill a topic with batches, of which none is acknowledged."""
    content.client.subscribe(
        topic(name, NAMESPACE), "all", initial_position=pulsar.InitialPosition.Earliest
    ).close()
    content.publish(name, _payloads(count), batching_enabled=True, batching_max_messages=10)
    content.left[name, "all"] = _payloads(count)


def _shared(content: Content, name: str, count: int) -> None:
    content.publish(name, _payloads(count), batching_enabled=False)
    content.consume(name, "holes", pulsar.ConsumerType.Shared, count, _is_acked)


def _key_shared(content: Content, name: str, count: int) -> None:
    content.publish(name, _payloads(count), batching_enabled=False)
    content.consume(name, "holes", pulsar.ConsumerType.KeyShared, count, _is_acked)


def _parted(content: Content, name: str, count: int) -> None:
    path = f"{topic_path(topic(name, NAMESPACE))}/partitions"
    call(content.source, "PUT", path, _PARTITIONS, expect=204)
    _shared(content, name, count)


def _typed(content: Content, name: str, count: int) -> None:
    """Fill a topic with messages of three schema versions, one version after the other."""
    full_name = topic(name, NAMESPACE)
    content.client.subscribe(
        full_name, "all", initial_position=pulsar.InitialPosition.Earliest
    ).close()
    left: list[bytes] = []
    for version, flight in enumerate(FLIGHTS):
        schema = AvroSchema(flight)
        producer = content.client.create_producer(
            full_name, schema=schema, block_if_queue_full=True, batching_enabled=True
        )
        for n in range(version, count, len(FLIGHTS)):
            value = flight(number=str(n))
            left.append(schema.encode(value))
            producer.send_async(value, None)
        producer.flush()
        producer.close()
    content.left[name, "all"] = left


def _judge(content: Content, source: Cluster, target: Cluster, client: pulsar.Client) -> None:
    """Check that each subscription gets its remaining messages at the target, then new ones."""
    for (name, subscription), expected in content.left.items():
        full_name = topic(name, NAMESPACE)
        kind = (
            pulsar.ConsumerType.Shared if subscription == "holes" else pulsar.ConsumerType.Exclusive
        )
        consumer = client.subscribe(full_name, subscription, consumer_type=kind)
        found = [consumer.receive(timeout_millis=RECEIVE_MS).data() for _ in expected]
        in_order: Callable[[list[bytes]], list[bytes]] = sorted if "parted" in name else list
        assert in_order(found) == in_order(expected), (name, subscription)
        if name.startswith("typed"):
            assert _schemas(source, name) == _schemas(target, name), name
        else:
            marker = b"published at the target"
            producer = client.create_producer(full_name)
            producer.send(marker)
            producer.close()
            assert consumer.receive(timeout_millis=RECEIVE_MS).data() == marker, name
        consumer.close()


def _schemas(server: Cluster, name: str) -> list[tuple[int, str, object]]:
    listed = admin(server, "GET", f"schemas/{NAMESPACE}/{name}/schemas")["getSchemaResponses"]
    found = [(each["version"], each["type"], json.loads(each["data"])) for each in listed]
    assert [each[0] for each in found] == list(range(len(FLIGHTS))), found
    return found
