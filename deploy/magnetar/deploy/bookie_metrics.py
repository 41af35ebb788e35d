"""The metrics of the bookies in this process, as Prometheus wants them.

Every metric that is declared in `magnetar.bookie.metrics` is exported, as `magnetar_bookie_` and
its name, with the label `bookie`. Collecting runs on the event loop, where the numbers belong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from magnetar.bookie.metrics import BookieMetrics
from magnetar.ledger.metric_fields import Declared, Histogram, Kind, metrics_in

LABEL_VALUES_MAX = 64
"""Series of one metric and bookie: the rest is added up under the value `OTHER`."""
OTHER = "other"

_PREFIX = "magnetar_bookie_"
_UNITS = {"s": "seconds", "share": "ratio"}


class Measured(Protocol):
    """A bookie, as far as its metrics are concerned."""

    @property
    def bookie_id(self) -> str: ...

    @property
    def metrics(self) -> BookieMetrics: ...


class BookieCollector(Collector):
    """Samples of bookies."""

    def __init__(self, bookies: Sequence[Measured]) -> None:
        self._bookies = bookies

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for bookie in self._bookies:
            for refresh in bookie.metrics.before_export:
                refresh()
            for each in metrics_in(bookie.metrics):
                name = exported_name(each.name)
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name, each.declared)
                _add(family, bookie.bookie_id, each.value)
        yield from families.values()


def exported_name(name: str) -> str:
    """The name of a metric with its unit as Prometheus spells it; counters get `_total` besides."""
    stem, _, unit = name.rpartition("_")
    return _PREFIX + (f"{stem}_{_UNITS[unit]}" if unit in _UNITS else name)


def buckets_of(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus' buckets: (upper bound, occurrences at or below it)."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _family(name: str, declared: Declared) -> Metric:
    labels = ["bookie", *([declared.label] if declared.label else [])]
    match declared.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(name, declared.text, labels=labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(name, declared.text, labels=labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name, declared.text, labels=labels)


def _add(family: Metric, bookie_id: str, value: float | Histogram | Mapping[str, float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        family.add_metric([bookie_id], buckets_of(value), sum_value=value.total)
        return
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    if isinstance(value, Mapping):
        for label, number in _bounded(value.items()):
            family.add_metric([bookie_id, label], number)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric([bookie_id], value)


def _bounded(items: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """All of them, or the first ones and the sum of the rest."""
    listed = list(items)
    if len(listed) <= LABEL_VALUES_MAX:
        return listed
    rest = sum(number for _, number in listed[LABEL_VALUES_MAX - 1 :])
    return [*listed[: LABEL_VALUES_MAX - 1], (OTHER, rest)]
