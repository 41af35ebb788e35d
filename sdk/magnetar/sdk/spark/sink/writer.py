"""Spark's writers: exactly once, across task retries, speculative tasks and restarts of the query.

**What Spark guarantees.** A micro-batch is planned before it runs. Its offsets are in the
checkpoint, and an unfinished batch is run again with the same batch id and the same offsets, in
this process or the next. A task may be run several times, one after the other or at the same time
(speculation, or an executor that Spark has lost contact with); each run calls `write`. The source
gives the same rows for the same offsets, so the rows of the batch are the same *as a set*.

**What Spark does not guarantee** is which task has a row, or where in the task it is. Both stay the
same if the plan has no shuffle, or sorts after it (`repartition` of Spark sorts by itself). The
order after an aggregation or a join may depend on which block came first. The number of tasks
changes with the partitions of the source or of the shuffle.

**How the sink handles this.** A task writes under a name made of the query's id and the task's
number. Deduplication at the broker lets one attempt at a time write under it and remembers the last
sequence id. That id says how many rows of which batch are stored and has their checksum
(`attempts.py`). A later attempt skips those rows *if they are the same*. If they differ, it fails
with one line and writes nothing: skipping by number alone would lose rows. Option `sortBy` sorts
the rows of each task, for queries whose order varies. If a query ends within a batch, and then runs
with another number of tasks, the sink notices only when a resumed task has other rows than before.
Keep the number until the query has begun a new batch.

Consumers see rows once they are stored, before the batch ends, and each row once. A batch query has
a random name: a job started again writes again, unless it has `producerName`.

`write_task` runs a task: Arrow batches in, lanes out, on one event loop for the time of the task,
since Spark's own processes have none.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import uvloop
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.arrow.stored.column_names import TOPIC
from magnetar.sdk import Client
from magnetar.sdk.errors import SdkError
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.spark.errors import (
    MagnetarSparkError,
    OptionError,
    SchemaMismatchError,
    UnreachableError,
    one_line_errors,
)
from magnetar.sdk.spark.sink.attempts import Router, runs
from magnetar.sdk.spark.sink.items import Messages
from magnetar.sdk.spark.sink.lane import Lane, TaskIdentity, open_lane
from magnetar.sdk.spark.sink.options import SinkOptions, check_not_scalable
from magnetar.sdk.spark.sink.rows import RowPlan, plan_rows
from magnetar.sdk.spark.sink.topics import ReadyTopic, prepare_topic
from magnetar.sdk.wire.topic_name import TopicName

_T = TypeVar("_T")
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a task."""

    rows: int
    skipped: int
    """Rows, also counted in `rows`, that an earlier attempt had stored."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The plan that the driver makes and every task gets."""

    options: SinkOptions
    rows: RowPlan
    topic: ReadyTopic | None
    """The topic of the option `topic`, if given."""


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """Report of a task to the driver."""

    written: Written


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch query."""

    def __init__(self, plan: SinkPlan, query: str) -> None:
        self._plan, self._query = plan, query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        task = TaskIdentity(self._query, None, context.partitionId())
        with one_line_errors():
            return TaskWritten(write_task(self._plan, task, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: the rows of the tasks are stored already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: stored rows stay. The job continues if it is started again with its
        `producerName`."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        with one_line_errors():
            batch_id, query = _property(context, _BATCH_ID), _property(context, _QUERY_ID)
            if self.plan.options.producer_name:
                # In addition to the id: with a new checkpoint, batches count from 0 again. Under
                # the old name they would be taken for stored.
                query = f"{self.plan.options.producer_name}-{query}"
            task = TaskIdentity(query, int(batch_id), context.partitionId())
            return TaskWritten(write_task(self.plan, task, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the rows of the tasks are stored already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch is run again, and continues where it ended."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of `df.write`.

    Raises:
        MagnetarSparkError: options, columns or the topic are wrong.
    """
    plan = _plan(options, schema, overwrite)
    query = plan.options.producer_name or f"{random.Random().getrandbits(64):016x}"
    return BatchWriter(plan, query)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of `df.writeStream`.

    Raises:
        MagnetarSparkError: options, columns or the topic are wrong.
    """
    return StreamWriter(_plan(options, schema, overwrite))


def _plan(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkPlan:
    if overwrite:
        raise OptionError("mode", "messages cannot be overwritten: use mode append (or update)")
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
        raise MagnetarSparkError(f"Spark gives the task no {name}: this is not a streaming query")
    return value


def write_task(plan: SinkPlan, task: TaskIdentity, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write all rows; return when they are stored.

    Raises:
        MagnetarSparkError: the task failed. A retry, on any machine, continues where it ended.
    """
    if plan.options.sort_by:
        batches = _sorted(batches, plan.options.sort_by)
    return run_to_end(_write(plan, task, batches))


