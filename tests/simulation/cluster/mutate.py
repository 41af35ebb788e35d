"""Whether every rule of brokers and auto-recovery is needed: each is switched off, and must fail.

`python -m tests.simulation.cluster.mutate [--runs N] [--only NAME] [--write] [--anew]`, or `make
mutations CLUSTER=1`. First the stories of the rule's defects are told with the rule off, then the
plan that noticed it last and plans of many seeds, plain ones and busy ones in turn, are run until
an invariant does not hold; the same plan must pass with the rule on. Where stories notice, and no
search has found a plan so far, there are only a few runs, but for `--anew`. `--write` puts the
table into docs/simulation.md, and what caught each mutation into mutations/caught.json, which
`test_mutations.py` replays.
"""

import sys
from pathlib import Path

from tests.simulation.cluster.drawing import draw, searched
from tests.simulation.cluster.mutations.registry import MUTATIONS
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import execute
from tests.simulation.mutations.searching import Catch, StorySearch, Task, command

RUNS_MAX = 200


def _draw(number: int) -> ClusterPlan:
    return draw(searched(number))


SEARCH = StorySearch(
    MUTATIONS,
    _draw,
    execute,
    ClusterPlan.from_json,
    caught=Path(__file__).with_name("mutations") / "caught.json",
    section="cluster mutations",
    stories_in="tests.simulation.cluster",
    hopeless_runs=20,
    runs_without_invariant=0,
)


def attempt(task: Task[ClusterPlan]) -> tuple[Catch[ClusterPlan], str]:
    return SEARCH.attempt(task)


if __name__ == "__main__":
    sys.exit(command(SEARCH, attempt, sys.argv[1:], about=__doc__, runs=RUNS_MAX))
