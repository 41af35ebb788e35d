"""A cluster of real processes with a real ZooKeeper: start, kill, pause and restart one by name.

The servers are those that `magnetar cluster` would start (the same plan), but without supervision:
a killed server stays dead until the test starts it again. Names are `zookeeper-1`, `bookie-1`,
`broker-1`, `autorecovery-1`.

    with RealCluster(tmp_path / "cluster", bookies=4, brokers=2) as cluster:
        client = pulsar.Client(cluster.url("broker-1"))
        cluster.kill("broker-1")          # kill -9
        cluster.start("broker-1")         # on its ports; a bookie on its data
        cluster.pause("broker-2"); cluster.resume("broker-2")
        assert cluster.terminate("bookie-3") == 0
"""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from magnetar.deploy.cluster_plan import (
    PORTS,
    ClusterPlan,
    ClusterShape,
    Kind,
    ServerPlan,
    environment_of,
    plan_cluster,
)
from magnetar.deploy.options import Quorum, default_quorum, parse_quorum
from tests.processes import (
    HOST,
    ServerProcess,
    descendants_of,
    free_ports,
    magnetar_command,
    magnetar_environment,
)
from tests.standalone import is_ready_line

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class RealCluster:
    """Servers by name. A context manager: all are killed at the end, whatever happened."""

    def __init__(
        self,
        directory: Path,
        *,
        bookies: int = 3,
        brokers: int = 2,
        zookeepers: int = 1,
        autorecovery: int = 0,
        quorum: str = "",
        zookeeper_url: str = "",
        environment: Mapping[str, str] | None = None,
        arguments: Mapping[str, Sequence[str]] | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        """Plan the cluster; entering the context starts it.

        Args:
            zookeeper_url: URL of a server that runs already, with a path of its own; `zookeepers`
                does not count then.
            environment: variables for all servers, on top of this process's.
            arguments: kind (`broker`) or name (`broker-1`) -> further arguments of the command.
            prefixes: name -> command that runs the server, as `ip netns exec NAME`.
            hosts: name -> the address it listens on; default: loopback.
        """
        self.directory = directory
        self._environment = {**magnetar_environment(), **(environment or {})}
        self._arguments = dict(arguments or {})
        self._prefixes = dict(prefixes or {})
        shape = ClusterShape(
            zookeepers=0 if zookeeper_url else zookeepers,
            bookies=bookies,
            brokers=brokers,
            autorecovery=autorecovery,
        )
        chosen: Quorum = parse_quorum(quorum) if quorum else default_quorum(bookies)
        names = [name for name, _ in shape.names()]
        self.plan: ClusterPlan = plan_cluster(
            directory.resolve(),
            shape,
            quorum=chosen,
            # Reserved for this process until it ends. Chosen as by `magnetar cluster`, a port could
            # also look free to another worker, before its server listens.
            ports={
                name: dict(zip(PORTS[kind], free_ports(len(PORTS[kind])), strict=True))
                for name, kind in shape.names()
            },
            hosts={name: (hosts or {}).get(name, HOST) for name in names},
            zookeeper_url=zookeeper_url,
        )
        self._hosts = {name: (hosts or {}).get(name, HOST) for name in names}
        self._processes: dict[str, ServerProcess] = {}

    def __enter__(self) -> "RealCluster":
        try:
            self.start_all()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill_all()

    # Questions

    @property
    def metadata_url(self) -> str:
        return self.plan.metadata_url

    @property
    def names(self) -> list[str]:
        return [server.name for server in self.plan.servers]

    @property
    def service_url(self) -> str:
        """All brokers, in the form that clients take: pulsar://host:port,host:port."""
        brokers = self.plan.of_kind(Kind.BROKER)
        return "pulsar://" + ",".join(
            f"{self._hosts[each.name]}:{each.ports['native']}" for each in brokers
        )

    def url(self, name: str) -> str:
        """pulsar://host:port of one broker."""
        return f"pulsar://{self._hosts[name]}:{self.server(name).ports['native']}"

    def http_url(self, name: str) -> str:
        """http://host:port of a broker, a bookie or an auto-recovery."""
        return f"http://{self._hosts[name]}:{self.server(name).ports['http']}"

    def server(self, name: str) -> ServerPlan:
        return next(server for server in self.plan.servers if server.name == name)

    def process(self, name: str) -> ServerProcess:
        """Return the last process of a server, running or not."""
        return self._processes[name]

    def log_path(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def log_text(self, name: str) -> str:
        """Return everything that the server printed so far, over all its starts."""
        return self.log_path(name).read_text()

    def is_running(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.returncode is None

    def zookeeper_leader(self) -> str:
        """Return the name of the ensemble's leader; '' if no server says that it leads."""
        import asyncio

        from magnetar.deploy.zookeeper import four_letter_word

        for server in self.plan.of_kind(Kind.ZOOKEEPER):
            answer = asyncio.run(
                four_letter_word(self._hosts[server.name], server.ports["native"], "srvr")
            )
            if "Mode: leader" in answer or "Mode: standalone" in answer:
                return server.name
        return ""

    # Doing

    def add_arguments(self, name: str, *arguments: str) -> None:
        """Add arguments for a server that does not run yet, such as some that name its own
        ports."""
        self._arguments[name] = [*self._arguments.get(name, ()), *arguments]

    def start_all(self) -> None:
        """Start the servers that do not run, lowest tier first, those of a tier side by side."""
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        for kind in (Kind.ZOOKEEPER, Kind.BOOKIE, Kind.BROKER, Kind.AUTORECOVERY):
            tier = [each.name for each in self.plan.of_kind(kind) if not self.is_running(each.name)]
            for name in tier:
                self.launch(name)
            for name in tier:
                self.wait_ready(name)

    def start(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Start one server; return the seconds until it was ready."""
        self.launch(name)
        return self.wait_ready(name, timeout_s)

    def launch(self, name: str) -> None:
        """Start one server without waiting."""
        assert not self.is_running(name), f"{name} runs already"
        server = self.server(name)
        more = [*self._arguments.get(server.kind, ()), *self._arguments.get(name, ())]
        self._processes[name] = ServerProcess(
            [*self._prefixes.get(name, ()), *magnetar_command(*server.arguments, *more)],
            log_path=self.log_path(name),
            is_ready=is_ready_line,
            environment={**self._environment, **environment_of(server)},
        )

    def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> float:
        return self._processes[name].wait_ready(timeout_s)

    def kill(self, name: str) -> None:
        """Send kill -9, and wait until the server is gone."""
        self._processes[name].kill()

    def pause(self, name: str) -> None:
        """Send SIGSTOP to all processes of a server, such as a ZooKeeper server's Java process."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Send SIGCONT to all processes of a server."""
        self._signal(name, signal.SIGCONT)

    def terminate(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM; return the exit status after the orderly end."""
        return self._processes[name].terminate(timeout_s)

    def restart(self, name: str) -> float:
        """Stop a server in order and start it; return the seconds until it was ready."""
        status = self.terminate(name)
        assert status == 0, f"{name} ended with {status}"
        return self.start(name)

    def kill_all(self) -> None:
        """Send kill -9 to all running servers, paused or not; highest tier first."""
        for server in reversed(self.plan.servers):
            if self.is_running(server.name):
                self.kill(server.name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._processes[name].pid
        for each in [pid, *descendants_of(pid)]:
            os.kill(each, number)
