"""The simulator of clusters as a command: `make sim CLUSTER=1`.

- `--seed 7`: one run, its plan and what the invariants say; with `--story` the whole transcript
- `--plan FILE`: the plan of a file, as in regressions/
- `--runs 1000`: seeds 0 to 999 on all cores; exits with 1 if any fails
- `--keep`: the plan of a run that fails is shortened and written to regressions/
"""

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from tests.simulation.cluster.drawing import draw
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import execute
from tests.simulation.cluster.shrink import shrink

REGRESSIONS = Path(__file__).with_name("regressions")
_KEPT_MAX = 5
_PROGRESS_S = 5.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make sim CLUSTER=1", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="the first seed of --runs")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--keep", action="store_true", help="shorten what fails, and keep it")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    if options.plan is not None:
        return _one(ClusterPlan.from_json(options.plan.read_text()), options)
    if options.seed is not None:
        return _one(draw(options.seed), options)
    failed = search(options.start, options.runs, jobs=options.jobs)
    if options.keep:
        for seed in failed[:_KEPT_MAX]:
            _keep(draw(seed))
    return int(bool(failed))


def _one(plan: ClusterPlan, options: argparse.Namespace) -> int:
    outcome = execute(plan)
    if options.story:
        print(outcome.history.text(), end="")
    print(outcome.report())
    print(f"history {outcome.history.fingerprint()}, {outcome.steps} steps")
    if options.keep and outcome.has_failed:
        _keep(plan)
    print("FAILED" if outcome.has_failed else "passed")
    return int(outcome.has_failed)


def _keep(plan: ClusterPlan) -> None:
    """Make a regression case of a plan that fails."""
    plan = shrink(plan)
    path = REGRESSIONS / f"seed-{plan.seed}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(plan.to_json())
    print(f"kept as {path}:\n{plan}")


def search(start: int, runs: int, *, jobs: int) -> list[int]:
    """Run many seeds on `jobs` processes; print progress and each failure; the seeds that fail."""
    began_s = told_s = time.monotonic()
    failed: list[int] = []
    with multiprocessing.Pool(jobs) as pool:
        found = pool.imap_unordered(_run, range(start, start + runs), chunksize=5)
        for done, (seed, report) in enumerate(found, 1):
            if report:
                failed.append(seed)
                print(f"{report}\nFAILED: make sim CLUSTER=1 SEED={seed} STORY=1\n", flush=True)
            if time.monotonic() - told_s >= _PROGRESS_S:
                told_s = time.monotonic()
                print(f"{done} of {runs} runs, {len(failed)} failed", flush=True)
    elapsed_s = time.monotonic() - began_s
    print(
        f"{runs} runs in {elapsed_s:.1f} s on {jobs} processes; "
        + (f"{len(failed)} FAILED: {sorted(failed)}" if failed else "all passed")
    )
    return sorted(failed)


def _run(seed: int) -> tuple[int, str]:
    outcome = execute(draw(seed))
    return seed, outcome.report() if outcome.has_failed else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
