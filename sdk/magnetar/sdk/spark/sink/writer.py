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
(`attempts.py`). A later attempt skips those rows *if they are the same*. If they are not, it fails
with one line and writes nothing: skipping by number alone would lose rows. Option `sortBy` sorts
the rows of each task, for queries whose order is not the same each time. An end of the query in the
midst of a batch, and after it another number of tasks, is found when a task that goes on has other
rows than before, and only then: keep the number until the query has begun a new batch.

Rows are visible to consumers when they are stored, before the batch ends; the same rows, once. A
batch query has a random name: a job started again writes again, unless it is given `producerName`.

`write_task` is what a task does: Arrow batches in, lanes out; one event loop for the time of the
task, since Spark's own processes have none.
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
    """What came of a task."""

    rows: int
    skipped: int
    """Rows, counted in `rows` too, that an earlier attempt had stored."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Decided on the driver, carried to every task."""

    options: SinkOptions
    rows: RowPlan
    topic: ReadyTopic | None
    """That of the option `topic`."""


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
    """Write all rows; when it returns they are stored.

    Raises:
        MagnetarSparkError: the task failed. Retrying it, on any machine, goes on where it ended.
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
    """Fetch the next batch, which blocks, while the one before is on its way."""
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
        """Full names, without nulls."""
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
    """(value, indices) of the rows with each value, in their order."""
    order = pc.sort_indices(values)  # stable
    for value, start, stop in runs(values.take(order)):
        yield value, order.slice(start, stop - start)


def _sorted(
    batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """All rows of the task by the columns: whatever their order was, a retry has the same."""
    collected = list(batches)
    if not collected:
        return iter(())
    table = pa.Table.from_batches(collected)
    return iter(table.sort_by([(name, "ascending") for name in columns]).to_batches())


def run_to_end(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run it on a loop of its own, and close the loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
