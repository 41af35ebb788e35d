"""Prometheus' text format, in portions. Pure.

Prometheus wants all samples of a metric together. A `Table` has the values of many metrics for each
of its rows (a topic, say), gathered at one time; the page is written from it metric by metric, a
bounded number of lines per portion, so that neither the page of a large broker is ever whole in
memory nor writing it takes long at a stretch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from magnetar.ledger.metric_fields import Kind

LINES_AT_ONCE = 1_000
"""Of one portion: about half a millisecond of work, and 100 KB."""

Value = float | None
"""None: the row has no sample of that metric."""


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Named:
    """A metric: its name as it is stored, `_total` included, and what it means."""

    name: str
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Column(Named, Generic[S]):
    """A metric of a table, and how its value is read from what a row is about."""

    read: Callable[[S], float]


@dataclass(slots=True)
class Table(Generic[S]):
    """Several metrics of the same things."""

    metrics: Sequence[Column[S]]
    rows: list[tuple[str, Sequence[Value]]] = field(default_factory=list)
    """Labels as `labels_of` writes them, and a value for each of the metrics."""

    def add(self, labels: str, about: S) -> None:
        """Add the row of one thing."""
        self.rows.append((labels, values_of(self.metrics, about)))


def counter(name: str, text: str, read: Callable[[S], float]) -> Column[S]:
    return Column(name, Kind.COUNTER, text, read)


def gauge(name: str, text: str, read: Callable[[S], float]) -> Column[S]:
    return Column(name, Kind.GAUGE, text, read)


def values_of(metrics: Sequence[Column[S]], about: S) -> tuple[float, ...]:
    """The values of one thing, in the order of the metrics."""
    return tuple([metric.read(about) for metric in metrics])


def one_row(metrics: Sequence[Column[S]], about: S, labels: str = "") -> Table[S]:
    """A table of one thing."""
    return Table(metrics, [(labels, values_of(metrics, about))])


def labels_of(labels: Mapping[str, str]) -> str:
    """The labels of a sample: `{name="value",...}`, or nothing."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def portions(table: Table[S]) -> Iterator[str]:
    """The table's part of a page; a metric without samples is left out."""
    for index, metric in enumerate(table.metrics):
        lines = [f"# HELP {metric.name} {_of_help(metric.text)}\n"]
        lines.append(f"# TYPE {metric.name} {metric.kind}\n")
        has_samples = False
        for labels, values in table.rows:
            value = values[index]
            if value is None:
                continue
            has_samples = True
            lines.append(f"{metric.name}{labels} {float(value)}\n")
            if len(lines) >= LINES_AT_ONCE:
                yield "".join(lines)
                lines.clear()
        if has_samples and lines:
            yield "".join(lines)


def histogram(
    metric: Named, buckets: Sequence[tuple[str, float]], total: float, labels: str = ""
) -> str:
    """A histogram with one set of buckets: (upper bound, occurrences at or below it), the last
    being `+Inf`; `total`: the sum of what was observed."""
    inner = labels[1:-1] + "," if labels else ""
    lines = [f"# HELP {metric.name} {_of_help(metric.text)}\n# TYPE {metric.name} histogram\n"]
    lines += [
        f'{metric.name}_bucket{{{inner}le="{bound}"}} {float(count)}\n' for bound, count in buckets
    ]
    lines.append(f"{metric.name}_sum{labels} {float(total)}\n")
    lines.append(f"{metric.name}_count{labels} {float(buckets[-1][1])}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
