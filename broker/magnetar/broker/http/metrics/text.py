"""Prometheus' text format, in portions. Pure.

Prometheus expects all samples of a metric together. A `Table` has the values of many metrics for
each of its rows (a topic, for example), gathered at one time. The page is written from it metric by
metric, a bounded number of lines per portion. So the page of a large broker is never whole in
memory, and writing it never blocks for long.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from magnetar.ledger.metric_fields import Kind

LINES_AT_ONCE = 1_000
"""Lines per portion: about half a millisecond of work, and 100 KB."""

Value = float | None
"""Value of a sample; None if the row has no sample of the metric."""


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Named:
    """A metric: its full name, `_total` included, and its meaning."""

    name: str
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Column(Named, Generic[S]):
    """A metric of a table, with the function that reads its value from the subject of a row."""

    read: Callable[[S], float]


@dataclass(slots=True)
class Table(Generic[S]):
    """Several metrics of the same kind of subject."""

    metrics: Sequence[Column[S]]
    rows: list[tuple[str, Sequence[Value]]] = field(default_factory=list)
    """Labels in the form of `labels_of`, and a value for each metric."""

    def add(self, labels: str, about: S) -> None:
        """Add the row of one subject."""
        self.rows.append((labels, values_of(self.metrics, about)))


def counter(name: str, text: str, read: Callable[[S], float]) -> Column[S]:
    return Column(name, Kind.COUNTER, text, read)


def gauge(name: str, text: str, read: Callable[[S], float]) -> Column[S]:
    return Column(name, Kind.GAUGE, text, read)


def values_of(metrics: Sequence[Column[S]], about: S) -> tuple[float, ...]:
    """Return the values of one subject, in the order of the metrics."""
    return tuple([metric.read(about) for metric in metrics])


def one_row(metrics: Sequence[Column[S]], about: S, labels: str = "") -> Table[S]:
    """Return a table with one row."""
    return Table(metrics, [(labels, values_of(metrics, about))])


def labels_of(labels: Mapping[str, str]) -> str:
    """Return the labels of a sample: `{name="value",...}`, or an empty text."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def portions(table: Table[S]) -> Iterator[str]:
    """Yield the table's part of a page. A metric without samples is left out."""
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
    """Return the text of a histogram. `buckets` holds upper bounds with the number of occurrences
    at or below them; the last bound is `+Inf`. `total` is the sum of the observed values."""
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
