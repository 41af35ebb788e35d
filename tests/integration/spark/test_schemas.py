"""Fields of JSON and AVRO schemas are columns."""

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Double,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from magnetar.sdk.spark import MagnetarDataSource
from magnetar.sdk.spark.columns import METADATA_FIELDS
from tests.integration.spark.driven import Checkpoint, DrivenQuery
from tests.integration.spark.support import options_for
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
    """Messages of an older version lack what was added since."""
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
    assert [row["gate"] for row in rows] == [None] * 50 + ["B7"]
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
    columns = StructType([StructField("carrier", StringType()), METADATA_FIELDS[1]])
    producer = client.create_producer(topic, schema=schema(Flight))
    producer.send(flight(0))
    producer.close()
    with DrivenQuery(options, Checkpoint(), columns) as query:
        assert query.run_available().values == ["UA"]
        producer = client.create_producer(topic, schema=schema(GateFirst))
        producer.send(flight(1, GateFirst, gate="B7"))
        producer.close()
        assert query.run_available().values == ["UA", "UA"]