async def _write(plan: SinkPlan, task: TaskIdentity, batches: Iterator[pa.RecordBatch]) -> Written:
    connection = plan.options.connection
    writer: _TaskWriter | None = None
    try:
        async with Client(connection.service_url, connection.client_settings()) as client:
            writer = _TaskWriter(client, SystemClock(), plan, task)
            await _pump(batches, writer)
            return await writer.finish()
    except MagnetarSparkError:
        raise
    except SdkError as error:
        kind = UnreachableError if error.retryable else MagnetarSparkError
        raise kind(f"{task}: {error}") from error


async def _pump(batches: Iterator[pa.RecordBatch], writer: "_TaskWriter") -> None:
    """Fetch the next batch, which blocks, while the previous one is being sent."""
    loop = asyncio.get_running_loop()
    coming = loop.run_in_executor(None, next, batches, None)
    while (batch := await coming) is not None:
        coming = loop.run_in_executor(None, next, batches, None)
        try:
            await writer.write(batch)
        except BaseException:
            await asyncio.gather(coming, return_exceptions=True)
            raise


class _TaskWriter:
    """The lanes of a task."""

    def __init__(self, client: Client, clock: Clock, plan: SinkPlan, task: TaskIdentity) -> None:
        self._client, self._clock, self._plan, self._task = client, clock, plan, task
        self._topics: dict[str, tuple[ReadyTopic, Router | None]] = {}
        self._lanes: dict[str, Lane] = {}
        if plan.topic is not None:
            self._add_topic(plan.topic)

    async def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        messages = self._plan.rows.messages(batch)
        if not self._plan.rows.has_topic:
            await self._write_topic(self._plan.options.topic, messages)
            return
        names = self._topic_names(batch.column(TOPIC))
        for name, indices in _groups(names):
            await self._write_topic(str(name), messages.take(indices))

    async def finish(self) -> Written:
        await asyncio.gather(*(lane.finish() for lane in self._lanes.values()))
        return Written(
            rows=sum(lane.rows for lane in self._lanes.values()),
            skipped=sum(lane.skipped for lane in self._lanes.values()),
        )

    async def _write_topic(self, name: str, messages: Messages) -> None:
        ready, router = await self._topic(name)
        key = messages.key
        if router is None:
            if self._plan.options.batch_by_key and key is not None:
                messages = messages.take(pc.sort_indices(key))
            await (await self._lane(ready.name)).send(messages)
            return
        partitions = router.route(key, len(messages.value))
        for partition, indices in _groups(partitions):
            assert isinstance(partition, int)
            part = messages.take(indices)
            if self._plan.options.batch_by_key and part.key is not None:
                part = part.take(pc.sort_indices(part.key))
            topic = str(TopicName.parse(ready.name).partition(partition))
            await (await self._lane(topic)).send(part)

    async def _topic(self, name: str) -> tuple[ReadyTopic, Router | None]:
        if name not in self._topics:
            plan = self._plan
            self._add_topic(await prepare_topic(self._client, name, plan.options, plan.rows))
        return self._topics[name]

    def _add_topic(self, ready: ReadyTopic) -> None:
        router = None
        if ready.partitions:
            router = Router(
                ready.partitions,
                first=self._task.partition_id,
                murmur=self._plan.options.murmur,
            )
        self._topics[ready.name] = (ready, router)

    async def _lane(self, topic: str) -> Lane:
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = await open_lane(
                self._client,
                self._clock,
                topic,
                self._task,
                self._plan.options,
                self._plan.rows.schema,
            )
        return lane

    def _topic_names(self, column: pa.Array) -> pa.Array:
        """Return full names, without nulls."""
        encoded = column.dictionary_encode()
        given = encoded.dictionary.to_pylist()
        for each in given:
            check_not_scalable(each)
        names = [str(TopicName.parse(each)) for each in given]
        default = self._plan.options.topic
        if column.null_count and not default:
            raise SchemaMismatchError(f"a row without {TOPIC} (null), and no option topic")
        found = pa.array(names, pa.string()).take(encoded.indices)
        return pc.fill_null(found, default) if column.null_count else found


def _groups(values: pa.Array) -> Iterator[tuple[object, pa.Array]]:
    """Yield (value, indices) of the rows with each value, in their order."""
    order = pc.sort_indices(values)  # stable
    for value, start, stop in runs(values.take(order)):
        yield value, order.slice(start, stop - start)


def _sorted(
    batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Sort all rows of the task by these columns: a retry then has the same order."""
    collected = list(batches)
    if not collected:
        return iter(())
    table = pa.Table.from_batches(collected)
    return iter(table.sort_by([(name, "ascending") for name in columns]).to_batches())


def run_to_end(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a loop of its own, and close the loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
