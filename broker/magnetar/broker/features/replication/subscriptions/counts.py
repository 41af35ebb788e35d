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
    acks_told: int = 0
    """Entries whose single acknowledgement was written for other clusters."""
    acks_applied: int = 0
    """Entries that other clusters have acknowledged one by one, and that are acknowledged here."""
    acks_waiting: int = 0
    """Entries that other clusters have acknowledged, and that may still come here."""
    acks_absent: int = 0
    """Entries that other clusters have acknowledged, and that this one does not have."""
    acks_dropped: int = 0
    """Entries whose acknowledgement was refused: too many wait, or the subscription is not
    replicated here."""
    markers_malformed: int = 0
    markers_unknown: int = 0
    """Markers of other clusters of a type that is not known here."""
