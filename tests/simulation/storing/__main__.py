"""The simulator of the storage as a command: `make sim STORAGE=1`.

- `--runs 5000`: first every script on every shape, cut at each step (in each way: `--complete`);
  then seeds 0 to 4999 on all cores; exits with 1 if anything fails
- `--seed 7`: one run: its plan, and what is wrong
- `--plan FILE`: the plan of a file
- `--keep`: plans that fail are shortened and written to regressions/
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.inode import Survival
from tests.simulation.storing.client import ViolationError
from tests.simulation.storing.cut import SURVIVALS, cut_twice, lose_newest, play, restart
from tests.simulation.storing.lives import ALL_SHAPES, LivesPlan, draw_lives, live, shorten
from tests.simulation.storing.machine import Shape
from tests.simulation.storing.scripts import SCRIPTS
from tests.simulation.storing.troubles import troubled

_CHUNK = 25
_PROGRESS_S = 5.0
_KEPT_MAX = 5
REGRESSIONS = Path(__file__).with_name("regressions")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make sim STORAGE=1", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="the first seed of --runs")
    parser.add_argument("--story", action="store_true", help="accepted, and always so")
    parser.add_argument("--complete", action="store_true", help="scripts in all ways: 20 minutes")
    parser.add_argument("--keep", action="store_true", help="shorten what fails, and keep it")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    if options.plan is not None or options.seed is not None:
        plan = (
            draw_lives(options.seed)
            if options.plan is None
            else LivesPlan.from_json(options.plan.read_text())
        )
        outcome = live(plan)
        _say(outcome.report())
        if options.keep and outcome.has_failed:
            _keep(plan)
        _say("FAILED" if outcome.has_failed else "passed")
        return int(outcome.has_failed)
    with multiprocessing.Pool(options.jobs) as pool:
        tasks = [(name, shape, options.complete) for name in SCRIPTS for shape in ALL_SHAPES]
        cut_failures = _report(pool.imap_unordered(_cut, tasks), "scripts", len(tasks))
        first = options.start
        chunks = [
            range(at, min(at + _CHUNK, first + options.runs))
            for at in range(first, first + options.runs, _CHUNK)
        ]
        seeds = _report(pool.imap_unordered(_live, chunks), "chunks of seeds", len(chunks))
    if options.keep:
        for seed in seeds[:_KEPT_MAX]:
            _keep(draw_lives(seed))
    return int(bool(cut_failures or seeds))


def _report(
    results: Iterator[tuple[int, list[tuple[int, str]]]], what: str, tasks: int
) -> list[int]:
    """Print failures and progress; the seeds that failed, or -1 for a script."""
    began_s = told_s = time.monotonic()
    done = restarts = 0
    failed: list[int] = []
    for count, failures in results:
        done += 1
        restarts += count
        for seed, text in failures:
            failed.append(seed)
            again = f"make sim STORAGE=1 SEED={seed}" if seed >= 0 else "make sim STORAGE=1 RUNS=0"
            _say(f"{text}\nFAILED: replay it with: {again}\n")
        if time.monotonic() - told_s >= _PROGRESS_S:
            told_s = time.monotonic()
            _say(f"{done} of {tasks} {what}, {len(failed)} failures")
    _say(
        f"{done} {what} with {restarts} restarts in {time.monotonic() - began_s:.1f} s; "
        + (f"{len(failed)} FAILED: {sorted(failed)}" if failed else "all passed")
    )
    return sorted(failed)


def _cut(task: tuple[str, Shape, bool]) -> tuple[int, list[tuple[int, str]]]:
    """One script on one shape: every step, in all ways to lose the power or in two, some starts cut
    too; newest journal files that are gone; and calls of it fail, all of them or every eighth."""
    name, shape, is_complete = task
    played = play(SCRIPTS[name], shape)
    restarts = 0
    try:
        for cut in played.cuts:
            ways = range(len(SURVIVALS)) if is_complete else (cut.step, cut.step + 4)
            for number in ways:
                survival = SURVIVALS[number % len(SURVIVALS)]
                restart(played, cut, survival, seed=f"{cut.step}/{number}")
                restarts += 1
        restarts += cut_twice(played, played.cuts[::12])
        restarts += cut_twice(played, played.cuts[6::12], Survival.KILLED)
        for cut in played.cuts[:: 1 if is_complete else 6]:
            lose_newest(played, cut)
    except ViolationError as error:
        return restarts, [(-1, f"{name}: {error}")]
    for plan in troubled(name, shape, every=1 if is_complete else 8):
        outcome = live(plan)
        restarts += outcome.restarts
        if outcome.has_failed:
            return restarts, [(-1, f"{name}: {outcome.report()}")]
    return restarts, []


def _live(seeds: range) -> tuple[int, list[tuple[int, str]]]:
    failed = []
    restarts = 0
    for seed in seeds:
        outcome = live(draw_lives(seed))
        restarts += outcome.restarts
        if outcome.has_failed:
            failed.append((seed, outcome.report()))
    return restarts, failed


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _keep(plan: LivesPlan) -> None:
    """Make a regression case of a plan that fails."""
    plan = shorten(plan)
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"seed-{plan.seed}.json"
    path.write_text(plan.to_json())
    _say(f"kept as {path}:\n{plan}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
