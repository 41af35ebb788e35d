"""Archive: topics to Parquet, each message exactly once, even across crashes.

The job is a streaming query on the source. It writes the rows of each micro-batch to a directory of
their own, reads them back and counts them. Then a commit makes them a part of the archive
(`archive_log.py`). A batch that is run again finds its commit and does nothing. A directory without
a commit is deleted at the next start. When a checkpoint is lost, a new query continues from the
archive's watermarks.

A micro-batch adds a file for each of its topics and days. When a topic and day has many small
files, their rows are rewritten as one file, sorted by their position in the topic. One commit adds
it and removes them (`compact`).
"""

import hashlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from magnetar.arrow.stored.column_names import KEY, MESSAGE_ID, PUBLISH_TIME
from magnetar.arrow.stored.column_names import TOPIC as SOURCE_TOPIC
from magnetar.arrow.stored.errors import SchemaMismatchError
from magnetar.arrow.stored.slices import DROPMALFORMED, FAILFAST
from magnetar.sdk.spark.errors import ArchiveError, PipelineError
from magnetar.sdk.spark.pipeline.archive_log import UNKNOWN_DAY, Commit, DataFile, Watermark
from magnetar.sdk.spark.pipeline.archive_store import (
    CHECKPOINT,
    COMMIT,
    DAY,
    ENTRY,
    INDEX,
    LEDGER,
    ORDER,
    TOPIC,
    ArchiveStore,
    day_of_path,
)
from magnetar.sdk.spark.pipeline.job import (
    Chosen,
    ClusterAddress,
    brokers_of,
    job_parser,
    megabytes,
    progress_bar,
    run_job,
    show_summary,
)
from magnetar.sdk.spark.query_schema import ArchivedColumns
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0
"""Longest time, in seconds, from the first batch until the start of the query has returned."""
LOOK_S = 1
"""Seconds between two looks at the progress of the query."""

_ID_PARTS = (StructField(LEDGER, LongType()), StructField(ENTRY, LongType()))
_ID_FIELDS = (*_ID_PARTS, StructField(INDEX, IntegerType()))
_BEFORE_ALL = (-1, -1, -1)

_OWN_COLUMNS = frozenset({TOPIC, DAY, COMMIT})
"""Columns that an archive adds under names that fields may have, too."""

FILE_BYTES = 128 << 20
FILES_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Settings of one run of the job."""

    brokers: ClusterAddress
    output: str
    topics: str = ""
    """Names separated by commas; alternative to `topics_pattern`."""
    topics_pattern: str = ""
    once: bool = True
    """Whether to end when everything is archived that existed at the start."""
    interval_s: int = 60
    """Seconds between micro-batches, in a continuous job."""
    entries_max: int = 0
    """Most entries of a micro-batch; 0: no limit."""
    mode: str = FAILFAST
    """How to treat messages that cannot be read: the job ends, or they are left out. PERMISSIVE,
    which gives rows without values, is not allowed in an archive."""
    checkpoint: str = ""
    """If empty, the checkpoint is in the archive's directory."""
    file_bytes: int = FILE_BYTES
    """Limit of a merged file, in bytes. A file of this size is not merged."""
    files_min: int = FILES_MIN
    """Number of small files of a topic and day that triggers a merge; at the end of the job, two
    are enough."""

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.topics_pattern):
            raise PipelineError("archive: give either topics or a pattern of topics")
        if self.mode not in (FAILFAST, DROPMALFORMED):
            raise PipelineError(f"archive: mode must be {FAILFAST} or {DROPMALFORMED}")


