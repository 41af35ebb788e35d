"""Cost of each subscription type: a backlog of 1 KB messages through one broker.

All consumers of a run are in one process that costs next to nothing (dispatch_load.py), so the
broker limits the rate. Shared and Key_Shared are compared with the runs of Exclusive around them,
over the same messages.
"""

import statistics
from dataclasses import dataclass

from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report, measure
from tests.cluster import ProcessCluster

KEYS = 1_000
CONSUMERS = 10

_WITHOUT_KEYS = "persistent://public/default/dispatch-without-keys"
_WITH_KEYS = "persistent://public/default/dispatch-with-keys"


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    topic: str
    kind: str
    least: float


_CASES = (
    _Case("Shared, 10 consumers", _WITH_KEYS, "Shared", 0.6),
    _Case("Key_Shared, 10 consumers, 1000 keys", _WITH_KEYS, "Key_Shared", 0.5),
    _Case("Key_Shared, 10 consumers, no keys", _WITHOUT_KEYS, "Key_Shared", 0.5),
)


class DispatchBench:
    """Measures dispatching; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._effort = effort
        self._runs = 0
        self._messages = effort.messages if effort is FULL else effort.messages * 2
        self._broker_us: list[float] = []

    def dispatch(self) -> None:
        """Measure each case between two runs of Exclusive."""
        with ProcessCluster(self._report.directory / "dispatch") as cluster:
            for topic, keys in ((_WITHOUT_KEYS, 0), (_WITH_KEYS, KEYS)):
                load.run("dispatch_load", cluster.port, "publish", topic, self._messages, keys)
            for case in _CASES:
                self._compare(cluster, case)

    def _compare(self, cluster: ProcessCluster, case: _Case) -> None:
        exclusive_us: list[float] = []
        case_us: list[float] = []
        paired = measure(
            lambda _: self._consume(cluster, case.topic, case.kind, CONSUMERS, case_us),
            lambda: self._consume(cluster, case.topic, "Exclusive", 1, exclusive_us),
            repeats=self._effort.repeats,
        )
        self._report.add(
            Figure(
                name=f"dispatch: {case.name}",
                unit="msg/s",
                value=round(paired.value),
                target=f">= {case.least} of Exclusive",
                met=paired.ratio >= case.least,
                ratio=round(paired.ratio, 2),
                beside="Exclusive",
                beside_value=round(paired.ceiling),
                runs=[round(each) for each in paired.values],
                details={
                    "broker CPU per message, us": round(statistics.median(case_us), 1),
                    "the same of Exclusive": round(statistics.median(exclusive_us), 1),
                },
            )
        )

    def _consume(
        self, cluster: ProcessCluster, topic: str, kind: str, consumers: int, cpu_us: list[float]
    ) -> float:
        """Return the messages per second of one run, over a subscription of its own."""
        self._runs += 1
        broker = cluster.servers[-1]
        before_s = broker.cpu_s()
        name = f"run-{self._runs}"
        found = load.run(
            *("dispatch_load", cluster.port, "consume"),
            *(topic, self._messages, kind, consumers, name),
        )
        cpu_us.append((broker.cpu_s() - before_s) / self._messages * 1e6)
        return self._messages / float(found["seconds"])
