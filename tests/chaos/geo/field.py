"""Two clusters that copy both ways, with a link to each that can be cut.

A cluster is two brokers, three bookies and a ZooKeeper as processes, or one standalone server.
Replicators of the other cluster find its brokers by the listener `link`, which is the proxy;
clients of their own know nothing of it.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tests.chaos.geo.links import Links
from tests.http_calls import follow, topic_path
from tests.processes import HOST, descendants_of, free_ports
from tests.real_cluster import RealCluster
from tests.standalone import EXCEPTION_MARKS, Standalone
from tests.waiting import wait_until

CLUSTERS = ("east", "west")
NAMESPACE = "public/both"
KEYED = f"persistent://{NAMESPACE}/keyed"
PLAIN = f"persistent://{NAMESPACE}/plain"
PARTITIONS = 3
START_S = 300.0
SETTLE_S = 300.0
_LISTENER = "link"
_SHOWN_BYTES = 1_000
_BROKER_SETTINGS = {
    "REPLICATION_RETRY_S_MAX": "0.5",
    "REPLICATION_CHECK_INTERVAL_S": "0.5",
    "REPLICATION_RECEIPT_TIMEOUT_S": "10",
    "REPLICATED_SUBSCRIPTIONS_SNAPSHOT_INTERVAL_MS": "200",
    "REPLICATED_SUBSCRIPTIONS_SNAPSHOT_TIMEOUT_S": "5",
    # What a producer sends twice, because its receipt was lost, is stored once at home.
    "DEDUPLICATION": "true",
    "SHEDDING": "false",
    "LEDGER_ENTRIES_MAX": "200",
    "LEDGER_AGE_MIN_S": "0",
    # The verdict reads all there ever was.
    "RETENTION_MINUTES": "-1",
    "RETENTION_MIB": "-1",
}


def settings_of(cluster: str) -> dict[str, str]:
    """Of the brokers of a cluster, by their names in the environment behind `MAGNETAR_BROKER_`."""
    return {"CLUSTER_NAME": cluster, **_BROKER_SETTINGS}


def partitions() -> list[str]:
    """All topics that hold messages."""
    return [PLAIN, *(f"{KEYED}-partition-{number}" for number in range(PARTITIONS))]


class Servers(Protocol):
    """The processes of one cluster, by name."""

    @property
    def brokers(self) -> Sequence[str]: ...
    @property
    def bookies(self) -> Sequence[str]: ...
    @property
    def url(self) -> str: ...
    def port_of(self, broker: str) -> int: ...
    def http_url_of(self, broker: str) -> str: ...
    def advertise(self, broker: str, listeners: str) -> None: ...
    def start_all(self) -> None: ...
    def kill(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def pid_of(self, name: str) -> int: ...
    def logs(self) -> Sequence[Path]: ...
    def close(self) -> None: ...


class Alone:
    """One standalone server."""

    brokers: Sequence[str] = ("standalone",)
    bookies: Sequence[str] = ()

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self._settings = settings
        self._server = Standalone(directory / "data", settings=settings)

    @property
    def url(self) -> str:
        return self._server.url

    def port_of(self, broker: str) -> int:
        return self._server.port

    def http_url_of(self, broker: str) -> str:
        return self._server.http_url

    def advertise(self, broker: str, listeners: str) -> None:
        before = self._server
        self._server = Standalone(
            before.directory,
            settings={**self._settings, "ADVERTISED_LISTENERS": listeners},
            ports=(before.port, before.http_port),
        )

    def start_all(self) -> None:
        self._server.directory.parent.mkdir(parents=True, exist_ok=True)
        self._server.start(START_S)

    def kill(self, name: str) -> None:
        self._server.kill()

    def start(self, name: str) -> None:
        self._server.start(START_S)

    def pid_of(self, name: str) -> int:
        return self._server.process.pid

    def logs(self) -> Sequence[Path]:
        return [self._server.log_path]

    def close(self) -> None:
        self._server.__exit__(None, None, None)


class Whole:
    """Two brokers, three bookies and a ZooKeeper."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        environment = {f"MAGNETAR_BROKER_{name}": value for name, value in settings.items()}
        self._cluster = RealCluster(directory, bookies=3, brokers=2, environment=environment)
        self.brokers: Sequence[str] = ("broker-1", "broker-2")
        self.bookies: Sequence[str] = ("bookie-1", "bookie-2", "bookie-3")

    @property
    def url(self) -> str:
        return self._cluster.service_url

    def port_of(self, broker: str) -> int:
        return self._cluster.server(broker).ports["native"]

    def http_url_of(self, broker: str) -> str:
        return self._cluster.http_url(broker)

    def advertise(self, broker: str, listeners: str) -> None:
        self._cluster.add_arguments(broker, "--advertised-listeners", listeners)

    def start_all(self) -> None:
        self._cluster.__enter__()

    def kill(self, name: str) -> None:
        self._cluster.kill(name)

    def start(self, name: str) -> None:
        self._cluster.start(name, START_S)

    def pid_of(self, name: str) -> int:
        return self._cluster.process(name).pid

    def logs(self) -> Sequence[Path]:
        return [self._cluster.log_path(each) for each in (*self.brokers, *self.bookies)]

    def close(self) -> None:
        self._cluster.kill_all()