def archive(spark: SparkSession, settings: ArchiveSettings) -> ArchiveStore:
    """Run the job; with `once`, return when everything is archived.

    Raises:
        PipelineError, StreamingQueryException
    """
    store = ArchiveStore(spark, settings.output)
    store.remove_leftovers()
    before = store.state.rows
    columns = ArchivedColumns(_source_options(settings, store), reserved=_OWN_COLUMNS)
    try:
        with progress_bar("archived rows", None) as bar:

            def show() -> None:
                state = store.state
                note = f"{len(state.files)} files, commit {state.next_commit}"
                bar.show(state.rows - before, note)

            while not _run_query(spark, settings, store, columns, show):
                _log.info("%s: the schema of the topics has changed", store.storage.url)
    finally:
        columns.close()
    compact(spark, store, settings)
    return store


def _run_query(
    spark: SparkSession,
    settings: ArchiveSettings,
    store: ArchiveStore,
    columns: ArchivedColumns,
    show: Callable[[], None],
) -> bool:
    """Archive until the query ends; return False if it has to go on with other columns.

    The columns of a query are those of its start. A new query continues from the checkpoint.

    Raises:
        PipelineError, StreamingQueryException
    """
    writer = _BatchWriter(spark, store, settings, columns)
    query = _start(spark, settings, store, writer)
    try:
        while not query.awaitTermination(LOOK_S):
            show()
    except StreamingQueryException:
        if writer.is_outdated:
            return False
        raise
    return True


def show_archive(store: ArchiveStore) -> None:
    """Show the summary: what is archived of each topic."""
    state = store.state
    rows = []
    for topic in sorted(state.watermarks):
        files = [each for each in state.files.values() if each.topic == topic]
        rows.append(
            (
                topic,
                sum(each.rows for each in files),
                len(files),
                megabytes(sum(each.size_bytes for each in files)),
                state.watermarks[topic],
            )
        )
    show_summary(
        f"Archive {store.storage.url}: {state.rows:,} rows",
        ("topic", "rows", "files", "size", "archived up to"),
        rows,
    )


def _source_options(settings: ArchiveSettings, store: ArchiveStore) -> dict[str, str]:
    options = {
        **settings.brokers.source_options(),
        "startingOffsets": "earliest",
        "subscriptionName": subscription_of(store.storage.url),
        "mode": settings.mode,
    }
    if settings.topics:
        options["topics"] = settings.topics
    else:
        options["topicsPattern"] = settings.topics_pattern
    if settings.entries_max:
        options["maxEntriesPerTrigger"] = str(settings.entries_max)
    return options


def _start(
    spark: SparkSession, settings: ArchiveSettings, store: ArchiveStore, writer: "_BatchWriter"
) -> StreamingQuery:
    options = _source_options(settings, store)
    rows = spark.readStream.format("magnetar").options(**options).schema(writer.schema).load()
    _check_columns(rows.columns)
    stream = rows.writeStream.foreachBatch(writer).option(
        "checkpointLocation", settings.checkpoint or store.storage.at(CHECKPOINT)
    )
    if settings.once:
        stream = stream.trigger(availableNow=True)
    else:
        stream = stream.trigger(processingTime=f"{settings.interval_s} seconds")
    query = stream.start()
    writer.know(str(query.id))
    return query


def subscription_of(url: str) -> str:
    """Return the subscription that retains the messages which are not archived yet.

    Its name follows from the archive alone. A random name would be lost with the checkpoint, and
    its subscription would retain messages for ever.
    """
    return f"archive-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


