"""`make chaos SCALABLE=1 KILLS=n RATE=n SEED=n`: the drill, with one JSON line as its result.

usage: python -m tests.chaos.scalable [--kills N] [--rate N] [--bookies N] [--calm N] [--seed N]
    [--dir DIR]
"""

import argparse
import signal
import sys
from functools import partial
from pathlib import Path

from tests.chaos.report import run_and_report, seed_of
from tests.chaos.scalable.drill import run
from tests.chaos.scalable.plan import RATE, Plan
from tests.command_server import fork_servers_of_this_process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kill -9 in all")
    parser.add_argument("--rate", type=float, default=RATE, help="messages/s of all producers")
    parser.add_argument("--bookies", type=int, default=1)
    parser.add_argument(
        "--calm", type=int, default=1, help="grow and shrink so often before the first kill"
    )
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    fork_servers_of_this_process()
    # Whoever ends the drill ends all its processes.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    seed = seed_of(arguments.seed)
    plan = Plan(
        seed=seed,
        kills=arguments.kills,
        rate=arguments.rate,
        bookies=arguments.bookies,
        calm_cycles=arguments.calm,
    )
    again = f"make chaos SCALABLE=1 KILLS={plan.kills} RATE={plan.rate:g} SEED={seed}"
    sys.stderr.write(f"seed {seed}; once more: {again}\n")
    return run_and_report(partial(run, plan), arguments.dir, name="scalable")


if __name__ == "__main__":
    sys.exit(main())
