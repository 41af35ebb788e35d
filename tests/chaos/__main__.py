"""`make chaos KILLS=n SEED=n`: the drill, with one JSON line as its result.

usage: python -m tests.chaos [--kills N] [--seed N] [--metadata embedded|zookeeper] [--disk-full]
           [--dir DIR]
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.chaos.drill import Plan, run
from tests.chaos.report import run_and_report, seed_of
from tests.command_server import fork_servers_of_this_process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=200, help="kills, pauses and full disks in all"
    )
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--metadata", choices=["embedded", "zookeeper"], default="embedded")
    parser.add_argument(
        "--disk-full", action="store_true", help="give bookies small disks, and fill them, too"
    )
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    fork_servers_of_this_process()
    seed = seed_of(arguments.seed)
    plan = Plan(
        seed=seed,
        strikes=arguments.kills,
        bookies=arguments.bookies,
        writers=arguments.writers,
        metadata=arguments.metadata,
        disk_full=arguments.disk_full,
    )
    sys.stderr.write(
        f"seed {seed}; once more: make chaos KILLS={plan.strikes} SEED={seed} "
        f"ARGS='--metadata {plan.metadata}{' --disk-full' if plan.disk_full else ''}'\n"
    )
    return run_and_report(partial(run, plan), arguments.dir, name="chaos")


if __name__ == "__main__":
    sys.exit(main())
