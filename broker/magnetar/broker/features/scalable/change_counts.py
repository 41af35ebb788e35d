"""Splits and merges as one broker sees them: how many, how long, and which stand still. Pure.

A change that is under way is noted by each part of the broker that knows of it: a layout that
clients follow, a look at the load, or the work on the change itself. What nobody notes any more has
ended, or is another broker's to watch.
"""

from magnetar.broker.features.scalable.record import ChangeKind
from magnetar.sdk.wire import TopicName


class ChangeCounts:
    """Of one broker, since its start."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, TopicName], int] = {}
        self.splits = 0
        """That this broker has committed, as are merges, migrations and rebuckets."""
        self.merges = 0
        self.migrations = 0
        self.rebuckets = 0
        self.pruned = 0
        """Segments that nobody needed any more, whose logs this broker had deleted."""
        self.failures = 0
        """Times that this broker could not bring one to its end; it is tried again."""
        self.seconds = 0.0
        """From the begin of those changes to their commit, added up."""
        self.stall_s_max = 0.0
        """The longest time that the keys of parents could not be published."""

    @property
    def finished(self) -> int:
        """Splits, merges, migrations and rebuckets."""
        return self.splits + self.merges + self.migrations + self.rebuckets

    def note(self, part: str, topic: TopicName, begun_ms: int | None) -> None:
        """A part of the broker knows of a change that began then; None: of none any more."""
        if begun_ms is None:
            self._under_way.pop((part, topic), None)
        else:
            self._under_way[part, topic] = begun_ms

    def oldest_s(self, *, wall_ms: int) -> float:
        """Age of the oldest change that is known to be under way; 0: there is none."""
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
