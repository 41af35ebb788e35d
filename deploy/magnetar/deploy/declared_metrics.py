"""Prometheus exporter of metrics declared in dataclasses (`magnetar.ledger.metric_fields`).

Collecting runs on the event loop, which owns the numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from magnetar.ledger.metric_fields import Declared, Histogram, Kind, metrics_in

LABEL_VALUES_MAX = 64
"""Most series of one metric per holder; further ones are summed under the value `OTHER`."""
OTHER = "other"

_UNITS = {"s": "seconds", "share": "ratio"}


class Families:
    """The metric families of one collection: one per name, with samples of all holders."""

    def __init__(self, prefix: str, labels: Sequence[str] = ()) -> None:
        self._prefix = prefix
        self._labels = list(labels)
        self._by_name: dict[str, Metric] = {}

    def add(self, holder: object, label_values: Sequence[str] = ()) -> None:
        """Add the current values of a dataclass of metrics."""
        for each in metrics_in(holder):
            name = exported_name(self._prefix, each.name)
            family = self._by_name.get(name)
            if family is None:
                family = self._by_name[name] = _family(name, each.declared, self._labels)
            _add(family, list(label_values), each.value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._by_name.values())


class DeclaredCollector(Collector):
    """Collects the metrics of one holder, without labels of its own."""

    def __init__(self, prefix: str, holder: object) -> None:
        self._prefix = prefix
        self._holder = holder

    def collect(self) -> Iterator[Metric]:
        families = Families(self._prefix)
        families.add(self._holder)
        yield from families


def exported_name(prefix: str, name: str) -> str:
    """Return a metric's name with its unit as Prometheus spells it; counters get `_total`
    besides."""
    stem, _, unit = name.rpartition("_")
    return prefix + (f"{stem}_{_UNITS[unit]}" if unit in _UNITS else name)


def buckets_of(histogram: Histogram) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: (upper bound, occurrences at or below it)."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _family(name: str, declared: Declared, holder_labels: list[str]) -> Metric:
    labels = [*holder_labels, *([declared.label] if declared.label else [])]
    match declared.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(name, declared.text, labels=labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(name, declared.text, labels=labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name, declared.text, labels=labels)


def _add(family: Metric, holder: list[str], value: float | Histogram | Mapping[str, float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        family.add_metric(holder, buckets_of(value), sum_value=value.total)
        return
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    if isinstance(value, Mapping):
        for label, number in _bounded(value.items()):
            family.add_metric([*holder, label], number)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(holder, value)


def _bounded(items: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return all items, or the first ones and the sum of the rest."""
    listed = list(items)
    if len(listed) <= LABEL_VALUES_MAX:
        return listed
    rest = sum(number for _, number in listed[LABEL_VALUES_MAX - 1 :])
    return [*listed[: LABEL_VALUES_MAX - 1], (OTHER, rest)]
