"""pulsar-lite as a peer: one process, one copy in RocksDB, not synced, with Pulsar's protocol."""

from importlib.util import find_spec
from pathlib import Path

from tests.processes import HOST, ServerProcess, free_ports

_READY_TIMEOUT_S = 30.0


def _program() -> Path:
    """Return the path of the server in the Python package; the package's own launcher polls.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = find_spec("pulsar_lite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "bin" / "pulsar-lite"
        if path.exists():
            return path
    raise FileNotFoundError("pulsar-lite is not installed: pip install 'pulsar-lite==0.2.*'")


class PulsarLite:
    """One server on this host, with its data below `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (self._port,) = free_ports(1)
        configuration = directory / "pulsar-lite.toml"
        # Its metrics page would take port 8080 on all addresses.
        configuration.write_text("[metrics]\nenabled = false\n")
        self._server = ServerProcess(
            [
                str(_program()),
                *("--config", str(configuration)),
                *("--addr", f"{HOST}:{self._port}"),
                *("--db-path", str(directory / "data")),
            ],
            log_path=directory / "log",
            is_ready=lambda line: "Server listening" in line,
        )

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self._port}"

    def wait_ready(self) -> None:
        self._server.wait_ready(_READY_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._server.pid

    def stop(self) -> None:
        self._server.kill()
