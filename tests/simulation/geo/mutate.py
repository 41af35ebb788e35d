"""Whether every rule of copying between clusters is needed: each is switched off, and must fail.

`python -m tests.simulation.geo.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations GEO=1`. Plans that have what the rule is about are run with the rule off until one of the
mutation's invariants does not hold; the same plan must pass with the rule on. `--write` puts the
table into docs/simulation.md, and what caught each mutation into caught.json, which
`test_mutations.py` replays.
"""

import sys
from pathlib import Path

from tests.simulation.geo.drawing import draw
from tests.simulation.geo.mutations import MUTATIONS, may_notice
from tests.simulation.geo.plan import GeoPlan
from tests.simulation.geo.run import execute
from tests.simulation.mutations.searching import Catch, Search, Task, command

RUNS_MAX = 60
SEARCH = Search(
    MUTATIONS,
    draw,
    execute,
    GeoPlan.from_json,
    caught=Path(__file__).with_name("caught.json"),
    section="geo mutations",
    may_notice=may_notice,
)


def attempt(task: Task[GeoPlan]) -> tuple[Catch[GeoPlan], str]:
    return SEARCH.attempt(task)


if __name__ == "__main__":
    sys.exit(command(SEARCH, attempt, sys.argv[1:], about=__doc__, runs=RUNS_MAX))
