"""A histogram with fixed buckets: plain counts, cheap enough for every publish batch."""

from bisect import bisect_left

BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets; one more takes everything above."""


class LatencyHistogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `times` occurrences that took so long each."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: (upper bound, occurrences at or below it)."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets
