"""The schedule of garbage collection: when each kind is due. Pure.

A round runs every `round_s`. A round in which a major or minor compaction is due does that, too; a
major one resets both timers, since it includes a minor one.
"""

from dataclasses import dataclass
from enum import Enum


class CompactionKind(Enum):
    """Kind of compaction: a minor one rewrites logs with few live bytes, a major one also fuller
    logs."""

    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in seconds; 0 switches that kind of compaction off."""

    round_s: float
    minor_s: float
    major_s: float


class Schedule:
    """The timers of garbage collection. Time is monotonic."""

    def __init__(self, intervals: Intervals, *, now_s: float, first_delay_s: float) -> None:
        self._intervals = intervals
        self._round_at_s = now_s + first_delay_s
        self._minor_since_s = now_s
        self._major_since_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next round."""
        return max(0.0, self._round_at_s - now_s)

    def due_compaction(self, now_s: float) -> CompactionKind | None:
        """Return the kind of compaction that a round which begins now should do; None if none is
        due."""
        intervals = self._intervals
        if intervals.major_s > 0 and now_s - self._major_since_s >= intervals.major_s:
            return CompactionKind.MAJOR
        if intervals.minor_s > 0 and now_s - self._minor_since_s >= intervals.minor_s:
            return CompactionKind.MINOR
        return None

    def on_round(self, now_s: float) -> None:
        """Note that a round has ended, successfully or not."""
        self._round_at_s = now_s + self._intervals.round_s

    def on_compaction(self, kind: CompactionKind, now_s: float) -> None:
        """Note that a compaction has ended. After a suspended or failed one, do not call: it stays
        due."""
        self._minor_since_s = now_s
        if kind is CompactionKind.MAJOR:
            self._major_since_s = now_s
