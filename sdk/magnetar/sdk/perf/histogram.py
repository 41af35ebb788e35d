"""Latencies in log-linear buckets, as HdrHistogram keeps them.

Values are microseconds. Below 2048 each has its own bucket; above, every doubling is divided into
1024, so that a quantile is off by less than 0.1 %. Recording is one addition to a list.
"""

_SUB_BITS = 10
_SUB = 1 << _SUB_BITS
_VALUE_MAX = (1 << 40) - 1
"""About 13 days; larger values count as this one."""


def _index(value: int) -> int:
    exponent = max(0, value.bit_length() - _SUB_BITS - 1)
    return (exponent << _SUB_BITS) + (value >> exponent)


def _highest(index: int) -> int:
    """The largest value of a bucket."""
    if index < 2 * _SUB:
        return index
    exponent = (index >> _SUB_BITS) - 1
    return (((index & (_SUB - 1)) + _SUB + 1) << exponent) - 1


class LatencyHistogram:
    """Counts of latencies, in microseconds."""

    def __init__(self) -> None:
        self._counts = [0] * (_index(_VALUE_MAX) + 1)
        self.count = 0
        self.max_us = 0

    def record(self, value_us: int, count: int = 1) -> None:
        """Count a latency `count` times; negative ones (clocks differ) as 0."""
        value_us = min(max(0, value_us), _VALUE_MAX)
        self._counts[_index(value_us)] += count
        self.count += count
        self.max_us = max(self.max_us, value_us)

    def merge(self, other: "LatencyHistogram") -> None:
        """Add all that another one has counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.max_us = max(self.max_us, other.max_us)

    def quantile_us(self, quantile: float) -> int:
        """The smallest latency that this share of all do not exceed; 0 if there is none."""
        wanted = max(1, round(quantile * self.count))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_highest(index), self.max_us)
        return 0

    def summary_ms(self) -> dict[str, float]:
        """p50, p99, p999 and max in milliseconds."""
        return {
            "p50": self.quantile_us(0.50) / 1000,
            "p99": self.quantile_us(0.99) / 1000,
            "p999": self.quantile_us(0.999) / 1000,
            "max": self.max_us / 1000,
        }
