"""`make chaos PIPELINE=1 SEED=n`: the drill of the pipeline, with one JSON line as its result.

usage: python -m tests.chaos.pipeline [--flights N] [--seed N] [--driver-kills N] [--dir DIR]
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.pipeline.drill import Plan, run
from tests.flights import FLIGHTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=FLIGHTS)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--driver-kills", type=int, default=5)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if arguments.seed is None else arguments.seed
    sys.stderr.write(f"seed {seed}; once more: make chaos PIPELINE=1 SEED={seed}\n")
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-pipeline-"))
    directory.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seed=seed,
        flights=arguments.flights,
        driver_kills=arguments.driver_kills,
        batches=arguments.batches,
    )
    result = run(plan, directory.resolve())
    sys.stdout.write(json.dumps(result) + "\n")
    if not result["ok"]:
        sys.stderr.write(f"promises were broken; all files are in {directory}\n")
        return 1
    if arguments.dir is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
