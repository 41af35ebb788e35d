"""The simulator as a command: `make sim`.

- `--seed 7`: one run, its plan and what the invariants say; with `--story` the whole transcript
- `--plan FILE`: the plan of a file, as in regressions/
- `--runs 10000`: seeds 0 to 9999 on all cores; exits with 1 if any fails
- `--keep`: the plan of a run that fails is shortened and written to regressions/, where the tests
  run it from then on; give the file a telling name
"""

import sys
from pathlib import Path

from tests.simulation.command import Family, run_command
from tests.simulation.drawing import draw
from tests.simulation.plan import Plan
from tests.simulation.run import execute
from tests.simulation.shrink import shrink

LEDGERS = Family(
    command="make sim",
    runs=500,
    draw=draw,
    execute=execute,
    shrink=shrink,
    from_json=Plan.from_json,
    regressions=Path(__file__).with_name("regressions"),
)

if __name__ == "__main__":
    sys.exit(run_command(LEDGERS, sys.argv[1:], description=__doc__.splitlines()[0]))
