"""The simulator of offloading as a command: `make sim OFFLOAD=1`.

- `--seed 7`: one run, and what the invariants say; with `--story` the whole transcript
- `--runs 1000`: seeds 0 to 999 on all cores; exits with 1 if any fails
"""

import argparse
import multiprocessing
import sys
import time

from tests.simulation.offloading.run import execute

COMMAND = "make sim OFFLOAD=1"
_PROGRESS_S = 5.0
_PROBLEMS_MAX = 5
"""Told of each run that failed."""


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="the first seed of --runs")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, with_story=options.story)
    failed = search(options.start, options.runs, jobs=options.jobs)
    return int(bool(failed))


def search(start: int, runs: int, *, jobs: int) -> list[int]:
    """Run seeds on `jobs` processes; print progress and each failure; the seeds that fail."""
    told_s = time.monotonic()
    failed: list[int] = []
    with multiprocessing.Pool(jobs) as pool:
        results = pool.imap_unordered(problems_of, range(start, start + runs))
        for done, (seed, problems) in enumerate(results, start=1):
            if problems:
                failed.append(seed)
                _say("\n".join(problems[:_PROBLEMS_MAX]))
                _say(f"FAILED: replay it with: {COMMAND} SEED={seed} STORY=1")
            if time.monotonic() - told_s >= _PROGRESS_S:
                told_s = time.monotonic()
                _say(f"{done} of {runs} runs, {len(failed)} failed")
    _say(f"{runs} runs; " + (f"{len(failed)} FAILED: {sorted(failed)}" if failed else "all passed"))
    return sorted(failed)


def problems_of(seed: int) -> tuple[int, list[str]]:
    """What does not hold in the run of a seed. A run that raises has failed as well, and says so
    by its seed: an exception alone would not tell which run it was."""
    try:
        return seed, list(execute(seed).problems)
    except Exception as error:  # noqa: BLE001 - however it ends, the seed is what replays it
        return seed, [f"{type(error).__name__}: {error}"]


def _one(seed: int, *, with_story: bool) -> int:
    run = execute(seed)
    if with_story:
        sys.stdout.write(run.sim.history.text())
    for problem in run.problems:
        _say(problem)
    _say("FAILED" if run.problems else "passed")
    return int(bool(run.problems))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
