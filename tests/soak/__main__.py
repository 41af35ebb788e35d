"""`make soak`: a server under everything that comes and goes, for an hour: does it level off?

usage: python -m tests.soak [--minutes N] [--seed N] [--keep DIRECTORY]

One JSON object is printed. A run of less than half an hour does not judge the memory: caches fill
and pools grow until then.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from tests.soak.gauges import Bounds, Sample, levels, look, rising
from tests.soak.load import Load
from tests.standalone import EXCEPTION_MARKS, Standalone

_SAMPLE_S = 5.0
_JUDGES_MEMORY_FROM_MINUTES = 30.0
_SETTINGS = {
    "LEDGER_ENTRIES_MAX": "1000",
    "LEDGER_AGE_MIN_S": "0",
    "UNSUBSCRIBED_RETENTION": "false",
}
"""Ledgers end, are trimmed and deleted all the time, also where nobody has subscribed."""
_BOOKIE = {
    "MAGNETAR_BOOKIE_GC_INTERVAL_S": "30",
    "MAGNETAR_BOOKIE_TOMBSTONES_MAX": "2000",
    "MAGNETAR_BOOKIE_ENTRY_LOG_LEDGERS_MAX": "2000",
}
"""Low bounds for tables that grow for hours: both are full before the memory is judged."""


async def _soak(server: Standalone, load: Load, seconds: float) -> list[Sample]:
    began_s = time.monotonic()
    samples: list[Sample] = []

    async def watch() -> None:
        while True:
            samples.append(look(server.process.pid, server.directory, began_s=began_s))
            await asyncio.sleep(_SAMPLE_S)

    watching = asyncio.ensure_future(watch())
    try:
        await load.run(seconds)
    finally:
        watching.cancel()
        ended = await asyncio.gather(watching, return_exceptions=True)
    if isinstance(ended[0], OSError):
        load.errors.append(f"the server ended: {ended[0]}")
    return samples


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep data and log there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.keep or Path(temporary)) / "data"
        directory.parent.mkdir(parents=True, exist_ok=True)
        result = run(directory, options.minutes, options.seed)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0 if result["ok"] else 1


def run(directory: Path, minutes: float, seed: int) -> dict[str, object]:
    """One soak; what came of it."""
    bounds = Bounds()
    if minutes < _JUDGES_MEMORY_FROM_MINUTES:
        bounds = replace(bounds, memory_mib=float("inf"))
    server = Standalone(directory, settings={**_SETTINGS}, environment=_BOOKIE)
    with server:
        load = Load(server.port, server.http_port, seed=seed)
        samples = asyncio.run(_soak(server, load, minutes * 60))
        status = server.terminate()
    problems = [*load.errors, *rising(samples, bounds)]
    if status:
        problems.append(f"the server ended with status {status}")
    text = server.log_text()
    problems += [f"the log holds {mark}" for mark in EXCEPTION_MARKS if mark in text]
    allowed = {name: bound for name, bound in asdict(bounds).items() if bound < float("inf")}
    return {
        "ok": not problems,
        "minutes": minutes,
        "seed": seed,
        "did": dict(load.done),
        "levels": levels(samples),
        "memory_mib each 5 minutes": [
            round(each.memory_mib, 1) for each in samples[:: round(300 / _SAMPLE_S)]
        ],
        "allowed growth": allowed,
        "problems": problems,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
