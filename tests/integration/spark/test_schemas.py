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

from magnetar.sdk.spark import MagnetarDataSource
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
