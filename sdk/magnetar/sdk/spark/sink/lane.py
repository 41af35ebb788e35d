"""A task's connection to one topic: one producer, and how far its batch is stored.

Rows come in the order in which they are to be stored. Rows that an earlier attempt has stored are
skipped and verified by their checksum; see `attempts.py`.
"""

import asyncio
from dataclasses import dataclass

import pyarrow as pa

from magnetar.sdk import Client, Producer, ProducerSettings
from magnetar.sdk.backoff import Backoff
from magnetar.sdk.ports import Clock
from magnetar.sdk.spark.errors import (
    MagnetarSparkError,
    RetryMismatchError,
    UnreachableError,
)
from magnetar.sdk.spark.sink.attempts import (
    ROWS_MAX,
    ROWS_MAX_ALONE,
    Entry,
    EntryCutter,
    Progress,
    extend,
    fold,
    producer_name,
    progress,
    runs,
    sequence_id,
)
from magnetar.sdk.spark.sink.items import Messages, extras, items, payloads, wire_key
from magnetar.sdk.spark.sink.options import SinkOptions
from magnetar.sdk.spark.sink.rows import RowSchema, make_producer
from magnetar.sdk.wire.errors import ProducerBusyError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

BUSY_PAUSE_S_MIN = 0.05
BUSY_PAUSE_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Identity of a task, which all its attempts share."""

    query: str
    batch_id: int | None
    """None for a query without micro-batches."""
    partition_id: int

    @property
    def producer_name(self) -> str:
        return producer_name(self.query, self.batch_id, self.partition_id)

    def __str__(self) -> str:
        batch = "" if self.batch_id is None else f"batch {self.batch_id}, "
        return f"query {self.query}, {batch}task {self.partition_id}"


async def open_lane(
    client: Client,
    clock: Clock,
    topic: str,
    task: TaskIdentity,
    options: SinkOptions,
    schema: RowSchema | None,
) -> "Lane":
    """Attach under the task's name; wait while another attempt still has it.

    Raises:
        UnreachableError: the name was taken for the whole timeout.
        ServiceError: as `Client.producer`.
    """
    settings = ProducerSettings(
        name=task.producer_name,
        pending_messages_max=100_000_000,
        pending_bytes_max=options.pending_bytes_max,
        send_timeout_ms=options.send_timeout_ms,
        compression=options.compression,
    )
    give_up_at_s = clock.monotonic_s() + options.busy_timeout_ms / 1000
    backoff = Backoff(min_s=BUSY_PAUSE_S_MIN, max_s=BUSY_PAUSE_S_MAX)
    while True:
        try:
            producer = await make_producer(client, topic, settings, schema)
        except ProducerBusyError as error:
            if clock.monotonic_s() >= give_up_at_s:
                raise UnreachableError(
                    f"{topic}: {task}: another attempt of this task is connected and did not end "
                    f"within {options.busy_timeout_ms} ms (busyTimeoutMs): {error}"
                ) from error
            await asyncio.sleep(backoff.next_s())
            continue
        return Lane(producer, topic, task, options)


class Lane:
    """Sends a task's rows to one topic, and skips those that are stored."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        task: TaskIdentity,
        options: SinkOptions,
    ) -> None:
        self._producer, self._topic, self._task, self._options = producer, topic, task, options
        stored = progress(task.batch_id, producer.last_sequence_id)
        self._stored = stored or Progress()
        self._is_whole = stored is None
        self._rows_max = ROWS_MAX_ALONE if task.batch_id is None else ROWS_MAX
        self._cutter = EntryCutter(
            rows_max=options.batch_messages_max,
            bytes_max=options.batch_bytes_max,
            cut_at=self._stored.rows,
        )
        self._checksum = 0
        self.rows = 0
        """Rows that have come."""
        self.skipped = 0
        """Rows that were stored before."""

    async def send(self, messages: Messages) -> None:
        """Send the next rows.

        Raises:
            RetryMismatchError: the rows differ from those that an earlier attempt has stored.
            SdkError: as `Producer.send_entry`.
        """
        if not self._options.batching:
            await self._send_singles(messages)
        elif self._options.batch_by_key and messages.key is not None:
            await self._send_by_key(messages, messages.key)
        else:
            for entry in self._cutter.feed(items(messages), messages.key):
                await self._send_entry(entry)

    async def finish(self) -> None:
        """Send the rest, and wait until everything is stored.

        Raises:
            As `send`.
        """
        for entry in self._cutter.rest():
            await self._send_entry(entry)
        if self.rows < self._stored.rows and not self._is_whole:
            raise self._mismatch(f"has {self.rows} rows")
        await self._producer.flush()

    async def _send_by_key(self, messages: Messages, key: pa.Array) -> None:
        """Send messages in the order of their keys: an entry has one key only."""
        column = items(messages)
        for _, start, stop in runs(key):
            part = column.slice(start, stop - start)
            for entry in self._cutter.feed(part, key.slice(start, 1).take(_zeros(stop - start))):
                await self._send_entry(entry)
            for entry in self._cutter.rest():
                await self._send_entry(entry)

    async def _send_entry(self, entry: Entry) -> None:
        if self._is_stored(entry.body, entry.rows):
            return
        extra = b""
        if entry.first_key is not None:
            wired, is_base64 = wire_key(entry.first_key)
            extra = MessageMetadata(
                partition_key=wired.decode(), partition_key_b64_encoded=is_base64 or None
            ).SerializePartialToString()
        last = sequence_id(self._task.batch_id or 0, self.rows, self._checksum)
        await self._producer.send_entry(
            entry.body, messages=entry.rows, sequence_id=last - entry.rows + 1, extra=extra
        )

    async def _send_singles(self, messages: Messages) -> None:
        batch_id = self._task.batch_id or 0
        rows = zip(
            items(messages).to_pylist(),
            extras(messages).to_pylist(),
            payloads(messages).to_pylist(),
            strict=True,
        )
        for item, extra, payload in rows:
            if self._is_stored(item, 1):
                continue
            await self._producer.send_entry(
                payload,
                messages=0,
                sequence_id=sequence_id(batch_id, self.rows, self._checksum),
                extra=extra,
            )

    def _is_stored(self, encoded: bytes, rows: int) -> bool:
        """Count the next rows; return whether they are stored already."""
        self.rows += rows
        if self.rows > self._rows_max:
            raise MagnetarSparkError(
                f"{self._topic}: {self._task}: more than {self._rows_max} rows in one batch; "
                "use more Spark partitions, or smaller batches"
            )
        if self._is_whole:
            self.skipped += rows
            return True
        self._checksum = extend(self._checksum, encoded)
        stored = self._stored
        if self.rows > stored.rows:
            return False
        self.skipped += rows
        if self.rows == stored.rows and fold(self._checksum) != stored.checksum:
            raise self._mismatch("has others, or the same in another order")
        return True

    def _mismatch(self, what: str) -> RetryMismatchError:
        return RetryMismatchError(
            f"{self._topic}: {self._task}: an earlier attempt has stored {self._stored.rows} rows, "
            f"and this one {what}: nothing more was written. A retry must bring the same rows "
            "in the same order: give sortBy the columns that make the order of rows unique"
        )


def _zeros(count: int) -> pa.Array:
    return pa.array([0] * count, pa.int32())
