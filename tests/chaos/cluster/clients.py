"""The clients of a drill: official ones, in processes of their own."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.cluster.player import READY, SHARED, SINGLE
from tests.chaos.cluster.watch import Key, Watch
from tests.processes import ServerProcess, python_command

READY_TIMEOUT_S = 90.0
POLL_S = 0.05
_LOOK_S = 1.0
_SILENCE_S_MAX = 90.0
"""Of clients that read what there is: however much, something comes."""


class NotRecoveredError(Exception):
    """Somebody got no further within the time after a fault."""


class Clients:
    """Two processes of producers, one of consumers, one of readers; a last one reads everything."""

    def __init__(
        self,
        directory: Path,
        *,
        topics: Sequence[str],
        url: str,
        prefix: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """
        Args:
            directory: gets the histories and the logs.
            url: of the brokers.
            prefix: runs a command where the clients live.
            arguments: further ones of each process (player.py).
        """
        self.topics = list(topics)
        self.histories = directory / "histories"
        self.histories.mkdir(parents=True)
        self.watch = Watch(self.histories)
        self._directory = directory
        self._url = url
        self._prefix = list(prefix)
        self._arguments = list(arguments)
        self._running: dict[str, ServerProcess] = {}
        self._ended: dict[str, ServerProcess] = {}
        """Clients that were asked to end, or had nothing more to do."""

    @property
    def running(self) -> dict[str, ServerProcess]:
        """By name, the processes that nobody has asked to end."""
        return dict(self._running)

    def log_paths(self) -> list[Path]:
        """Return where the processes' output is."""
        return [each.log_path for each in (*self._running.values(), *self._ended.values())]

    def start(self) -> None:
        """Start all but the last client."""
        for module, number in (("consume", 1), ("read", 1), ("produce", 1), ("produce", 2)):
            self._start(module, f"{module}-{number}")

    def end(self) -> list[str]:
        """Let the clients come to their end, and look what there is; return what went wrong."""
        problems: list[str] = []
        sys.stderr.write("the clients come to their end\n")
        for group in (("produce-1", "produce-2"), ("consume-1",)):
            problems += [problem for name in group for problem in self._end(name)]
        self._start("finish", "finish")
        for name in ("finish", "read-1"):
            problems += self._wait(name)
        return problems

    def kill(self) -> None:
        """kill -9 of all that run."""
        for client in (*self._running.values(), *self._ended.values()):
            if client.returncode is None:
                client.kill()

    def wait_all_go_on(self, timeout_s: float, pass_time: Callable[[float], None]) -> float:
        """Wait until every producer, reader and subscription gets further; return when that was.

        Args:
            timeout_s: from now on.
            pass_time: waits, and raises if a process ended.

        Raises:
            NotRecoveredError
        """
        since_s = time.monotonic()
        until_s = since_s + timeout_s
        while True:
            self.watch.look()
            quiet = self.watch.quiet_since(since_s, self._keys())
            if not quiet:
                return max(self.watch.last_s[key] for key in self._keys())
            if time.monotonic() > until_s:
                raise NotRecoveredError(
                    f"with everything up again, in {timeout_s:.0f} s nothing came for {quiet[:8]}"
                )
            pass_time(POLL_S)

    def _keys(self) -> list[Key]:
        return [
            key
            for topic in self.topics
            for key in (
                ("a", topic, "produce-1"),
                ("a", topic, "produce-2"),
                ("d", topic, SHARED),
                ("d", topic, SINGLE),
                ("r", topic, "read-1"),
            )
        ]

    def _start(self, module: str, name: str) -> None:
        client = ServerProcess(
            [
                *self._prefix,
                *python_command(f"tests.chaos.cluster.{module}"),
                *("--url", self._url),
                *("--directory", str(self.histories)),
                *("--name", name),
                *(part for topic in self.topics for part in ("--topic", topic)),
                *self._arguments,
            ],
            log_path=self._directory / f"{name}.log",
            is_ready=lambda line: line.strip() == READY,
        )
        client.wait_ready(READY_TIMEOUT_S)
        self._running[name] = client

    def _end(self, name: str) -> list[str]:
        """SIGTERM; what it still waits for must come."""
        client = self._ended[name] = self._running.pop(name)
        try:
            status = client.terminate(2 * READY_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  # the verdict names it
            return [f"{name} could not come to its end: {error}"]
        return [f"{name} ended with status {status}"] if status else []

    def _wait(self, name: str) -> list[str]:
        """Wait for a client to read to the end, for as long as it gets further."""
        client = self._ended[name] = self._running.pop(name)
        since_s = time.monotonic()
        while True:
            try:
                status = client.wait_exit(_LOOK_S)
            except subprocess.TimeoutExpired:
                self.watch.look()
                if time.monotonic() - max(since_s, *self.watch.last_s.values()) < _SILENCE_S_MAX:
                    continue
                return [
                    f"{name} did not get the last message of every topic: "
                    f"nothing came for {_SILENCE_S_MAX:.0f} s"
                ]
            return [f"{name} ended with status {status}"] if status else []
