"""Whether every rule of offloading is needed: each is switched off, and a random run must notice.

`python -m tests.simulation.offloading.mutate [--runs N] [--only NAME]` runs seeds until one fails,
which must pass with the rule on, and writes it to `caught.json`; `test_offloading_mutations.py`
replays that.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.simulation.mutations.mutation import Mutation
from tests.simulation.offloading.mutations import MUTATIONS
from tests.simulation.offloading.run import execute

CAUGHT = Path(__file__).with_name("caught.json")


def failing(seed: int) -> list[str]:
    """The invariants that do not hold in the run of a seed, or the error that ended it."""
    try:
        found = execute(seed).problems
    except Exception as error:  # noqa: BLE001 - however it ends, it has noticed
        return [type(error).__name__]
    return sorted({problem.split()[0].rstrip(":") for problem in found})


def search(mutation: Mutation, runs_max: int) -> tuple[int, list[str]] | None:
    """The first seed that notices, and what fails in it; None: none does."""
    for seed in range(runs_max):
        with mutation.apply():
            found = failing(seed)
        if set(found) & set(mutation.invariants) and not failing(seed):
            return seed, found
    return None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    caught = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}
    is_whole = True
    for mutation in MUTATIONS:
        if options.only and mutation.name != options.only:
            continue
        found = search(mutation, options.runs)
        is_whole = is_whole and found is not None
        caught.pop(mutation.name, None)
        if found is not None:
            caught[mutation.name] = {"seed": found[0], "fails": found[1]}
        sys.stdout.write(f"{mutation.name}: {found or 'not noticed'}\n")
    kept = {each.name: caught[each.name] for each in MUTATIONS if each.name in caught}
    CAUGHT.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
