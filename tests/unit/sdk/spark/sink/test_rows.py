"""Columns of a query become parts of messages."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.sdk.spark.errors import SchemaMismatchError
from magnetar.sdk.spark.sink.items import Messages, items
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.rows import plan_rows

SCHEMA = StructType(
    [StructField("value", StringType()), StructField("__eventTime", TimestampType())]
)
GIVEN = {"service.url": "pulsar://h:1", "admin.url": "http://h:1", "topic": "t"}


def messages_at(*micros: int | None, zone: str = "UTC") -> Messages:
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))
    values = pa.array(["x"] * len(micros))
    batch = pa.RecordBatch.from_arrays([values, times], ["value", "__eventTime"])
    return plan_rows(SCHEMA, SinkOptions.read(GIVEN)).messages(batch)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_event_times_are_rounded_down_to_milliseconds(zone: str) -> None:
    found = messages_at(0, 999, 1_000, 1_357_016_400_000_999, None, -1, -1_000, -1_001, zone=zone)
    assert found.event_time_ms is not None
    assert found.event_time_ms.to_pylist() == [0, 0, 1, 1_357_016_400_000, None, -1, -1, -2]


def test_a_time_just_before_1970_is_refused_as_any_other_before_it() -> None:
    with pytest.raises(SchemaMismatchError, match="before 1970"):
        items(messages_at(-500))


@pytest.mark.parametrize("schema", ["none", "json", "avro"])
def test_a_row_that_is_said_to_have_no_value_becomes_a_message_without_one(schema: str) -> None:
    kind, values = (StringType(), ["a", "b", "c"]) if schema == "none" else (IntegerType(), [1] * 3)
    columns = StructType([StructField("value", kind), StructField("__nullValue", BooleanType())])
    batch = pa.RecordBatch.from_pydict({"value": values, "__nullValue": [False, True, None]})
    found = plan_rows(columns, SinkOptions.read({**GIVEN, "schema": schema})).messages(batch)
    assert found.value.is_null().to_pylist() == [False, True, False]
