"""A `magnetar standalone` process for tests: start, kill -9, restart on its directory and ports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.processes import (
    HOST,
    ServerProcess,
    free_ports,
    magnetar_command,
    magnetar_environment,
)

READY_TIMEOUT_S = 120.0
_PATIENCE = {"MAGNETAR_LEDGER_REQUEST_TIMEOUT_S": "30"}
"""Request timeout that lets no stalled sync start a second ledger, where tests count ledgers. A
test may set its own."""

EXCEPTION_MARKS = ("Traceback", '"exc_type"', "never retrieved", "Exception in callback")
"""Marks of a traceback in a log for people, in a JSON log, and in asyncio's reports."""


class Standalone:
    """One server on its own directory. The ports stay the same over restarts, so clients come back.

    Use it as a context manager: the server is killed at the end, whatever happened.
    """

    def __init__(
        self,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        ports: tuple[int, int] | None = None,
    ) -> None:
        """Make a server; `start` starts it.

        Args:
            settings: settings of the broker, by their names after `MAGNETAR_BROKER_`.
            environment: further variables, by their whole names.
            command_prefix: command that runs the server, as in a namespace (small_disk.py).
            ports: binary and HTTP port, for clients that know no others; default: free ones.
        """
        self.directory = directory
        self.log_path = directory.with_name(directory.name + ".log")
        self.port, self.http_port = ports or free_ports(2)
        self._arguments = list(arguments)
        self._settings = {
            f"MAGNETAR_BROKER_{name}": value for name, value in (settings or {}).items()
        }
        self._environment = dict(environment or {})
        self._command_prefix = list(command_prefix)
        self._process: ServerProcess | None = None
        self.ready_s = 0.0
        """Duration of the last start, in seconds."""

    def __enter__(self) -> "Standalone":
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

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self.port}"

    @property
    def metadata_url(self) -> str:
        return f"embedded:{self.directory.resolve() / 'metadata.db'}"

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "start() comes first"
        return self._process

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Start the server; return the seconds until it was ready."""
        self._process = ServerProcess(
            [
                *self._command_prefix,
                *magnetar_command("standalone", "--data", str(self.directory), "--host", HOST),
                *("--port", str(self.port)),
                *("--http-port", str(self.http_port)),
                *self._arguments,
            ],
            log_path=self.log_path,
            is_ready=is_ready_line,
            environment={
                **_PATIENCE,
                **magnetar_environment(),
                **self._settings,
                **self._environment,
            },
        )
        self.ready_s = self._process.wait_ready(timeout_s)
        return self.ready_s

    def kill(self) -> None:
        """Send kill -9."""
        self.process.kill()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit status after the orderly end."""
        return self.process.terminate()

    def assert_log_clean(self) -> None:
        """Check that none of the processes so far logged an unexpected exception."""
        text = self.log_text()
        for mark in EXCEPTION_MARKS:
            at = text.find(mark)
            assert at < 0, f"the log holds {mark}: {text[max(0, at - 500) : at + 3000]}"

    def log_text(self) -> str:
        """Return everything that the server printed so far, over all its restarts."""
        return self.log_path.read_text()


def is_ready_line(line: str) -> bool:
    """Whether this is the line by which every `magnetar` server says that it serves."""
    return line.split(maxsplit=1)[:1] == ["ready"]
