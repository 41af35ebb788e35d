"""The processes of the drill: bookies, writers, recoverers, readers; killed, paused, started again.

A role keeps its name, files and, as a bookie, its port over all its lives. Bookies come back with
their data, as after a crash of the machine's power supply that spared the disks.
"""

import os
import signal
import sys
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

from tests.chaos.journals import CLOSED, FAILED, OPENED, events_in
from tests.chaos.player import READY
from tests.processes import ServerProcess, free_ports, magnetar_command
from tests.standalone import is_ready_line

READY_TIMEOUT_S = 60.0
_BOOKIE_SETTINGS = """\
# Small, so that flushes, checkpoints, new journal files and new entry logs happen all the time.
[bookie]
flush_interval_s = 1.0
write_cache_bytes_max = 8_388_608
journal_file_bytes_max = 2_097_152
entry_log_bytes_max = 16_777_216
read_cache_bytes_max = 4_194_304

# Shorter than the longest pauses: a bookie may wake up to find that its registration is gone.
[metadata]
session_timeout_ms = 2_000
"""


class Condition(Enum):
    """What a role is doing."""

    RUNNING = auto()
    PAUSED = auto()
    DEAD = auto()


class Role:
    """One part of the play, over all the processes that take it."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        self.name = name
        self.lives = 0
        self.condition = Condition.DEAD
        self.log_path = log_path
        self._command = list(command)
        self._process: ServerProcess | None = None

    def start(self) -> None:
        assert self.condition is Condition.DEAD
        self.lives += 1
        self._process = ServerProcess(
            self._full_command(),
            log_path=self.log_path,
            is_ready=self._is_ready,
        )
        self.condition = Condition.RUNNING

    def wait_ready(self) -> None:
        self._running.wait_ready(READY_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9. A stopped process dies of it too."""
        self._running.kill()
        self.condition = Condition.DEAD

    def pause(self) -> None:
        """SIGSTOP: alive, and silent."""
        os.kill(self._running.pid, signal.SIGSTOP)
        self.condition = Condition.PAUSED

    def resume(self) -> None:
        os.kill(self._running.pid, signal.SIGCONT)
        self.condition = Condition.RUNNING

    def terminate(self) -> None:
        """SIGTERM and an orderly end."""
        self._running.terminate(READY_TIMEOUT_S)
        self.condition = Condition.DEAD

    @property
    def exit_status(self) -> int | None:
        """Not None when the process ended by itself: only we may end it."""
        return self._running.returncode

    def _full_command(self) -> list[str]:
        return self._command

    def _is_ready(self, line: str) -> bool:
        return is_ready_line(line)

    @property
    def _running(self) -> ServerProcess:
        assert self._process is not None, f"{self.name} was never started"
        return self._process


class BookieRole(Role):
    """A bookie on its own directory and port."""

    def __init__(self, number: int, port: int, *, directory: Path, metadata_url: str) -> None:
        settings = directory / "bookies.toml"
        settings.write_text(_BOOKIE_SETTINGS)
        command = magnetar_command(
            *("bookie", "--metadata", metadata_url),
            *("--data", str(directory / f"bookie-{number}")),
            *("--port", str(port)),
            *("--config", str(settings)),
        )
        super().__init__(f"bookie-{number}", command, directory / f"bookie-{number}.log")
        self.port = port


class ClientRole(Role):
    """A process that uses the ledger client; each of its lives has journals of its own."""

    def __init__(
        self, module: str, number: int, *, directory: Path, metadata_url: str, seed: int
    ) -> None:
        name = f"{module}-{number}"
        command = [
            *(sys.executable, "-m", f"tests.chaos.{module}"),
            *("--metadata", metadata_url),
            *("--directory", str(directory)),
        ]
        super().__init__(name, command, directory / f"{name}.log")
        self._directory = directory
        self._seed = seed

    @property
    def open_ledgers(self) -> list[int]:
        """The ledgers that this life began and has not said to have ended."""
        found: dict[int, None] = {}
        for event in events_in(self._directory / f"{self._life}.events"):
            if event.word == OPENED:
                found[event.numbers[0]] = None
            elif event.word in (CLOSED, FAILED):
                found.pop(event.numbers[0], None)
        return list(found)

    @property
    def _life(self) -> str:
        return f"{self.name}-{self.lives}"

    def _full_command(self) -> list[str]:
        seed = self._seed * 1000 + self.lives
        return [*self._command, "--name", self._life, "--seed", str(seed)]

    def _is_ready(self, line: str) -> bool:
        return line.strip() == READY


class Troupe:
    """All roles. A context manager: nobody is left running."""

    def __init__(
        self, directory: Path, metadata_url: str, *, bookies: int, writers: int, seed: int
    ) -> None:
        self.bookies = [
            BookieRole(number, port, directory=directory, metadata_url=metadata_url)
            for number, port in enumerate(free_ports(bookies), start=1)
        ]

        def clients(module: str, count: int, offset: int) -> list[ClientRole]:
            return [
                ClientRole(
                    module,
                    number,
                    directory=directory,
                    metadata_url=metadata_url,
                    seed=seed * 100 + offset + number,
                )
                for number in range(1, count + 1)
            ]

        self.writers = clients("write", writers, 0)
        self.recoverers = clients("recover", 2, 40)
        self.readers = clients("tail", 2, 60)

    @property
    def roles(self) -> list[Role]:
        return [*self.bookies, *self.writers, *self.recoverers, *self.readers]

    def start(self) -> None:
        for group in (self.bookies, self.writers, self.recoverers, self.readers):
            for role in group:
                role.start()
            for role in group:
                role.wait_ready()

    def close(self) -> None:
        for role in self.roles:
            if role.condition is not Condition.DEAD:
                role.kill()
