"""Many subscriptions of one topic: how often an entry is read from the bookies for all of them.

The first measurement reads a backlog that is larger than the tail cache, published while nobody was
connected, so that none of it is in memory. The second one tails a topic during the publishing. The
bookies' own counts of entries sent to readers are compared.
"""

import re
from collections import Counter
from typing import Final

from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.http_calls import call

SUBSCRIPTIONS: Final = 20

_MESSAGES: Final = 100_000
_MESSAGES_QUICK: Final = 4_000
_BACKLOG: Final = "persistent://public/default/fanout-backlog"
_TAIL: Final = "persistent://public/default/fanout-tail"


class FanoutBench:
    """Measures fan-out; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._messages = _MESSAGES if effort is FULL else _MESSAGES_QUICK

    def fanout(self) -> None:
        """Measure a backlog, then tailing. An unused subscription keeps all messages meanwhile."""
        messages = self._messages
        directory = self._report.directory / "fanout"
        with ProcessCluster(directory, has_bookie_metrics=True) as cluster:
            load.run("dispatch_load", cluster.port, "publish", _BACKLOG, messages, 0)
            self._measure(cluster, "backlog", _BACKLOG)
            self._measure(cluster, "tailing", _TAIL, "publish")

    def _measure(self, cluster: ProcessCluster, name: str, topic: str, *how: str) -> None:
        before, before_s = _reads(cluster), cluster.servers[-1].cpu_s()
        found = load.run(
            "fanout_load", cluster.port, topic, self._messages, SUBSCRIPTIONS, name, *how
        )
        cpu_s = cluster.servers[-1].cpu_s() - before_s
        reads = _reads(cluster) - before
        share = reads["entries"] / self._messages
        deliveries = self._messages * SUBSCRIPTIONS
        self._report.add(
            Figure(
                name=f"fan-out to {SUBSCRIPTIONS} subscriptions, {name}",
                unit="reads/entry",
                value=round(share, 3),
                target="<= 1",
                met=share <= 1,
                details={
                    "entries": self._messages,
                    "read requests": reads["requests"],
                    "deliveries per second": round(deliveries / found["seconds"]),
                    "broker CPU per delivery, us": round(cpu_s / deliveries * 1e6, 1),
                },
            )
        )


def _reads(cluster: ProcessCluster) -> Counter[str]:
    """Return requests and entries that the bookies have sent to readers so far."""
    total: Counter[str] = Counter()
    for port in cluster.bookie_metrics_ports:
        page = call(port, "GET", "/metrics", expect=200).text
        for what in ("requests", "entries"):
            pattern = rf"^magnetar_bookie_read_{what}_total\{{.*\}} (\S+)$"
            total[what] += sum(int(float(each)) for each in re.findall(pattern, page, re.MULTILINE))
    return total
