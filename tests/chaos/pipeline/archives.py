"""An archive as files on this disk: read with its log and pyarrow, without Spark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from magnetar.sdk.spark.pipeline.archive_log import (
    ArchiveState,
    commit_name,
    fold,
    has_state,
    number_of,
)

Row = tuple[bytes | None, bytes | None, int | None, tuple[tuple[str, str], ...]]
"""Value, key, event time in milliseconds, properties."""


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """In the order of the topic."""

    rows: list[Row]
    ids: list[tuple[int, int, int]]


def last_batch(directory: Path) -> int:
    """The last micro-batch that is archived; -1: none yet."""
    return state_of(directory).batch_id


def state_of(directory: Path) -> ArchiveState:
    """What the log says, also while a job shortens it: backwards, to what stands for all before."""
    log = directory / "log"
    while log.exists():
        found = [number_of(each.name) for each in log.iterdir()]
        commits: list[tuple[int, str]] = []
        try:
            for number in sorted((each for each in found if each is not None), reverse=True):
                commits.append((number, (log / commit_name(number)).read_text()))
                if has_state(commits[-1][1]):
                    break
        except FileNotFoundError:
            continue  # it was shortened since it was listed
        return fold(reversed(commits))
    return ArchiveState()


def read_rows(directory: Path) -> ArchivedRows:
    """All rows of an archive of one topic."""
    tables = [
        pq.ParquetFile(directory / each.path).read() for each in state_of(directory).files.values()
    ]
    table = pa.concat_tables(tables).sort_by(
        [(name, "ascending") for name in ("__ledgerId", "__entryId", "__batchIndex")]
    )
    columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in table.column_names}
    rows: list[Row] = [
        (value, key, None if time is None else round(time.timestamp() * 1000), _pairs(properties))
        for value, key, time, properties in zip(
            columns["value"],
            columns["__key"],
            columns["__eventTime"],
            columns["__messageProperties"],
            strict=True,
        )
    ]
    ids = zip(columns["__ledgerId"], columns["__entryId"], columns["__batchIndex"], strict=True)
    return ArchivedRows(rows, list(ids))


def _pairs(properties: list[tuple[str, str]] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(properties or ()))
