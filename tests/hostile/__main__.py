"""`make hostile`: a hostile client on loopback, against servers of its own.

usage: python -m tests.hostile [--short] [--only NAME]

One JSON object is printed: of each drill the probes, the figures and the problems. Odd input at
random is `make fuzz`, damaged files are `tests/chaos/test_damages.py`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from tests.hostile import crowds, doors, tokens
from tests.hostile.findings import Findings

Drill = Callable[[Path, bool], Awaitable[Findings]]
"""In a directory of its own, and whether it is the short form."""

DRILLS: dict[str, Drill] = {
    "doors": lambda directory, is_short: doors.drill(directory),
    "tokens": lambda directory, is_short: tokens.drill(directory),
    "silent": lambda directory, is_short: crowds.silent(directory, 500 if is_short else 12_000),
    "crowds": lambda directory, is_short: crowds.coming_and_going(1_000 if is_short else 10_000),
}


async def run(name: str, *, is_short: bool) -> dict[str, object]:
    """One drill; what came of it."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        findings = await DRILLS[name](Path(directory), is_short)
    return {**asdict(findings), "seconds": round(time.monotonic() - began_s, 1)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make hostile", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer connections and members")
    parser.add_argument("--only", choices=[*DRILLS, ""], default="")
    options = parser.parse_args(arguments)
    names = [name for name in DRILLS if options.only in ("", name)]
    results = {name: asyncio.run(run(name, is_short=options.short)) for name in names}
    is_ok = not any(result["problems"] for result in results.values())
    sys.stdout.write(json.dumps({"ok": is_ok, "drills": results}, indent=1) + "\n")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
