"""Small files of an archive put together.

A micro-batch adds a file for each topic and day in it. When there are many small ones of a topic
and day, their rows are written again as one file, sorted by their place in the topic; one commit
adds it and removes them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from magnetar.sdk.spark.pipeline.archive_log import Commit, DataFile
from magnetar.sdk.spark.pipeline.archive_store import DAY, ORDER, TOPIC, ArchiveStore
from magnetar.sdk.spark.pipeline.errors import ArchiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """What is small, and how much of it is too much."""

    file_bytes: int = 128 * 1024 * 1024
    """A file of this size is left alone, and the sum of those put together is not above it."""
    files_min: int = 8
    """So many small files of a topic and day are put together; at the end of the job, two."""


def compact(
    spark: SparkSession,
    store: ArchiveStore,
    settings: CompactionSettings,
    *,
    only_full_groups: bool = False,
) -> int:
    """Put small files together; returns how many became fewer.

    Raises:
        ArchiveError: what was written does not have the rows of what it stands for.
    """
    files_min = settings.files_min if only_full_groups else 2
    groups = choose_groups(store.state.files.values(), settings.file_bytes, files_min)
    if not groups:
        return 0
    chosen = [each for group in groups for each in group]
    directory = store.new_directory()
    rows = store.read(chosen).withColumn(DAY, f.col(DAY).cast("string"))
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
    """Small files of one topic and day, the oldest first, that fit into one. Pure."""
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
