"""Whether every rule is needed: each is switched off, and random runs must notice.

`python -m tests.simulation.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations`. For each mutation the plan that noticed it last, then those of seeds 0, 1, 2, ... are
run until an invariant does not hold; the same plan must pass with the rule on. `--write` puts the
table into docs/simulation.md, and the plan that caught each mutation into mutations/caught.json,
which `test_mutations.py` replays. Where a search has found no plan, but a scripted test notices,
the next ones are short, but for `--anew`.
"""

import sys
from pathlib import Path

from tests.simulation.drawing import draw
from tests.simulation.mutations.registry import MUTATIONS
from tests.simulation.mutations.searching import Catch, StorySearch, Task, command
from tests.simulation.plan import Plan
from tests.simulation.record import INVARIANTS
from tests.simulation.run import execute

RUNS_MAX = 2000
SEARCH = StorySearch(
    MUTATIONS,
    draw,
    execute,
    Plan.from_json,
    caught=Path(__file__).with_name("mutations") / "caught.json",
    section="mutations",
    stories_in="tests.simulation",
    stories_called="Scripted tests",
    order=tuple(INVARIANTS),
)


def attempt(task: Task[Plan]) -> tuple[Catch[Plan], str]:
    return SEARCH.attempt(task)


if __name__ == "__main__":
    sys.exit(command(SEARCH, attempt, sys.argv[1:], about=__doc__, runs=RUNS_MAX))
