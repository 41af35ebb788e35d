"""A Spark source in Python that does nothing: the cost of a micro-batch in Spark itself.

Each micro-batch has one task, which returns the rows of one Arrow batch that is made once, with the
columns of a topic. The measured time includes what Spark does for any source in Python: the calls
into the driver's process, the task, its worker, and the transfer of the rows into the JVM.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_ROWS: Final = 1_000
_ROW_BYTES: Final = 100
_SCHEMA: Final = StructType(
    [
        StructField("value", BinaryType()),
        StructField("__key", StringType()),
        StructField("__topic", StringType()),
        StructField("__messageId", BinaryType()),
        StructField("__publishTime", TimestampType()),
        StructField("__eventTime", TimestampType()),
        StructField("__messageProperties", MapType(StringType(), StringType())),
    ]
)


class PlainSource(DataSource):
    """`format("plain")`: the same number of rows in each micro-batch, for ever."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> StructType:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _PlainReader()


class _PlainReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"at": start["at"] + _ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(start["at"])]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: there is nothing to release."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield _batch()


@cache
def _batch() -> pa.RecordBatch:
    schema = to_arrow_schema(_SCHEMA, timezone="UTC")
    now = datetime.now(UTC)
    row: list[Any] = [b"x" * _ROW_BYTES, None, "topic", b"id", now, None, []]
    columns = [
        pa.array([value] * _ROWS, field.type) for value, field in zip(row, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
