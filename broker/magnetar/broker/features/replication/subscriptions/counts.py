"""Counters of the replicated subscriptions of one broker, which metrics show."""

from dataclasses import dataclass


@dataclass(slots=True)
class SubscriptionCounts:
    """Counters over all topics of a broker since it started."""

    snapshots_pending: int = 0
    """Snapshots under way now."""
    snapshots_taken: int = 0
    snapshots_timed_out: int = 0
    """Snapshots that were given up because a cluster did not answer in time."""
    snapshots_interrupted: int = 0
    """Snapshots that were given up because a connection to a cluster was lost."""
    updates_sent: int = 0
    updates_applied: int = 0
    """Updates of other clusters that have moved a subscription here."""
    updates_refused: int = 0
    """Updates of other clusters that changed nothing: no such subscription may be made here, it is
    not replicated, or there are too many at once."""
    markers_malformed: int = 0
    markers_unknown: int = 0
    """Markers of other clusters of a type that is not known here."""
