"""What lies in the cluster before the upgrade and must be there, unchanged, after it.

A tenant with a namespace whose policies are set; a topic with policies of its own, two versions of
a schema and two subscriptions that have holes; a partitioned topic. No client uses them meanwhile.
`look` asks a broker for all that it says of them, `missing` compares two looks.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pulsar

from tests.http_calls import follow
from tests.integration.pulsar_client.support import connect

TENANT = "shop"
NAMESPACE = f"{TENANT}/orders"
KEPT = f"persistent://{NAMESPACE}/kept"
PARTED = f"persistent://{NAMESPACE}/parted"
PARTITIONS = 3
MESSAGES = 60
ACKED_UP_TO = 20
"""The subscription `upto` has acknowledged so many."""
TWICE = "kept-writer"
"""The producer of the topic, which numbers its messages itself."""
_TIMEOUT_MS = 20_000
_QUIET_MS = 2_000

_NAMESPACE_POLICIES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "retention", {"retentionTimeInMinutes": 600, "retentionSizeInMB": 64}),
    ("POST", "messageTTL", 86_400),
    ("POST", "deduplication", True),
    ("POST", "maxConsumersPerTopic", 11),
    ("PUT", "schemaCompatibilityStrategy", "BACKWARD"),
    ("POST", "permissions/clerk", ["produce", "consume"]),
)
_TOPIC_POLICIES: tuple[tuple[str, Any], ...] = (
    ("maxConsumers", 7),
    ("retention", {"retentionTimeInMinutes": 900, "retentionSizeInMB": 65}),
    ("messageTTL?messageTTL=7200", None),
)
_SCHEMAS = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"note","type":["null","string"],"default":null}]}',
)
_SHARED = pulsar.ConsumerType.Shared


def fill(http_url: str, url: str) -> None:
    """Make everything, with the official client and over HTTP."""
    clusters = follow(http_url, "GET", "clusters").ok()
    roles = {"adminRoles": ["boss"], "allowedClusters": clusters}
    follow(http_url, "PUT", f"tenants/{TENANT}", roles, expect=204)
    follow(http_url, "PUT", f"namespaces/{NAMESPACE}", {}).ok()
    for method, name, value in _NAMESPACE_POLICIES:
        follow(http_url, method, f"namespaces/{NAMESPACE}/{name}", value).ok()
    follow(http_url, "PUT", f"persistent/{NAMESPACE}/parted/partitions", PARTITIONS).ok()
    follow(http_url, "PUT", f"persistent/{NAMESPACE}/kept").ok()
    for text in _SCHEMAS:
        schema = {"type": "AVRO", "schema": text, "properties": {}}
        follow(http_url, "POST", f"schemas/{NAMESPACE}/kept/schema", schema).ok()
    for name, value in _TOPIC_POLICIES:
        follow(http_url, "POST", f"persistent/{NAMESPACE}/kept/{name}", value).ok()
    client = connect(url)
    try:
        _fill_kept(client)
        _fill_parted(client)
    finally:
        client.close()


def deduplicate(http_url: str, namespace: str) -> None:
    """Have the topics of a namespace store no message twice."""
    follow(http_url, "POST", f"namespaces/{namespace}/deduplication", True).ok()


def _fill_kept(client: pulsar.Client) -> None:
    single = client.subscribe(KEPT, "holes", consumer_type=_SHARED)
    upto = client.subscribe(KEPT, "upto")
    producer = client.create_producer(KEPT, producer_name=TWICE)
    for number in range(MESSAGES):
        producer.send(b"%d" % number, sequence_id=number, partition_key=f"key-{number % 5}")
    for number in range(MESSAGES):
        message = single.receive(_TIMEOUT_MS)
        if number % 2:
            single.acknowledge(message)
    for _ in range(ACKED_UP_TO):
        last = upto.receive(_TIMEOUT_MS)
    upto.acknowledge_cumulative(last)
    for each in (single, upto, producer):
        each.close()


def _fill_parted(client: pulsar.Client) -> None:
    consumer = client.subscribe(PARTED, "all")
    producer = client.create_producer(PARTED)
    for number in range(MESSAGES):
        producer.send(b"%d" % number, partition_key=f"key-{number % 7}")
    consumer.close()
    producer.close()


def look(http_url: str) -> dict[str, Any]:
    """Return what a broker says of all that lies there."""
    kept, parted = f"persistent/{NAMESPACE}/kept", f"persistent/{NAMESPACE}/parted"
    paths = (
        "tenants",
        f"tenants/{TENANT}",
        f"namespaces/{TENANT}",
        f"namespaces/{NAMESPACE}",
        f"namespaces/{NAMESPACE}/permissions",
        f"persistent/{NAMESPACE}",
        f"persistent/{NAMESPACE}/partitioned",
        f"{parted}/partitions",
        f"{kept}/subscriptions",
        f"{kept}/maxConsumers",
        f"{kept}/retention",
        f"{kept}/messageTTL",
        f"schemas/{NAMESPACE}/kept/schemas",
    )
    found = {path: follow(http_url, "GET", path).ok() for path in paths}
    stats = follow(http_url, "GET", f"{kept}/internalStats").ok()
    found["cursors"] = {
        name: {
            "everything before": _place(cursor["markDeletePosition"]),
            "and also": cursor["individuallyDeletedMessages"],
        }
        for name, cursor in stats["cursors"].items()
    }
    return found


def _place(position: str) -> str:
    """Return a position as text. The beginning of the topic is shown in more than one way."""
    return "the beginning" if position.endswith(":-1") else position


def missing(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Tell what an earlier look had, and a later one has not. More than before is no difference."""
    if isinstance(before, Mapping):
        for key, value in before.items():
            there = after.get(key) if isinstance(after, Mapping) else None
            yield from missing(value, there, f"{path}/{key}" if path else str(key))
    elif before is not None and _sorted(before) != _sorted(after):
        yield f"{path}: there was {before!r}, there is {after!r}"


