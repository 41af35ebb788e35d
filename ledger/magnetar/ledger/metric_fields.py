"""How metrics are declared: fields of a dataclass that say what they are, for whoever exports them.

    @dataclass(slots=True)
    class GcMetrics:
        rounds: int = counter("Rounds of garbage collection.")
        log_bytes: int = gauge("Bytes of all entry logs.")
        round_s: Histogram = histogram("Time of a round.")
        compactions: dict[str, int] = counter_by("kind", "Runs of compaction.")

    metrics.rounds += 1
    metrics.round_s.observe(seconds)
    metrics.compactions["minor"] = metrics.compactions.get("minor", 0) + 1

They are plain numbers, so that counting costs next to nothing; they belong to the event loop, and
worker threads hand back what they measured. Names end in their unit (`_s`, `_bytes`); an export
spells `_s` out as `_seconds` and adds `_total` to counters. A dataclass of metrics may hold others:
the name of such a field comes before the names in it.

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
    """What may be done with the number."""

    COUNTER = "counter"
    """Only grows, from zero at the start of the process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram:
    """Counts of values up to each bound, as Prometheus wants them (but not yet cumulative)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One more than bounds: the last holds what is above them all."""
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
    """What a field says of itself."""

    kind: Kind
    text: str
    label: str = ""
    """Empty: one number. Else a dictionary of numbers by the values of this label."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric with its present value."""

    name: str
    """As declared: groups and field joined by `_`."""
    declared: Declared
    value: float | Histogram | Mapping[str, float]


def counter(text: str) -> int:
    """A number that only grows. (The result is a dataclass field, whatever the type says.)"""
    return field(default=0, metadata={_KEY: Declared(Kind.COUNTER, text)})


def counter_s(text: str) -> float:
    """Seconds that only grow."""
    return field(default=0.0, metadata={_KEY: Declared(Kind.COUNTER, text)})


def gauge(text: str) -> int:
    """A number that goes up and down."""
    return field(default=0, metadata={_KEY: Declared(Kind.GAUGE, text)})


def gauge_of(text: str) -> float:
    """A share, or seconds, that go up and down."""
    return field(default=0.0, metadata={_KEY: Declared(Kind.GAUGE, text)})


def histogram(text: str, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> Histogram:
    """How often which value was met; the bounds are seconds unless told otherwise."""
    declared = Declared(Kind.HISTOGRAM, text)
    made: object = field(default_factory=lambda: Histogram(bounds), metadata={_KEY: declared})
    return cast(Histogram, made)


def counter_by(label: str, text: str) -> dict[str, int]:
    """Numbers that only grow, by the value of a label. The values must be few."""
    declared = Declared(Kind.COUNTER, text, label)
    return cast(dict[str, int], field(default_factory=dict, metadata={_KEY: declared}))


def gauge_by(label: str, text: str) -> dict[str, float]:
    """Numbers that go up and down, by the value of a label. The values must be few."""
    declared = Declared(Kind.GAUGE, text, label)
    return cast(dict[str, float], field(default_factory=dict, metadata={_KEY: declared}))


def group(made: type[T]) -> T:
    """Metrics of a part, declared in a dataclass of its own."""
    made_field: object = field(default_factory=made)
    return cast(T, made_field)


def metrics_in(holder: object, prefix: str = "") -> Iterator[Metric]:
    """All metrics of a dataclass and of the groups in it, in the order of their declaration."""
    assert is_dataclass(holder)
    for each in fields(holder):
        value = getattr(holder, each.name)
        declared = each.metadata.get(_KEY)
        if declared is not None:
            yield Metric(prefix + each.name, declared, value)
        elif is_dataclass(value):
            yield from metrics_in(value, f"{prefix}{each.name}_")
