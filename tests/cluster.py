"""Magnetar as separate processes on this host: bookies, one broker, embedded metadata."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.processes import HOST, ServerProcess, free_ports, magnetar_command
from tests.standalone import is_ready_line

READY_TIMEOUT_S = 120.0


class ProcessCluster:
    """N bookies and, if wanted, one broker. A context manager: it kills all of them at the end."""

    def __init__(
        self,
        directory: Path,
        *,
        bookies: int = 3,
        quorum: str = "3,3,2",
        broker: bool = True,
        broker_arguments: Sequence[str] = (),
        has_bookie_metrics: bool = False,
    ) -> None:
        self._directory = directory
        self._bookies = bookies
        self._quorum = quorum
        self._with_broker = broker
        self._broker_arguments = list(broker_arguments)
        self._servers: list[ServerProcess] = []
        self.port, self.http_port = free_ports(2)
        self.bookie_metrics_ports = free_ports(bookies) if has_bookie_metrics else []
        """Ports of the bookies' metrics, if they are wanted."""

    def __enter__(self) -> "ProcessCluster":
        try:
            self._start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill()

    @property
    def metadata_url(self) -> str:
        return f"embedded:{self._directory.resolve() / 'metadata.db'}"

    @property
    def url(self) -> str:
        assert self._with_broker, "a cluster without a broker"
        return f"pulsar://{HOST}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def servers(self) -> list[ServerProcess]:
        """The bookies, then the broker."""
        return list(self._servers)

    def resident_bytes(self) -> int:
        return sum(server.resident_bytes() for server in self._servers)

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self._servers)

    def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for number, port in enumerate(free_ports(self._bookies), start=1):
            self._launch(
                f"bookie-{number}",
                *("--metadata", self.metadata_url),
                *("--data", str(self._directory / f"bookie-{number}")),
                *("--port", str(port)),
                *self._metrics_arguments(number - 1),
            )
        for server in self._servers:
            server.wait_ready(READY_TIMEOUT_S)
        if self._with_broker:
            self._start_broker()

    def _metrics_arguments(self, index: int) -> list[str]:
        ports = self.bookie_metrics_ports
        return ["--metrics-port", str(ports[index])] if ports else []

    def restart_broker(self) -> None:
        """Start the broker again, after its end, on the same ports."""
        assert self._servers.pop().returncode is not None
        self._start_broker()

    def _start_broker(self) -> None:
        self._launch(
            "broker",
            *("--metadata", self.metadata_url),
            *("--port", str(self.port)),
            *("--http-port", str(self.http_port)),
            *("--quorum", self._quorum),
            *self._broker_arguments,
        )
        self._servers[-1].wait_ready(READY_TIMEOUT_S)

    def _launch(self, name: str, *arguments: str) -> None:
        self._servers.append(
            ServerProcess(
                magnetar_command(name.partition("-")[0], *arguments),
                log_path=self._directory / f"{name}.log",
                is_ready=is_ready_line,
            )
        )

    def _kill(self) -> None:
        for server in self._servers:
            if server.returncode is None:
                server.kill()
