"""The broker's own histograms: plain counts, cheap enough for every publish batch."""

from collections.abc import Sequence

from magnetar.ledger.metric_fields import Histogram

BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets in seconds; one more bucket takes everything above."""

SIZE_BOUNDS_BYTES = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
"""Upper bounds of the size buckets in bytes; one more bucket takes everything above."""


class FixedHistogram(Histogram):
    """Counts of occurrences by size, in buckets with fixed bounds."""

    __slots__ = ()

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus' buckets: (upper bound, occurrences at or below it)."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets

    def since(self, before: Sequence[int] | None) -> list[int]:
        """Return the occurrences per bucket since the counts `before`; None = since the start."""
        if before is None:
            return list(self.counts)
        return [now - was for now, was in zip(self.counts, before, strict=True)]


class LatencyHistogram(FixedHistogram):
    """Counts of durations, in buckets of seconds."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(BOUNDS_S)


class SizeHistogram(FixedHistogram):
    """Counts of sizes, in buckets of bytes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SIZE_BOUNDS_BYTES)
