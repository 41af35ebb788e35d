"""What this machine does with Magnetar: `make bench`.

Each load runs several times, each time between two runs of the yardstick (ceiling.py) of the same
shape; the figure is the median, and so is its ratio to the yardstick. Processes as in production:
three bookies, a broker, a client. One JSON object goes to stdout, a table for people to stderr.

usage: python -m tests.bench [--quick] [--only WORD] [--dir DIR]
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.bench import ceiling, load
from tests.bench.figures import describe_machine
from tests.cluster import ProcessCluster
from tests.standalone import Standalone

_IDLE_S = 5.0
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. Quick is for CI: it shows that everything runs, and rough figures."""

    repeats: int
    messages: int
    batched_messages: int
    single_messages: int
    restart_mb: int


FULL = Effort(
    repeats=3, messages=200_000, batched_messages=5_000_000, single_messages=5_000, restart_mb=1024
)
QUICK = Effort(
    repeats=1, messages=20_000, batched_messages=500_000, single_messages=500, restart_mb=64
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result. `ratio` is to `beside`, which was measured right beside it."""

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
class _Paired:
    """Runs of a load, and the yardstick around each."""

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


def _measure(
    run: Callable[[int], float], yardstick: Callable[[], float], *, repeats: int
) -> _Paired:
    """Run `run(number)` between two runs of the yardstick, whose mean it is compared with."""
    values: list[float] = []
    ceilings: list[float] = []
    before = yardstick()
    for number in range(repeats):
        values.append(run(number))
        after = yardstick()
        ceilings.append((before + after) / 2)
        before = after
    return _Paired(values, ceilings)


class Bench:
    """All measurements; each adds its figures to `figures`."""

    def __init__(self, directory: Path, effort: Effort) -> None:
        self._directory = directory
        self._effort = effort
        self.figures: list[Figure] = []

    def ledger(self) -> None:
        """One ledger writer on three bookie processes."""
        effort = self._effort
        with ProcessCluster(self._directory / "ledger", broker=False) as cluster:
            paired = _measure(
                lambda _: (
                    load.ledger(
                        cluster.metadata_url, messages=effort.messages, size=1024, in_flight=1000
                    ).msgs_per_s
                ),
                lambda: self._ceiling(size=1024, in_flight=1000, entries=effort.messages),
                repeats=effort.repeats,
            )
        self._add_ratio(
            "ledger writer, 1 KB, 1000 in flight", paired, target=">= 0.6 of the ceiling", least=0.6
        )

    def publish(self) -> None:
        """Unbatched through the broker, and reading it all back, each time right after."""
        effort = self._effort
        catch_up: list[float] = []

        def run(number: int) -> float:
            topic = f"unbatched-{number}"
            published = load.produce(
                cluster.url, topic, messages=effort.messages, size=1024, in_flight=1000
            )
            consumed = load.consume(cluster.url, topic, messages=effort.messages)
            catch_up.append(consumed.msgs_per_s)
            return published.msgs_per_s

        with ProcessCluster(self._directory / "publish") as cluster:
            paired = _measure(
                run,
                lambda: self._ceiling(size=1024, in_flight=1000, entries=effort.messages),
                repeats=effort.repeats,
            )
        self._add_rate("publish, 1 KB unbatched, 1000 in flight", paired, target=40_000)
        ratios = [
            consumed / published
            for consumed, published in zip(catch_up, paired.values, strict=True)
        ]
        ratio = statistics.median(ratios)
        self._add(
            Figure(
                name="catch-up consume of the same",
                unit="msg/s",
                value=round(statistics.median(catch_up)),
                target=">= 1.5 x publish",
                met=ratio >= 1.5,
                ratio=round(ratio, 2),
                beside="publish",
                beside_value=round(paired.value),
                runs=[round(each) for each in catch_up],
            )
        )

    def publish_batched(self) -> None:
        """Small messages in batches of a thousand."""
        effort = self._effort
        with ProcessCluster(self._directory / "batched") as cluster:
            paired = _measure(
                lambda number: (
                    load.produce(
                        cluster.url,
                        f"batched-{number}",
                        messages=effort.batched_messages,
                        size=100,
                        batch=1000,
                    ).msgs_per_s
                ),
                # A batch is one entry of 1000 x 100 bytes.
                lambda: (
                    1000
                    * self._ceiling(
                        size=100_000, in_flight=100, entries=effort.batched_messages // 1000
                    )
                ),
                repeats=effort.repeats,
            )
        self._add_rate("publish, 100 B in batches of 1000", paired, target=1_000_000)

    def publish_one_by_one(self) -> None:
        """One message in flight: what one durable publish takes."""
        effort = self._effort
        count = effort.single_messages
        p99s: list[float] = []

        def run(number: int) -> float:
            rate = load.produce(
                cluster.url, f"single-{number}", messages=count, size=1024, in_flight=1
            )
            assert rate.latency_ms is not None
            p99s.append(rate.latency_ms.p99)
            return rate.latency_ms.p50

        with ProcessCluster(self._directory / "single") as cluster:
            paired = _measure(
                run,
                lambda: (
                    ceiling.measure(
                        entries=count, size=1024, in_flight=1, directory=self._directory
                    ).latency_ms.p50
                ),
                repeats=effort.repeats,
            )
        self._add(
            Figure(
                name="publish, 1 KB, one in flight, p50",
                unit="ms",
                value=round(paired.value, 3),
                target="<= 0.8",
                met=paired.value <= 0.8,
                ratio=round(paired.ratio, 2),
                beside="ceiling",
                beside_value=round(paired.ceiling, 3),
                runs=paired.values,
                details={"p99_ms": p99s},
            )
        )

    def standalone(self) -> None:
        """Start, idle, and restart with data."""
        starts: list[float] = []
        for number in range(self._effort.repeats):
            with Standalone(self._directory / f"standalone-{number}") as server:
                starts.append(server.ready_s)
        self._add_limit("standalone, time to ready", "s", starts, limit=1.5)
        with Standalone(self._directory / "standalone") as server:
            self._idle(server)
            self._restart(server)

    def _idle(self, server: Standalone) -> None:
        _pass_time(_SETTLE_S)
        before_s = server.process.cpu_s()
        _pass_time(_IDLE_S)
        percent = (server.process.cpu_s() - before_s) / _IDLE_S * 100
        resident_mb = server.process.resident_bytes() / 1e6
        self._add_limit("standalone, idle memory", "MB", [resident_mb], limit=120)
        self._add_limit("standalone, idle processor", "% of a core", [percent], limit=2)

    def _restart(self, server: Standalone) -> None:
        size = 64 << 10
        messages = self._effort.restart_mb * (1 << 20) // size
        restarts: list[float] = []
        load.produce(server.url, "restart", messages=messages, size=size, in_flight=200)
        for _ in range(self._effort.repeats):
            server.kill()
            restarts.append(server.start())
        self._add_limit(
            f"standalone, restart after kill -9 with {self._effort.restart_mb} MB",
            "s",
            restarts,
            limit=3,
        )

    def _ceiling(self, *, size: int, in_flight: int, entries: int) -> float:
        return ceiling.measure(
            entries=max(entries, in_flight),
            size=size,
            in_flight=in_flight,
            directory=self._directory,
        ).entries_per_s

    def _add_rate(self, name: str, paired: _Paired, *, target: float) -> None:
        self._add(
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

    def _add_ratio(self, name: str, paired: _Paired, *, target: str, least: float) -> None:
        self._add(
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
            )
        )

    def _add_limit(self, name: str, unit: str, values: list[float], *, limit: float) -> None:
        value = statistics.median(values)
        self._add(
            Figure(
                name=name,
                unit=unit,
                value=round(value, 2),
                target=f"<= {limit}",
                met=value <= limit,
                runs=[round(each, 3) for each in values],
            )
        )

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)
        sys.stderr.write(_line(figure) + "\n")
        sys.stderr.flush()


def _pass_time(seconds: float) -> None:
    """Time that has to pass by itself: idleness is what is measured."""
    threading.Event().wait(seconds)


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


def main() -> None:
    """Measure and print. Ends with status 0 also when a target is missed: the figures say so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute, rough figures")
    parser.add_argument("--only", metavar="WORD", help="measurements whose name holds the word")
    parser.add_argument("--dir", type=Path, help="parent of the data folder (default: temporary)")
    arguments = parser.parse_args()
    machine = describe_machine()
    sys.stderr.write(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb} GB, {machine.system}, "
        f"Python {machine.python}\n"
    )
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        bench = Bench(Path(folder), QUICK if arguments.quick else FULL)
        for measurement in (
            bench.ledger,
            bench.publish,
            bench.publish_batched,
            bench.publish_one_by_one,
            bench.standalone,
        ):
            if arguments.only is None or arguments.only in measurement.__name__:
                measurement()
    result = {
        "machine": asdict(machine),
        "quick": arguments.quick,
        "figures": [asdict(figure) for figure in bench.figures],
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
