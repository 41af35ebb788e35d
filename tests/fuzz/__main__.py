"""`make fuzz RUNS=n SEED=n`: spoiled frames, against bookies, ledger clients, WebSockets
and schemas.

usage: python -m tests.fuzz [--runs N] [--seed N] [--side bookie|client|websocket|schemas|all]
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

import structlog

from tests.fuzz import bookie_side, client_side, schemas_side, websocket_side
from tests.fuzz.findings import Findings

SIDES = {
    "bookie": bookie_side.fuzz,
    "client": client_side.fuzz,
    "websocket": websocket_side.fuzz,
    "schemas": schemas_side.fuzz,
}
_CASES_PER_CLUSTER = 500


def run(side: str, seeds: range) -> Findings:
    """All cases of a side; a new cluster now and then, so that no case lives on old data only."""
    findings = Findings()
    for first in range(seeds.start, seeds.stop, _CASES_PER_CLUSTER):
        some = range(first, min(first + _CASES_PER_CLUSTER, seeds.stop))
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(SIDES[side](some, Path(directory), findings))
        if findings.texts:
            break
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000, help="cases per side")
    parser.add_argument("--seed", type=int, help="first seed; default: a new one, printed")
    parser.add_argument("--side", choices=[*SIDES, "all"], default="all")
    arguments = parser.parse_args()
    # Each spoiled frame is a warning in the bookie's log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    first = arguments.seed
    if first is None:
        first = random.SystemRandom().getrandbits(31)
    failed = False
    for side in SIDES:
        if arguments.side not in (side, "all"):
            continue
        started_s = time.monotonic()
        findings = run(side, range(first, first + arguments.runs))
        seconds = time.monotonic() - started_s
        sys.stdout.write(
            f"{side} side: {arguments.runs} cases from seed {first} in {seconds:.0f} s, "
            f"{len(findings.texts)} findings\n"
        )
        for text in findings.texts:
            failed = True
            sys.stdout.write(f"  {text}\n")
    if failed:
        sys.stdout.write("one case again: python -m tests.fuzz --runs 1 --side SIDE --seed SEED\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
