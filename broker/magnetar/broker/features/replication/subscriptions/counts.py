"""Counters of the replicated subscriptions of one broker, which metrics show."""

from dataclasses import dataclass


@dataclass(slots=True)
class SubscriptionCounts:
    """Counters over all topics of a broker since it started."""

    snapshots_pending: int = 0
    """Snapshots that are being taken now."""
    snapshots_taken: int = 0
    snapshots_timed_out: int = 0
    """Snapshots given up because a cluster did not answer in time."""
    snapshots_interrupted: int = 0
    """Snapshots given up because a connection to a cluster was lost."""
    updates_sent: int = 0
    updates_applied: int = 0
    """Updates of other clusters that moved a subscription here."""
    updates_refused: int = 0
    """Updates of other clusters that changed nothing: the subscription may not be created here, is
    not replicated, or too many updates wait."""
    acks_told: int = 0
    """Entries whose single acknowledgement was written for other clusters."""
    acks_applied: int = 0
    """Entries acknowledged here because another cluster acknowledged them singly."""
    acks_waiting: int = 0
    """Entries acknowledged in other clusters that may still arrive here."""
    acks_absent: int = 0
    """Entries acknowledged in other clusters that this one does not have."""
    acks_dropped: int = 0
    """Entries whose acknowledgement was refused: too many wait, or the subscription is not
    replicated here."""
    markers_malformed: int = 0
    markers_unknown: int = 0
    """Markers of other clusters of an unknown type."""
