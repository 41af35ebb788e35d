"""What a task does: Arrow batches in, lanes out; one event loop for the time of the task."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.sdk import Client
from magnetar.sdk.errors import SdkError
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.spark.columns import TOPIC
from magnetar.sdk.spark.errors import MagnetarSparkError, SchemaMismatchError, UnreachableError
from magnetar.sdk.spark.sink.items import Messages
from magnetar.sdk.spark.sink.lane import Lane, TaskIdentity, open_lane
from magnetar.sdk.spark.sink.loop import run_to_end
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.routing import Router, runs
from magnetar.sdk.spark.sink.rows import RowPlan
from magnetar.sdk.spark.sink.topics import ReadyTopic, prepare_topic
from magnetar.sdk.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a task."""

    rows: int
    skipped: int
    """Of these, stored by an earlier attempt."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Decided on the driver, carried to every task."""

    options: SinkOptions
    rows: RowPlan
    topic: ReadyTopic | None
    """That of the option `topic`."""


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
        names = [str(TopicName.parse(each)) for each in encoded.dictionary.to_pylist()]
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
