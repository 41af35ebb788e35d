"""The result of a run of the perf tool: one JSON object, with the same keys for every kind of load.

Latencies are in log-linear buckets, as in HdrHistogram. Values are microseconds. Each value below
2048 has its own bucket. Above, every doubling is divided into 1024 buckets, so that a quantile is
off by less than 0.1 %. Recording is one addition to a list.
"""

import json
from dataclasses import dataclass, field

_SUB_BITS = 10
_SUB = 1 << _SUB_BITS
_VALUE_MAX = (1 << 40) - 1
"""About 13 days; larger values count as this one."""
_BAR_CHARACTERS = 40
WAITED = "waited"
"""Key of the messages that were published before the run began."""


def _index(value: int) -> int:
    exponent = max(0, value.bit_length() - _SUB_BITS - 1)
    return (exponent << _SUB_BITS) + (value >> exponent)


def _highest(index: int) -> int:
    """Return the largest value of a bucket."""
    if index < 2 * _SUB:
        return index
    exponent = (index >> _SUB_BITS) - 1
    return (((index & (_SUB - 1)) + _SUB + 1) << exponent) - 1


def _band_end_us(value_us: int) -> int:
    """Return the power of two, at least 64, that a latency does not exceed."""
    return max(64, 1 << max(0, value_us - 1).bit_length())


class LatencyHistogram:
    """Counts of latencies, in microseconds."""

    def __init__(self) -> None:
        self._counts = [0] * (_index(_VALUE_MAX) + 1)
        self.count = 0
        self.max_us = 0

    def record(self, value_us: int, count: int = 1) -> None:
        """Count a latency `count` times; negative ones (clocks differ) count as 0."""
        value_us = min(max(0, value_us), _VALUE_MAX)
        self._counts[_index(value_us)] += count
        self.count += count
        self.max_us = max(self.max_us, value_us)

    def merge(self, other: "LatencyHistogram") -> None:
        """Add all counts of another histogram."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.max_us = max(self.max_us, other.max_us)

    def quantile_us(self, quantile: float) -> int:
        """Return the smallest latency that this share of all do not exceed; 0 if there is none."""
        wanted = max(1, round(quantile * self.count))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_highest(index), self.max_us)
        return 0

    def bands(self) -> list[tuple[int, int]]:
        """Return upper ends in microseconds, and counts, of bands that double.

        The list begins with the first band that has any latencies, and ends with the last one.
        """
        found: list[tuple[int, int]] = []
        for index, count in enumerate(self._counts):
            if not count and not found:
                continue
            end_us = _band_end_us(_highest(index))
            if found and found[-1][0] == end_us:
                found[-1] = end_us, found[-1][1] + count
            else:
                found.append((end_us, count))
        while found and not found[-1][1]:
            found.pop()
        return found

    def summary_ms(self) -> dict[str, float]:
        """Return p50, p99, p999 and max in milliseconds."""
        return {
            "p50": self.quantile_us(0.50) / 1000,
            "p99": self.quantile_us(0.99) / 1000,
            "p999": self.quantile_us(0.999) / 1000,
            "max": self.max_us / 1000,
        }


@dataclass(frozen=True, slots=True)
class PerfResult:
    """The figures of one run."""

    messages: int
    seconds: float
    payload_bytes: int
    latency: LatencyHistogram = field(repr=False)
    extra: dict[str, int | float | str] = field(default_factory=dict)
    """Further keys of the JSON object: the requested load, processor time, failures."""

    @property
    def msgs_per_s(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    @property
    def mb_per_s(self) -> float:
        """Payload in millions of bytes per second."""
        return self.payload_bytes / 1e6 / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 4),
            "msgs_per_s": round(self.msgs_per_s, 1),
            "mb_per_s": round(self.mb_per_s, 3),
            "latency_ms": self.latency.summary_ms(),
            **self.extra,
        }

    def to_json(self) -> str:
        """Return the result in one line of JSON."""
        return json.dumps(self.to_dict())

    def to_text(self) -> str:
        """Return the result in one line of text."""
        latency = self.latency.summary_ms()
        return (
            f"{self.messages:,} messages in {self.seconds:.2f} s: "
            f"{self.msgs_per_s:,.0f} msg/s, {self.mb_per_s:,.1f} MB/s; {self.latency_name} ms "
            f"p50 {latency['p50']:.2f}  p99 {latency['p99']:.2f}  "
            f"p99.9 {latency['p999']:.2f}  max {latency['max']:.2f}"
        )

    @property
    def latency_name(self) -> str:
        """Name of the latencies: for a backlog, they are its age."""
        waited = self.extra.get(WAITED, 0)
        is_backlog = isinstance(waited, int) and 2 * waited > self.messages
        return "age of the backlog" if is_backlog else "latency"

    def histogram_text(self) -> str:
        """Return the latencies as bars, a line per band; empty if there are none."""
        bands = self.latency.bands()
        if not bands:
            return ""
        largest = max(count for _, count in bands)
        lines = [f"{self.latency_name} ms, messages:"]
        for end_us, count in bands:
            bar = "#" * max(bool(count), round(count / largest * _BAR_CHARACTERS))
            lines.append(f"<= {end_us / 1000:>12,.3f} {count:>12,}  {bar}".rstrip())
        return "\n".join(lines)
