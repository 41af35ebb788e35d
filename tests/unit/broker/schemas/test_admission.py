"""Schemas of producers and consumers over the wire: versions, refusals, questions."""

import json
from typing import Any

import pytest

from magnetar.broker.policies.model import SchemaCompatibility as Strategy
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_parts import TOPIC

INCOMPATIBLE = pb.ServerError.IncompatibleSchema
NOT_FOUND = pb.ServerError.TopicNotFound
AUTO_CONSUME = pb.Schema(name="auto", schema_data=b"", type=pb.Schema.AutoConsume)
STRING = pb.Schema(name="STRING", schema_data=b"null", type=pb.Schema.String)


def avro(*fields: Any, kind: "pb.Schema.Type" = pb.Schema.Avro) -> pb.Schema:
    definition = {"type": "record", "name": "R", "fields": list(fields)}
    return pb.Schema(name="R", schema_data=json.dumps(definition).encode(), type=kind)


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_0 = {"name": "b", "type": "int", "default": 0}


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def ask(client: Client, **fields: Any) -> pb.CommandGetSchemaResponse:
    request = pb.CommandGetSchema(**{"request_id": 5, "topic": TOPIC, **fields})
    client.send(BaseCommand.GET_SCHEMA, getSchema=request)
    return (await client.next(BaseCommand.GET_SCHEMA_RESPONSE)).getSchemaResponse


