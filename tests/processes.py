"""Server processes for tests and benchmarks: start, wait until ready, measure, kill.

A server says that it is ready by a line of output; nothing here sleeps and polls. All output also
goes to a log file, which the tests read for tracebacks.
"""

import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from magnetar.deploy.cluster_plan import FIRST_PORTS
from magnetar.deploy.cluster_ports import is_free
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = ("ledger", "bookie", "cursors", "sdk", "broker", "deploy")
HOST = "127.0.0.1"

_GONE_WITHIN_S = 120.0
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


class ServerFailedError(Exception):
    """A server ended, or was not ready in time; the message holds the end of its log."""


_PORTS = (3_000, 10_000)
_given_ports: set[int] = {port + number for port in FIRST_PORTS.values() for number in range(10)}
"""Default ports of servers, and ports that were given out."""


def free_ports(count: int) -> list[int]:
    """Return ports that are free now and were not given out before.

    They lie below the ports that the system takes for outgoing connections and for sockets bound to
    port 0, and below those that `magnetar cluster` chooses. A port belongs to this process until it
    ends: no other worker, and no other run on this machine, gets it meanwhile.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(*_PORTS)
        if port in _given_ports or not _is_reserved(port) or not is_free(HOST, port):
            continue
        _given_ports.add(port)
        ports.append(port)
    return ports


@cache
def _port_file() -> int:
    """Open a file with a byte for each port. Never closed: that would release the locks."""
    return os.open(f"/tmp/magnetar-test-ports-{os.getuid()}", os.O_CREAT | os.O_RDWR, 0o600)


def _is_reserved(port: int) -> bool:
    """Reserve a port for this process by a lock on the port's byte. Return whether it succeeded."""
    try:
        fcntl.lockf(_port_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


MAGNETAR = "magnetar.deploy.cli"


def magnetar_command(*arguments: str) -> list[str]:
    """Return the `magnetar` command of this working tree, run by this interpreter."""
    return python_command(MAGNETAR, *arguments)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line `python -m MODULE ARGUMENTS`."""
    return [sys.executable, "-m", module, *arguments]


def magnetar_environment() -> dict[str, str]:
    """Return the environment of this process, with the working tree's components importable."""
    paths = [str(ROOT / component) for component in COMPONENTS]
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *([inherited] if inherited else [])]),
    }


class Process(Protocol):
    """The part of `subprocess.Popen` that this module uses."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int) -> None: ...


class Running(NamedTuple):
    """A command that runs a Python module."""

    module: str
    arguments: list[str]
    network: str = ""
    """Path of the network namespace that it runs in; empty: that of the process that starts it."""

    @classmethod
    def of(cls, command: Sequence[str]) -> "Running | None":
        """Parse such a command line; None if it is not one."""
        network = ""
        if command[0] == "nsenter" and command[1].startswith("--net=") and command[2] == "--":
            network, command = command[1].removeprefix("--net="), command[3:]
        if list(command[:2]) != [sys.executable, "-m"]:
            return None
        return cls(command[2], list(command[3:]), network)


Start = Callable[[Running, Mapping[str, str], Sequence[IO[Any]]], Process]
_forks: list[Start] = []


def fork_servers(start: Start) -> None:
    """From now on start Python modules by this function, with an environment and standard streams,
    instead of a new interpreter each (command_server.py)."""
    _forks[:] = [start]


def resident_bytes_of(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def pss_bytes_of(pid: int) -> int:
    """Return the proportional set size of a process: shared memory counts in parts."""
    found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return int(found[1]) * 1024 if found else 0


def descendants_of(pid: int) -> list[int]:
    """Return the descendants of a process, in no order."""
    found: list[int] = []
    for children in _of_threads(pid, "children"):
        try:
            below = [int(each) for each in children.read_text().split()]
        except OSError:
            continue
        for child in below:
            found += [child, *descendants_of(child)]
    return found


def _of_threads(pid: int, name: str) -> list[Path]:
    """Return a file of each thread of a process; none if the process is gone."""
    try:
        return list(Path(f"/proc/{pid}/task").glob(f"*/{name}"))
    except OSError:
        return []


def _is_running(pid: int) -> bool:
    """Whether a thread of the process has not ended: the ports are free when the last one ends. The
    first thread may be a zombie before the others."""
    for stat in _of_threads(pid, "stat"):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            return True
    return False


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds that a process has used so far, user and system, over all running
    threads.

    Uses the scheduler's nanoseconds where the kernel counts them, else its ticks of 10 ms.
    """
    counted_ns = 0
    for schedule in _of_threads(pid, "schedstat"):
        with suppress(OSError):  # the thread has just ended
            counted_ns += int(schedule.read_text().split()[0])
    if counted_ns:
        return counted_ns / 1e9
    # The second field is the command's name in brackets and may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S


