"""The simulator of clusters as a command: `make sim CLUSTER=1`.

- `--seed 7`: one run, its plan and what the invariants say; with `--story` the whole transcript
- `--plan FILE`: the plan of a file, as in regressions/
- `--runs 1000`: seeds 0 to 999 on all cores; exits with 1 if any fails
- `--keep`: the plan of a run that fails is shortened and written to regressions/
"""

import sys
from pathlib import Path

from tests.simulation.cluster.drawing import draw
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import execute
from tests.simulation.cluster.shrink import shrink
from tests.simulation.command import Family, run_command

CLUSTERS = Family(
    command="make sim CLUSTER=1",
    runs=200,
    draw=draw,
    execute=execute,
    shrink=shrink,
    from_json=ClusterPlan.from_json,
    regressions=Path(__file__).with_name("regressions"),
)

if __name__ == "__main__":
    sys.exit(run_command(CLUSTERS, sys.argv[1:], description=__doc__.splitlines()[0]))
