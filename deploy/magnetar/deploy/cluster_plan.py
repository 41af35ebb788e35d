"""The servers of a cluster on one host, and the command of each. Pure.

Names are `zookeeper-1`, `bookie-1`, `broker-1`, `autorecovery-1` and so on. A server that keeps
data has a directory of its name in the cluster's directory. The tiers start in the order of `TIERS`
and stop in reverse: a server starts after those that it needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.deploy.options import Quorum, host_in_url

if TYPE_CHECKING:
    # The module imports asyncio, which would slow down help pages.
    from magnetar.deploy.zookeeper import EnsembleMember

METADATA_PATH = "/magnetar"
"""Path of the metadata in a ZooKeeper that the cluster runs itself."""


class Kind(StrEnum):
    """Kind of a server; part of the format of cluster.json."""

    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"
    AUTORECOVERY = "autorecovery"


class Restart(StrEnum):
    """Whether to restart a server that has ended by itself."""

    ON_FAILURE = "on-failure"
    NEVER = "never"


TIERS = (Kind.ZOOKEEPER, Kind.BOOKIE, Kind.BROKER, Kind.AUTORECOVERY)

PORTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.ZOOKEEPER: ("native", "quorum", "election"),
    Kind.BOOKIE: ("native", "http"),
    Kind.BROKER: ("native", "http"),
    Kind.AUTORECOVERY: ("http",),
}
"""Names of the ports of each kind of server; `native`: for its own protocol."""

FIRST_PORTS: Mapping[tuple[Kind, str], int] = {
    (Kind.ZOOKEEPER, "native"): 2181,
    (Kind.ZOOKEEPER, "quorum"): 2888,
    (Kind.ZOOKEEPER, "election"): 3888,
    (Kind.BOOKIE, "native"): 3181,
    (Kind.BOOKIE, "http"): 8000,
    (Kind.BROKER, "native"): 6650,
    (Kind.BROKER, "http"): 8080,
    (Kind.AUTORECOVERY, "http"): 8180,
}
"""Preferred port of the first server of a kind; further servers get the following ones."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Number of servers of each kind."""

    zookeepers: int
    """Number of own ZooKeeper servers; 0: the cluster uses an existing ensemble."""
    bookies: int
    brokers: int
    autorecovery: int

    def counts(self) -> dict[Kind, int]:
        return {
            Kind.ZOOKEEPER: self.zookeepers,
            Kind.BOOKIE: self.bookies,
            Kind.BROKER: self.brokers,
            Kind.AUTORECOVERY: self.autorecovery,
        }

    def names(self) -> list[tuple[str, Kind]]:
        """Return names and kinds of all servers, in the order of their start."""
        counts = self.counts()
        return [
            (f"{kind}-{number}", kind) for kind in TIERS for number in range(1, counts[kind] + 1)
        ]


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server: its command, and where it listens."""

    name: str
    kind: Kind
    ports: Mapping[str, int]
    arguments: tuple[str, ...]
    """Arguments of the `magnetar` command."""
    data: Path | None


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A whole cluster: its metadata URL and its servers."""

    metadata_url: str
    servers: tuple[ServerPlan, ...]

    def of_kind(self, kind: Kind) -> list[ServerPlan]:
        return [server for server in self.servers if server.kind is kind]


def plan_cluster(
    directory: Path,
    shape: ClusterShape,
    *,
    quorum: Quorum,
    ports: Mapping[str, Mapping[str, int]],
    hosts: Mapping[str, str],
    zookeeper_url: str = "",
) -> ClusterPlan:
    """Plan the servers and their commands.

    Args:
        directory: directory of the cluster, absolute.
        ports: server name -> port name -> number; all that `PORTS` names.
        hosts: server name -> the address it listens on.
        zookeeper_url: URL of an existing ensemble; with `shape.zookeepers` 0.
    """
    from magnetar.deploy.zookeeper import EnsembleMember as Member

    members = tuple(
        Member(hosts[name], ports[name]["quorum"], ports[name]["election"], ports[name]["native"])
        for name, kind in shape.names()
        if kind is Kind.ZOOKEEPER
    )
    metadata_url = zookeeper_url or (
        "zk://"
        + ",".join(f"{host_in_url(each.host)}:{each.client_port}" for each in members)
        + METADATA_PATH
    )
    servers = []
    for name, kind in shape.names():
        data = directory / name if kind in (Kind.ZOOKEEPER, Kind.BOOKIE) else None
        arguments = _arguments(
            name,
            kind,
            host=hosts[name],
            ports=ports[name],
            data=data,
            metadata_url=metadata_url,
            quorum=quorum,
            members=members,
        )
        servers.append(ServerPlan(name, kind, dict(ports[name]), arguments, data))
    return ClusterPlan(metadata_url, tuple(servers))


def _arguments(
    name: str,
    kind: Kind,
    *,
    host: str,
    ports: Mapping[str, int],
    data: Path | None,
    metadata_url: str,
    quorum: Quorum,
    members: "tuple[EnsembleMember, ...]",
) -> tuple[str, ...]:
    metadata = ("--metadata", metadata_url, "--host", host)
    match kind:
        case Kind.ZOOKEEPER:
            arguments = ("zookeeper", "--data", str(data))
            if len(members) == 1:
                return (*arguments, "--host", host, "--port", str(ports["native"]))
            number = name.rpartition("-")[2]
            servers = ",".join(map(str, members))
            return (*arguments, "--server-id", number, "--servers", servers)
        case Kind.BOOKIE:
            return (
                *("bookie", *metadata, "--data", str(data), "--id", name),
                *("--port", str(ports["native"]), "--metrics-port", str(ports["http"])),
            )
        case Kind.BROKER:
            return (
                *("broker", *metadata, "--quorum", str(quorum)),
                *("--port", str(ports["native"]), "--http-port", str(ports["http"])),
            )
        case Kind.AUTORECOVERY:
            return (
                *("autorecovery", *metadata, "--id", name),
                *("--metrics-port", str(ports["http"])),
            )


def environment_of(server: ServerPlan) -> dict[str, str]:
    """Return the environment variables that a server gets besides its command line."""
    tag = {"MAGNETAR_LOG_NAME": server.name}
    if server.kind is Kind.BROKER:
        return {**tag, "MAGNETAR_BROKER_NAME": server.name}
    return tag