class _BatchWriter:
    """Writes each micro-batch; Spark calls it."""

    def __init__(
        self,
        spark: SparkSession,
        store: ArchiveStore,
        settings: ArchiveSettings,
        columns: ArchivedColumns,
    ) -> None:
        """
        Raises:
            TopicNotFoundError, SchemaMismatchError, UnreachableError
        """
        self._spark, self._store, self._settings = spark, store, settings
        self._columns = columns
        self.schema = columns.now()
        """Columns of the query."""
        self.is_outdated = False
        """Whether the topics have other columns now; the query has ended."""
        self._mismatch = ""
        """How the schemas of the topics differ, as last logged."""
        self._query = ""
        self._is_known = threading.Event()

    def know(self, query: str) -> None:
        """Set the id of the query, which exists only after its start."""
        self._query = query
        self._is_known.set()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if not self._is_known.wait(START_TIMEOUT_S):
            raise PipelineError("archive: the query has a batch and no id")
        name = self._query
        store = self._store
        state = store.state
        if state.holds(name, batch_id):
            return
        self._check_schema()
        placed = archive_rows(rows, state.watermarks)
        directory = store.new_directory()
        placed.repartition(TOPIC).sortWithinPartitions(*ORDER).write.partitionBy(
            TOPIC, DAY
        ).parquet(store.storage.at(directory))
        written = store.written(directory)
        if not written.files:  # markers, beginnings of chunks, or already archived
            store.storage.delete(directory)
        store.commit(
            Commit(add=written.files, query=name, batch_id=batch_id, watermarks=written.watermarks)
        )
        compact(self._spark, store, self._settings, only_full_groups=True)

    def _check_schema(self) -> None:
        """Check that the query has all columns of its messages.

        Producers register a version before they write with it, and the end of the micro-batch is
        known here. So a version of which it has messages is registered.

        While the topics have different schemas, the query keeps its columns: no query can begin
        with the columns of several schemas.

        Raises:
            PipelineError: fields were added or changed since the query started.
            UnreachableError, RefusedError
        """
        try:
            now = self._columns.now(missing_ok=True)
        except SchemaMismatchError as error:
            if str(error) != self._mismatch:
                self._mismatch = str(error)
                _log.warning(
                    "%s: the topics have different schemas now, and fields that are no columns of "
                    "the query are left out until they have one: %s",
                    self._store.storage.url,
                    error,
                )
            return
        self._mismatch = ""
        if now != self.schema:
            self.is_outdated = True
            raise PipelineError(
                "archive: the schema of the topics has changed; a query with its columns goes on"
            )


def archive_rows(rows: DataFrame, watermarks: Mapping[str, Watermark]) -> DataFrame:
    """Return rows of the source as they are archived: with their topic, day, and position in the
    topic.

    Rows up to the watermarks are left out, in any batch of any query: after the loss of a
    checkpoint, a query reads archived messages again for many batches.
    """
    schema = StructType([*rows.schema.fields, *_ID_FIELDS])
    marks = {topic: astuple(mark) for topic, mark in watermarks.items()}

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_placed(batch, marks) for batch in batches)

    placed = rows.mapInArrow(place, schema)
    # Producers may write any time: one that Spark cannot represent is null.
    day = f.coalesce(f.date_format(PUBLISH_TIME, "yyyy-MM-dd"), f.lit(UNKNOWN_DAY))
    return placed.withColumnRenamed(SOURCE_TOPIC, TOPIC).withColumn(DAY, day)


def _placed(batch: pa.RecordBatch, marks: Mapping[str, tuple[int, ...]]) -> pa.RecordBatch:
    """Add the parts of the ids as columns, and remove the rows up to the marks."""
    ids = list(map(MessageIdData.FromString, batch.column(MESSAGE_ID).to_pylist()))
    places = [(each.ledgerId, each.entryId, each.batch_index) for each in ids]
    columns = [
        pa.array([place[at] for place in places], kind)
        for at, kind in enumerate((pa.int64(), pa.int64(), pa.int32()))
    ]
    made = pa.RecordBatch.from_arrays(
        [*batch.columns, *columns], names=[*batch.schema.names, LEDGER, ENTRY, INDEX]
    )
    topics = batch.column(SOURCE_TOPIC).to_pylist()
    is_new = [
        place > marks.get(topic, _BEFORE_ALL) for topic, place in zip(topics, places, strict=True)
    ]
    return made if all(is_new) else made.filter(pa.array(is_new, pa.bool_()))