def _sorted(value: Any) -> Any:
    """Return a value of JSON that does not depend on the order of its names."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return sorted(value)
    return value


def read_rest(url: str) -> list[str]:
    """Take what the subscriptions still have to get; return what is wrong with it."""
    client = connect(url)
    try:
        problems = _wrong_kept(client)
        found = _numbers(client.subscribe(PARTED, "all"), MESSAGES)
        problems += wrong_of_keys(found)
    finally:
        client.close()
    return problems


def _wrong_kept(client: pulsar.Client) -> list[str]:
    # Its own numbers again: the topic knows them, and stores nothing.
    producer = client.create_producer(KEPT, producer_name=TWICE)
    producer.send(b"twice", sequence_id=MESSAGES - 1)
    producer.close()
    problems = []
    expected = {
        "holes": [number for number in range(MESSAGES) if not number % 2],
        "upto": list(range(ACKED_UP_TO, MESSAGES)),
    }
    for name, numbers in expected.items():
        kind = _SHARED if name == "holes" else pulsar.ConsumerType.Exclusive
        found = _numbers(client.subscribe(KEPT, name, consumer_type=kind), len(numbers))
        if found != numbers:
            problems.append(f"{KEPT}: subscription {name} gets {found}, and not {numbers}")
    return problems


def _numbers(consumer: pulsar.Consumer, count: int) -> list[int]:
    """Return what a consumer is given: so many messages, and any that are too many."""
    found: list[int] = []
    while True:
        try:
            message = consumer.receive(_TIMEOUT_MS if len(found) < count else _QUIET_MS)
        except pulsar.Timeout:
            consumer.close()
            return found
        found.append(int(message.data()) if message.data().isdigit() else -1)


def wrong_of_keys(found: Sequence[int]) -> list[str]:
    """Return what is wrong with the messages of the partitioned topic, which has seven keys."""
    problems = []
    if sorted(found) != list(range(MESSAGES)):
        problems.append(f"{PARTED}: there are {sorted(found)}")
    for key in range(7):
        numbers = [number for number in found if number % 7 == key]
        if numbers != sorted(numbers):
            problems.append(f"{PARTED}: key {key} has {numbers}")
    return problems
