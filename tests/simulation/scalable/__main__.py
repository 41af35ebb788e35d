"""The simulator of scalable topics as a command: `make sim SCALABLE=1`.

- `--seed 7`: one run, its plan and what the invariants say; with `--story` the whole transcript
- `--plan FILE`: the plan of a file, as in regressions/
- `--runs 1000`: seeds 0 to 999 on all cores; exits with 1 if any fails
- `--keep`: the plan of a run that fails is shortened and written to regressions/
"""

import sys
from pathlib import Path

from tests.simulation.command import Family, run_command
from tests.simulation.scalable.drawing import draw
from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.run import execute
from tests.simulation.scalable.shrink import shrink

SCALABLE = Family(
    command="make sim SCALABLE=1",
    runs=200,
    draw=draw,
    execute=execute,
    shrink=shrink,
    from_json=ScalablePlan.from_json,
    regressions=Path(__file__).with_name("regressions"),
)

if __name__ == "__main__":
    sys.exit(run_command(SCALABLE, sys.argv[1:], description=__doc__.splitlines()[0]))
