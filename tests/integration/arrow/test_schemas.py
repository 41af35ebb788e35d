"""Values are columns by the topic's schema, with what the official client decodes."""

import json
from enum import Enum
from typing import Any

import pulsar
import pytest
from google.protobuf.type_pb2 import Field, Option, Syntax, Type
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    CustomEnum,
    Double,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    String,
)

from magnetar.arrow import SchemaMismatchError, read
from magnetar.sdk import Client
from magnetar.sdk.schemas import (
    INT32,
    STRING,
    AvroObjectSchema,
    KeyValue,
    KeyValueEncoding,
    KeyValueSchema,
)
from tests.integration.arrow.support import at_bookies
from tests.integration.pulsar_client.support import publish_to, read_next
from tests.standalone import Standalone

NUMBER = {"type": "record", "name": "Number", "fields": [{"name": "x", "type": "int"}]}


class Size(Enum):
    SMALL = 0
    LARGE = 1


class Place(Record):  # type: ignore[misc]
    name = String()
    height = Double()


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    number = Integer()
    distance = Long(required=True)
    late = Boolean()
    size = CustomEnum(Size)
    origin = Place()


class LongerFlight(Record):  # type: ignore[misc]
    carrier = String()
    number = Integer()
    distance = Long(required=True)
    late = Boolean()
    size = CustomEnum(Size)
    origin = Place()
    gate = String(default="none", required_default=True)


class Stops(Record):  # type: ignore[misc]
    """A record that is decoded value by value."""

    number = Integer()
    tags = Array(String())
    seats = Map(Integer())


def _flight(number: int, kind: type[Record], **more: str) -> Record:
    return kind(
        carrier=None if number % 5 == 0 else f"carrier {number % 7}",
        number=-number,
        distance=10_000_000_000 + number,
        late=number % 2 == 0,
        size=Size.LARGE if number % 2 else Size.SMALL,
        origin=Place(name="EWR", height=number / 3) if number % 3 else None,
        **more,
    )


