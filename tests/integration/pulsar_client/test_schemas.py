"""Schemas with the official client: evolution, refusals, what survives, what is shared."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from pulsar.schema import (
    AvroSchema,
    Integer,
    JsonSchema,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from tests.http_calls import admin, call, topic_path
from tests.integration.pulsar_client.support import RECEIVE_TIMEOUT_MS, connect
from tests.standalone import Standalone


class User(Record):  # type: ignore[misc]  # The client has no types.
    name = String()
    age = Integer()


class UserWithMail(Record):  # type: ignore[misc]  # The client has no types.
    name = String()
    age = Integer()
    mail = String(default="none", required=True, required_default=True)


class UserWithDuty(Record):  # type: ignore[misc]  # The client has no types.
    """What it adds is in no message of the others."""

    name = String()
    age = Integer()
    duty = String(required=True)


class Place(Record):  # type: ignore[misc]  # The client has no types.
    name = Integer(required=True)


def _schemas_path(topic: str) -> str:
    return "schemas/" + topic.removeprefix("persistent://")


def receive(consumer: pulsar.Consumer) -> pulsar.Message:
    message = consumer.receive(timeout_millis=RECEIVE_TIMEOUT_MS)
    consumer.acknowledge(message)
    return message


def version_of(message: pulsar.Message) -> int:
    """The version of the schema that the message says it has."""
    return int(message._message.int_schema_version())


def subscribe(client: pulsar.Client, topic: str, schema: Any, name: str = "s") -> pulsar.Consumer:
    return client.subscribe(
        topic, name, schema=schema, initial_position=pulsar.InitialPosition.Earliest
    )


def test_avro_messages_are_read_by_whoever_has_another_version(
    client: pulsar.Client, topic: str, server: Standalone
) -> None:
    old = client.create_producer(topic, schema=AvroSchema(User))
    new = client.create_producer(topic, schema=AvroSchema(UserWithMail))
    old.send(User(name="a", age=1))
    new.send(UserWithMail(name="b", age=2, mail="b@c"))
    old.send(User(name="c", age=3))
    consumer = subscribe(client, topic, AvroSchema(UserWithMail))
    found = [receive(consumer) for _ in range(3)]
    assert [(each.value().name, each.value().mail, version_of(each)) for each in found] == [
        ("a", "none", 0),
        ("b", "b@c", 1),
        ("c", "none", 0),
    ]
    former = subscribe(client, topic, AvroSchema(User), "former")
    assert [receive(former).value().age for _ in range(3)] == [1, 2, 3]
    versions = admin(server, "GET", f"{_schemas_path(topic)}/schemas")["getSchemaResponses"]
    assert [(each["version"], each["type"]) for each in versions] == [(0, "AVRO"), (1, "AVRO")]


def test_json_strings_and_protobuf_messages_have_schemas_too(
    client: pulsar.Client, topic: str, server: Standalone
) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (JsonSchema(User), User(name="a", age=1), "JSON"),
        (StringSchema(), "text", "STRING"),
        (ProtobufNativeSchema(Int64Value), Int64Value(value=7), "PROTOBUF_NATIVE"),
    ]
    for index, (schema, value, kind) in enumerate(cases):
        name = f"{topic}-{index}"
        consumer = subscribe(client, name, schema)
        producer = client.create_producer(name, schema=schema)
        producer.send(value)
        message = receive(consumer)
        assert (message.value(), version_of(message)) == (value, 0)
        shown = admin(server, "GET", f"{_schemas_path(name)}/schema")
        assert (shown["type"], shown["version"]) == (kind, 0)


@pytest.mark.parametrize(
    "schema", [AvroSchema(UserWithDuty), AvroSchema(Place), JsonSchema(User), StringSchema()]
)
def test_what_does_not_fit_is_refused_and_others_go_on(
    client: pulsar.Client, topic: str, schema: Any
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(User))
    consumer = subscribe(client, topic, AvroSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema)
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, topic, schema, "other")
    producer.send(User(name="a", age=1))
    assert receive(consumer).value().age == 1


def test_clients_of_bytes_go_on_beside_schemas(client: pulsar.Client, topic: str) -> None:
    typed = client.create_producer(topic, schema=StringSchema())
    plain = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    typed.send("a")
    plain.send(b"b")
    assert [receive(consumer).data() for _ in range(2)] == [b"a", b"b"]


def test_a_topic_of_bytes_with_data_gets_no_schema_from_a_consumer(
    client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"a")
    with pytest.raises(pulsar.IncompatibleSchema):
        subscribe(client, topic, AvroSchema(User))


def test_partitions_share_the_schema_of_their_topic(
    client: pulsar.Client, topic: str, server: Standalone
) -> None:
    admin(server, "PUT", f"{topic_path(topic)}/partitions", 3)
    producer = client.create_producer(
        topic,
        schema=AvroSchema(User),
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    consumer = subscribe(client, topic, AvroSchema(User))
    for age in range(6):
        producer.send(User(name="a", age=age))
    found = [receive(consumer) for _ in range(6)]
    assert sorted(each.value().age for each in found) == list(range(6))
    assert {version_of(each) for each in found} == {0}
    for name in (topic, f"{topic}-partition-2"):
        versions = admin(server, "GET", f"{_schemas_path(name)}/schemas")["getSchemaResponses"]
        assert [each["version"] for each in versions] == [0]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(f"{topic}-partition-1", schema=AvroSchema(UserWithDuty))


def test_many_who_register_at_once_get_one_version(server: Standalone, topic: str) -> None:
    clients = [connect(server.url) for _ in range(4)]
    failures: list[Exception] = []

    def register(client: pulsar.Client, schema: Any) -> None:
        try:
            client.create_producer(topic, schema=schema)
        except pulsar.PulsarException as error:  # Told to the test, not to a thread.
            failures.append(error)

    threads = [
        threading.Thread(target=register, args=(client, AvroSchema(record)))
        for client in clients
        for record in (User, UserWithMail, User)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for client in clients:
        client.close()
    assert failures == []
    versions = admin(server, "GET", f"{_schemas_path(topic)}/schemas")["getSchemaResponses"]
    assert [each["version"] for each in versions] == [0, 1]
    definitions = {json.loads(each["data"])["name"] for each in versions}
    assert definitions == {"User", "UserWithMail"}


def test_a_deleted_topic_takes_its_schema_along(
    client: pulsar.Client, topic: str, server: Standalone
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(User))
    producer.close()
    admin(server, "DELETE", f"{topic_path(topic)}?force=true")
    call(server, "GET", f"{_schemas_path(topic)}/schema", expect=404)
    client.create_producer(topic, schema=StringSchema())


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data") as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


def test_schemas_survive_an_unload_and_kill_9(own_server: Standalone) -> None:
    topic = "persistent://public/default/kept"
    server = own_server
    client = connect(own_server.url)
    client.create_producer(topic, schema=AvroSchema(User)).send(User(name="a", age=1))
    new = client.create_producer(topic, schema=AvroSchema(UserWithMail))
    admin(server, "PUT", f"{topic_path(topic)}/unload")
    new.send(UserWithMail(name="b", age=2, mail="x"))  # After it has registered again.
    before = admin(server, "GET", f"{_schemas_path(topic)}/schemas")
    client.close()
    own_server.kill()
    own_server.start()
    assert admin(server, "GET", f"{_schemas_path(topic)}/schemas") == before
    assert len(before["getSchemaResponses"]) == 2
    client = connect(own_server.url)
    consumer = subscribe(client, topic, AvroSchema(UserWithMail))
    found = [receive(consumer) for _ in range(2)]
    assert [(each.value().mail, version_of(each)) for each in found] == [
        ("none", 0),
        ("x", 1),
    ]
    client.create_producer(topic, schema=AvroSchema(User)).send(User(name="c", age=3))
    assert version_of(receive(consumer)) == 0
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(UserWithDuty))
    client.close()


EVOLUTIONS = {
    "ALWAYS_COMPATIBLE": {"more", "less", "other"},
    "ALWAYS_INCOMPATIBLE": set(),
    "BACKWARD": {"less"},
    "FORWARD": {"more"},
    "FULL": set(),
}
"""By strategy: what may follow User, or another type."""


@pytest.mark.parametrize("strategy", EVOLUTIONS)
def test_the_strategy_of_a_topic_decides_what_may_follow(
    client: pulsar.Client, topic: str, server: Standalone, strategy: str
) -> None:
    wide, narrow = AvroSchema(UserWithDuty), AvroSchema(User)
    found = set()
    for change, old, new in (
        ("more", narrow, wide),
        ("less", wide, narrow),
        ("other", narrow, JsonSchema(User)),
    ):
        name = f"{topic}-{change}"
        client.create_producer(name, schema=old)
        admin(server, "PUT", f"{topic_path(name)}/schemaCompatibilityStrategy", strategy)
        try:
            client.create_producer(name, schema=new)
        except pulsar.IncompatibleSchema:
            pass
        else:
            found.add(change)
    assert found == EVOLUTIONS[strategy]


def test_transitive_strategies_ask_for_all_versions(
    client: pulsar.Client, topic: str, server: Standalone
) -> None:
    client.create_producer(topic, schema=AvroSchema(UserWithDuty))
    admin(server, "PUT", f"{topic_path(topic)}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    client.create_producer(topic, schema=AvroSchema(Place))
    client.create_producer(topic, schema=AvroSchema(User))
    reader = AvroSchema(UserWithMail)  # It reads User, and not what Place has for a name.
    admin(server, "PUT", f"{topic_path(topic)}/schemaCompatibilityStrategy", "BACKWARD_TRANSITIVE")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=reader)
    admin(server, "PUT", f"{topic_path(topic)}/schemaCompatibilityStrategy", "BACKWARD")
    client.create_producer(topic, schema=reader)


def test_a_namespace_may_be_closed_to_new_schemas_and_to_clients_without(
    client: pulsar.Client, server: Standalone
) -> None:
    namespace = "namespaces/public/guarded"
    admin(server, "PUT", namespace)
    topic = "persistent://public/guarded/topic"
    client.create_producer(topic, schema=AvroSchema(User))
    admin(server, "POST", f"{namespace}/isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(UserWithMail))
    definition = json.dumps(UserWithMail.schema())
    admin(server, "POST", f"{_schemas_path(topic)}/schema", {"type": "AVRO", "schema": definition})
    client.create_producer(topic, schema=AvroSchema(UserWithMail))
    client.create_producer(topic)
    admin(server, "POST", f"{namespace}/schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    admin(server, "POST", f"{namespace}/schemaValidationEnforced", False)
    admin(server, "PUT", f"{namespace}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    body = {"type": "AVRO", "schema": definition}
    other = {"type": "AVRO", "schema": definition.replace("mail", "post")}
    for each, fits in ((body, True), (other, False)):
        assert admin(server, "POST", f"{_schemas_path(topic)}/compatibility", each) == {
            "compatibility": fits,
            "schemaCompatibilityStrategy": "ALWAYS_INCOMPATIBLE",
        }