class Side:
    """One of the clusters, and the link that leads to it."""

    def __init__(self, name: str, servers: Servers, links: Links) -> None:
        self.name, self.servers = name, servers
        ports = dict(zip(servers.brokers, free_ports(len(servers.brokers)), strict=True))
        self.linked_url = "pulsar://" + ",".join(f"{HOST}:{port}" for port in ports.values())
        """The addresses at which the other cluster finds the brokers."""
        for broker, port in ports.items():
            links.open(name, port, servers.port_of(broker))
            servers.advertise(
                broker,
                f"home:pulsar://{HOST}:{servers.port_of(broker)},"
                f"{_LISTENER}:pulsar://{HOST}:{port}",
            )

    def pause(self, name: str) -> None:
        """SIGSTOP, of all its processes."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self.servers.pid_of(name)
        for each in [pid, *descendants_of(pid)]:
            os.kill(each, number)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to a broker that answers it well; return the JSON.

        Raises:
            AssertionError: none does for long.
        """
        found: list[Any] = []

        def is_answered() -> bool:
            for broker in self.servers.brokers:
                try:
                    answer = follow(self.servers.http_url_of(broker), method, path, body)
                except (OSError, EOFError):
                    continue
                if answer.is_ok:
                    found.append(answer.ok())
                    return True
            return False

        wait_until(is_answered, f"{method} {path} at {self.name}", within_s=SETTLE_S)
        return found[0]

    def exceptions(self) -> list[str]:
        """What its brokers and bookies have logged that nobody expected, the first of each."""
        found: list[str] = []
        for path in self.servers.logs():
            text = path.read_text()
            places = [at for mark in EXCEPTION_MARKS if (at := text.find(mark)) >= 0]
            if places:
                found.append(f"{self.name}, {path.name}: {text[min(places) :][:_SHOWN_BYTES]}")
        return found

    def unload(self, topic: str) -> None:
        """Have a topic closed, and loaded again; by the other broker, if there is one."""
        self.ask("PUT", f"{topic_path(topic)}/unload")

    def has_partitions(self) -> bool:
        """Whether the partitioned topic is there, with all of its partitions."""
        found = self.ask("GET", f"{topic_path(KEYED)}/partitions")["partitions"]
        return bool(found == PARTITIONS)

    def behind(self, remote: str) -> list[str]:
        """Topics of which not everything is at the other cluster, or that say a problem."""
        found: list[str] = []
        for topic in partitions():
            shown = self.ask("GET", f"{topic_path(topic)}/stats")["replication"].get(remote)
            if shown is None or shown["replicationBacklog"] or not shown["connected"]:
                found.append(f"{topic} at {self.name}: {shown}")
        return found

    def unacknowledged(self, topic: str, subscription: str) -> int:
        """Messages that a subscription has not acknowledged, markers left out; -1: there is no such
        subscription."""
        path = topic_path(topic)
        if subscription not in self.ask("GET", f"{path}/stats")["subscriptions"]:
            return -1
        found = self.ask("POST", f"{path}/subscription/{subscription}/analyzeBacklog")
        return int(found["messages"])


class Field:
    """Both clusters, at work. A context manager: everything is killed at the end."""

    def __init__(
        self, directory: Path, make: Callable[[Path, dict[str, str]], Servers] = Whole
    ) -> None:
        """`make`: `Whole` or `Alone`."""
        self._directory, self._make = directory, make
        self._opened = ExitStack()
        self.links = Links()
        self.sides: dict[str, Side] = {}

    def __enter__(self) -> "Field":
        with ExitStack() as opening:
            opening.enter_context(self.links)
            for name in CLUSTERS:
                servers = self._make(self._directory / name, settings_of(name))
                opening.callback(servers.close)
                self.sides[name] = Side(name, servers, self.links)
                servers.start_all()
            self._introduce()
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()

    def other(self, name: str) -> Side:
        """The cluster that is not that one."""
        return next(side for side in self.sides.values() if side.name != name)

    def _introduce(self) -> None:
        """Have all topics of the namespace copied both ways."""
        both = list(CLUSTERS)
        for side in self.sides.values():
            other = self.other(side.name)
            record = {
                "brokerServiceUrl": other.linked_url,
                "serviceUrl": other.servers.http_url_of(other.servers.brokers[0]),
                "listenerName": _LISTENER,
            }
            side.ask("PUT", f"clusters/{other.name}", record)
            tenant = {"allowedClusters": both, "adminRoles": []}
            side.ask("POST", "tenants/public", tenant)
            side.ask("PUT", f"namespaces/{NAMESPACE}", {"replication_clusters": both})
        first = self.sides[CLUSTERS[0]]
        first.ask("PUT", f"{topic_path(KEYED)}/partitions", PARTITIONS)
        for side in self.sides.values():
            wait_until(side.has_partitions, f"{KEYED} is in {side.name}", within_s=SETTLE_S)
