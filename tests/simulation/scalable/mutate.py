"""Whether every rule of scalable topics is needed: each is switched off, and must fail.

`python -m tests.simulation.scalable.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations SCALABLE=1`. Plans that have what the rule is about are run with the rule off until one of
the mutation's invariants does not hold; the same plan must pass with the rule on. `--write` puts
the table into docs/simulation.md, and what caught each mutation into caught.json, which
`test_scalable_mutations.py` replays. Some plans there were written by hand, for rules that drawn
ones seldom need.
"""

import sys
from pathlib import Path

from tests.simulation.mutations.searching import Catch, Search, Task, command
from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.mutations import MUTATIONS, may_notice
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.run import execute

RUNS_MAX = 60
SEARCH = Search(
    MUTATIONS,
    draw,
    execute,
    ScalablePlan.from_json,
    caught=Path(__file__).with_name("caught.json"),
    section="scalable mutations",
    may_notice=may_notice,
)


def attempt(task: Task[ScalablePlan]) -> tuple[Catch[ScalablePlan], str]:
    return SEARCH.attempt(task)


if __name__ == "__main__":
    sys.exit(command(SEARCH, attempt, sys.argv[1:], about=__doc__, runs=RUNS_MAX))
