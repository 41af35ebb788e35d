"""Replay: an archive back into a topic, with original keys, times and properties, in order.

One task publishes the messages of a topic (or partition) in their old order, so the order of each
key is kept. With `by_key` several tasks share a topic, each with keys of its own. A replay has a
name, and can be restarted under it after an interruption. It continues where it ended, because the
rows of each task and their order follow from the archive alone.
"""

import hashlib
import logging
import threading
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from magnetar.arrow.stored.column_names import (
    EVENT_TIME,
    KEY,
    MESSAGE_ID,
    NULL_VALUE,
    PROPERTIES,
    PUBLISH_TIME,
    VALUE,
)
from magnetar.sdk.spark.errors import PipelineError
from magnetar.sdk.spark.pipeline.archive_store import DAY, ENTRY, INDEX, LEDGER, TOPIC, ArchiveStore
from magnetar.sdk.spark.pipeline.job import (
    Chosen,
    ClusterAddress,
    brokers_of,
    job_parser,
    progress_bar,
    run_job,
    show_summary,
)

_log = logging.getLogger(__name__)

LOOK_S = 0.5

_METADATA = frozenset({KEY, EVENT_TIME, PROPERTIES, NULL_VALUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Settings of one replay."""

    brokers: ClusterAddress
    archive: str
    to: str
    """The topic that gets all messages."""
    topics: str = ""
    """Topics of the archive, separated by commas; empty for all."""
    name: str = ""
    """Name of the replay; if empty, it is derived from the archive, the selected topics and the
    target."""
    by_key: int = 0
    """Number of tasks, each with keys of its own; 0: one task for each topic of the archive."""
    schema: str = "none"
    """Encoding of the fields if the topics had a schema: json or avro."""
    compression: str = "none"

    def name_in(self, url: str) -> str:
        """Return the name that identifies this replay across restarts.

        `url` is that of the archive, which does not depend on how its path was written.
        """
        if self.name:
            return self.name
        wanted = ",".join(sorted(self.wanted))
        digest = hashlib.sha256(f"{url}\n{wanted}\n{self.to}".encode()).hexdigest()
        return f"replay-{digest[:16]}-{self.by_key}"

    @property
    def wanted(self) -> frozenset[str]:
        """Selected topics; empty for all."""
        return frozenset(each.strip() for each in self.topics.split(",") if each.strip())


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay."""

    name: str
    topics: tuple[str, ...]
    rows: int


def replay(spark: SparkSession, settings: ReplaySettings) -> Replayed:
    """Run a replay.

    Raises:
        PipelineError: no such topic in the archive.
    """
    store = ArchiveStore(spark, settings.archive)
    wanted = settings.wanted
    files = [
        each
        for each in store.state.files.values()
        if not wanted or each.topic in wanted or each.topic.rpartition("-partition-")[0] in wanted
    ]
    topics = tuple(sorted({each.topic for each in files}))
    if not files:
        raise PipelineError(f"replay: the archive {store.storage.url} holds none of these topics")
    rows = _in_order(store.read(files), len(topics), settings.by_key)
    total = sum(each.rows for each in files)
    name = settings.name_in(store.storage.url)
    done = threading.Event()
    # The job stays in this thread: Spark knows its data sources in the thread of the session.
    watching = threading.Thread(target=_watch, args=(spark, total, done), name="replay-progress")
    watching.start()
    try:
        _write(rows, settings, name)
    finally:
        done.set()
        watching.join()
    return Replayed(name, topics, total)


def show_replayed(settings: ReplaySettings, found: Replayed) -> None:
    """Show the summary."""
    rows = [(topic,) for topic in found.topics]
    title = f"Replayed {found.rows:,} rows into {settings.to} as {found.name}"
    show_summary(title, ("topic of the archive",), rows)


def _in_order(rows: DataFrame, topics: int, by_key: int) -> DataFrame:
    place = (f.col(TOPIC), f.col(LEDGER), f.col(ENTRY), f.col(INDEX))
    if by_key:
        spread = rows.repartition(by_key, f.coalesce(f.col(KEY), f.lit(b"")))
    else:
        spread = rows.repartition(topics, TOPIC)
    return spread.sortWithinPartitions(*place)


def _write(rows: DataFrame, settings: ReplaySettings, name: str) -> None:
    kept = rows.drop(TOPIC, DAY, LEDGER, ENTRY, INDEX, MESSAGE_ID, PUBLISH_TIME)
    if settings.schema == "none" and set(kept.columns) != {VALUE, KEY, EVENT_TIME, PROPERTIES}:
        raise PipelineError("replay: the topics had a schema: say how to encode it, json or avro")
    if settings.schema != "none":
        _warn_of_unknown(kept)
    kept.write.format("magnetar").mode("append").options(
        **settings.brokers.options(),
        topic=settings.to,
        producerName=name,
        schema=settings.schema,
        compressionType=settings.compression,
    ).save()


def _warn_of_unknown(kept: DataFrame) -> None:
    """Warn of rows that may be those of messages without a value: older releases did not say."""
    flag = f.col(NULL_VALUE) if NULL_VALUE in kept.columns else f.lit(None)
    fields = [name for name in kept.columns if name not in _METADATA]
    are_null = reduce(and_, (f.col(f"`{name}`").isNull() for name in fields), flag.isNull())
    unknown = kept.filter(are_null).count()
    if unknown:
        _log.warning(
            "%d archived rows have no value in any field, and were archived by a release that did "
            "not say whether their messages were tombstones: they are replayed as records of nulls",
            unknown,
        )


def _watch(spark: SparkSession, rows: int, done: threading.Event) -> None:
    with progress_bar(f"replaying {rows:,} rows, tasks", None) as bar:
        while not done.wait(LOOK_S):
            bar.show(*_tasks(spark))


def _tasks(spark: SparkSession) -> tuple[int, str, int]:
    """Return finished tasks, a note, and all known tasks."""
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            done += stage.numCompletedTasks
            total += stage.numTasks
    return done, "", max(total, 1)


def replay_arguments(arguments: list[str] | None = None) -> Chosen[ReplaySettings]:
    parser = job_parser("replay", "Publish an archive to a topic.")
    parser.add_argument("--archive", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--topics", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--by-key", type=int, default=0)
    parser.add_argument("--schema", default="none", choices=("none", "json", "avro"))
    parser.add_argument("--compression", default="none")
    found = parser.parse_args(arguments)
    settings = ReplaySettings(
        brokers=brokers_of(found),
        archive=found.archive,
        to=found.to,
        topics=found.topics,
        name=found.name,
        by_key=found.by_key,
        schema=found.schema,
        compression=found.compression,
    )
    return Chosen(settings, found.master)


def main(arguments: list[str] | None = None) -> None:
    """Run `spark-submit replay.py --archive … --to …`."""
    run_job("replay", replay_arguments(arguments), run)


def run(spark: SparkSession, settings: ReplaySettings) -> None:
    show_replayed(settings, replay(spark, settings))


if __name__ == "__main__":
    main()