class ServerProcess:
    """One running server; its output is appended to `log_path`, over all its starts."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        is_ready: Callable[[str], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        self.command = list(command)
        self._is_ready = is_ready
        self._ready = threading.Event()
        self._ready_line: str | None = None
        self._tail: list[str] = []
        self._started_s = time.monotonic()
        self._ready_s = 0.0
        self._process, self._output = start(self.command, environment, takes_errors=True)
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def is_ready(self) -> bool:
        """Whether the server has printed its ready line."""
        return self._ready_line is not None

    @property
    def ready_line(self) -> str:
        assert self._ready_line is not None, "wait_ready() comes first"
        return self._ready_line

    def wait_ready(self, timeout_s: float) -> float:
        """Wait for the ready line; return the seconds from the start of the process to it.

        Raises:
            ServerFailedError: the process ended first, or was not ready in time.
        """
        if not self._ready.wait(timeout_s) or self._ready_line is None:
            self.kill()
            raise ServerFailedError(
                f"not ready within {timeout_s} s: {' '.join(self.command)}\n" + "".join(self._tail)
            )
        return self._ready_s - self._started_s

    def wait_exit(self, timeout_s: float) -> int:
        """Wait for the end of the process and of its output; return the exit status."""
        status = self._process.wait(timeout_s)
        self._drain.join(timeout_s)
        return status

    def kill(self) -> None:
        """Send kill -9; wait until the process, and those that it started, are gone.

        The latter end by themselves after it, each in its own time; until then they hold the ports.
        """
        below = descendants_of(self.pid)
        self._process.kill()
        self.wait_exit(_GONE_WITHIN_S)
        wait_until(
            lambda: not any(map(_is_running, below)),
            f"the end of what {self.command} had started",
            within_s=_GONE_WITHIN_S,
        )

    def terminate(self, timeout_s: float = 120) -> int:
        """Send SIGTERM and wait for the orderly end, for which a broker alone may take 30 s. Kill
        the process if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self.wait_exit(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def resident_bytes(self) -> int:
        return resident_bytes_of(self.pid)

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, user and system, over all threads."""
        return cpu_s_of(self.pid)

    def _read_output(self) -> None:
        with self._output as output, self.log_path.open("a") as log:
            for line in output:
                log.write(line)
                log.flush()
                self._tail = [*self._tail[-39:], line]
                if self._ready_line is None and self._is_ready(line):
                    self._ready_s = time.monotonic()
                    self._ready_line = line
                    self._ready.set()
        self._ready.set()  # end of output: nobody needs to wait any longer


def start(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    takes_errors: bool = False,
) -> tuple[Process, IO[str]]:
    """Start a process; return it and its output. A Python module is forked if `fork_servers` was
    called.

    Args:
        takes_errors: whether its standard error is part of the output, instead of this process's.
    """
    if environment is None:
        environment = magnetar_environment()
    running = Running.of(command)
    if _forks and running is not None:
        reading, writing = os.pipe()
        with open(os.devnull) as nothing, open(writing, "w") as output:
            errors = output if takes_errors else sys.__stderr__ or nothing
            process = _forks[0](running, environment, [nothing, output, errors])
        return process, open(reading, errors="replace")
    popen = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if takes_errors else None,
        env=dict(environment),
        cwd=ROOT,
        text=True,
        errors="replace",
    )
    assert popen.stdout is not None
    return popen, popen.stdout
