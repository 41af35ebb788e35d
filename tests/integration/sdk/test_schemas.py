"""Schemas with the real server, and with the official client in both directions."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pulsar
import pulsar.schema
import pytest

from magnetar.sdk import Client, Consumer, ConsumerSettings, InitialPosition, ProducerSettings
from magnetar.sdk.consuming.message_copies import EncodedSchema
from magnetar.sdk.errors import SchemaValueError, SchemaVersionError
from magnetar.sdk.schema import SchemaInfo
from magnetar.sdk.schema_versions import get_schema
from magnetar.sdk.schemas import (
    BYTES,
    INT64,
    STRING,
    AutoConsumeSchema,
    AutoProduceSchema,
    AvroSchema,
    Int32,
    JsonSchema,
    KeyValue,
    KeyValueEncoding,
    KeyValueSchema,
    Schema,
    SchemaType,
)
from magnetar.sdk.wire.errors import IncompatibleSchemaError
from tests.standalone import Standalone

FROM_START = ConsumerSettings(initial_position=InitialPosition.EARLIEST)


@dataclass
class User:
    name: str | None
    age: Int32 | None


@dataclass
class UserWithMail:
    name: str | None
    age: Int32 | None
    mail: str = "none"


class OfficialUser(pulsar.schema.Record):  # type: ignore[misc]  # The client has no types.
    name = pulsar.schema.String()
    age = pulsar.schema.Integer()


OfficialUser.__name__ = "User"  # the record's name: the same definition as ours


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("schemas") / "data") as server:
        yield server


@pytest.fixture
def official(standalone: Standalone) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(standalone.url, logger=logger)
    yield client
    client.close()


@pytest.mark.parametrize("kind", ["avro", "json"])
async def test_records_pass_between_the_official_client_and_this_one(
    standalone: Standalone, official: pulsar.Client, kind: str
) -> None:
    topic = f"users-{kind}"
    theirs = (
        pulsar.schema.AvroSchema(OfficialUser)
        if kind == "avro"
        else pulsar.schema.JsonSchema(OfficialUser)
    )
    ours = AvroSchema(User) if kind == "avro" else JsonSchema(User)

    def exchange() -> None:
        producer = official.create_producer(topic, schema=theirs)
        producer.send(OfficialUser(name="Ada", age=36))
        producer.close()

    await asyncio.to_thread(exchange)
    async with Client(standalone.url) as client:
        producer = await client.producer(topic, schema=ours)
        await producer.send(User("Alan", 41))
        consumer = await client.consumer(topic, "ours", FROM_START, schema=ours)
        messages = [await consumer.receive(timeout_s=30) for _ in range(2)]
        assert [message.value() for message in messages] == [User("Ada", 36), User("Alan", 41)]
        # Both have given the same schema: the definitions differ in white space only.
        assert [message.schema_version for message in messages] == [bytes(8)] * 2

    def read() -> list[tuple[str, int]]:
        consumer = official.subscribe(
            topic, "theirs", schema=theirs, initial_position=pulsar.InitialPosition.Earliest
        )
        values = [consumer.receive(30_000).value() for _ in range(2)]
        consumer.close()
        return [(value.name, value.age) for value in values]

    assert await asyncio.to_thread(read) == [("Ada", 36), ("Alan", 41)]


async def test_text_passes_both_ways(standalone: Standalone, official: pulsar.Client) -> None:
    async with Client(standalone.url) as client:
        async with await client.producer("texts", schema=STRING) as producer:
            await producer.send("ours")
        theirs = await asyncio.to_thread(
            official.create_producer, "texts", schema=pulsar.schema.StringSchema()
        )
        await asyncio.to_thread(theirs.send, "theirs")
        reader = await client.reader("texts", schema=STRING)
        assert [(await reader.read_next(timeout_s=30)).value() for _ in range(2)] == [
            "ours",
            "theirs",
        ]


async def test_a_schema_evolves_and_each_message_is_read_as_it_was_written(
    standalone: Standalone,
) -> None:
    async with Client(standalone.url) as client:
        async with await client.producer("evolving", schema=AvroSchema(User)) as producer:
            await producer.send_many([User("a", 1), User("b", 2)])
        async with await client.producer("evolving", schema=AvroSchema(UserWithMail)) as newer:
            await newer.send(UserWithMail("c", 3, "c@example.org"))
        consumer = await client.consumer(
            "evolving", "s", FROM_START, schema=AvroSchema(UserWithMail)
        )
        values = [(await consumer.receive(timeout_s=30)).value() for _ in range(3)]
        assert values == [
            UserWithMail("a", 1),
            UserWithMail("b", 2),
            UserWithMail("c", 3, "c@example.org"),
        ]
        anything = await client.consumer("evolving", "auto", FROM_START, schema=AutoConsumeSchema())
        messages = [await anything.receive(timeout_s=30) for _ in range(3)]
        assert messages[0].value() == {"name": "a", "age": 1}
        assert messages[2].value() == {"name": "c", "age": 3, "mail": "c@example.org"}


async def test_a_schema_that_does_not_fit_is_a_typed_error(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        await client.producer("typed", schema=AvroSchema(User))
        with pytest.raises(IncompatibleSchemaError):
            await client.producer("typed", schema=INT64)
        with pytest.raises(IncompatibleSchemaError):
            await client.consumer("typed", "s", schema=STRING)
        with pytest.raises(IncompatibleSchemaError):
            await client.register_schema("typed", STRING)


@pytest.mark.parametrize("encoding", list(KeyValueEncoding))
@pytest.mark.parametrize("topic", ["pairs", "auto-pairs"])
async def test_keys_and_values_pass(
    standalone: Standalone, encoding: KeyValueEncoding, topic: str
) -> None:
    topic = f"{topic}-{encoding.value}"
    schema = KeyValueSchema(STRING, AvroSchema(User), encoding)
    async with Client(standalone.url) as client:
        producer = await client.producer(topic, schema=schema)
        await producer.send(KeyValue("k1", User("a", 1)))
        await producer.send_many([KeyValue("k2", User("b", None))])
        await producer.flush()
        if topic.startswith("auto"):
            consumer: Consumer[Any] = await client.consumer(
                topic, "s", FROM_START, schema=AutoConsumeSchema()
            )
            first: object = {"name": "a", "age": 1}
            second: object = {"name": "b", "age": None}
        else:
            consumer = await client.consumer(topic, "s", FROM_START, schema=schema)
            first, second = User("a", 1), User("b", None)
        assert [(await consumer.receive(timeout_s=30)).value() for _ in range(2)] == [
            KeyValue("k1", first),
            KeyValue("k2", second),
        ]


@pytest.mark.parametrize("batching", [True, False])
async def test_pairs_without_a_value_or_a_key_pass(standalone: Standalone, batching: bool) -> None:
    topic = f"half-pairs-{batching}"
    schema = KeyValueSchema(STRING, AvroSchema(User), KeyValueEncoding.SEPARATED)
    halves: list[KeyValue[str, User]] = [
        KeyValue("gone", None),
        KeyValue(None, User("a", 1)),
        KeyValue(None, None),
        KeyValue("k", User("b", 2)),
    ]
    async with Client(standalone.url) as client:
        producer = await client.producer(topic, ProducerSettings(batching=batching), schema=schema)
        await producer.send_many(halves)
        await producer.send(halves[0])
        consumer = await client.consumer(topic, "s", FROM_START, schema=schema)
        messages = [await consumer.receive(timeout_s=30) for _ in range(5)]
        assert [message.value() for message in messages] == [*halves, halves[0]]
        assert [message.is_null for message in messages] == [True, False, True, False, True]
        anything = await client.consumer(topic, "auto", FROM_START, schema=AutoConsumeSchema())
        assert (await anything.receive(timeout_s=30)).value() == KeyValue("gone", None)


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize(
    "schema",
    [BYTES, AvroSchema(User), JsonSchema(User), STRING],
    ids=["raw", "avro", "json", "text"],
)
async def test_none_is_stored_as_a_null_and_read_as_none(
    standalone: Standalone,
    request: pytest.FixtureRequest,
    schema: Schema[object],
    batching: bool,
) -> None:
    topic = f"nulls-{request.node.callspec.id}"
    settings = ProducerSettings(batching=batching)
    async with Client(standalone.url) as client:
        producer = await client.producer(topic, settings, schema=schema)
        await producer.send(None, key="k")
        await producer.send_many([None])
        await producer.flush()
        consumer = await client.consumer(topic, "s", FROM_START, schema=schema)
        messages = [await consumer.receive(timeout_s=30) for _ in range(2)]
        assert [each.value() for each in messages] == [None, None]
        assert [each.is_null for each in messages] == [True, True]
        assert [each.key for each in messages] == ["k", None]
        # A consumer that knows no schema gets no bytes that were never sent.
        plain = await client.consumer(topic, "plain", FROM_START)
        assert (await plain.receive(timeout_s=30)).value() is None


async def test_auto_produce_takes_the_schema_of_the_topic(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        await client.producer("raw-users")
        version = await client.register_schema("raw-users", AvroSchema(User))
        assert version == bytes(8)
        info = await client.schema("raw-users")
        assert info is not None
        assert info.type is SchemaType.AVRO
        producer = await client.producer("raw-users", schema=AutoProduceSchema())
        with pytest.raises(SchemaValueError):
            await producer.send(b"\xff" * 9)
        await producer.send(AvroSchema(User).encode(User("raw", 1)))
        reader = await client.reader("raw-users", schema=AvroSchema(User))
        assert (await reader.read_next(timeout_s=30)).value() == User("raw", 1)
        assert await client.schema("no-schema-here") is None


async def test_messages_of_a_type_that_cannot_be_decoded_come_as_fast_as_others(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*arguments: Any) -> tuple[SchemaInfo, bytes] | None:
        asked.append(arguments)
        return await get_schema(*arguments)

    asked: list[object] = []
    monkeypatch.setattr("magnetar.sdk.schema_versions.get_schema", ask)
    definition = b'{"type": "record", "name": "R", "fields": []}'
    schema = EncodedSchema(SchemaInfo(SchemaType.PROTOBUF, definition))
    async with Client(standalone.url) as client:
        async with await client.producer("protobuf", schema=schema) as producer:
            await producer.send_many([b"1", b"2", b"3"])
        consumer = await client.consumer("protobuf", "s", FROM_START, schema=AutoConsumeSchema())
        messages = await consumer.receive_many(10, timeout_s=30)
        assert [each.data for each in messages] == [b"1", b"2", b"3"]
        for each in messages:
            with pytest.raises(SchemaVersionError, match="PROTOBUF"):
                each.value()
    assert len(asked) == 1


async def test_a_cancelled_receive_that_waits_for_a_definition_takes_no_message(
    standalone: Standalone,
) -> None:
    async with Client(standalone.url) as client:
        async with await client.producer("cancelled", schema=AvroSchema(User)) as producer:
            await producer.send(User("kept", 1))
        consumer = await client.consumer("cancelled", "s", FROM_START, schema=AvroSchema(User))
        for turns in range(12):
            call = asyncio.create_task(consumer.receive())
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            [found] = await asyncio.gather(call, return_exceptions=True)
            if not isinstance(found, asyncio.CancelledError):
                break
        else:
            found = await consumer.receive(timeout_s=30)
        assert not isinstance(found, BaseException)
        assert found.value() == User("kept", 1)
