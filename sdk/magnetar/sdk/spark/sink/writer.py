"""Spark's writers: exactly once, across task retries, speculative tasks and restarts of the query.

**What Spark promises.** A micro-batch is planned before it runs: its offsets are in the checkpoint,
and a batch that did not finish is run again with the same batch id and the same offsets, in this
process or the next. A task may be run several times, one after the other or (speculation, an
executor that was lost from sight) at the same time; `write` is called by each. What the source
gives for the offsets is the same, so the rows of the batch are the same *as a set*.

**What it does not promise** is which task has a row, or where in the task it is. Both are the same
again when the plan has no shuffle, or one that is sorted after it (`repartition` of Spark sorts by
itself); the order behind an aggregation or a join may depend on which block came first.
And the number of tasks is another after a change of the source's or the shuffle's partitions.

**What the sink makes of that.** A task writes under a name made of the query's id and its number;
deduplication at the broker lets one attempt at a time write under it and remembers the last
sequence id, which says how many rows of which batch are stored and has their checksum
(`sequence.py`). A later attempt skips those rows *if they are the same*. If they are not, it fails
with one line and writes nothing: skipping by number alone would lose rows. Option `sortBy` sorts
the rows of each task, for queries whose order is not the same each time. An end of the query in the
midst of a batch, and after it another number of tasks, is found when a task that goes on has other
rows than before, and only then: keep the number until the query has begun a new batch.

Rows are visible to consumers when they are stored, before the batch ends; the same rows, once. A
batch query has a random name: a job started again writes again, unless it is given `producerName`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.sdk import Client
from magnetar.sdk.spark.errors import MagnetarSparkError, OptionError, one_line_errors
from magnetar.sdk.spark.sink.lane import TaskIdentity
from magnetar.sdk.spark.sink.loop import run_to_end
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.rows import RowPlan, plan_rows
from magnetar.sdk.spark.sink.task import SinkPlan, Written, write_task
from magnetar.sdk.spark.sink.topics import ReadyTopic, prepare_topic

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


class BatchWriter(DataSourceArrowWriter):
    """See the module's text."""

    def __init__(self, plan: SinkPlan, query: str) -> None:
        self._plan, self._query = plan, query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        task = TaskIdentity(self._query, None, context.partitionId())
        with one_line_errors():
            return TaskWritten(write_task(self._plan, task, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: what a task wrote is stored."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was stored cannot be taken back; the job again with its `producerName` goes on."""


class StreamWriter(DataSourceStreamArrowWriter):
    """See the module's text."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        with one_line_errors():
            batch_id, query = _property(context, _BATCH_ID), _property(context, _QUERY_ID)
            if self.plan.options.producer_name:
                # Not instead of the id: with a new checkpoint batches are counted from 0 again, and
                # under the name of the last ones they would be taken for stored.
                query = f"{self.plan.options.producer_name}-{query}"
            task = TaskIdentity(query, int(batch_id), context.partitionId())
            return TaskWritten(write_task(self.plan, task, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: what a task wrote is stored."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back: the batch is run again, and goes on where it ended."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of `df.write`.

    Raises:
        MagnetarSparkError: whatever is wrong with options, columns or topic.
    """
    plan = _plan(options, schema, overwrite)
    query = plan.options.producer_name or f"{random.Random().getrandbits(64):016x}"
    return BatchWriter(plan, query)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`.

    Raises:
        MagnetarSparkError: whatever is wrong with options, columns or topic.
    """
    return StreamWriter(_plan(options, schema, overwrite))


def _plan(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkPlan:
    if overwrite:
        raise OptionError("mode", "messages are not overwritten: use append (or update)")
    chosen = SinkOptions.read(options)
    rows = plan_rows(schema, chosen)
    topic = run_to_end(_prepare(chosen, rows)) if chosen.topic else None
    return SinkPlan(chosen, rows, topic)


async def _prepare(options: SinkOptions, rows: RowPlan) -> ReadyTopic:
    connection = options.connection
    async with Client(connection.service_url, connection.client_settings()) as client:
        return await prepare_topic(client, options.topic, options, rows)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write runs in tasks only"
    return context


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if value is None:
        raise MagnetarSparkError(f"Spark tells the task no {name}: this is no streaming query")
    return value
