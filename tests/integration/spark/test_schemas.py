"""What a topic's schema describes is columns, and its values are always there as bytes."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pulsar
import pyarrow as pa
import pytest
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
    Record,
    String,
)
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from magnetar.arrow.stored.column_names import TOPIC
from magnetar.arrow.stored.column_types import METADATA_FIELDS
from magnetar.sdk import Client
from magnetar.sdk.schemas import (
    INSTANT,
    INT32,
    STRING,
    AvroObjectSchema,
    JsonObjectSchema,
    KeyValue,
    KeyValueEncoding,
    KeyValueSchema,
    Schema,
)
from magnetar.sdk.spark import MagnetarDataSource
from magnetar.sdk.spark.errors import SchemaMismatchError
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import Checkpoint, DrivenQuery
from tests.integration.spark.support import load, options_for
from tests.standalone import Standalone


class Place(Record):  # type: ignore[misc]
    name = String()
    height = Double()


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    number = Integer()
    distance = Long()
    late = Boolean()
    tags = Array(String())
    seats = Map(Integer())
    origin = Place()


class LongerFlight(Record):  # type: ignore[misc]
    carrier = String()
    number = Integer()
    distance = Long()
    late = Boolean()
    tags = Array(String())
    seats = Map(Integer())
    origin = Place()
    gate = String(default="none", required_default=True)


class GateFirst(Record):  # type: ignore[misc]
    gate = String(default="none", required_default=True)
    carrier = String()
    number = Integer()
    distance = Long()
    late = Boolean()
    tags = Array(String())
    seats = Map(Integer())
    origin = Place()


def flight(number: int, kind: type[Record] = Flight, **more: str) -> Record:
    return kind(
        carrier="UA",
        number=number,
        distance=10_000_000_000 + number,
        late=number % 2 == 0,
        tags=["a", "b"],
        seats={"first": number},
        origin=Place(name="EWR", height=1.5),
        **more,
    )


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["JSON", "AVRO"])
def test_fields_are_columns_over_versions(
    server: Standalone, client: pulsar.Client, topic: str, schema: type
) -> None:
    """Messages of an older version lack what was added since; AVRO knows what to give for it."""
    producer = client.create_producer(topic, schema=schema(Flight))
    for number in range(50):
        producer.send(flight(number))
    producer.close()
    producer = client.create_producer(topic, schema=schema(LongerFlight))
    producer.send(flight(50, LongerFlight, gate="B7"))
    producer.close()

    source = MagnetarDataSource(options_for(server, topic=topic))
    columns = source.schema()
    reader = source.reader(columns)
    batches: list[pa.RecordBatch] = [
        batch for each in reader.partitions() for batch in reader.read(each)
    ]

    assert columns.names[:8] == [
        "carrier", "number", "distance", "late", "tags", "seats", "origin", "gate",
    ]  # fmt: skip
    # What Spark insists on.
    assert {batch.schema for batch in batches} == {to_arrow_schema(columns, timezone="UTC")}
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    assert [row["number"] for row in rows] == list(range(51))
    missing = "none" if schema is AvroSchema else None
    assert [row["gate"] for row in rows] == [missing] * 50 + ["B7"]
    row = rows[7]
    assert (row["carrier"], row["distance"], row["late"]) == ("UA", 10_000_000_007, False)
    assert (row["tags"], row["seats"]) == (["a", "b"], {"first": 7})
    assert row["origin"] == {"name": "EWR", "height": 1.5}
    assert row["__topic"] == topic


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["JSON", "AVRO"])
def test_a_topic_without_a_message_has_no_rows(
    server: Standalone, client: pulsar.Client, topic: str, schema: type
) -> None:
    client.create_producer(topic, schema=schema(Flight)).close()
    source = MagnetarDataSource(options_for(server, topic=topic))
    reader = source.reader(source.schema())
    assert [batch for each in reader.partitions() for batch in reader.read(each)] == []


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["JSON", "AVRO"])
def test_a_running_query_reads_a_version_that_came_after_its_start(
    server: Standalone, client: pulsar.Client, topic: str, schema: type
) -> None:
    """By the definition of that version: by the one before, its bytes would be other fields."""
    options = options_for(server, topic=topic, startingOffsets="earliest")
    columns = StructType([StructField("carrier", StringType()), StructField(TOPIC, StringType())])
    producer = client.create_producer(topic, schema=schema(Flight))
    producer.send(flight(0))
    producer.close()
    with DrivenQuery(options, Checkpoint(), columns) as query:
        assert query.run_available().values == ["UA"]
        producer = client.create_producer(topic, schema=schema(GateFirst))
        producer.send(flight(1, GateFirst, gate="B7"))
        producer.close()
        assert query.run_available().values == ["UA", "UA"]


VALUE_ONLY = StructType([StructField("value", BinaryType())])


def rows_of(options: Mapping[str, str], columns: StructType | None = None) -> list[dict[str, Any]]:
    """Rows as Spark gets them, read without it."""
    source = MagnetarDataSource(dict(options))
    reader = source.reader(columns or source.schema())
    batches: list[pa.RecordBatch] = [
        batch for each in reader.partitions() for batch in reader.read(each)
    ]
    return [row for each in batches for row in each.to_pylist(maps_as_pydicts="strict")]


async def send(server: Standalone, topic: str, schema: Schema[Any], values: Sequence[Any]) -> None:
    async with (
        Client(server.url) as client,
        await client.producer(topic, schema=schema) as producer,
    ):
        await producer.send_many(values)


UNUSUAL = {
    "type": "record",
    "name": "Unusual",
    "fields": [
        {"name": "either", "type": ["null", "string", "int"]},
        {"name": "next", "type": ["null", "Unusual"]},
        {"name": "nothing", "type": "null"},
        {"name": "__key", "type": "string"},
        {"name": "x", "type": "int"},
    ],
}


async def test_a_field_that_spark_has_no_column_for_takes_no_other_along(
    server: Standalone, spark: SparkSession, topic: str
) -> None:
    value = {"either": 5, "next": None, "nothing": None, "__key": "k", "x": 1}
    schema = AvroObjectSchema(UNUSUAL)
    await send(server, topic, schema, [value])

    def check() -> None:
        (row,) = load(spark, options_for(server, topic=topic)).collect()
        assert row["either"].asDict() == {"member0": None, "member1": 5}
        assert (row["x"], row["__key"], row["__topic"]) == (1, None, topic)
        assert set(row.asDict()) == {"either", "x", *(each.name for each in METADATA_FIELDS)}
        reader = spark.read.format("magnetar").options(**options_for(server, topic=topic))
        (row,) = reader.schema("value binary, x int").load().collect()
        assert (bytes(row["value"]), row["x"]) == (schema.encode(value), 1)

    await asyncio.to_thread(check)


async def test_a_field_that_was_renamed_has_its_old_values(server: Standalone, topic: str) -> None:
    def of(*fields: dict[str, Any]) -> AvroObjectSchema:
        return AvroObjectSchema({"type": "record", "name": "R", "fields": list(fields)})

    await send(server, topic, of({"name": "before", "type": "int"}), [{"before": 1}])
    now = {"name": "after", "type": "int", "aliases": ["before"]}
    new = {"name": "new", "type": "int", "default": 42}
    path = topic.replace("persistent://", "")
    admin(
        server,
        "PUT",
        "namespaces/public/default/schemaCompatibilityStrategy",
        "ALWAYS_COMPATIBLE",
    )
    try:
        await send(server, topic, of(now, new), [{"after": 2, "new": 3}])
    finally:
        admin(server, "PUT", "namespaces/public/default/schemaCompatibilityStrategy", "FULL")
    assert len(admin(server, "GET", f"schemas/{path}/schemas")["getSchemaResponses"]) == 2
    rows = await asyncio.to_thread(rows_of, options_for(server, topic=topic))
    assert [(row["after"], row["new"]) for row in rows] == [(1, 42), (2, 3)]


class Colour(Enum):
    red = 1
    blue = 2


class Painted(Record):  # type: ignore[misc]
    colour = CustomEnum(Colour)
    x = Integer()


def test_json_of_the_official_client_with_an_enum_is_read(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """The official client writes the number of what the schema calls a symbol."""
    producer = client.create_producer(topic, schema=JsonSchema(Painted))
    producer.send(Painted(colour=Colour.blue, x=1))
    producer.close()
    (row,) = rows_of(options_for(server, topic=topic))
    assert (row["colour"], row["x"]) == ("2", 1)


async def test_primitive_schemas_are_a_column_of_their_type(server: Standalone, topic: str) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    values: list[tuple[Schema[Any], Any]] = [(STRING, "text"), (INT32, -5), (INSTANT, now)]
    for number, (schema, value) in enumerate(values):
        name = f"{topic}-{number}"
        await send(server, name, schema, [value])
        (row,) = await asyncio.to_thread(rows_of, options_for(server, topic=name))
        assert row["value"] == value


@pytest.mark.parametrize("encoding", list(KeyValueEncoding))
async def test_a_key_with_a_value_is_two_columns(
    server: Standalone, spark: SparkSession, topic: str, encoding: KeyValueEncoding
) -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
    }
    schema = KeyValueSchema(STRING, AvroObjectSchema(definition), encoding)
    await send(server, topic, schema, [KeyValue("a", {"x": 1, "y": "z"})])

    def check() -> None:
        (row,) = load(spark, options_for(server, topic=topic)).collect()
        assert (row["key"], row["value"].asDict()) == ("a", {"x": 1, "y": "z"})
        is_separate = encoding is KeyValueEncoding.SEPARATED
        assert row["__key"] == (b"a" if is_separate else None)

    await asyncio.to_thread(check)


@pytest.mark.parametrize("kind", [AvroObjectSchema, JsonObjectSchema], ids=["AVRO", "JSON"])
async def test_a_message_without_a_value_is_a_row_with_a_null_value(
    server: Standalone, spark: SparkSession, topic: str, kind: type
) -> None:
    """In batch and streaming queries; a record of nulls is no such message."""
    fields = [{"name": "x", "type": ["null", "int"]}]
    await send(
        server,
        topic,
        kind({"type": "record", "name": "R", "fields": fields}),
        [{"x": 1}, None, {"x": None}],
    )
    options = options_for(server, topic=topic, startingOffsets="earliest")

    def check() -> None:
        assert [row["x"] for row in load(spark, options).collect()] == [1, None, None]
        read = spark.read.format("magnetar").options(**options)
        rows = read.schema("value struct<x:int>, x int").load().collect()
        values = [row["value"] and row["value"].asDict() for row in rows]
        assert values == [{"x": 1}, None, {"x": None}]
        rows = read.schema("x int, value binary").load().collect()
        assert [row["value"] is None for row in rows] == [False, True, False]
        whole = StructType([StructField("x", IntegerType())])
        for column, expected in ((whole, values), (BinaryType(), [row["value"] for row in rows])):
            columns = StructType([StructField("value", column), StructField(TOPIC, StringType())])
            with DrivenQuery(options, Checkpoint(), columns) as query:
                assert query.run_available().values == expected

    await asyncio.to_thread(check)


async def test_topics_of_different_schemas_are_bytes_by_a_schema_of_ones_own(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    await send(server, f"{topic}-0", STRING, ["text"])
    await send(server, f"{topic}-1", INT32, [1])
    await asyncio.to_thread(publish_to, client, f"{topic}-2", [b"bytes"])
    options = options_for(server, topics=",".join(f"{topic}-{number}" for number in range(3)))
    rows = await asyncio.to_thread(rows_of, options, VALUE_ONLY)
    assert [row["value"] for row in rows] == [b"text", b"\0\0\0\1", b"bytes"]
    with pytest.raises(SchemaMismatchError, match=r'\.schema\("value binary'):
        await asyncio.to_thread(rows_of, options)
    with DrivenQuery(
        {**options, "startingOffsets": "earliest"},
        Checkpoint(),
        StructType([*VALUE_ONLY.fields, StructField(TOPIC, StringType())]),
    ) as query:
        await asyncio.to_thread(query.run_available)
        assert sorted(query.values) == [b"\0\0\0\1", b"bytes", b"text"]


def test_a_number_that_json_has_no_form_for_comes_back_from_the_sink(
    server: Standalone, spark: SparkSession, topic: str
) -> None:
    frame = spark.sql("SELECT double('NaN') AS x UNION ALL SELECT double('-Infinity')")
    options = options_for(server)
    del options["metadata.url"]
    frame.write.format("magnetar").mode("append").options(
        **options, topic=topic, schema="json"
    ).save()
    found = sorted(str(row["x"]) for row in load(spark, options_for(server, topic=topic)).collect())
    assert found == ["-inf", "nan"]
