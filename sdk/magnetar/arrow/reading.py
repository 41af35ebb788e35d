"""`read` and `scan`: from a topic's name to a stream of record batches.

A read is planned once: which entries of which ledgers, up to the last one that is confirmed at that
moment. Workers, which are threads or processes, read slices of it. They read straight from bookies
and object stores where these can be reached, and through brokers otherwise. Batches come in the
order of the topic; several topics, or partitions, come one after the other.
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Protocol, Unpack

import pyarrow as pa

from magnetar.arrow.errors import OptionError, SchemaMismatchError, refusals_typed
from magnetar.arrow.ordered_batches import OrderedBatches
from magnetar.arrow.request import ReadArguments, Request, checked
from magnetar.arrow.slice_jobs import SliceJob, batches_of
from magnetar.arrow.stored.column_types import all_columns
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.slice_reader import ReadsInTurn
from magnetar.arrow.stored.slices import Slice, ValueSchema
from magnetar.arrow.stored.topic_schema import value_schema_of
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.arrow.worker_process import WorkerProcess
from magnetar.sdk.errors import AlreadyClosedError
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger(__name__)

HOLD_S = 3_600
"""How long brokers regard the topics as in use after a read is planned, in seconds. A reader of
bookies is connected to no broker."""

_UNREAD_LINES_MAX = 10


def read(topic: str | Sequence[str], **arguments: Unpack[ReadArguments]) -> pa.RecordBatchReader:
    """Read a topic, or several with one schema, as a stream of Arrow record batches.

    The read is bounded: it ends with the last message that is confirmed when it begins, or earlier
    if `end` says so. Messages published later are not part of it. Messages come in the order of the
    topic; partitions, and several topics, come one after the other. Aborted transactions are left
    out, and so is everything from the first open one on.

    A RecordBatchReader is read once, by one thread at a time. Close it if you do not read it to its
    end.

    Args:
        topic: a name, or several. A partitioned topic means all its partitions. A scalable topic
            means all its segments; parents of splits and merges come before their children, so the
            messages of a key come in order.
        arguments: where to read and what: see `ReadArguments`.

    Raises:
        OptionError: an argument that is not allowed.
        TopicNotFoundError, OffsetError, AccessDeniedError, SchemaMismatchError, DataLossError,
        UnreachableError: found while the read is planned, or later, by the reader.
        CorruptDataError, MemoryLimitError, WorkerLostError: by the reader.
    """
    return scan(topic, **arguments).reader()


def scan(topic: str | Sequence[str], **arguments: Unpack[ReadArguments]) -> "Scan":
    """Describe a read that begins later, and may be read several times.

    The arguments are those of `read`. This sends no request to a server.

    Raises:
        OptionError: an argument that is not allowed.
    """
    return Scan(checked(topic, arguments))


class Scan:
    """A read that has not begun. Each use is a read of its own, which ends with the last message
    that is confirmed then.

    Every library that takes Arrow streams takes a scan: `polars.DataFrame(scan)`,
    `pyarrow.table(scan)`.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def schema(self) -> pa.Schema:
        """The columns, by the newest schema of the topic. Each access asks the servers.

        Raises:
            TopicNotFoundError, AccessDeniedError, SchemaMismatchError, UnreachableError
        """
        with open_driver(self._request) as driver:
            return planned_columns(self._request, driver, driver.topics())[1]

    def reader(self) -> pa.RecordBatchReader:
        """Begin the read. Errors are those of `read`."""
        with open_driver(self._request) as driver:
            states = driver.topics(hold_s=HOLD_S)
            warn_of_missing(states)
            value_schema, schema = planned_columns(self._request, driver, states)
            slices = driver.slices(states, driver.starts(states), driver.ends(states), value_schema)
        names = tuple(schema.names)
        ordered = sorted(slices, key=slice_order)
        jobs = [SliceJob(each, names, self._request.rows) for each in ordered]
        return pa.RecordBatchReader.from_batches(schema, batches_in_order(self._request, jobs))

    def table(self) -> pa.Table:
        """Read everything into one table. Errors are those of `read`."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Begin the read as an Arrow C stream, for other libraries."""
        return self.reader().__arrow_c_stream__(requested_schema)


@contextmanager
def open_driver(request: Request) -> Iterator[SourceDriver]:
    """Open the driver that plans a read, and close it afterwards."""
    driver = SourceDriver(request.source)
    try:
        with refusals_typed():
            yield driver
    finally:
        driver.close()


