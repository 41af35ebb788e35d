"""Compares two checkouts: the broker's processor time per message, and the rate, in pairs.

Each checkout runs three bookies and a broker, with its own environment; the data lie in memory. The
lean clients of this checkout load one and then the other, in alternating order, so that other work
of the machine affects both. Brokers have one processor, bookies and clients another. The loads: one
message per SEND, delivery with acknowledgements by each kind of subscription, and acknowledgements
that leave a hole after each.

usage: python -m tests.bench.pairs BEFORE AFTER [--rounds N] [--messages N] [--only LOAD]

BEFORE and AFTER are checkouts in which `make test` has made `.venv`. Prints JSON: for each load the
medians of both, and the median of the pairs' ratios, AFTER to BEFORE.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import load
from tests.processes import cpu_s_of

_BACKLOG = "backlog"
_ACKS_MESSAGES = 48_000
"""Fewer messages than a consumer may hold without acknowledging."""
_SETTLE_S = 1

_SERVE = """
import json, sys
from pathlib import Path
from tests.cluster import ProcessCluster
with ProcessCluster(Path(sys.argv[1])) as cluster:
    print(json.dumps([cluster.port, [server.pid for server in cluster.servers]]), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class _Side:
    """The broker of one checkout."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Cost of a load: microseconds of the broker's processor per message, messages per second."""

    cpu_us: float
    rate: float


@contextmanager
def _serving(checkout: Path, directory: Path) -> Iterator[_Side]:
    """Run a cluster of the checkout's code."""
    server = subprocess.Popen(
        [str(checkout / ".venv" / "bin" / "python"), "-c", _SERVE, str(directory)],
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port, pids = json.loads(server.stdout.readline())
        for pid in pids[:-1]:
            _pin(pid, 1)
        _pin(pids[-1], 0)
        yield _Side(port, pids[-1])
    finally:
        server.stdin.close()
        server.wait()


def _pin(pid: int, processor: int) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {allowed[processor % len(allowed)]})


class _Loads:
    """The loads, each on topics or subscriptions that no earlier run used."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._runs = 0

    def prepare(self, side: _Side) -> None:
        """Publish the backlog."""
        least = max(self._messages, _ACKS_MESSAGES)
        load.run("dispatch_load", side.port, "publish", _BACKLOG, least, 64)

    def run(self, side: _Side, name: str) -> _Run:
        """Run the load once."""
        self._runs += 1
        return self._acks(side) if name == "acks" else self._timed(side, name)

    def _timed(self, side: _Side, name: str) -> _Run:
        before_s = cpu_s_of(side.pid)
        if name == "publish":
            topic = f"publish-{self._runs}"
            found = load.run("publish_load", side.port, topic, self._messages, 1024, 1000)
            rate = float(found["msgs_per_s"])
        else:
            consumers = 1 if name == "Exclusive" else 4
            found = load.run(
                *("dispatch_load", side.port, "consume", _BACKLOG, self._messages),
                *(name, consumers, f"{name}-{self._runs}"),
            )
            rate = self._messages / float(found["seconds"])
        return _Run((cpu_s_of(side.pid) - before_s) / self._messages * 1e6, rate)

    def _acks(self, side: _Side) -> _Run:
        # The size of the groups is part of the subscription's name, which must be new.
        [found] = load.run(
            *("acks_load", side.port, side.pid, _BACKLOG, _ACKS_MESSAGES, "Shared"),
            *(100 + self._runs, 1, _SETTLE_S),
        )
        return _Run(found["cpu_s"] / found["acks"] * 1e6, 0)


LOADS = ("publish", "Exclusive", "Shared", "Key_Shared", "acks")


def _compare(sides: Sequence[_Side], loads: _Loads, name: str, rounds: int) -> dict[str, object]:
    """Run a load in pairs; return the row of the report."""
    found: tuple[list[_Run], list[_Run]] = ([], [])
    for side in sides:
        loads.run(side, name)  # warm
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found[which].append(loads.run(sides[which], name))
    pairs = list(zip(*found, strict=True))
    row: dict[str, object] = {
        "cpu_us": [round(statistics.median(run.cpu_us for run in side), 2) for side in found],
        "cpu_ratio": round(statistics.median(b.cpu_us / a.cpu_us for a, b in pairs), 3),
        "cpu_ratios": sorted(round(b.cpu_us / a.cpu_us, 3) for a, b in pairs),
    }
    if all(a.rate for a, _ in pairs):
        row["msgs_per_s"] = [round(statistics.median(run.rate for run in side)) for side in found]
        row["rate_ratio"] = round(statistics.median(b.rate / a.rate for a, b in pairs), 3)
    return row


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Two checkouts in pairs; prints JSON.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--only", choices=LOADS)
    options = parser.parse_args()
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        sides = [
            opened.enter_context(_serving(checkout.resolve(), directory / name))
            for name, checkout in (("before", options.before), ("after", options.after))
        ]
        _pin(os.getpid(), 1)
        loads = _Loads(options.messages)
        for side in sides:
            loads.prepare(side)
        report: dict[str, object] = {}
        for name in LOADS:
            if options.only in (None, name):
                report[name] = _compare(sides, loads, name, options.rounds)
                sys.stderr.write(f"{name}: {report[name]}\n")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
