"""Effect of the machine on an event loop beside a busy disk: `python -m
tests.bench.storage_witness`.

No code of the bookie runs. A thread writes a file and syncs every megabyte. The loop copies each of
these megabytes as a socket would bring it: in four parts, which are kept until there are 64 MB of
them, and then freed. The probe is the bookie's (loop_probe.py). If a bookie's loop is held as long
as this one, the machine is the cause.

usage: python -m tests.bench.storage_witness DIRECTORY MEGABYTES    prints JSON (loop_probe.py)
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import uvloop

from tests.bench.loop_probe import Lateness, Probe
from tests.bench.storage_yardstick import write_synced

_PART_BYTES = 256_000
_PARTS = 4
_KEPT_PARTS_MAX = 256


def witness(directory: Path, megabytes: int) -> Lateness:
    """Run the witness in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.storage_witness", str(directory), str(megabytes)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    return Lateness(**json.loads(done.stdout))


class _Copier:
    """Copies memory on the loop."""

    def __init__(self) -> None:
        self._source = bytearray(os.urandom(_PART_BYTES))
        self._kept: list[bytes] = []

    def on_written(self) -> None:
        """Copy a megabyte, after one was synced to the disk."""
        self._kept += [bytes(self._source) for _ in range(_PARTS)]
        if len(self._kept) >= _KEPT_PARTS_MAX:
            asyncio.get_running_loop().run_in_executor(None, _free, self._kept)
            self._kept = []


def _free(parts: list[bytes]) -> None:
    while parts:
        parts.pop()


async def _run(directory: Path, megabytes: int) -> Lateness:
    loop = asyncio.get_running_loop()
    probe, copier = Probe(), _Copier()

    def on_synced() -> None:
        loop.call_soon_threadsafe(copier.on_written)

    probe.start()
    await asyncio.to_thread(
        write_synced,
        directory / "witness",
        megabytes << 20,
        on_synced,
        drops=True,
    )
    return probe.take()


if __name__ == "__main__":
    seen = uvloop.run(_run(Path(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps(asdict(seen)))