def planned_columns(
    request: Request, driver: SourceDriver, states: Mapping[str, TopicState]
) -> tuple[ValueSchema, pa.Schema]:
    """Return the schema of the values, and the selected columns.

    Raises:
        SchemaMismatchError: the topics have different schemas, or the definition cannot be read.
        OptionError: a selected column does not exist.
    """
    value_schema = ValueSchema()
    if request.decodes:
        try:
            value_schema = value_schema_of(driver.schemas, states, takes_protobuf=True)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                "the topics do not have one schema: read each by itself, or all of them with "
                f"decode=False ({error})"
            ) from error
    known = all_columns(value_schema, request.source.settings.mode)
    if request.columns is None:
        return value_schema, known
    unknown = [name for name in request.columns if name not in known.names]
    if unknown:
        raise OptionError(
            "columns", f"there is no column {unknown[0]!r}; there are {', '.join(known.names)}"
        )
    return value_schema, pa.schema([known.field(name) for name in dict.fromkeys(request.columns)])


def slice_order(wanted: Slice) -> tuple[str, bool, int]:
    """Sort key of slices: partitions by number, then segments by number.

    Parents of segments have lower numbers than their children. Segments that were partitions come
    first. The slices of one topic are in order already.
    """
    topic = TopicName.parse(wanted.topic)
    number = topic.segment_id if topic.is_segment else wanted.partition
    return str(topic.partitioned), topic.is_segment, number


def warn_of_missing(states: Mapping[str, TopicState]) -> None:
    """Warn of partitions that do not exist, and of data that a read of objects alone cannot see."""
    told = [
        f"{name} does not exist: it was deleted, or was not made yet; the read goes on without it"
        for name, state in states.items()
        if not state.is_there
    ]
    told += [f"{name}: {state.unread}" for name, state in states.items() if state.unread]
    for line in told[:_UNREAD_LINES_MAX]:
        _log.warning("%s", line)
    if len(told) > _UNREAD_LINES_MAX:
        _log.warning("%d topics or partitions are not read in full", len(told))


class _Worker(Protocol):
    """Reads slices, one after the other."""

    def batches(self, job: SliceJob) -> Generator[pa.RecordBatch, None, None]: ...

    def close(self) -> None: ...


class _ThreadWorker:
    """Reads in the calling thread."""

    def __init__(self) -> None:
        self._reads = ReadsInTurn()

    def batches(self, job: SliceJob) -> Generator[pa.RecordBatch, None, None]:
        return batches_of(job, self._reads)

    def close(self) -> None:
        self._reads.close()


class Batches(Iterator[pa.RecordBatch]):
    """The batches of one read. Once it has failed or is closed, it has no end any more.

    A generator alone would end normally when it is read on after an error, or after an interrupt in
    a notebook: the caller would take a part of the topic for the whole.
    """

    def __init__(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self._batches = batches
        self._failure: Exception | None = None
        self._has_ended = False

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch.

        Raises:
            MagnetarArrowError: the read has failed, now or before.
            AlreadyClosedError: the read was closed, or interrupted.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._batches)
        except StopIteration:
            self._has_ended = True
            raise
        except Exception as error:
            self._failure = error
            raise
        except BaseException:
            self._failure = AlreadyClosedError("the read was interrupted; begin another one")
            raise

    def close(self) -> None:
        """End the read before its end. Closing twice is fine."""
        if self._failure is None and not self._has_ended:
            self._failure = AlreadyClosedError("the read is closed; begin another one")
        self._batches.close()


def batches_in_order(request: Request, jobs: Sequence[SliceJob]) -> Batches:
    """Read all slices, and return their batches in order. The workers start at the first batch."""
    return Batches(_batches_in_order(request, jobs))


def _batches_in_order(
    request: Request, jobs: Sequence[SliceJob]
) -> Generator[pa.RecordBatch, None, None]:
    order = OrderedBatches(len(jobs), bytes_max=request.queue_bytes_max)
    kind = WorkerProcess if request.uses_processes else _ThreadWorker
    for number in range(min(request.workers, len(jobs))):
        threading.Thread(
            target=_work, args=(order, jobs, kind), name=f"arrow-{number}", daemon=True
        ).start()
    try:
        while (batch := order.take()) is not None:
            yield batch
    finally:
        order.close()


def _work(order: OrderedBatches, jobs: Sequence[SliceJob], kind: Callable[[], _Worker]) -> None:
    """Read slice after slice, until none is left or the consumer has closed the queue."""
    worker: _Worker | None = None
    try:
        while (number := order.begin()) is not None:
            try:
                worker = worker or kind()
                with closing(worker.batches(jobs[number])) as batches:
                    for batch in batches:
                        if not order.put(number, batch):
                            return
            except BaseException as error:  # noqa: BLE001 - it is the consumer's
                # Slices after this one are not needed any more, and those before it have begun.
                order.end(number, error)
                return
            order.end(number)
    finally:
        if worker is not None:
            worker.close()
