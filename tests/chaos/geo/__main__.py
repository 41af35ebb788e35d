"""`make chaos GEO=1 KILLS=n SEED=n`: the drill of two clusters, with one JSON line as its result.

usage: python -m tests.chaos.geo [--kills N] [--seed N] [--dir DIR] [--small]
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.chaos.geo.drill import Plan, run
from tests.chaos.report import run_and_report, seed_of
from tests.command_server import fork_servers_of_this_process


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills, pauses and cuts in all")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    parser.add_argument("--small", action="store_true", help="clusters of one server each")
    arguments = parser.parse_args()
    fork_servers_of_this_process()
    seed = seed_of(arguments.seed)
    plan = Plan(seed=seed, kills=arguments.kills, is_small=arguments.small)
    again = f"make chaos GEO=1 KILLS={plan.kills} SEED={seed}"
    sys.stderr.write(f"seed {seed}; once more: {again}{' ARGS=--small' * plan.is_small}\n")
    return run_and_report(partial(run, plan), arguments.dir, name="geo")


if __name__ == "__main__":
    sys.exit(main())
