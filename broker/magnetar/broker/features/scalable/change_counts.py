"""Splits and merges as one broker sees them: how many, how long, and which are stalled. Pure.

Each part of the broker that knows of a pending change notes it: a layout that clients follow, a
check of the load, or the work on the change itself. A change that no part notes any more has ended,
or another broker watches it.
"""

from magnetar.broker.features.scalable.record import ChangeKind
from magnetar.sdk.wire import TopicName


class ChangeCounts:
    """Counters of one broker since its start."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, TopicName], int] = {}
        self.splits = 0
        """Splits that this broker has committed; merges, migrations and rebuckets are counted
        alike."""
        self.merges = 0
        self.migrations = 0
        self.rebuckets = 0
        self.pruned = 0
        """Segments pruned because they were no longer needed, whose logs this broker had
        deleted."""
        self.failures = 0
        """Failed attempts of this broker to finish a change; each is tried again."""
        self.seconds = 0.0
        """Sum of the times from the beginning of those changes to their commit, in seconds."""
        self.stall_s_max = 0.0
        """Longest time, in seconds, for which the keys of parents could not be published."""

    @property
    def finished(self) -> int:
        """Number of splits, merges, migrations and rebuckets."""
        return self.splits + self.merges + self.migrations + self.rebuckets

    def note(self, part: str, topic: TopicName, begun_ms: int | None) -> None:
        """Note that a part of the broker knows of a change begun at `begun_ms`; None: of none any
        more."""
        if begun_ms is None:
            self._under_way.pop((part, topic), None)
        else:
            self._under_way[part, topic] = begun_ms

    def oldest_s(self, *, wall_ms: int) -> float:
        """Return the age in seconds of the oldest change known to be pending; 0 if there is
        none."""
        begun_ms = min(self._under_way.values(), default=wall_ms)
        return max(0.0, (wall_ms - begun_ms) / 1000)

    def ended(self, kind: ChangeKind, *, seconds: float, stall_s: float) -> None:
        """Count a change that this broker has committed."""
        match kind:
            case ChangeKind.SPLIT:
                self.splits += 1
            case ChangeKind.MERGE:
                self.merges += 1
            case ChangeKind.MIGRATION:
                self.migrations += 1
            case ChangeKind.REBUCKET:
                self.rebuckets += 1
        self.seconds += seconds
        self.stall_s_max = max(self.stall_s_max, stall_s)
