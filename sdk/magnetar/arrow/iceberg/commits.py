"""Decisions about commits, compaction and expiry of a table. Pure.

A commit is conditional: the catalog applies it only if the table's newest snapshot is still the one
that the commit was built on. So if two writers have the same rows, one is refused, and a commit
whose answer was lost cannot be applied a second time. If a commit gets no clear answer, its outcome
is read from the table (`outcome_of`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from magnetar.arrow.iceberg.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a table at one moment, as far as commits need it."""

    snapshot_id: int | None = None
    """None if the table has no snapshot yet."""
    watermark: Watermark = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    """Tokens of the commits that made the snapshots which the table still has."""


class Outcome(Enum):
    """The outcome of a commit."""

    DONE = "done"
    """The commit was applied; only its answer was lost."""
    OVERTAKEN = "overtaken"
    """Another archiver moved the watermark: the rows of this commit are in the table, or are read
    again."""
    OPEN = "open"
    """The commit was not applied, and its rows are still right: retry it."""


def outcome_of(token: str, planned: Head, found: Head) -> Outcome:
    """Return the outcome of the commit with this token, from the table before and after."""
    if token in found.tokens:
        return Outcome.DONE
    return Outcome.OPEN if found.watermark == planned.watermark else Outcome.OVERTAKEN


@dataclass(frozen=True, slots=True)
class FileSize:
    """A data file, as compaction sees it."""

    path: str
    partition: str
    """Files of different partitions are not merged."""
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """Limits of merged files."""

    rows_max: int
    """Most rows of a merged file, so that its rows fit into memory."""
    file_bytes: int
    """Most bytes of a merged file."""
    files_min: int
    """Number of small files in a partition that triggers a merge."""


def file_groups(files: Iterable[FileSize], limits: CompactionLimits) -> list[list[str]]:
    """Return groups of paths of small files; each group becomes one file.

    A file is small if it has at most half of a merged file's limits. A row is thus rewritten a few
    times, and not with every merge.
    """
    by_partition: dict[str, list[FileSize]] = {}
    for each in files:
        if each.rows * 2 <= limits.rows_max and each.size_bytes * 2 <= limits.file_bytes:
            by_partition.setdefault(each.partition, []).append(each)
    groups: list[list[str]] = []
    for small in by_partition.values():
        if len(small) >= limits.files_min:
            groups += _packed(small, limits)
    return groups


def _packed(small: Sequence[FileSize], limits: CompactionLimits) -> list[list[str]]:
    groups: list[list[str]] = []
    rows = size_bytes = 0
    for each in small:
        is_full = rows + each.rows > limits.rows_max
        if not groups or is_full or size_bytes + each.size_bytes > limits.file_bytes:
            groups.append([])
            rows = size_bytes = 0
        groups[-1].append(each.path)
        rows, size_bytes = rows + each.rows, size_bytes + each.size_bytes
    return [group for group in groups if len(group) > 1]


@dataclass(frozen=True, slots=True)
class SnapshotAge:
    """A snapshot, as expiry sees it."""

    snapshot_id: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryLimits:
    """Limits of the snapshots that a table keeps."""

    age_ms: int
    """Snapshots younger than this, in milliseconds, are kept for queries that read them."""
    count_min: int
    """Number of snapshots that are kept, however old they are."""
    count_max: int
    """Most snapshots that are kept, however young they are."""
    at_once_max: int
    """Most snapshots that one expiry removes."""


def expired_snapshots(
    snapshots: Iterable[SnapshotAge], kept: Collection[int], limits: ExpiryLimits, *, now_ms: int
) -> list[int]:
    """Return ids of the snapshots to expire, oldest first.

    Those in `kept` never expire: the newest one, the one that has the watermark, and those that
    branches and tags name.
    """
    newest_first = sorted(snapshots, key=lambda each: each.time_ms, reverse=True)
    found = [
        each.snapshot_id
        for number, each in enumerate(newest_first)
        if each.snapshot_id not in kept
        and number >= limits.count_min
        and (number >= limits.count_max or now_ms - each.time_ms > limits.age_ms)
    ]
    return found[::-1][: limits.at_once_max]
