"""When which kind of garbage collection is due. Pure.

A round runs every `round_s`. A round whose time for a major or minor compaction has come does that
too; a major one resets both timers, since it does all that a minor one would.
"""

from dataclasses import dataclass
from enum import Enum


class CompactionKind(Enum):
    """How much of a log may live for it to be compacted: minor little, major much."""

    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, slots=True)
class Intervals:
    """In seconds; 0 switches that kind of compaction off."""

    round_s: float
    minor_s: float
    major_s: float


class Schedule:
    """The timers. Time is monotonic."""

    def __init__(self, intervals: Intervals, *, now_s: float, first_delay_s: float) -> None:
        self._intervals = intervals
        self._round_at_s = now_s + first_delay_s
        self._minor_since_s = now_s
        self._major_since_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long until the next round."""
        return max(0.0, self._round_at_s - now_s)

    def due_compaction(self, now_s: float) -> CompactionKind | None:
        """The kind of compaction that a round which begins now should do."""
        intervals = self._intervals
        if intervals.major_s > 0 and now_s - self._major_since_s >= intervals.major_s:
            return CompactionKind.MAJOR
        if intervals.minor_s > 0 and now_s - self._minor_since_s >= intervals.minor_s:
            return CompactionKind.MINOR
        return None

    def on_round(self, now_s: float) -> None:
        """A round has ended, well or not."""
        self._round_at_s = now_s + self._intervals.round_s

    def on_compaction(self, kind: CompactionKind, now_s: float) -> None:
        """A compaction has ended. One that was suspended or failed stays due: it is not told."""
        self._minor_since_s = now_s
        if kind is CompactionKind.MAJOR:
            self._major_since_s = now_s