async def create(client: Client, schema: pb.Schema) -> pb.CommandGetOrCreateSchemaResponse:
    request = pb.CommandGetOrCreateSchema(request_id=6, topic=TOPIC, schema=schema)
    client.send(BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=request)
    answer = await client.next(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    return answer.getOrCreateSchemaResponse


async def test_a_producer_hears_the_version_of_its_schema() -> None:
    client = Harness().client()
    for producer_id, (schema, number) in enumerate(
        [(avro(A), 0), (avro(A, B_OR_0), 1), (avro(A), 0)]
    ):
        answer = await client.produce(producer_id, schema=schema)
        assert answer.producer_success.schema_version == version(number)
    assert (await client.produce(9)).producer_success.schema_version == b""
    # Asked again for a producer that is there.
    again = await client.produce(1, schema=avro(A, B_OR_0))
    assert again.producer_success.schema_version == version(1)


async def test_a_producer_that_says_it_has_none_has_a_schema_of_that_type() -> None:
    """As Go's for bytes: its consumers decode no message without a version."""
    harness = Harness()
    client = harness.client()
    none = pb.Schema(name="Bytes", schema_data=b"", type=pb.Schema.NoSchema)
    answer = await client.produce(0, schema=none)
    assert answer.producer_success.schema_version == version(0)
    found = await ask(client, schema_version=version(0))
    assert found.schema.type == pb.Schema.NoSchema
    assert (await create(client, none)).schema_version == b""
    assert (await client.subscribe(schema=none)).type == BaseCommand.SUCCESS
    refused = await client.produce(1, schema=avro(A))
    assert refused.error.error == pb.ServerError.IncompatibleSchema


@pytest.mark.parametrize(
    "schema",
    [
        avro(A, B),
        avro(A, kind=pb.Schema.Json),
        STRING,
        pb.Schema(name="x", schema_data=b"{", type=pb.Schema.Avro),
        AUTO_CONSUME,
    ],
)
async def test_a_producer_whose_schema_does_not_fit_is_refused_for_good(schema: pb.Schema) -> None:
    client = Harness().client()
    await client.produce(0, schema=avro(A))
    answer = await client.produce(1, schema=schema)
    assert answer.error.error == INCOMPATIBLE
    assert answer.error.message


async def test_a_producer_without_a_schema_is_let_in_unless_schemas_are_enforced() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce(9)
    enforced = harness.topic.policies.with_values(schema_validation_enforced=True)
    harness.topic.apply_policies(enforced)
    assert (await client.produce(0)).type == BaseCommand.PRODUCER_SUCCESS
    await client.produce(1, schema=avro(A))
    refused = await client.produce(2)
    assert refused.error.error == INCOMPATIBLE
    assert "without a schema" in refused.error.message
    harness.topic.apply_policies(enforced.with_values(schema_validation_enforced=False))
    assert (await client.produce(3)).type == BaseCommand.PRODUCER_SUCCESS


async def test_where_updates_are_off_only_known_schemas_are_let_in() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce(0, schema=avro(A))
    harness.topic.apply_policies(harness.topic.policies.with_values(allows_schema_update=False))
    assert (await client.produce(1, schema=avro(A))).type == BaseCommand.PRODUCER_SUCCESS
    refused = await client.produce(2, schema=avro(A, B_OR_0))
    assert (refused.error.error, refused.error.message.split(":")[0]) == (
        INCOMPATIBLE,
        "Schema not found and schema auto updating is disabled",
    )


async def test_the_strategy_of_the_topic_counts() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce(0, schema=avro(A))
    assert (await client.produce(1, schema=avro(A, B))).error.error == INCOMPATIBLE
    forward = harness.topic.policies.with_values(schema_compatibility=Strategy.FORWARD)
    harness.topic.apply_policies(forward)
    answer = await client.produce(1, schema=avro(A, B))
    assert answer.producer_success.schema_version == version(1)


async def test_the_schema_of_the_first_consumer_becomes_that_of_an_idle_topic() -> None:
    client = Harness().client()
    assert (await client.subscribe(schema=avro(A))).type == BaseCommand.SUCCESS
    assert (await ask(client)).schema_version == version(0)
    assert (await client.produce(schema=avro(A, B))).error.error == INCOMPATIBLE


@pytest.mark.parametrize("used_by", ["producer", "consumer"])
async def test_a_consumer_with_a_schema_does_not_join_a_topic_of_bytes(used_by: str) -> None:
    client = Harness().client()
    if used_by == "producer":
        await client.produce()
    else:
        await client.subscribe(7, subscription="bytes")
    refused = await client.subscribe(schema=STRING)
    assert (refused.error.error, refused.error.message) == (
        INCOMPATIBLE,
        "Failed to add schema to an active topic with empty(BYTES) schema: new schema type STRING",
    )


async def test_a_consumer_that_takes_any_schema_is_let_in_everywhere() -> None:
    client = Harness().client()
    assert (await client.subscribe(7, schema=AUTO_CONSUME)).type == BaseCommand.SUCCESS
    assert (await ask(client)).error_code == NOT_FOUND
    # It does not count as one that takes bytes.
    assert (await client.subscribe(8, subscription="t", schema=avro(A))).type == BaseCommand.SUCCESS
    answer = await client.subscribe(9, subscription="u", schema=AUTO_CONSUME)
    assert answer.type == BaseCommand.SUCCESS


async def test_a_consumer_has_to_be_able_to_read() -> None:
    client = Harness().client()
    await client.produce(schema=avro(A))
    assert (await client.subscribe(1, schema=avro(B_OR_0))).type == BaseCommand.SUCCESS
    assert (await client.subscribe(2, schema=avro(B))).error.error == INCOMPATIBLE
    assert (await client.subscribe(3, schema=STRING)).error.error == INCOMPATIBLE
    assert (await ask(client)).schema_version == version(0)
    assert (await client.subscribe(4, subscription="bytes")).type == BaseCommand.SUCCESS


async def test_schemas_can_be_asked_for_by_version() -> None:
    client = Harness().client()
    missing = await ask(client)
    assert (missing.request_id, missing.error_code) == (5, NOT_FOUND)
    first = avro(A)
    first.properties.add(key="k", value="v")
    await client.produce(0, schema=first)
    await client.produce(1, schema=avro(A, B_OR_0))
    latest = await ask(client)
    assert (latest.schema_version, latest.schema.type) == (version(1), pb.Schema.Avro)
    assert latest.schema.name == "public/default/topic"
    found = await ask(client, schema_version=version(0))
    assert found.schema_version == version(0)
    assert (found.schema.schema_data, list(found.schema.properties)) == (
        first.schema_data,
        list(first.properties),
    )
    assert (await ask(client, schema_version=version(2))).error_code == NOT_FOUND
    for odd in (b"", b"1", version(0) + b"x"):
        assert (await ask(client, schema_version=odd)).error_code == INCOMPATIBLE
    assert (await ask(client, topic="a/b")).error_code == pb.ServerError.InvalidTopicName
    assert (await ask(client, topic="persistent://no/where/t")).error_code == NOT_FOUND


async def test_a_producer_with_several_schemas_has_them_registered() -> None:
    client = Harness().client()
    assert (await create(client, avro(A))).error_code == NOT_FOUND
    await client.produce(schema=avro(A))
    assert (await create(client, avro(A))).schema_version == version(0)
    assert (await create(client, avro(A, B_OR_0))).schema_version == version(1)
    assert (await create(client, avro(B))).error_code == INCOMPATIBLE
