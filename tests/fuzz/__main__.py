"""`make fuzz RUNS=n SEED=n`: odd and spoiled input against bookies, ledger clients, brokers, the
HTTP interface, WebSockets and schemas.

usage: python -m tests.fuzz [--runs N] [--seed N] [--side SIDE|all] [--save FILE]

A run counts inputs: frames, requests, definitions. A seed decides a case; brokers and HTTP get many
inputs per case.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from tests.fuzz import (
    bookie_side,
    broker_side,
    client_side,
    rest_side,
    schemas_side,
    websocket_side,
)
from tests.fuzz.findings import Findings

Fuzz = Callable[[range, Path, Findings], Awaitable[None]]
_CASES_WITHOUT_IO = 5_000


@dataclass(frozen=True, slots=True)
class Side:
    """What is fuzzed; a new cluster or server now and then, so that no case lives on old data."""

    fuzz: Fuzz
    cases_per_cluster: int = 500
    inputs_per_case: int = 1


SIDES = {
    "bookie": Side(bookie_side.fuzz),
    "client": Side(client_side.fuzz),
    "broker": Side(broker_side.fuzz, broker_side.CASES_PER_SERVER, broker_side.INPUTS_PER_CASE),
    "rest": Side(rest_side.fuzz, rest_side.CASES_PER_SERVER, rest_side.INPUTS_PER_CASE),
    "websocket": Side(websocket_side.fuzz, _CASES_WITHOUT_IO),
    "schemas": Side(schemas_side.fuzz, _CASES_WITHOUT_IO),
}
_REPORT_INTERVAL_S = 60.0


class _Progress:
    """A line now and then."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._reported_s = time.monotonic()

    def __call__(self, findings: Findings) -> None:
        if time.monotonic() - self._reported_s > _REPORT_INTERVAL_S:
            self._reported_s = time.monotonic()
            sys.stderr.write(f"{self._side} side: {findings.inputs} inputs, {findings.memory}\n")


def run(name: str, first_seed: int, inputs: int) -> Findings:
    """So many inputs of a side, in cases from a seed on; ends with the first findings."""
    side, findings = SIDES[name], Findings(_Progress(name))
    seed = first_seed
    while findings.inputs < inputs and not findings.texts:
        left = -(-(inputs - findings.inputs) // side.inputs_per_case)
        some = range(seed, seed + min(left, side.cases_per_cluster))
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(_run(side.fuzz, some, Path(directory), findings))
        seed = some.stop
    return findings


async def _run(fuzz: Fuzz, seeds: range, directory: Path, findings: Findings) -> None:
    await fuzz(seeds, directory, findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000, help="inputs per side")
    parser.add_argument("--seed", type=int, help="first seed; default: a new one, printed")
    parser.add_argument("--side", choices=[*SIDES, "all"], default="all")
    parser.add_argument(
        "--save", type=Path, default=Path("fuzz-findings.txt"), help="findings are added there"
    )
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
        findings = run(side, first, arguments.runs)
        seconds = time.monotonic() - started_s
        memory = f", {findings.memory}" if findings.memory.end_bytes else ""
        sys.stdout.write(
            f"{side} side: {findings.inputs} inputs from seed {first} in {seconds:.0f} s, "
            f"{len(findings.texts)} findings{memory}\n"
        )
        for text in findings.texts:
            failed = True
            sys.stdout.write(f"  {text}\n")
        if findings.texts:
            findings.save(arguments.save, side)
    if failed:
        sys.stdout.write("one case again: python -m tests.fuzz --runs 1 --side SIDE --seed SEED\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
