"""Levels of disk usage, the writes that each allows, and the verdict for the bookie. Pure.

A directory turns FULL when the used share of its file system reaches `full_share`, and stays so
until the share is below `low_water_share`. So a bookie does not flutter at the edge:

    used share                    not FULL before         FULL before
    full_share and above          FULL                    FULL
    low_water_share and above     FREE or ALMOST_FULL     FULL
    below low_water_share         FREE or ALMOST_FULL     FREE or ALMOST_FULL

Of FREE and ALMOST_FULL, the level is ALMOST_FULL from `warn_share` on. Each level allows:

                    ordinary adds   minor compaction   major compaction
    FREE            yes             yes                yes
    ALMOST_FULL     yes             yes                no
    FULL            no              no                 no

Compactions write new logs before they free old ones, hence they stop first. Recovery adds depend on
the free bytes alone: they continue as long as there is room for them in every ledger directory.

Source: storage sheet, section 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from magnetar.bookie.settings import BookieSettings


class DiskLevel(Enum):
    """How full a directory is."""

    FREE = "free"
    ALMOST_FULL = "almost full"
    FULL = "full"


class DiskUse(Enum):
    """A kind of write to a directory."""

    ADDS = "adds"
    MINOR_COMPACTION = "minor compaction"
    MAJOR_COMPACTION = "major compaction"


class Usage(NamedTuple):
    """Size of a directory's file system, in bytes."""

    free: int
    total: int

    @property
    def used_share(self) -> float:
        """Used share, 0 to 1; a file system without a size counts as full."""
        return 1 - self.free / self.total if self.total > 0 else 1.0


class _Fill(Enum):
    LOW = "below the low-water mark"
    HIGH = "between the marks"
    OVER = "at the threshold or above"


_IS_FULL_NEXT: dict[tuple[bool, _Fill], bool] = {
    (False, _Fill.LOW): False,
    (False, _Fill.HIGH): False,
    (False, _Fill.OVER): True,
    (True, _Fill.LOW): False,
    (True, _Fill.HIGH): True,
    (True, _Fill.OVER): True,
}

_ALLOWED: dict[DiskLevel, frozenset[DiskUse]] = {
    DiskLevel.FREE: frozenset(DiskUse),
    DiskLevel.ALMOST_FULL: frozenset({DiskUse.ADDS, DiskUse.MINOR_COMPACTION}),
    DiskLevel.FULL: frozenset(),
}


def next_level(level: DiskLevel, usage: Usage, settings: BookieSettings) -> DiskLevel:
    """Return the level after a check of the disk."""
    used = usage.used_share
    if used >= settings.disk_full_share:
        fill = _Fill.OVER
    else:
        fill = _Fill.HIGH if used >= settings.disk_low_water_share_used else _Fill.LOW
    if _IS_FULL_NEXT[level is DiskLevel.FULL, fill]:
        return DiskLevel.FULL
    return DiskLevel.ALMOST_FULL if used >= settings.disk_warn_share else DiskLevel.FREE


def is_allowed(level: DiskLevel, use: DiskUse) -> bool:
    """Return whether a directory of this level allows such writes."""
    return use in _ALLOWED[level]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequence of all ledger directories' levels for the bookie."""

    is_read_only: bool
    """Whether the whole bookie registers as read-only, and refuses ordinary adds."""
    full: frozenset[int]
    """Positions of the full ledger directories, which take no ordinary adds."""
    takes_recovery_adds: bool
    """Whether every ledger directory has room for recovery adds."""


def judge(
    levels: Sequence[DiskLevel],
    usages: Sequence[Usage],
    *,
    is_one_enough: bool,
    recovery_bytes_min: int,
) -> Verdict:
    """Judge the levels and usages of all ledger directories.

    `is_one_enough`: one full directory makes the bookie read-only; otherwise only all of them do.
    """
    full = frozenset(i for i, level in enumerate(levels) if level is DiskLevel.FULL)
    return Verdict(
        is_read_only=bool(full) if is_one_enough else len(full) == len(levels),
        full=full,
        takes_recovery_adds=all(usage.free >= recovery_bytes_min for usage in usages),
    )
