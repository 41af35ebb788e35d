"""The whole proof, in stages: every test, every drill, long searches. Takes some hours.

    python -m tests.nightly [--again] [--list]

Stages that mostly wait run beside the others from the beginning. Their output goes into a file, and
is shown if they fail.

A stage that has passed is not run again while no code changes. An interrupted night therefore
continues where it stopped: on another machine, too, if `tests/nightly.json` was committed. Code is
everything in git except documentation and records of runs. While some code is not committed,
nothing is recorded.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.processes import ROOT

_MEMORY = ROOT / "tests" / "nightly.json"
_RECORDS = ("proven.json", "durations.json", "nightly.json", "caught.json")
"""Files that runs write, the stages of the night among them."""
_USED_SHARE_MAX = 0.93
"""Largest used share of the disk of temporary files. Drills need some gigabytes there."""
_LINES_SHOWN = 200
"""Number of last lines to show of a failed stage that ran beside others."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the proof: a target of make, with its variables."""

    name: str
    make: tuple[str, ...]
    is_calm: bool = False
    """Whether the stage runs beside the others: it takes an hour, and a tenth of a processor."""


STAGES = (
    Stage("static checks", ("static",)),
    Stage("every test", ("every-test",)),
    Stage("bench", ("bench-starts-whole",)),
    Stage("every way of Spark", ("spark-matrix",)),
    Stage("the release of Spark before", ("spark-release", "SPARK=4.2.1")),
    Stage("ledgers and logs", ("sim", "RUNS=10000")),
    Stage("clusters", ("sim", "RUNS=1000", "CLUSTER=1")),
    Stage("clusters that deduplicate", ("sim", "RUNS=1000", "CLUSTER=1", "ARGS=--start 3000000")),
    Stage("several clusters", ("sim", "RUNS=1000", "GEO=1")),
    Stage("scalable topics", ("sim", "RUNS=2000", "SCALABLE=1")),
    Stage("storage", ("sim", "RUNS=1000", "STORAGE=1")),
    Stage("tiered storage", ("sim", "RUNS=1000", "OFFLOAD=1")),
    Stage("mutations of ledgers", ("mutations",)),
    Stage("mutations of clusters", ("mutations", "CLUSTER=1")),
    Stage("mutations of several clusters", ("mutations", "GEO=1")),
    Stage("mutations of scalable topics", ("mutations", "SCALABLE=1")),
    Stage("mutations of storage", ("mutations", "STORAGE=1")),
    Stage("mutations of tiered storage", ("mutations", "OFFLOAD=1")),
    Stage("odd and spoiled input", ("fuzz", "RUNS=5000")),
    Stage("a hostile client", ("hostile", "ARGS=--short")),
    Stage("kills and pauses", ("chaos", "KILLS=100")),
    Stage("full disks", ("chaos", "KILLS=30", "ARGS=--disk-full")),
    Stage("a cluster's faults", ("chaos", "CLUSTER=1", "FAULTS=5")),
    Stage("a rolling upgrade", ("chaos", "ROLLING=1")),
    Stage("transactions under kills", ("chaos", "TXN=1", "KILLS=30")),
    Stage("a scalable topic under kills", ("chaos", "SCALABLE=1", "KILLS=30")),
    Stage("tiered storage under kills", ("chaos", "OFFLOAD=1", "KILLS=50")),
    Stage("copies between clusters under kills", ("chaos", "GEO=1", "KILLS=50")),
    Stage("a gigabyte in an object store", ("offload-proof",)),
    Stage("a pipeline under kills", ("chaos", "PIPELINE=1")),
    Stage("soak", ("soak",), is_calm=True),
    Stage("an object store that is away for an hour", ("store-away",), is_calm=True),
)


class Memory:
    """The stages that have passed on the present code, kept in a file."""

    def __init__(self, path: Path, key: str | None) -> None:
        """`key` identifies the code; None: some code is not committed, and nothing is recorded."""
        self._path, self._key = path, key
        known = json.loads(path.read_text()) if path.exists() else {}
        self._passed: dict[str, float] = known.get(key, {}) if key is not None else {}

    def took_s(self, stage: Stage) -> float | None:
        """Return how long a stage that has passed took; None if it has not passed."""
        return self._passed.get(" ".join(stage.make))

    def forget(self) -> None:
        """Forget all results, so that all stages run again."""
        self._passed.clear()

    def note(self, stage: Stage, took_s: float) -> None:
        """Record that a stage has passed. Results of other code are dropped."""
        if self._key is not None:
            self._passed[" ".join(stage.make)] = round(took_s)
            self._path.write_text(json.dumps({self._key: self._passed}, indent=1) + "\n")


