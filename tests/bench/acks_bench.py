"""Very many acknowledgements with a hole after each: the broker's memory and processor time.

A consumer acknowledges every second message and holds back the one before it. No two acknowledged
messages are adjacent, and the cursor's first gap never closes. For a Shared subscription, whose
limits on unacknowledged messages are lifted, the broker also knows which consumer holds each
message. Acknowledgements come in groups, as clients send them, or one by one, the most work that a
client can cause.
"""

from dataclasses import dataclass
from typing import Final

from tests.bench import load
from tests.bench.acks_load import Slice
from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.http_calls import admin

_MEMORY_MB_MAX: Final = 200
_CPU_S_MAX: Final = 1.0
_ACKS: Final = 100_000
"""Number of acknowledgements that the processor time refers to."""
_BYTES: Final = 100
_TOPIC: Final = "persistent/public/default/acks"


@dataclass(frozen=True, slots=True)
class _Case:
    kind: str
    at_once: int

    @property
    def name(self) -> str:
        groups = f"groups of {self.at_once}" if self.at_once > 1 else "one by one"
        return f"{self.kind}, {groups}"


_CASES: Final = (_Case("Shared", 100), _Case("Shared", 1), _Case("Exclusive", 1))


class AcksBench:
    """Measures the acknowledgements; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._is_full = effort is FULL
        self._acks = 1_000_000 if self._is_full else 20_000

    def acks(self) -> None:
        """Measure each case, in full runs on a fresh broker, with a subscription of its own."""
        topic = _TOPIC.replace("/", "://", 1)
        messages = 2 * self._acks
        cases = _CASES if self._is_full else _CASES[:1]
        with ProcessCluster(self._report.directory / "acks") as cluster:
            load.run("dispatch_load", cluster.port, "publish", topic, messages, 0, _BYTES)
            for case in cases:
                if self._is_full:  # without what the publishing has left behind
                    cluster.servers[-1].kill()
                    cluster.restart_broker()
                _lift_limits(cluster)
                self._measure(cluster, topic, messages, case)

    def _measure(self, cluster: ProcessCluster, topic: str, messages: int, case: _Case) -> None:
        broker = cluster.servers[-1]
        before_mb = broker.resident_bytes() / 1e6
        count, settle_s = (10, 1.2) if self._is_full else (1, 0.0)
        found = load.run(
            *("acks_load", cluster.port, broker.pid, topic, messages),
            *(case.kind, case.at_once, count, settle_s),
        )
        slices = [Slice(**each) for each in found]
        cpu_s = [each.cpu_s / each.acks * _ACKS for each in slices]
        self._report.add_limit(
            f"{self._acks} acks with holes, {case.name}: CPU per {_ACKS}",
            "s",
            cpu_s,
            limit=_CPU_S_MAX,
        )
        highest_mb = max(max(each.delivered_mb, each.resident_mb) for each in slices)
        self._report.add(
            Figure(
                name=f"{self._acks} acks with holes, {case.name}: memory",
                unit="MB",
                value=round(highest_mb),
                target=f"<= {_MEMORY_MB_MAX}",
                met=highest_mb <= _MEMORY_MB_MAX,
                runs=[round(each.resident_mb) for each in slices],
                details={"before_mb": round(before_mb), "held_back": self._acks},
            )
        )


def _lift_limits(cluster: ProcessCluster) -> None:
    for policy in ("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"):
        admin(cluster.http_port, "POST", f"{_TOPIC}/{policy}", 0)
