"""The simulator as a command: `make sim`.

- `--seed 7`: one run, its plan and what the invariants say; with `--story` the whole transcript
- `--plan FILE`: the plan of a file, as in regressions/
- `--runs 10000`: seeds 0 to 9999 on all cores; exits with 1 if any fails
- `--keep`: the plan of a run that fails is shortened and written to regressions/, where the tests
  run it from then on; give the file a telling name
"""

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.simulation.drawing import draw
from tests.simulation.plan import Plan
from tests.simulation.run import Outcome, execute
from tests.simulation.shrink import shrink

_CHUNK = 25
_PROGRESS_S = 5.0
_KEPT_MAX = 5
REGRESSIONS = Path(__file__).with_name("regressions")


class _Chunk(NamedTuple):
    """What a worker process reports: how many runs, and which of them failed."""

    runs: int
    failed: list[tuple[int, str]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="the first seed of --runs")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--keep", action="store_true", help="shorten what fails, and keep it")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    if options.plan is not None:
        return _one(Plan.from_json(options.plan.read_text()), options)
    if options.seed is not None:
        return _one(draw(options.seed), options)
    failed = search(options.start, options.runs, jobs=options.jobs)
    if options.keep:
        for seed in failed[:_KEPT_MAX]:
            _keep(draw(seed))
    return int(bool(failed))


def _one(plan: Plan, options: argparse.Namespace) -> int:
    outcome = execute(plan)
    if options.story:
        print(outcome.history.text(), end="")
    print(outcome.report())
    print(f"history {outcome.history.fingerprint()}, {outcome.steps} steps")
    if options.keep and outcome.has_failed:
        _keep(plan)
    print("FAILED" if outcome.has_failed else "passed")
    return int(outcome.has_failed)


def _keep(plan: Plan) -> None:
    """Make a regression case of a plan that fails."""
    plan = shrink(plan)
    path = REGRESSIONS / f"seed-{plan.seed}.json"
    path.write_text(plan.to_json())
    print(f"kept as {path}:\n{plan}")


def search(start: int, runs: int, *, jobs: int) -> list[int]:
    """Run many seeds on `jobs` processes; print progress and each failure; the seeds that fail."""
    began_s = time.monotonic()
    told_s = began_s
    done = 0
    failed: list[int] = []
    for chunk in _chunks(start, runs, jobs):
        done += chunk.runs
        for seed, report in chunk.failed:
            failed.append(seed)
            print(f"{report}\nFAILED: replay it with: make sim SEED={seed} STORY=1\n", flush=True)
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


def _chunks(start: int, runs: int, jobs: int) -> Iterator[_Chunk]:
    ranges = [
        range(first, min(first + _CHUNK, start + runs))
        for first in range(start, start + runs, _CHUNK)
    ]
    if jobs <= 1:
        yield from map(_run_some, ranges)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_some, ranges)


def _run_some(seeds: range) -> _Chunk:
    failed: list[tuple[int, str]] = []
    # A run leaves a world of cycles: one look for all of them costs less than hundreds meanwhile.
    gc.disable()
    try:
        for seed in seeds:
            outcome: Outcome = execute(draw(seed))
            if outcome.has_failed:
                failed.append((seed, outcome.report()))
    finally:
        gc.enable()
        gc.collect()
    return _Chunk(len(seeds), failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
