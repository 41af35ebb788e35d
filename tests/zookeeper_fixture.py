"""A real ZooKeeper server for tests: the `magnetar zookeeper` command on a free port."""

from pathlib import Path

from tests.processes import HOST, ServerProcess, free_ports, magnetar_command

_READY_TIMEOUT_S = 120.0


class ZooKeeper:
    """One server; it can be killed and started again on the same data and port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"zk://{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def start(self) -> None:
        self._process = ServerProcess(
            magnetar_command(
                "zookeeper", "--data", str(self._directory / "data"), "--port", str(self.port)
            ),
            log_path=self._directory / "zookeeper.log",
            is_ready=lambda line: line.startswith("ready "),
        )
        self._process.wait_ready(_READY_TIMEOUT_S)

    def kill(self) -> None:
        """Send kill -9; the Java process ends with the command that started it."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None and self.is_running:
            self._process.terminate()
