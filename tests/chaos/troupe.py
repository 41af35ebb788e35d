"""The processes of the drill: bookies, writers, recoverers, readers; killed, paused, started again.

A role keeps its name, files and, as a bookie, its port over all its lives. Bookies come back with
their data, as after a crash of the machine's power supply that spared the disks.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum, auto
from pathlib import Path

from tests.chaos.bookie_settings import settings_of
from tests.chaos.disks import WRITER_BYTES_PER_S_MAX, BookieDisks
from tests.chaos.journals import CLOSED, FAILED, OPENED, events_in
from tests.chaos.player import READY
from tests.processes import HOST, ServerProcess, free_ports, magnetar_command, python_command
from tests.standalone import is_ready_line

READY_TIMEOUT_S = 60.0
NO_ROOM_STATUS = 7
"""Of a bookie whose directories cannot be used."""


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

    @property
    def has_served(self) -> bool:
        """Whether this life came so far as to say that it is ready."""
        return self._running.is_ready

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

    def __init__(
        self,
        number: int,
        port: int,
        *,
        directory: Path,
        metadata_url: str,
        disks: BookieDisks | None = None,
    ) -> None:
        settings = directory / f"bookie-{number}.toml"
        data = directory / f"bookie-{number}"
        settings.write_text(settings_of(number, data, disks))
        prefix = disks.command_prefix if disks else []
        command = prefix + magnetar_command(
            *("bookie", "--metadata", metadata_url),
            *("--data", str(data)),
            *("--port", str(port)),
            *("--config", str(settings)),
        )
        super().__init__(f"bookie-{number}", command, directory / f"bookie-{number}.log")
        self.port = port
        self.disks = disks
        self._was_full = False

    @property
    def bookie_id(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_full(self) -> bool:
        """Whether one of its disks has no room."""
        return self.disks is not None and self.disks.is_full

    @property
    def may_end(self) -> bool:
        """A start needs room on its disks: without it, it may end by itself and say so."""
        self._was_full = self._was_full or self.is_full
        return self._was_full and not self.has_served and self.exit_status == NO_ROOM_STATUS

    def start(self) -> None:
        self._was_full = self.is_full
        super().start()

    def fill(self, *, journal: bool) -> None:
        """Leave no room on the disk of its journal, or of its entry logs."""
        assert self.disks is not None
        self.disks.fill(self.disks.journal if journal else self.disks.ledgers)
        self._was_full = True

    def make_room(self) -> None:
        assert self.disks is not None
        self.disks.make_room()


class ClientRole(Role):
    """A process that uses the ledger client; each of its lives has journals of its own."""

    def __init__(
        self,
        module: str,
        number: int,
        *,
        directory: Path,
        metadata_url: str,
        seed: int,
        bookie_id: str = "",
        bytes_per_s_max: int = 0,
    ) -> None:
        """`bytes_per_s_max`: what a writer may write; 0: as fast as it can."""
        name = f"{module}-{number}"
        command = [
            *python_command(f"tests.chaos.{module}"),
            *("--metadata", metadata_url),
            *("--directory", str(directory)),
            *("--bookie", bookie_id),
            *("--bytes-per-s", str(bytes_per_s_max)),
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

    def count(self, word: str) -> int:
        """Lines with this word that this life has written so far."""
        return sum(
            event.word == word for event in events_in(self._directory / f"{self._life}.events")
        )

    @property
    def acknowledged_bytes(self) -> int:
        """Grows with every acknowledgement that this life writes down."""
        path = self._directory / f"{self._life}.acks"
        return path.stat().st_size if path.exists() else 0

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
        self,
        directory: Path,
        metadata_url: str,
        *,
        bookies: int,
        writers: int,
        seed: int,
        small_disks_for: int | None = None,
    ) -> None:
        """`small_disks_for`: bookies get small disks, large enough for so many strikes."""
        self._opened = ExitStack()
        self.bookies = [
            BookieRole(
                number,
                port,
                directory=directory,
                metadata_url=metadata_url,
                disks=None
                if small_disks_for is None
                else BookieDisks(
                    directory / f"disks-{number}", self._opened, strikes=small_disks_for
                ),
            )
            for number, port in enumerate(free_ports(bookies), start=1)
        ]

        def clients(
            module: str, count: int, offset: int, bookies: Sequence[BookieRole] = ()
        ) -> list[ClientRole]:
            return [
                ClientRole(
                    module,
                    number,
                    directory=directory,
                    metadata_url=metadata_url,
                    seed=seed * 100 + offset + number,
                    bookie_id=bookies[number - 1].bookie_id if bookies else "",
                    bytes_per_s_max=0 if small_disks_for is None else WRITER_BYTES_PER_S_MAX,
                )
                for number in range(1, count + 1)
            ]

        self.writers = clients("write", writers, 0)
        self.recoverers = clients("recover", 2, 40)
        self.readers = clients("tail", 2, 60)
        self.loners: list[ClientRole] = []
        """One per bookie, in their order, if they have small disks."""
        if small_disks_for is not None:
            self.loners = clients("alone", bookies, 80, self.bookies)

    @property
    def roles(self) -> list[Role]:
        return [*self.bookies, *self.clients]

    @property
    def clients(self) -> list[ClientRole]:
        return [*self.writers, *self.recoverers, *self.readers, *self.loners]

    def start(self) -> None:
        for group in (self.bookies, self.clients):
            for role in group:
                role.start()
            for role in group:
                role.wait_ready()

    def close(self) -> None:
        for role in self.roles:
            if role.condition is not Condition.DEAD:
                role.kill()
        self._opened.close()
