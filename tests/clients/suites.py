"""Suites by which other projects test their own clients: how they are fetched, run and judged.

A suite comes from its registry with the client itself: the Go module and the Rust crate bring their
tests along. It is compiled outside and runs inside a network namespace of its own, because it knows
only the ports of Pulsar's own set-up (6650, 6651, 8080, 8443), with a fresh server beside it.

What fails must be in `exceptions.toml` with its reason, and what is there must fail. A test that
fails without being listed runs once more alone: some of these suites wait for short times, and the
machine may be busy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.cluster.namespaces import Namespace
from tests.standalone import Standalone

CLIENTS = Path(__file__).parent
PORT, TLS_PORT, HTTP_PORT, HTTPS_PORT = 6650, 6651, 8080, 8443

NAMESPACES = ("unshare", "nsenter", "ip")
"""What a network of one's own is made with."""

_RUST_LINE = re.compile(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", re.MULTILINE)


@dataclass
class Outcome:
    """What became of the tests of one run, by their names."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    output: dict[str, str] = field(default_factory=dict)
    """What those that failed printed."""

    def add(self, other: "Outcome") -> None:
        """Take in the tests of another run."""
        self.passed |= other.passed
        self.failed |= other.failed
        self.skipped |= other.skipped
        self.output.update(other.output)


Run = Callable[[Sequence[str]], Outcome]
"""Runs the named tests, or all for no name."""


@dataclass(frozen=True)
class Excused:
    """A test that need not pass."""

    reason: str
    is_certain: bool
    """The test fails always; False: now and then."""


def exceptions_of(suite: str) -> dict[str, Excused]:
    """The exceptions of a suite, by the names of tests."""
    table = tomllib.loads((CLIENTS / "exceptions.toml").read_text())
    found: dict[str, Excused] = {}
    for group in table[suite]:
        assert group["reason"].strip(), f"{suite}: an exception without a reason"
        for name in group["tests"]:
            found[name] = Excused(group["reason"], not group.get("sometimes", False))
    return found


def _covers(listed: str, name: str) -> bool:
    """Whether an exception of one name holds for the other, which may be a part of it."""
    return name == listed or name.startswith(f"{listed}/")


def judge(suite: str, run: Run) -> None:
    """Run a suite and compare what failed with its exceptions; prints the figures."""
    exceptions = exceptions_of(suite)
    outcome = run(())
    unlisted = _unlisted(outcome.failed, exceptions)
    again = sorted({name.split("/")[0] for name in unlisted})
    if again:
        repeated = run(again)
        unlisted = [name for name in unlisted if name not in repeated.passed]
        for name in set(outcome.failed) & repeated.passed:
            say(f"{suite}: {name} passed the second time")
        outcome.output.update(repeated.output)
    stale = [
        listed
        for listed, each in exceptions.items()
        if each.is_certain
        and listed not in outcome.skipped
        and not any(_covers(listed, name) for name in outcome.failed)
    ]
    total = len(outcome.passed) + len(outcome.failed) + len(outcome.skipped)
    say(
        f"{suite}: {len(outcome.passed)} of {total} passed, {len(outcome.skipped)} skipped, "
        f"{len(outcome.failed)} failed, {len(unlisted)} of them without being an exception"
    )
    for name in unlisted:
        say(f"--- {name}\n{outcome.output.get(name, '')[-3000:]}")
    assert outcome.passed, f"{suite}: nothing ran"
    assert not unlisted, f"{suite}: failed and are no exceptions: {', '.join(unlisted)}"
    assert not stale, f"{suite}: did not fail, take them off the list: {', '.join(stale)}"


def say(line: str) -> None:
    """For people who run this with `-s`, and in what pytest shows of a failure."""
    sys.stdout.write(f"{line}\n")


def _unlisted(failed: set[str], exceptions: Mapping[str, Excused]) -> list[str]:
    """What failed and is no exception; a test with parts that failed stands for none itself."""
    parents = {name.rsplit("/", 1)[0] for name in failed if "/" in name}
    return sorted(
        name for name in failed - parents if not any(_covers(listed, name) for listed in exceptions)
    )


def needs(*tools: str) -> None:
    """Skip on a machine without the tools of another language, or others."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def environment(**more: str) -> dict[str, str]:
    """Environment of this process without what leads to the working tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **more}


def call(place: Path, *command: str, timeout_s: float, **more: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command,
        cwd=place,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def copied(source: Path, place: Path) -> Path:
    """A copy to work in; caches of packages are read-only."""
    shutil.copytree(source, place)
    for folder, _, files in os.walk(place):
        for name in (".", *files):
            path = Path(folder, name)
            path.chmod(path.stat().st_mode | 0o200)
    return place


@contextmanager
def served(directory: Path, config: str, *arguments: str) -> Iterator[Namespace]:
    """A network with a server in it on Pulsar's own ports, set up by the given TOML."""
    path = directory / "magnetar.toml"
    path.write_text(config)
    space = Namespace()
    try:
        server = Standalone(
            directory / "data",
            arguments=["--config", str(path), *arguments],
            command_prefix=space.command_prefix,
            ports=(PORT, HTTP_PORT),
        )
        with server:
            yield space
            assert server.terminate() == 0
            server.assert_log_clean()
    finally:
        space.close()


# --- Go ------------------------------------------------------------------------------------------


def go_outcome(events: str) -> Outcome:
    """What the events of `go test -json` say."""
    outcome = Outcome()
    kinds = {"pass": outcome.passed, "fail": outcome.failed, "skip": outcome.skipped}
    printed: dict[str, list[str]] = {}
    for line in events.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        name, action = event.get("Test"), event.get("Action")
        if name is None:
            continue
        if action == "output":
            printed.setdefault(name, []).append(event.get("Output", ""))
        if action in kinds:
            kinds[action].add(name)
    outcome.output = {name: "".join(printed.get(name, ())) for name in outcome.failed}
    started = {name for name in printed if name not in outcome.passed | outcome.skipped}
    outcome.failed |= started  # The run was over before they were.
    return outcome


def go_run(space: Namespace, program: Path, folder: Path, *, timeout_s: int) -> Run:
    """Runs of a compiled test program in its package's folder."""

    def run(names: Sequence[str]) -> Outcome:
        chosen = [f"-test.run=^({'|'.join(names)})$"] if names else []
        # A file: how far it is can be seen while it runs.
        with program.with_suffix(".events").open("a+") as events:
            begin = events.tell()
            subprocess.run(
                [
                    *space.command_prefix,
                    *("go", "tool", "test2json", "-t", str(program), "-test.v=test2json"),
                    *(f"-test.timeout={timeout_s}s", *chosen),
                ],
                cwd=folder,
                env=environment(),
                stdout=events,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s + 60,
            )
            events.seek(begin)
            return go_outcome(events.read())

    return lambda names: _go_on(run, names or go_tests(program, folder))


def go_tests(program: Path, folder: Path) -> list[str]:
    """The names of all tests in a program."""
    listed = call(folder, str(program), "-test.list", "^Test", timeout_s=60)
    return [name for name in listed.splitlines() if name.startswith("Test")]


def _go_on(run: Run, names: Sequence[str]) -> Outcome:
    """Run tests, and those again that one before them kept from running: a panic in one of them
    ends the whole program, and what comes behind it would be missed without a word."""
    outcome = Outcome()
    left = list(names)
    while left:
        outcome.add(run(left))
        done = outcome.passed | outcome.failed | outcome.skipped
        still = [name for name in left if name not in done]
        if len(still) == len(left):
            outcome.failed.update(still)
            break
        left = still
    return outcome


# --- Rust ----------------------------------------------------------------------------------------


def rust_outcome(text: str) -> Outcome:
    """What a test program of Rust says."""
    outcome = Outcome()
    kinds = {"ok": outcome.passed, "FAILED": outcome.failed, "ignored": outcome.skipped}
    for name, word in _RUST_LINE.findall(text):
        kinds[word].add(name)
    for name in outcome.failed:
        _, _, printed = text.partition(f"---- {name} stdout ----")
        outcome.output[name] = printed.partition("\n---- ")[0]
    return outcome


def rust_run(space: Namespace, program: Path, folder: Path, *, timeout_s: int) -> Run:
    """Runs of a compiled test program."""

    def run(names: Sequence[str]) -> Outcome:
        done = subprocess.run(
            [*space.command_prefix, str(program), "--exact", *names],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
        return rust_outcome(done.stdout)

    return run
