"""Counters of a bookie, cheap enough for the hot path: touched per group or request, not per entry.

Plain numbers that only grow, gauges, and histograms with fixed bounds. Whoever composes the server
exports them (Prometheus or otherwise); nothing here knows how.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_BOUNDS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)


class Histogram:
    """Counts of values up to each bound, as Prometheus wants them (but not yet cumulative)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One more than bounds: the last holds what is above them all."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class BookieMetrics:
    """Everything a bookie counts. Owned by the event loop."""

    add_requests: int = 0
    add_entries: int = 0
    add_bytes: int = 0
    read_requests: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    read_lac_requests: int = 0
    """Long polls included."""
    write_lac_requests: int = 0
    list_requests: int = 0
    fence_requests: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    """Replies that were not OK, by status."""
    malformed_frames: int = 0
    stalls: int = 0
    """How often a connection had to wait for room in the write cache."""
    connections: int = 0
    reads_pending: int = 0
    long_polls: int = 0
    """Long polls that wait now."""

    journal_groups: int = 0
    journal_records: int = 0
    journal_bytes: int = 0
    journal_queue_bytes: int = 0
    journal_full_groups: int = 0
    """Groups that failed because the disk was full."""
    journal_commit_s: Histogram = field(default_factory=Histogram)
    """Append and sync of one group."""

    checkpoints: int = 0
    checkpoint_failures: int = 0
    checkpoint_s: Histogram = field(default_factory=Histogram)

    def count_failure(self, status: int) -> None:
        self.failures[status] = self.failures.get(status, 0) + 1
