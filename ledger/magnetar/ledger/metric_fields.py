"""Declaration of metrics: fields of a dataclass that carry a description for exporters.

    @dataclass(slots=True)
    class GcMetrics:
        rounds: int = counter("Rounds of garbage collection.")
        log_bytes: int = gauge("Bytes of all entry logs.")
        round_s: Histogram = histogram("Time of a round.")
        compactions: dict[str, int] = counter_by("kind", "Runs of compaction.")

    metrics.rounds += 1
    metrics.round_s.observe(seconds)
    metrics.compactions["minor"] = metrics.compactions.get("minor", 0) + 1

Metrics are plain numbers, so counting costs next to nothing. They belong to the event loop; worker
threads hand their measurements to it. Names end in their unit (`_s`, `_bytes`). An export spells
`_s` out as `_seconds` and adds `_total` to counters. A dataclass of metrics may hold others; the
name of such a field becomes a prefix of the names in it.

Pure.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import TypeVar, cast

T = TypeVar("T")

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
SIZE_BOUNDS_BYTES = tuple(float(1 << bits) for bits in range(10, 31, 2))
"""1 KiB to 1 GiB in steps of four."""
COUNT_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 20000.0)

_KEY = "metric"


class Kind(StrEnum):
    """The kind of a metric."""

    COUNTER = "counter"
    """A number that only grows, from zero at the start of the process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram:
    """Counts of values up to each bound, as Prometheus needs them (but not yet cumulative)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One more than `bounds`: the last counts the values above all bounds."""
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` occurrences of the value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a metric field."""

    kind: Kind
    text: str
    label: str = ""
    """Label of a metric that is a dictionary of numbers by its values; empty for one number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its current value."""

    name: str
    """The declared name: groups and field joined by `_`."""
    declared: Declared
    value: float | Histogram | Mapping[str, float]


def counter(text: str) -> int:
    """Declare a number that only grows. (The result is a dataclass field, despite its type.)"""
    return field(default=0, metadata={_KEY: Declared(Kind.COUNTER, text)})


def counter_s(text: str) -> float:
    """Declare seconds that only grow."""
    return field(default=0.0, metadata={_KEY: Declared(Kind.COUNTER, text)})


def gauge(text: str) -> int:
    """Declare a number that goes up and down."""
    return field(default=0, metadata={_KEY: Declared(Kind.GAUGE, text)})


def gauge_of(text: str) -> float:
    """Declare a share, or seconds, that go up and down."""
    return field(default=0.0, metadata={_KEY: Declared(Kind.GAUGE, text)})


def histogram(text: str, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> Histogram:
    """Declare a distribution of values; the bounds are in seconds by default."""
    declared = Declared(Kind.HISTOGRAM, text)
    made: object = field(default_factory=lambda: Histogram(bounds), metadata={_KEY: declared})
    return cast(Histogram, made)


def counter_by(label: str, text: str) -> dict[str, int]:
    """Declare numbers that only grow, by the value of a label. The values must be few."""
    declared = Declared(Kind.COUNTER, text, label)
    return cast(dict[str, int], field(default_factory=dict, metadata={_KEY: declared}))


def gauge_by(label: str, text: str) -> dict[str, float]:
    """Declare numbers that go up and down, by the value of a label. The values must be few."""
    declared = Declared(Kind.GAUGE, text, label)
    return cast(dict[str, float], field(default_factory=dict, metadata={_KEY: declared}))


def group(made: type[T]) -> T:
    """Declare a group of metrics, which a dataclass of its own defines."""
    made_field: object = field(default_factory=made)
    return cast(T, made_field)


def metrics_in(holder: object, prefix: str = "") -> Iterator[Metric]:
    """Yield all metrics of a dataclass and of the groups in it, in order of declaration."""
    assert is_dataclass(holder)
    for each in fields(holder):
        value = getattr(holder, each.name)
        declared = each.metadata.get(_KEY)
        if declared is not None:
            yield Metric(prefix + each.name, declared, value)
        elif is_dataclass(value):
            yield from metrics_in(value, f"{prefix}{each.name}_")
