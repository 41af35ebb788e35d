"""Runs `python -m MODULE`, and the `magnetar` command, in forked processes without new
interpreters.

A process that has imported everything forks a child per command. The child has its own arguments,
environment, network, standard streams and exit status. A new interpreter spends a second of
processor time on imports, and a run of all tests starts a thousand. Benchmarks do not use it: they
measure what users start.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from tests.processes import MAGNETAR, ROOT, Running, fork_servers, magnetar_environment

_PRELOADED = tuple(f"magnetar.{each}" for each in ("ledger", "bookie", "broker", "sdk", "deploy"))
_NOT_PRELOADED = ("magnetar.sdk.spark", "magnetar.sdk.taskiq")
"""Packages that no server uses, and whose imports take longer than all others together."""
_CLONE_NEWNET = 0x40000000
_PACKET_BYTES_MAX = 1 << 17
_STARTED_WITHIN_S = 120.0
"""Time limit for the server to import, and for a fork."""


class Outcome(NamedTuple):
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str


class Forked:
    """A running command, with the interface of a Popen."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._pid = 0
        self._status: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the command.

        Raises:
            subprocess.TimeoutExpired
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        assert self._status is not None
        return self._status

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if self._status is None:
            try:
                os.kill(self._pid, sig)
            except ProcessLookupError:
                pass  # It has ended; its status has not arrived yet.

    def has_started(self, pid: int) -> None:
        self._pid = pid
        self._started.set()

    def has_ended(self, status: int) -> None:
        self._status = status
        self._started.set()
        self._ended.set()

    def wait_started(self) -> None:
        assert self._started.wait(_STARTED_WITHIN_S), "the command server does not answer"
        assert self._pid, "the command server has ended"


class Commands:
    """A command server; several threads may start commands at the same time."""

    def __init__(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={
                    **magnetar_environment(),
                    "PYTHONPATH": f"{magnetar_environment()['PYTHONPATH']}{os.pathsep}{ROOT}",
                },
            )
        self._socket = here
        self._lock = threading.Lock()
        self._commands: list[Forked] = []
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def start(
        self, running: Running, environment: Mapping[str, str], streams: Sequence[IO[Any]]
    ) -> Forked:
        """Start a command. `streams`: its standard input, output and error."""
        command = Forked([running.module, *running.arguments])
        with self._lock:
            request = {
                "id": len(self._commands),
                "module": running.module,
                "arguments": running.arguments,
                "network": running.network,
                "environment": dict(environment),
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
            self._commands.append(command)
            packet = json.dumps(request).encode()
            assert len(packet) < _PACKET_BYTES_MAX
            socket.send_fds(self._socket, [packet], [each.fileno() for each in streams])
        command.wait_started()
        return command

    def run(
        self, arguments: Sequence[str], *, stdin: str, environment: Mapping[str, str], wait_s: float
    ) -> Outcome:
        """Run a `magnetar` command to its end.

        Raises:
            subprocess.TimeoutExpired: the command did not end in time; it is killed.
        """
        with (
            tempfile.TemporaryFile("w+") as source,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            source.write(stdin)
            source.seek(0)
            running = Running(MAGNETAR, list(arguments))
            command = self.start(running, environment, [source, out, err])
            try:
                status = command.wait(wait_s)
            except subprocess.TimeoutExpired:
                command.kill()
                raise
            said = []
            for each in (out, err):
                each.seek(0)
                said.append(each.read().decode(errors="replace"))
            return Outcome(status, *said)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait(30)
        self._reader.join(30)
        self._socket.close()

    def _read_answers(self) -> None:
        while packet := self._socket.recv(_PACKET_BYTES_MAX):
            number, what, value = json.loads(packet)
            command = self._commands[number]
            if what == "pid":
                command.has_started(value)
            else:
                command.has_ended(value)
        with self._lock:
            for command in self._commands:
                if command.poll() is None:
                    command.has_ended(-signal.SIGKILL)


@functools.cache
def commands() -> Commands:
    """Return the command server of this process."""
    made = Commands()
    atexit.register(made.close)
    return made


def fork_servers_of_this_process() -> None:
    """From now on, fork the Python processes that this process starts by tests/processes.py."""
    fork_servers(
        lambda running, environment, streams: commands().start(running, environment, streams)
    )


# In the server


def serve(requests: socket.socket) -> None:
    """Fork a child for each request, and report each start and end, until the other side closes."""
    _preload()
    running: dict[int, tuple[int, int]] = {}
    """Descriptor of a child's end -> its process id, the request's number."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd != requests.fileno():
                pid, number = running.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                requests.send(json.dumps([number, "status", status]).encode())
                continue
            packet, streams, _, _ = socket.recv_fds(requests, _PACKET_BYTES_MAX, 3)
            if not packet:
                return
            request = json.loads(packet)
            pid = os.fork()
            if not pid:
                selector.close()
                requests.close()
                for descriptor in running:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
                _run(request, streams)
            for descriptor in streams:
                os.close(descriptor)
            requests.send(json.dumps([request["id"], "pid", pid]).encode())
            end = os.pidfd_open(pid)
            running[end] = (pid, request["id"])
            selector.register(end, selectors.EVENT_READ)


def _preload() -> None:
    """Import every module that a command may import. A command that needs a missing one fails by
    itself."""
    for package in _PRELOADED:
        found = importlib.import_module(package)
        for name in _modules_below(found.__path__, f"{package}."):
            try:
                importlib.import_module(name)
            except ImportError:
                continue
    gc.freeze()


def _modules_below(path: Iterable[str], prefix: str) -> Iterator[str]:
    """Yield the names of all modules except programs and those that are not preloaded; packages
    first."""
    for module in pkgutil.iter_modules(path, prefix):
        if module.name in _NOT_PRELOADED or module.name.endswith("__main__"):
            continue
        yield module.name
        if module.ispkg and module.name in sys.modules:
            yield from _modules_below(sys.modules[module.name].__path__, f"{module.name}.")


def _run(request: dict[str, Any], streams: list[int]) -> None:
    """Run the command in the child, and end the process."""
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["magnetar", *request["arguments"]]
    status = 1
    try:
        if request["network"]:
            _enter_network(request["network"])
        if request["module"] == MAGNETAR:
            from magnetar.deploy.cli import main

            main()
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        else:
            status = end.code or 0
    except BaseException:  # noqa: BLE001  # as an interpreter does it
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # closed by the command, or by its reader
        os._exit(status)


def _enter_network(path: str) -> None:
    """Move this process, which has one thread, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path) as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