def key_of_code(root: Path) -> str | None:
    """Return a hash of the committed code; None if some code is not committed."""
    if any(_is_code(line[3:]) for line in _git(root, "status", "--porcelain")):
        return None
    found = hashlib.sha256()
    for line in _git(root, "ls-files", "--stage"):
        if _is_code(line.partition("\t")[2]):
            found.update(f"{line}\n".encode())
    return found.hexdigest()


def _is_code(path: str) -> bool:
    is_record = path.startswith("tests/") and path.endswith(tuple(f"/{each}" for each in _RECORDS))
    return not path.endswith(".md") and not path.startswith("docs/") and not is_record


def _git(root: Path, *command: str) -> list[str]:
    ran = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def want_of_room(used_share: float) -> str | None:
    """Return why drills would fail on a disk with this used share, from 0 to 1; None if they would
    not."""
    if used_share < _USED_SHARE_MAX:
        return None
    return (
        f"{tempfile.gettempdir()} is on a disk that is {used_share:.0%} full, and bookies refuse "
        f"writes at 95%: free some space until it is below {_USED_SHARE_MAX:.0%}, then go on"
    )


def _used_share() -> float:
    facts = os.statvfs(tempfile.gettempdir())
    return 1 - facts.f_bavail / facts.f_blocks  # as bookies count: the system's reserve is in use


@dataclass(slots=True)
class _Beside:
    """A stage that runs while others do."""

    stage: Stage
    title: str
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    began_s: float

    def finish(self, memory: Memory) -> int:
        """Wait for the end of the stage, and return its exit status."""
        status = self.process.wait()
        took_s = time.monotonic() - self.began_s
        if status:
            self.printed.seek(0)
            lines = self.printed.read().decode(errors="replace").splitlines()
            _say("\n".join(lines[-_LINES_SHOWN:]))
        return _ended(self.title, self.stage, memory, status, took_s)


def run(
    stages: Sequence[Stage],
    memory: Memory,
    *,
    root: Path,
    used_share: Callable[[], float] = _used_share,
) -> int:
    """Run the stages that have not passed, up to the first that fails; return its exit status.

    Calm stages start first, and always run to their end.
    """
    todo: list[tuple[str, Stage]] = []
    for at, stage in enumerate(stages, start=1):
        title = f"{at} of {len(stages)}, {stage.name}"
        before_s = memory.took_s(stage)
        if before_s is not None:
            _say(f"{title}: has passed, in {before_s:.0f} s")
        else:
            todo.append((title, stage))
    status = 0
    with ExitStack() as opened:
        beside: list[_Beside] = []
        for title, stage in sorted(todo, key=lambda each: not each[1].is_calm):
            if (want := want_of_room(used_share())) is not None:
                _say(f"{title}: not begun: {want}")
                status = 1
            elif stage.is_calm:
                printed = opened.enter_context(tempfile.TemporaryFile())
                beside.append(_begin(title, stage, root, printed))
            else:
                status = _run_alone(title, stage, memory, root)
            if status:
                break
        for each in beside:
            _say(f"{each.title}: waiting for its end")
            status = each.finish(memory) or status
    return status


def _begin(title: str, stage: Stage, root: Path, printed: IO[bytes]) -> _Beside:
    _say(f"{title}: make {' '.join(stage.make)}, beside the others")
    process = subprocess.Popen(_command(stage), cwd=root, stdout=printed, stderr=subprocess.STDOUT)
    return _Beside(stage, title, process, printed, time.monotonic())


def _run_alone(title: str, stage: Stage, memory: Memory, root: Path) -> int:
    _say(f"{title}: make {' '.join(stage.make)}")
    began_s = time.monotonic()
    status = subprocess.run(_command(stage), cwd=root).returncode
    return _ended(title, stage, memory, status, time.monotonic() - began_s)


def _ended(title: str, stage: Stage, memory: Memory, status: int, took_s: float) -> int:
    if status:
        _say(f"{title}: failed after {took_s:.0f} s; `make nightly` goes on from here")
    else:
        memory.note(stage, took_s)
        _say(f"{title}: passed in {took_s:.0f} s")
    return status


def _command(stage: Stage) -> list[str]:
    return ["make", "--no-print-directory", *stage.make]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="The whole proof, in stages.")
    parser.add_argument("--again", action="store_true", help="also stages that have passed")
    parser.add_argument("--list", action="store_true", help="print the stages and end")
    options = parser.parse_args()
    memory = Memory(_MEMORY, key_of_code(ROOT))
    if options.list:
        for stage in STAGES:
            took_s = memory.took_s(stage)
            _say(f"{'to do' if took_s is None else f'{took_s:.0f} s':>8}  {' '.join(stage.make)}")
        return 0
    if options.again:
        memory.forget()
    return run(STAGES, memory, root=ROOT)


if __name__ == "__main__":
    sys.exit(main())