def _decoded(client: pulsar.Client, topic: str, schema: Any) -> list[dict[str, Any]]:
    """What the official client's reader makes of all messages."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    found = []
    while reader.has_message_available():
        found.append(_plain(read_next(reader).value()))
    reader.close()
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {name: _plain(each) for name, each in vars(value).items() if name[0] != "_"}
    return value.name if isinstance(value, Enum) else value


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["JSON", "AVRO"])
def test_fields_are_columns_over_versions_as_the_official_client_decodes_them(
    server: Standalone, client: pulsar.Client, topic: str, schema: type
) -> None:
    for _ in range(2):
        for kind, more in ((Flight, {}), (LongerFlight, {"gate": "B7"})):
            producer = client.create_producer(topic, schema=schema(kind))
            for number in range(60):
                producer.send_async(_flight(number, kind, **more), lambda *_: None)
            producer.flush()
            producer.close()

    expected = _decoded(client, topic, schema(LongerFlight))
    table = read(topic, **at_bookies(server)).read_all()
    names = [name for name in table.schema.names if not name.startswith("__")]
    assert sorted(names) == sorted(
        ["carrier", "number", "distance", "late", "size", "origin", "gate"]
    )
    found = table.select(names).to_pylist()
    if schema is JsonSchema:
        # A value in JSON that lacks a field has none; the official client fills in the default. An
        # enum is the text that is there, and that client writes a number.
        for row in expected:
            row["size"] = str(Size[row["size"]].value)
            row["gate"] = row["gate"] if row["gate"] == "B7" else None
    assert len(found) == 240
    assert found == [{name: row[name] for name in names} for row in expected]


def test_what_is_not_decoded_by_columns_is_what_the_official_client_decodes(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Stops))
    for number in range(20):
        producer.send(Stops(number=number, tags=["a"] * number, seats={"first": number}))
    producer.close()
    table = read(topic, columns=["number", "tags", "seats"], **at_bookies(server)).read_all()
    assert table.to_pylist(maps_as_pydicts="strict") == [
        {name: row[name] for name in ("number", "tags", "seats")}
        for row in _decoded(client, topic, AvroSchema(Stops))
    ]


def test_protobuf_messages_are_columns_as_the_official_client_decodes_them(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    schema = ProtobufNativeSchema(Type)
    producer = client.create_producer(topic, schema=schema)
    for number in range(5):
        fields = [Field(name=f"f{at}", kind=Field.TYPE_BOOL, number=at) for at in range(number)]
        message = Type(name=f"t{number}", fields=fields, oneofs=["a"] * number)
        message.syntax = Syntax.SYNTAX_PROTO3 if number % 2 else Syntax.SYNTAX_EDITIONS
        if number:
            message.source_context.file_name = "f.proto"
            message.options.append(Option(name="o"))
            message.options[0].value.Pack(Field(name="packed"))
        producer.send(message)
    producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    expected = [read_next(reader).value() for _ in range(5)]
    reader.close()
    names = ["name", "fields", "oneofs", "options", "source_context", "syntax"]
    for processes in (False, True):
        stream = read(topic, columns=names, processes=processes, **at_bookies(server))
        found = stream.read_all().to_pylist()
        assert [(row["name"], row["oneofs"]) for row in found] == [
            (each.name, list(each.oneofs)) for each in expected
        ]
        for row, each in zip(found, expected, strict=True):
            assert row["syntax"] == Syntax.Name(each.syntax)
            of_fields = [(one["name"], one["kind"], one["number"]) for one in row["fields"]]
            assert of_fields == [
                (one.name, Field.Kind.Name(one.kind), one.number) for one in each.fields
            ]
            assert [(one["name"], one["value"]["value"]) for one in row["options"]] == [
                (one.name, one.value.value) for one in each.options
            ]
            context = {"file_name": "f.proto"} if each.HasField("source_context") else None
            assert row["source_context"] == context


@pytest.mark.parametrize("encoding", KeyValueEncoding)
async def test_keys_with_values_are_two_columns(
    server: Standalone, topic: str, encoding: KeyValueEncoding
) -> None:
    schema = KeyValueSchema(STRING, AvroObjectSchema(NUMBER), encoding)
    async with Client(server.url) as client:
        producer = await client.producer(topic, schema=schema)
        for number in range(5):
            await producer.send(KeyValue(f"k{number}", {"x": number}))
    table = read(topic, columns=["key", "value"], **at_bookies(server)).read_all()
    assert table.to_pylist() == [
        {"key": f"k{number}", "value": {"x": number}} for number in range(5)
    ]


async def test_a_primitive_is_one_column(server: Standalone, topic: str) -> None:
    async with Client(server.url) as client:
        producer = await client.producer(topic, schema=INT32)
        await producer.send_many([1, -2, None])
        await producer.flush()
    table = read(topic, **at_bookies(server)).read_all()
    assert table.column("value").to_pylist() == [1, -2, None]


def test_bytes_are_had_whatever_the_schema_is(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(Place))
    producer.send(Place(name="EWR", height=1.5))
    producer.close()
    table = read(topic, decode=False, **at_bookies(server)).read_all()
    assert json.loads(table.column("value")[0].as_py())["name"] == "EWR"


def test_a_value_that_is_not_of_the_schema_is_for_the_mode_to_decide(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Place))
    producer.send(Place(name="EWR", height=1.5))
    publish_to(client, topic, [b"\xff" * 11])
    producer.send(Place(name="JFK", height=2.5))
    producer.close()
    where = at_bookies(server)
    with pytest.raises(SchemaMismatchError, match=f"{topic}: message [0-9]+:1.*set mode to"):
        read(topic, **where).read_all()
    table = read(topic, mode="PERMISSIVE", **where).read_all()
    assert table.column("name").to_pylist() == ["EWR", None, "JFK"]
    assert [each is None for each in table.column("__error").to_pylist()] == [True, False, True]
    table = read(topic, mode="DROPMALFORMED", **where).read_all()
    assert table.column("name").to_pylist() == ["EWR", "JFK"]


def test_topics_of_different_schemas_are_read_as_bytes_or_by_themselves(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(Place))
    producer.send(Place(name="EWR", height=1.5))
    producer.close()
    publish_to(client, f"{topic}-other", [b"x"])
    with pytest.raises(SchemaMismatchError, match="decode=False"):
        read([topic, f"{topic}-other"], **at_bookies(server))
    table = read([topic, f"{topic}-other"], decode=False, **at_bookies(server)).read_all()
    assert table.num_rows == 2
