"""The ledger client on bookie processes, without a broker."""

import os
import signal
import statistics
from collections.abc import Callable, Coroutine

import uvloop

from tests.bench import load
from tests.bench.figures import Latency
from tests.bench.ledger_probe import (
    Stall,
    measure_ensemble_change,
    measure_recovery,
    measure_tail,
)
from tests.bench.report import Effort, Figure, Report, measure
from tests.cluster import ProcessCluster

_UNCONFIRMED = 1_000
_IN_FLIGHT = 1_000
_LARGE_BYTES = 100_000
_TAIL_ENTRIES_PER_PROBE = 200


class LedgerBench:
    """Measures adds, recovery, ensemble change and tailing; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._effort = effort

    def ledger(self) -> None:
        """Measure everything that needs no bookie killed. Full speed comes last: it leaves bookies
        work."""
        with ProcessCluster(self._report.directory / "ledger", broker=False) as cluster:
            self._one_by_one(cluster)
            self._recovery(cluster)
            self._tail(cluster)
            self._adds(cluster, "1 KB", size=1024, in_flight=1000, entries=self._effort.messages)
            self._adds(
                cluster,
                "100 KB",
                size=_LARGE_BYTES,
                in_flight=100,
                entries=max(2000, self._effort.messages // 50),
            )

    def ledger_ensemble_change(self) -> None:
        """Kill a bookie of the ensemble while a thousand entries are in flight."""
        probes = self._effort.probes
        directory = self._report.directory / "change"
        stalls: list[Stall] = []
        with ProcessCluster(directory, bookies=3 + probes, broker=False) as cluster:
            servers = {
                server.ready_line.split()[-1].rpartition("/")[2]: server
                for server in cluster.servers
            }
            for _ in range(probes):
                stalls.append(
                    uvloop.run(
                        measure_ensemble_change(
                            cluster.metadata_url,
                            in_flight=_IN_FLIGHT,
                            kill=lambda bookie_id: os.kill(servers[bookie_id].pid, signal.SIGKILL),
                        )
                    )
                )
        worst = [stall.worst_gap_s * 1000 for stall in stalls]
        self._report.add(
            Figure(
                name=f"ensemble change, {_IN_FLIGHT} in flight, longest stall",
                unit="ms",
                value=round(statistics.median(worst), 2),
                target="<= 50",
                met=statistics.median(worst) <= 50,
                runs=[round(each, 2) for each in worst],
                details={
                    "longest_gap_before_ms": [
                        round(stall.worst_gap_before_s * 1000, 2) for stall in stalls
                    ]
                },
            )
        )

    def _adds(
        self, cluster: ProcessCluster, name: str, *, size: int, in_flight: int, entries: int
    ) -> None:
        paired = measure(
            lambda _: (
                load.ledger(
                    cluster.metadata_url, messages=entries, size=size, in_flight=in_flight
                ).msgs_per_s
            ),
            lambda: self._report.ceiling(size=size, in_flight=in_flight, entries=entries),
            repeats=self._effort.repeats,
        )
        self._report.add_ratio(
            f"ledger writer, {name}, {in_flight} in flight",
            paired,
            target=">= 0.7 of the ceiling",
            least=0.7,
        )

    def _one_by_one(self, cluster: ProcessCluster) -> None:
        """Measure one entry in flight: the latency of a durable add."""
        count = self._effort.single_messages
        p99s: list[float] = []

        def run(_: int) -> float:
            rate = load.ledger(cluster.metadata_url, messages=count, size=1024, in_flight=1)
            assert rate.latency_ms is not None
            p99s.append(rate.latency_ms.p99)
            return rate.latency_ms.p50

        paired = measure(
            run,
            lambda: self._report.ceiling_p50_ms(size=1024, entries=count),
            repeats=self._effort.repeats,
        )
        self._report.add_latency(
            "ledger writer, 1 KB, one in flight, p50",
            paired,
            target="<= 2 x the ceiling's",
            met=paired.ratio <= 2,
            p99s=p99s,
        )

    def _recovery(self, cluster: ProcessCluster) -> None:
        """Measure closing a ledger whose writer is gone, with a thousand entries above the LAC."""
        took_s = _repeat(
            lambda: measure_recovery(cluster.metadata_url, entries=_UNCONFIRMED),
            self._effort.probes,
        )
        self._report.add_limit(
            f"recovery with {_UNCONFIRMED} unconfirmed entries",
            "ms",
            [each * 1000 for each in took_s],
            limit=100,
        )

    def _tail(self, cluster: ProcessCluster) -> None:
        """Measure the time from the acknowledgement of an entry until a reader has it."""
        entries = _TAIL_ENTRIES_PER_PROBE * self._effort.probes
        latency = Latency.of(uvloop.run(measure_tail(cluster.metadata_url, entries=entries)))
        self._report.add(
            Figure(
                name="tailing reader, acknowledged to read, p50",
                unit="ms",
                value=latency.p50,
                target="<= 2",
                met=latency.p50 <= 2,
                details={"p99_ms": latency.p99, "max_ms": latency.max},
            )
        )


def _repeat(run: Callable[[], Coroutine[None, None, float]], count: int) -> list[float]:
    return [uvloop.run(run()) for _ in range(count)]
