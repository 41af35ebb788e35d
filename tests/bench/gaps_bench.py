"""How long a producer waits when a server fails, as the official client sees it.

Uses a cluster of processes with a real ZooKeeper, and a message every 2 ms. Each measurement starts
with all servers up.
"""

import asyncio
import statistics
import time
from collections.abc import Callable

from magnetar.ledger.ledger_metadata import LedgerState
from tests.bench.gap_probe import Gap, Publisher
from tests.bench.ledger_probe import open_client
from tests.bench.report import Effort, Figure, Report
from tests.chaos.cluster.lookups import owner_of
from tests.http_calls import call, topic_path
from tests.real_cluster import RealCluster

SESSION_S = 4.0
ADD_TIMEOUT_S = 3.0
_BROKERS = ("broker-1", "broker-2")
_BOOKIES = 5
_STEADY_S = 1.5
_UNLOAD_TIMEOUT_S = 30.0
_ENVIRONMENT = {
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": str(int(SESSION_S * 1000)),
    "MAGNETAR_LEDGER_REQUEST_TIMEOUT_S": str(ADD_TIMEOUT_S),
    # A struck bookie is needed again for the next run.
    "MAGNETAR_LEDGER_QUARANTINE_S": "0",
}


class GapsBench:
    """Measures publish gaps; each figure goes to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._effort = effort

    def gaps(self) -> None:
        """Measure the loss of a broker and of a bookie, in several ways."""
        with RealCluster(
            self._report.directory / "gaps",
            brokers=len(_BROKERS),
            bookies=_BOOKIES,
            quorum="3,3,2",
            environment=_ENVIRONMENT,
        ) as cluster:
            probe = _Probe(cluster)
            self._measure("topic unloaded, publish gap", 0.2, probe.unload)
            self._measure("bookie killed, publish gap", 0.3, probe.kill_bookie)
            self._measure("bookie silent, publish gap", ADD_TIMEOUT_S, probe.silence_bookie)
            self._measure("owner killed, publish gap", SESSION_S + 1, probe.kill_owner)

    def _measure(self, name: str, limit_s: float, run: Callable[[str], Gap]) -> None:
        gaps = [
            run(f"persistent://public/default/{name.replace(' ', '-').replace(',', '')}-{number}")
            for number in range(self._effort.probes)
        ]
        longest = [gap.longest_s for gap in gaps]
        self._report.add(
            Figure(
                name=name,
                unit="ms",
                value=round(statistics.median(longest) * 1000, 1),
                target=f"<= {limit_s * 1000:g}",
                met=max(longest) <= limit_s,
                runs=[round(each * 1000, 1) for each in longest],
                details={"steady_ms": [round(gap.steady_s * 1000, 1) for gap in gaps]},
            )
        )


class _Probe:
    """One run of each kind of failure; all servers are up again afterwards."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster

    def unload(self, topic: str) -> Gap:
        owner = self._owner(topic)

        def strike() -> None:
            url, path = self._cluster.http_url(owner), f"{topic_path(topic)}/unload"
            call(url, "PUT", path, timeout_s=_UNLOAD_TIMEOUT_S).ok()

        return self._struck(topic, strike, at_least_s=1)

    def kill_owner(self, topic: str) -> Gap:
        owner = self._owner(topic)
        gap = self._struck(topic, lambda: self._cluster.kill(owner), at_least_s=1)
        self._cluster.start(owner)
        return gap

    def kill_bookie(self, topic: str) -> Gap:
        """Kill a bookie: its connections are reset, and new ones refused."""
        struck: list[str] = []

        def strike() -> None:
            struck.append(self._member())
            self._cluster.kill(struck[0])

        gap = self._struck(topic, strike, at_least_s=1)
        self._cluster.start(struck[0])
        return gap

    def silence_bookie(self, topic: str) -> Gap:
        """Pause a bookie: its connections stay open, and only a timeout shows that it stopped."""
        struck: list[str] = []

        def strike() -> None:
            struck.append(self._member())
            self._cluster.pause(struck[0])

        gap = self._struck(topic, strike, at_least_s=ADD_TIMEOUT_S + 1)
        self._cluster.resume(struck[0])
        return gap

    def _struck(self, topic: str, strike: Callable[[], None], *, at_least_s: float) -> Gap:
        with Publisher(self._cluster.service_url, topic) as publisher:
            publisher.steady(_STEADY_S)
            strike_s = time.monotonic()
            strike()
            return publisher.gap_since(strike_s, at_least_s=at_least_s)

    def _owner(self, topic: str) -> str:
        addresses = {
            ("127.0.0.1", self._cluster.server(name).ports["native"]): name for name in _BROKERS
        }
        return addresses[asyncio.run(owner_of(topic, addresses))]

    def _member(self) -> str:
        """Return a bookie of the newest open ledger, which is the topic's."""

        async def find() -> str:
            async with open_client(self._cluster.metadata_url) as client:
                newest = ""
                async for ledger_id in client.manager.ledger_ids():
                    metadata = (await client.manager.read(ledger_id)).metadata
                    if metadata.state is LedgerState.OPEN:
                        newest = metadata.last_fragment.bookies[0]
                return newest

        return asyncio.run(find())
