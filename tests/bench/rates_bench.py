"""A thousand topics at a steady rate: the latency of a publish when no topic forms a batch.

Each topic has a producer, a consumer and a ledger of its own, so nearly every entry travels alone:
as a frame to each bookie, a receipt, a delivery and an acknowledgement. The processor time of
broker, bookies and clients is reported beside the figure, because on a machine of two cores they
share it.
"""

import itertools
from typing import Final

from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster

TOPICS: Final = 1_000
TOPICS_QUICK: Final = 50

_MSGS_PER_S: Final = 20
_P99_MS_MAX: Final = 20.0
_CLIENTS: Final = 10
_RATES: Final = (5, 10, 20)
"""Messages per second and topic: if one rate is too high, the others show what is not."""


class RatesBench:
    """Measures steady rates; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        is_full = effort is FULL
        self._topics = TOPICS if is_full else TOPICS_QUICK
        self._warm_s, self._seconds = (3.0, 15.0) if is_full else (0.3, 1.0)
        self._sustained_s = 60.0 if is_full else 1.0
        self._rates = _RATES if is_full else (_MSGS_PER_S,)

    def rates(self) -> None:
        """Measure one rate after the other, each with topics of its own."""
        numbers = itertools.count()
        with ProcessCluster(self._report.directory / "rates") as cluster:
            for rate in self._rates:
                self._measure(cluster, rate, f"rates-{next(numbers)}")

    def _measure(self, cluster: ProcessCluster, rate: int, prefix: str) -> None:
        servers = [each.pid for each in cluster.servers]
        seconds = self._sustained_s if rate == _MSGS_PER_S else self._seconds
        found = load.run(
            *("rates_load", cluster.port, self._topics, _CLIENTS, rate),
            *(self._warm_s, seconds, prefix, *servers),
        )
        *bookies_s, broker_s = found["cpu_s"]
        published, seconds = found["published"], found["seconds"]
        cpu_us = {
            name: round(used_s / max(1, published) * 1e6, 1)
            for name, used_s in (
                ("broker", broker_s),
                ("bookies", sum(bookies_s)),
                ("clients", found["client_cpu_s"]),
            )
        }
        p99_ms = found["latency_ms"]["p99"]
        self._report.add(
            Figure(
                name=f"{self._topics} topics, {rate} msg/s each: p99 of a publish",
                unit="ms",
                value=p99_ms,
                target=f"<= {_P99_MS_MAX:g}" if rate == _MSGS_PER_S else "",
                met=p99_ms <= _P99_MS_MAX or rate != _MSGS_PER_S,
                details={
                    "latency_ms": found["latency_ms"],
                    "end_to_end_ms": found["end_to_end_ms"],
                    "published per second": round(published / seconds),
                    "received per second": round(found["received"] / seconds),
                    "CPU per message, us": cpu_us,
                },
            )
        )
