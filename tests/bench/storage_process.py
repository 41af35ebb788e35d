"""A bookie process to measure: started, restarted and probed (storage_server.py)."""

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.processes import HOST, ServerProcess
from tests.standalone import is_ready_line

_READY_TIMEOUT_S = 120.0


@dataclass
class Seen:
    """Answer of a bookie process's probe (storage_server.py)."""

    lateness_ms: dict[str, float]
    latest_ms: list[float]
    latest_outside_ms: list[float]
    metrics: dict[str, object]
    resident_bytes: int
    written_bytes: int
    cpu_s: float
    held: list[dict[str, object]] = field(default_factory=list)
    """The longest times for which its event loop was held (loop_steps.py)."""
    stop_s: float = 0.0
    """After an orderly stop: its duration in seconds, the last flush included."""

    def number(self, metric: str) -> float:
        """Return a counter or a gauge."""
        value = self.metrics[metric]
        assert isinstance(value, int | float), (metric, value)
        return value


class BenchBookie:
    """A probed bookie process; a context manager. It keeps its data over `restart`."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        data_name: str = "bookie",
    ) -> None:
        """Metadata and data lie in `directory`, which may hold both already."""
        self.data = directory / data_name
        self._directory = directory
        self.settings = dict(settings or {})
        """Settings for the next start."""
        self._process: ServerProcess | None = None
        self.start_s = 0.0
        """Duration of the last start, in seconds."""

    def __enter__(self) -> "BenchBookie":
        self._directory.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def start(self) -> float:
        """Start the bookie; return the seconds until it was ready."""
        command = [
            *(sys.executable, "-m", "tests.bench.storage_server"),
            *("--metadata", f"embedded:{self._directory / 'metadata.db'}"),
            *("--data", str(self.data)),
            *("--final", str(self._directory / "final.json")),
        ]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self._process = ServerProcess(
            command, log_path=self._directory / "bookie.log", is_ready=is_ready_line
        )
        self.start_s = self._process.wait_ready(_READY_TIMEOUT_S)
        return self.start_s

    def stop(self) -> Seen:
        """Send SIGTERM; the bookie flushes its entries. Return its final state."""
        assert self._process is not None
        self._process.terminate(_READY_TIMEOUT_S)
        return Seen(**json.loads((self._directory / "final.json").read_text()))

    def restart(self) -> float:
        self.stop()
        return self.start()

    @property
    def port(self) -> int:
        return self._port("bookie")

    @property
    def entry_logs(self) -> list[Path]:
        return sorted(self.data.rglob("*.log"))

    def seen(self) -> Seen:
        """Query the probe; the lateness is that since the last query."""
        with socket.create_connection((HOST, self._port("probe"))) as connection:
            return Seen(**json.loads(connection.makefile().read()))

    def _port(self, scheme: str) -> int:
        assert self._process is not None
        for url in self._process.ready_line.split()[1:]:
            if url.startswith(f"{scheme}://"):
                return int(url.rpartition(":")[2])
        raise AssertionError(f"no {scheme} in {self._process.ready_line}")
