"""What the commands of the simulators do: one run with its story, or many on all cores.

A family of plans is drawn from seeds and carried out; ledgers and clusters are two of them.
"""

import argparse
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

_CHUNK = 25
_PROGRESS_S = 5.0
_KEPT_MAX = 5


class _Plan(Protocol):
    @property
    def seed(self) -> int: ...

    def to_json(self) -> str: ...


class _History(Protocol):
    def text(self) -> str: ...

    def fingerprint(self) -> str: ...


class _Outcome(Protocol):
    @property
    def has_failed(self) -> bool: ...

    @property
    def history(self) -> _History: ...

    @property
    def steps(self) -> int: ...

    def report(self) -> str: ...


P = TypeVar("P", bound=_Plan)


@dataclass(frozen=True, slots=True)
class Family(Generic[P]):
    """A kind of plans, and what can be done with one. All functions are found by their names, so
    that they can be sent to other processes."""

    command: str
    """As a person types it: `make sim`."""
    runs: int
    """Of a search, unless told otherwise."""
    draw: Callable[[int], P]
    execute: Callable[[P], _Outcome]
    shrink: Callable[[P], P]
    from_json: Callable[[str], P]
    regressions: Path
    """Where plans are kept that have failed; the tests run them from then on."""


class _Chunk(NamedTuple):
    """What a worker process reports: how many runs, and which of them failed."""

    runs: int
    failed: list[tuple[int, str]]


def run_command(family: Family[P], arguments: list[str], *, description: str) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog=family.command, description=description)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--runs", type=int, default=family.runs)
    parser.add_argument("--start", type=int, default=0, help="the first seed of --runs")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--keep", action="store_true", help="shorten what fails, and keep it")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    if options.plan is not None:
        return _one(family, family.from_json(options.plan.read_text()), options)
    if options.seed is not None:
        return _one(family, family.draw(options.seed), options)
    failed = search(family, options.start, options.runs, jobs=options.jobs)
    if options.keep:
        for seed in failed[:_KEPT_MAX]:
            _keep(family, family.draw(seed))
    return int(bool(failed))


def _one(family: Family[P], plan: P, options: argparse.Namespace) -> int:
    outcome = family.execute(plan)
    if options.story:
        print(outcome.history.text(), end="")
    print(outcome.report())
    print(f"history {outcome.history.fingerprint()}, {outcome.steps} steps")
    if options.keep and outcome.has_failed:
        _keep(family, plan)
    print("FAILED" if outcome.has_failed else "passed")
    return int(outcome.has_failed)


def _keep(family: Family[P], plan: P) -> None:
    """Make a regression case of a plan that fails."""
    plan = family.shrink(plan)
    path = family.regressions / f"seed-{plan.seed}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(plan.to_json())
    print(f"kept as {path}:\n{plan}")


def search(family: Family[P], start: int, runs: int, *, jobs: int) -> list[int]:
    """Run many seeds on `jobs` processes; print progress and each failure; the seeds that fail."""
    began_s = told_s = time.monotonic()
    done = 0
    failed: list[int] = []
    for chunk in _chunks(family, start, runs, jobs):
        done += chunk.runs
        for seed, report in chunk.failed:
            failed.append(seed)
            again = f"{family.command} SEED={seed} STORY=1"
            print(f"{report}\nFAILED: replay it with: {again}\n", flush=True)
        if time.monotonic() - told_s >= _PROGRESS_S:
            told_s = time.monotonic()
            print(f"{done} of {runs} runs, {len(failed)} failed", flush=True)
    elapsed_s = time.monotonic() - began_s
    print(
        f"{done} runs in {elapsed_s:.1f} s on {jobs} processes, "
        f"{elapsed_s * jobs / max(1, done) * 1000:.1f} ms each; "
        + (f"{len(failed)} FAILED: {sorted(failed)}" if failed else "all passed")
    )
    return sorted(failed)


def _chunks(family: Family[P], start: int, runs: int, jobs: int) -> Iterator[_Chunk]:
    ranges = [
        range(first, min(first + _CHUNK, start + runs))
        for first in range(start, start + runs, _CHUNK)
    ]
    run_some = partial(_run_some, family)
    if jobs <= 1:
        yield from map(run_some, ranges)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(run_some, ranges)


def _run_some(family: Family[P], seeds: range) -> _Chunk:
    failed: list[tuple[int, str]] = []
    # A run leaves a world of cycles: one look for all of them costs less than hundreds meanwhile.
    gc.disable()
    try:
        for seed in seeds:
            outcome = family.execute(family.draw(seed))
            if outcome.has_failed:
                failed.append((seed, outcome.report()))
    finally:
        gc.enable()
        gc.collect()
    return _Chunk(len(seeds), failed)