def _check_columns(names: list[str]) -> None:
    taken = sorted(_OWN_COLUMNS & set(names))
    if taken:
        raise PipelineError(
            f"archive: the topic's schema has a field {taken[0]}, which is a name of the archive's "
            "own; archive the topic with another reader"
        )
    assert KEY in names


def archive_arguments(arguments: list[str] | None = None) -> Chosen[ArchiveSettings]:
    parser = job_parser("archive", "Archive topics to Parquet files, each message once.")
    parser.add_argument("--metadata-url", default="", help="to read from the bookies")
    parser.add_argument("--output", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--topics-pattern", default="")
    parser.add_argument("--continuous", action="store_true", help="run until stopped")
    parser.add_argument("--interval-s", type=int, default=60)
    parser.add_argument("--entries-max", type=int, default=0, help="per batch; 0: no limit")
    parser.add_argument("--mode", default=FAILFAST, help="FAILFAST or DROPMALFORMED")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--file-bytes", type=int, default=FILE_BYTES)
    parser.add_argument("--files-min", type=int, default=FILES_MIN)
    found = parser.parse_args(arguments)
    settings = ArchiveSettings(
        brokers=brokers_of(found),
        output=found.output,
        topics=found.topics,
        topics_pattern=found.topics_pattern,
        once=not found.continuous,
        interval_s=found.interval_s,
        entries_max=found.entries_max,
        mode=found.mode,
        checkpoint=found.checkpoint,
        file_bytes=found.file_bytes,
        files_min=found.files_min,
    )
    return Chosen(settings, found.master)


def main(arguments: list[str] | None = None) -> None:
    """Run `spark-submit archive.py --service-url … --output …`."""
    run_job("archive", archive_arguments(arguments), run)


def run(spark: SparkSession, settings: ArchiveSettings) -> None:
    show_archive(archive(spark, settings))


def compact(
    spark: SparkSession,
    store: ArchiveStore,
    settings: ArchiveSettings,
    *,
    only_full_groups: bool = False,
) -> int:
    """Merge small files; return how many were replaced.

    Raises:
        ArchiveError: the new files do not have as many rows as those that they replace.
    """
    files_min = settings.files_min if only_full_groups else 2
    groups = choose_groups(store.state.files.values(), settings.file_bytes, files_min)
    if not groups:
        return 0
    chosen = [each for group in groups for each in group]
    directory = store.new_directory()
    rows = store.read(chosen).withColumn(DAY, day_of_path())
    # One task for each topic and day, so that each becomes one file.
    placed = rows.repartition(len(groups), TOPIC, DAY).sortWithinPartitions(DAY, *ORDER)
    placed.write.partitionBy(TOPIC, DAY).parquet(store.storage.at(directory))
    written = store.written(directory).files
    expected, found = _rows(chosen), _rows(written)
    if expected != found:
        raise ArchiveError(
            f"{store.storage.at(directory)}: {found} rows were written for {expected}; "
            "nothing was removed"
        )
    store.commit(Commit(add=written, remove=frozenset(each.path for each in chosen)))
    return len(chosen)


def choose_groups(
    files: Iterable[DataFile], file_bytes: int, files_min: int
) -> list[list[DataFile]]:
    """Return groups of small files of one topic and day, oldest first, each fitting into one file.
    Pure."""
    small: defaultdict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for each in sorted(files, key=lambda each: each.path):
        if each.size_bytes < file_bytes // 2:
            small[each.topic, each.day].append(each)
    groups: list[list[DataFile]] = []
    for candidates in small.values():
        group: list[DataFile] = []
        size = 0
        for each in candidates:
            if size + each.size_bytes > file_bytes:
                break
            group.append(each)
            size += each.size_bytes
        if len(group) >= max(2, files_min):
            groups.append(group)
    return groups


def _rows(files: Iterable[DataFile]) -> int:
    return sum(each.rows for each in files)


if __name__ == "__main__":
    main()
