"""The broker's own histograms: plain counts, cheap enough for every publish batch."""

from collections.abc import Sequence

from magnetar.ledger.metric_fields import Histogram

BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets, seconds; one more takes everything above."""

SIZE_BOUNDS_BYTES = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
"""Upper bounds of the buckets of sizes, bytes; one more takes everything above."""


class FixedHistogram(Histogram):
    """How often something had which size."""

    __slots__ = ()

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: (upper bound, occurrences at or below it)."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets

    def since(self, before: Sequence[int] | None) -> list[int]:
        """Occurrences of each bucket since its `counts` were these; None: since the start."""
        if before is None:
            return list(self.counts)
        return [now - was for now, was in zip(self.counts, before, strict=True)]


class LatencyHistogram(FixedHistogram):
    """How often something took how long."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(BOUNDS_S)


class SizeHistogram(FixedHistogram):
    """How often something had how many bytes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SIZE_BOUNDS_BYTES)
