"""Two clusters that copy a topic both ways: rate, processor time, and delay.

The clusters are first two standalone servers, then two brokers with three bookies each. Clients
that cost next to nothing publish to both at once, at a steady rate. The reached rate counts until
the last copy has arrived. The same load on a topic that is not copied gives the cost of publishing
alone. The delay is from when a message was due at one server until a consumer at the other one has
it, at a rate that leaves the processors idle.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from magnetar.bookie.settings import BookieSettings
from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.http_calls import HasHttp, admin, topic_path
from tests.standalone import Standalone
from tests.waiting import wait_until

_RATE: Final = 22_000
_SIZE: Final = 1_000
_BATCH: Final = 100
_RATE_MIN: Final = 20_000
"""Rate to reach, counted until the last copy has arrived."""
_DELAY_RATE: Final = 1_000
_DELAY_MS_MAX: Final = 100.0
_WITHIN_S: Final = 300.0
_COPIED: Final = "public/both"
_ALONE: Final = "public/default"
_CLUSTERS: Final = ("east", "west")
_CLUSTERS_BYTES: Final = 20 << 30
"""Disk space in bytes for two clusters of three bookies, which write 18 GB."""
_FULL_SHARE: Final = BookieSettings.model_fields["disk_full_share"].default
"""Used share of a disk, from 0 to 1, at which bookies refuse writes."""


class _Server(HasHttp, Protocol):
    """One of the two clusters: the addresses of its broker."""

    port: int

    @property
    def url(self) -> str: ...


def _want_of_room(directory: Path) -> str:
    """Return why bookies would refuse writes during the run, which stalls the copies; empty: they
    would not."""
    disk = shutil.disk_usage(directory)
    room = disk.free - (1 - _FULL_SHARE) * disk.total
    if room >= _CLUSTERS_BYTES:
        return ""
    return (
        f"{directory} has room for {room / 1e9:.0f} GB until bookies refuse writes at "
        f"{_FULL_SHARE:.0%}, and two clusters write {_CLUSTERS_BYTES / 1e9:.0f} GB: free some "
        f"space, or name another directory by ARGS='--dir DIR'"
    )


class ReplicationBench:
    """Measures copies between clusters; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        is_full = effort is FULL
        self._rounds = 3 if is_full else 1
        self._seconds = 15.0 if is_full else 2.0
        self._servers: Sequence[_Server] = ()
        self._cpu_s: Callable[[], float] = lambda: 0.0
        """Returns the processor time that all servers have used so far."""

    def replication(self) -> None:
        """Measure two standalone servers."""
        directory = self._report.directory / "replication"
        directory.mkdir(parents=True)
        servers = [
            Standalone(directory / name, settings={"CLUSTER_NAME": name}) for name in _CLUSTERS
        ]
        east, west = servers
        with east, west:
            self._cpu_s = lambda: sum(each.process.cpu_s() for each in servers)
            self._begin(servers)
            self._rates("")
            self._delays()

    def replication_of_clusters(self) -> None:
        """Measure two brokers with three bookies each."""
        directory = self._report.directory / "replication-of-clusters"
        if self._rounds > 1 and (reason := _want_of_room(self._report.directory)):
            sys.stderr.write(f"copies between clusters of bookies are left out: {reason}\n")
            return
        clusters: list[ProcessCluster] = []
        for name in _CLUSTERS:
            (directory / name).mkdir(parents=True)
            settings = directory / f"{name}.toml"
            settings.write_text(f'[broker]\ncluster_name = "{name}"\n')
            arguments = ["--config", str(settings)]
            clusters.append(ProcessCluster(directory / name, broker_arguments=arguments))
        east, west = clusters
        with east, west:
            self._cpu_s = lambda: sum(each.cpu_s() for each in clusters)
            self._begin(clusters)
            self._rates(", three bookies each")

    def _begin(self, servers: Sequence[_Server]) -> None:
        self._servers = servers
        _connect(*servers)
        self._load_once()

    def _load_once(self) -> None:
        """Publish once, so that code is loaded and connections exist before anything is
        measured."""
        for namespace in (_COPIED, _ALONE):
            self._publish(f"persistent://{namespace}/warm", seconds=1.0)

    def _rates(self, suffix: str) -> None:
        runs: list[dict[str, float]] = []
        alone_us: list[float] = []
        for number in range(self._rounds):
            alone = self._publish(f"persistent://{_ALONE}/alone-{number}")
            alone_us.append(alone["cpu_us"])
            runs.append(self._publish(f"persistent://{_COPIED}/rate-{number}"))
        rate = statistics.median(run["msgs_per_s"] for run in runs)
        cpu_us = statistics.median(run["cpu_us"] for run in runs)
        self._report.add(
            Figure(
                name=f"copies both ways, 1 KB, batches of {_BATCH}, each way{suffix}",
                unit="msg/s",
                value=round(rate),
                target=f">= {_RATE_MIN:,}",
                met=rate >= _RATE_MIN,
                runs=[round(run["msgs_per_s"]) for run in runs],
                details={
                    "servers' CPU per message, us": round(cpu_us, 2),
                    "of publishing alone, us": round(statistics.median(alone_us), 2),
                    "runs": runs,
                },
            )
        )

    def _publish(self, topic: str, *, seconds: float = 0.0) -> dict[str, float]:
        """Publish at both servers; when all copies have arrived, return the reached rate and its
        cost."""
        seconds = seconds or self._seconds
        messages = 2 * _RATE * seconds
        ports = [each.port for each in self._servers]
        before_s = self._cpu_s()
        found = load.run(
            "replication_load", "publish", *ports, topic, _RATE, seconds, _SIZE, _BATCH
        )
        ended_s = time.monotonic()
        if f"/{_COPIED}/" in topic:
            wait_until(lambda: self._is_copied(topic), f"copies of {topic}", within_s=_WITHIN_S)
        after_s = time.monotonic() - ended_s
        return {
            "msgs_per_s": round(messages / 2 / (found["seconds"] + after_s), 1),
            "cpu_us": round((self._cpu_s() - before_s) / messages * 1e6, 2),
            "copies_after_s": round(after_s, 2),
            "client_cpu_us": round(found["client_cpu_s"] / messages * 1e6, 2),
        }

    def _is_copied(self, topic: str) -> bool:
        for server, other in zip(self._servers, reversed(_CLUSTERS), strict=True):
            shown = admin(server, "GET", f"{topic_path(topic)}/stats")["replication"].get(other)
            if shown is None or shown["replicationBacklog"]:
                return False
        return True

    def _delays(self) -> None:
        found: list[dict[str, Any]] = []
        for number in range(self._rounds):
            topic = f"persistent://{_COPIED}/delay-{number}"
            ports = [each.port for each in self._servers]
            run = load.run(
                "replication_load", "delay", *ports, topic, _DELAY_RATE, self._seconds, _SIZE, 1
            )
            found.append(run["delay_ms"])
        p99_ms = statistics.median(each["p99"] for each in found)
        self._report.add(
            Figure(
                name=f"copies at {_DELAY_RATE:,} msg/s each way: p99 of the delay",
                unit="ms",
                value=round(p99_ms, 2),
                target=f"<= {_DELAY_MS_MAX:g}",
                met=p99_ms <= _DELAY_MS_MAX,
                runs=[each["p99"] for each in found],
                details={"delay_ms": found},
            )
        )


def _connect(east: _Server, west: _Server) -> None:
    """Set up copies both ways of all topics in the namespace."""
    tenant = {"allowedClusters": list(_CLUSTERS), "adminRoles": []}
    for here, other, name in ((east, west, "west"), (west, east, "east")):
        record = {"brokerServiceUrl": other.url, "serviceUrl": other.http_url}
        admin(here, "PUT", f"clusters/{name}", record)
        admin(here, "POST", "tenants/public", tenant)
        body = {"replication_clusters": list(_CLUSTERS)}
        admin(here, "PUT", f"namespaces/{_COPIED}", body)
