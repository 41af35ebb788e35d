"""Run `magnetar` commands to their end, and look at what they said."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.command_server import commands
from tests.processes import ROOT, magnetar_environment

TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    def messages(self) -> list[str]:
        """The lines of stderr that are not log events."""
        return [line for line in self.stderr.splitlines() if not is_log_event(line)]


def is_log_event(line: str) -> bool:
    """Whether the line is a JSON log event."""
    try:
        return "event" in json.loads(line)
    except ValueError:
        return False


def run_command(
    command: Sequence[str], *, stdin: str = "", environment: Mapping[str, str] | None = None
) -> Ended:
    ended = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env={**magnetar_environment(), **(environment or {})},
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def magnetar(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> Ended:
    """Run `magnetar ARGUMENTS` to its end, in a process of its own (tests/command_server.py)."""
    found = commands().run(
        arguments,
        stdin=stdin,
        environment={**magnetar_environment(), **(environment or {})},
        wait_s=TIMEOUT_S,
    )
    return Ended(found.status, found.stdout, found.stderr)


def module(name: str, *arguments: str) -> Ended:
    """Run `python -m NAME ARGUMENTS` to its end."""
    return run_command([sys.executable, "-m", name, *arguments])
