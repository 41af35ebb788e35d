"""Figures, their targets and their output; and measuring between runs of the yardstick."""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import ceiling


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. `QUICK` is for CI: it shows that everything runs, with rough figures."""

    repeats: int
    messages: int
    batched_messages: int
    single_messages: int
    restart_mb: int
    probes: int
    """Number of runs of each short ledger measurement."""


FULL = Effort(
    repeats=3,
    messages=200_000,
    batched_messages=5_000_000,
    single_messages=5_000,
    restart_mb=1024,
    probes=5,
)
QUICK = Effort(
    repeats=1,
    messages=20_000,
    batched_messages=500_000,
    single_messages=500,
    restart_mb=64,
    probes=1,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result. `ratio` is to the value of `beside`, measured at the same time."""

    name: str
    unit: str
    value: float
    target: str
    met: bool
    ratio: float | None = None
    beside: str = ""
    beside_value: float | None = None
    runs: list[float] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Paired:
    """Runs of a load, and the speed of the yardstick around each."""

    values: list[float]
    ceilings: list[float]

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def ceiling(self) -> float:
        return statistics.median(self.ceilings)

    @property
    def ratio(self) -> float:
        return statistics.median(
            value / beside for value, beside in zip(self.values, self.ceilings, strict=True)
        )


def measure(run: Callable[[int], float], yardstick: Callable[[], float], *, repeats: int) -> Paired:
    """Call `run(number)` between two runs of the yardstick; their mean is its comparison."""
    values: list[float] = []
    ceilings: list[float] = []
    before = yardstick()
    for number in range(repeats):
        values.append(run(number))
        after = yardstick()
        ceilings.append((before + after) / 2)
        before = after
    return Paired(values, ceilings)


class Report:
    """All figures, in the order in which they were measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.figures: list[Figure] = []

    def ceiling(self, *, size: int, in_flight: int, entries: int) -> float:
        """Return the entries per second of the yardstick."""
        return ceiling.measure(
            entries=max(entries, in_flight),
            size=size,
            in_flight=in_flight,
            directory=self.directory,
        ).entries_per_s

    def ceiling_p50_ms(self, *, size: int, entries: int) -> float:
        """Return the yardstick's median latency with one entry in flight."""
        measured = ceiling.measure(
            entries=entries, size=size, in_flight=1, directory=self.directory
        )
        return measured.latency_ms.p50

    def add_rate(self, name: str, paired: Paired, *, target: float) -> None:
        self.add(
            Figure(
                name=name,
                unit="msg/s",
                value=round(paired.value),
                target=f">= {target:,}",
                met=paired.value >= target,
                ratio=round(paired.ratio, 2),
                beside="ceiling",
                beside_value=round(paired.ceiling),
                runs=[round(each) for each in paired.values],
            )
        )

    def add_ratio(
        self,
        name: str,
        paired: Paired,
        *,
        target: str,
        least: float,
        details: dict[str, object] | None = None,
    ) -> None:
        self.add(
            Figure(
                name=name,
                unit="entries/s",
                value=round(paired.value),
                target=target,
                met=paired.ratio >= least,
                ratio=round(paired.ratio, 2),
                beside="ceiling",
                beside_value=round(paired.ceiling),
                runs=[round(each) for each in paired.values],
                details=details or {},
            )
        )

    def add_latency(
        self,
        name: str,
        paired: Paired,
        *,
        target: str,
        met: bool,
        p99s: list[float],
    ) -> None:
        self.add(
            Figure(
                name=name,
                unit="ms",
                value=round(paired.value, 3),
                target=target,
                met=met,
                ratio=round(paired.ratio, 2),
                beside="ceiling",
                beside_value=round(paired.ceiling, 3),
                runs=paired.values,
                details={"p99_ms": p99s},
            )
        )

    def add_limit(self, name: str, unit: str, values: list[float], *, limit: float) -> None:
        value = statistics.median(values)
        self.add(
            Figure(
                name=name,
                unit=unit,
                value=round(value, 2),
                target=f"<= {limit}",
                met=value <= limit,
                runs=[round(each, 3) for each in values],
            )
        )

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        sys.stderr.write(_line(figure) + "\n")
        sys.stderr.flush()


def _line(figure: Figure) -> str:
    value = _number(figure.value)
    beside = (
        f"{figure.ratio:.2f} of {figure.beside} {_number(figure.beside_value)}"
        if figure.ratio is not None and figure.beside_value is not None
        else ""
    )
    verdict = "ok" if figure.met else "MISSED"
    return (
        f"{figure.name:<55} {value:>12} {figure.unit:<12} {figure.target:<22} {verdict:<7} {beside}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
