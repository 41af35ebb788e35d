"""A task of Spark: the rows of its slices, as Arrow batches."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from magnetar.arrow.stored.arrow_rows import BYTES_MAX, ROWS_MAX, ArrowRows
from magnetar.arrow.stored.slice_reader import ReadsInTurn, SliceReader, settle_worker
from magnetar.arrow.stored.slices import Slice
from magnetar.sdk.spark.errors import one_line_errors
from magnetar.sdk.spark.query_columns import value_columns
from magnetar.sdk.spark.query_schema import arrow_schema


def read_slices(schema: StructType, wanted: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's slices, in order.

    Raises:
        DataLossError: entries are gone, and `fail_on_data_loss` is set.
        CorruptDataError, UnreachableError, SchemaMismatchError
    """
    settle_worker(wanted[0].settings.worker_niceness)
    with one_line_errors():
        batches = _batches(schema, wanted)
        yield from batches if len(wanted) == 1 else _large(batches)


def _batches(schema: StructType, wanted: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    columns, reads = arrow_schema(schema), ReadsInTurn()
    try:
        for each in wanted:
            rows = ArrowRows(
                columns,
                topic=each.topic,
                partition=each.partition,
                values=value_columns(schema, each.value_schema),
                mode=each.settings.mode,
            )
            yield from SliceReader(each, rows, reads.of(each)).batches()
    finally:
        reads.close()


def _large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each batch has the fixed cost of a transfer to the JVM."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > ROWS_MAX or size + batch.nbytes > BYTES_MAX):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
